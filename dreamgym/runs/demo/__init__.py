"""The whole loop on a real game, with the truth beside the dream."""
