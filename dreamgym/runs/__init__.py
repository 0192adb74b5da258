"""What the verbs do, callable from Python: the top floor, which may import all four packages."""
