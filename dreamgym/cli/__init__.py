"""The command line, with one thin file per verb. It may import all four packages; nothing imports it.

Results go to stdout, messages to stderr. Exit codes: 0 done, 1 failed, 2 misused.
"""
