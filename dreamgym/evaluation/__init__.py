"""Simulation against reality: step by step, in closed loop, and what it costs."""
