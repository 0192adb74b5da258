"""`python -m dreamgym` runs the command line."""

from dreamgym.cli.app import main

main()
