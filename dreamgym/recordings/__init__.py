"""What was recorded: the log of a recorder, the environment folder made from it, other people's formats."""
