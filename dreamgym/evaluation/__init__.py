"""Compares the simulation with reality: step by step, in closed loop, and by cost."""
