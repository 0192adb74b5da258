"""The command line: one thin file per verb. The top floor: it may import all four packages; nothing imports it.

stdout is the result, stderr the talk. Exit 0 done, 1 failed, 2 misused.
"""
