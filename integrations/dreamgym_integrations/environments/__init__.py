"""Real environments, one file each."""
