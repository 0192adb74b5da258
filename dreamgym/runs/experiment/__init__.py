"""Experiments: one file of arms and seeds, trained and measured into one table."""
