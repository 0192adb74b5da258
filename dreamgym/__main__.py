"""`python -m dreamgym`: the program without its script."""

from dreamgym.cli.app import main

main()
