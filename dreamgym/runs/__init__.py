"""The functions behind the verbs of the command line. This layer may import all four packages."""
