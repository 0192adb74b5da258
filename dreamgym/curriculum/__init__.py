"""What to practise next: tasks that the policy solves only sometimes."""
