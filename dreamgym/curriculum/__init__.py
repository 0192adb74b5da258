"""Chooses the tasks to practise next: those that the policy solves only sometimes."""
