"""Recordings: the recorder's log, the environment folder made from it, and importers for other formats."""
