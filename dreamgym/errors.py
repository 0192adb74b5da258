"""Every error that a user can meet, in one tree, named by who must act.

DreamGymError
├── InvalidInput              the caller: a file, a flag or a request is not what was expected
│   ├── UnknownName           … names something that does not exist; the message lists what there is
│   └── MissingPackage        … needs an optional package; the message names the extra that brings it
├── EpisodeError              the agent's side
│   ├── UnknownEpisode        it was closed, expired, or never started
│   └── EpisodeFinished       it is over; start a new one
├── EnvironmentUnavailable    the environment failed; the step was not counted
│   └── PredictionError       the experience model gave no usable answer
│       ├── MalformedAnswer   … it answered twice, and neither answer was valid
│       └── NotRecorded       … no recording shows what the call answers, so that asking again does not help
├── BudgetSpent               the next call of a language model could cost more than the run may spend
├── TrainingStopped           going on would teach nothing, or harm; what was learned before is saved
├── StoreError                the database cannot be reached, is too old or lacks pgvector
└── StaleEpisode              another replica was faster; read the episode again
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class DreamGymError(Exception):
    """Base of all errors of this project."""


class InvalidInput(DreamGymError):
    """A file, a flag or a request is not what was expected."""


class UnknownName(InvalidInput):
    """A name that is not known; the message lists the known ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        listed = ", ".join(sorted(known))
        expected = f"expected one of {listed}" if listed else "there is none"
        super().__init__(f"unknown {kind} {name!r}: {expected}" + (f". {hint}" if hint else ""))


class MissingPackage(InvalidInput):
    """An optional package is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs a package that is not installed: {install_command(extra)}")


def install_command(extra: str) -> str:
    """How to install an optional package. The project is not on an index yet, so it is installed from its clone."""
    return f"pip install -c constraints.txt '.[{extra}]', in the clone of this project"


class EpisodeError(DreamGymError):
    """The agent's side used an episode wrongly."""


class UnknownEpisode(EpisodeError):
    """The episode was closed, expired, or never started."""

    def __init__(self, episode: str) -> None:
        super().__init__(f"unknown episode {episode!r}: it was closed, expired, or never started")


class EpisodeFinished(EpisodeError):
    """The episode is over and takes no further step."""


class EnvironmentUnavailable(DreamGymError):
    """The environment could not answer; the step was not counted and there is no reward."""


class PredictionError(EnvironmentUnavailable):
    """The experience model gave no usable answer."""


class MalformedAnswer(PredictionError):
    """A language model was asked twice, and neither answer was valid.

    Args:
        message: the fault of the second answer.
        tokens: the tokens of the answers, by the fields of `TokenUsage`.
    """

    def __init__(self, message: str, tokens: Mapping[str, int] | None = None) -> None:
        super().__init__(message)
        self.tokens = tokens or {}


class NotRecorded(PredictionError):
    """No recording shows what a call answers. The same call fails again until more is recorded."""


class BudgetSpent(DreamGymError):
    """The next call could pass the budget of the run. The message says what is kept and what to do."""


class TrainingStopped(DreamGymError):
    """Training cannot go on; the checkpoints from before are whole, and the message says what to do."""


class StoreError(DreamGymError):
    """The database cannot be used; the message says what to do."""


class StaleEpisode(DreamGymError):
    """Another writer was faster: read the episode again, then decide again."""


def in_one_line(text: object) -> str:
    """The text for a log: blanks replace line breaks and other control characters, which could forge lines of it."""
    return _CONTROL.sub(" ", str(text))
