"""`dreamgym-serve`."""
