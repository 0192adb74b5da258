"""`python -m dreamgym` runs the command line."""

from dreamgym.cli import main

main()
