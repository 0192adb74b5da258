"""What a tool does to an explicit state, learned from its recordings: from values that follow to a whole program."""
