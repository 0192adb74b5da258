"""Arms times seeds from one file, to one table."""
