"""The search for programs: expressions, effects and decisions that fit every recorded call."""
