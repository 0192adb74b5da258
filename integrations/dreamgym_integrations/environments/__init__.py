"""Real environments, one package each."""
