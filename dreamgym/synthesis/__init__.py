"""Learns from recorded calls of a tool what the tool does to an explicit state, as a program that can be run.

`LearnedPrograms`, `learn` and `ToolProgram` are the whole interface; every other module is private to this package.
`docs/synthesis.md` explains what is learned, with an example.
"""

from dreamgym.synthesis.learn import LearnedPrograms, learn
from dreamgym.synthesis.program import ProgramResult, ToolProgram

__all__ = ["LearnedPrograms", "ProgramResult", "ToolProgram", "learn"]
