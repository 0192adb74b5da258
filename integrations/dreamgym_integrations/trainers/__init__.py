"""Trainers; everything that touches torch or TRL lives here."""
