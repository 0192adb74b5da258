"""The content of an experiment file: its arms, seeds, recordings and test.

Everything random follows from the seed: the recordings, the warm start and the training. Within a seed, all arms start
from the same recordings and the same policy, so that their differences are paired. Several files with the same
recordings, warm start and test may share a run folder. Arms with the same name in it are one arm.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import AliasChoices, Field, JsonValue, ValidationError, field_validator, model_validator

from dreamgym.environment import first_reason
from dreamgym.errors import InvalidInput
from dreamgym.runs.settings import settings_of
from dreamgym.runs.train.config import RECORDED, NewPolicy, TrainConfig
from dreamgym.training.practice import SEEDS
from dreamgym.types import Frozen, JsonObject, Task

Spoiled = Literal["next states", "calls and next states", "every reward", "no reward"]
SHUFFLED = ("next states", "calls and next states")
"""The ways to spoil that shuffle steps."""
TAKEN = {"", "warm", "untrained"}
"""Names of folders that an arm cannot have: the seed's folder itself, and those of its warm start."""


class Play(Frozen):
    """Real episodes to play and record."""

    behaviour: str = Field(validation_alias=AliasChoices("behaviour", "agent"))
    """A behaviour of the environment, such as `expert`. Earlier published results call it `agent`."""
    episodes: int = Field(ge=1)
    """Number of episodes."""
    tasks: int = Field(ge=1)
    """Number of training tasks, from the first on, that are played in turn."""
    warm: bool = False
    """True if the warm start imitates these episodes."""


class RecordedFile(Frozen):
    """Real episodes that were recorded before, for example at a server that cannot be played here."""

    file: Path
    """JSONL of episodes, for example of an environment folder. Episodes of tested, probed or held-out tasks
    are left out."""


class WarmStart(Frozen):
    """Settings of the policy that all arms begin with, which is made from scratch and imitates recorded episodes."""

    policy: NewPolicy = "tiny"
    """Kind of the policy, as in `dreamgym train --policy`: `tiny`, `pointer` or `pointer without marks`."""
    steps: int = Field(default=200, ge=1)
    """Number of updates."""
    batch: int = Field(default=32, ge=1)
    """Number of episodes per update; for a pointer policy, number of steps."""
    learning_rate: float = Field(default=3e-3, gt=0)
    """Learning rate of the first update."""


class Fit(Frozen):
    """Settings with which `dreamgym fit` makes a model of a seed's recordings. Arms with equal settings share it."""

    base: str = "tiny"
    """The model to begin with, as in `dreamgym fit --base`."""
    k: int = Field(default=2, ge=0)
    """Number of recorded transitions that the model is shown with each step."""
    steps: int = Field(ge=1)
    """Number of updates."""

    @property
    def name(self) -> str:
        """Name of the model's folder."""
        return re.sub(r"\W+", "_", f"model_{self.base}_k{self.k}_steps{self.steps}")


class Arm(Frozen):
    """One way to make a policy. An arm with only a name is the warm start itself."""

    name: str = Field(min_length=1)
    """The arm's name, in tables and for its folder."""
    behaviour: str | None = None
    """Behaviour of the environment, such as `random`, that plays in place of a policy."""
    train: JsonObject | None = None
    """Settings of `dreamgym train`, with the defaults `stop = false`, `keep = "last"` and `dead_updates = 0`. Training
    starts from the warm start, from the arm in `after`, or from the `policy` of these settings."""
    fit: Fit | None = None
    """Fitted experience model whose dream the arm trains in; only if `train` has no `model`."""
    after: str | None = None
    """Name of the arm whose policy this arm begins with. The steps and seconds of that arm are counted here too."""
    rates: tuple[float, ...] = ()
    """Learning rates to train with. The first two seeds try all of them. The arm gets the rate with the best last real
    probes on dev tasks in these seeds, and the other seeds train with that rate alone."""
    spoiled: Spoiled | None = None
    """Makes the arm a control that must not help, by what it does to the recordings of the arm's dream. `next states`
    shuffles the answers among the steps; `calls and next states` shuffles the calls too; with `every reward` every
    recorded step is a success, and with `no reward` none is."""
    spoiled_share: float = Field(default=1.0, gt=0, le=1)
    """Share of the recorded steps that `spoiled` shuffles."""
    recordings: int | None = Field(default=None, ge=1)
    """Number of recorded episodes that the dream knows, drawn by the seed; without it, all. A smaller draw is part of a
    larger one."""

    @field_validator("name")
    @classmethod
    def _has_a_folder(cls, value: str) -> str:
        if _folder_of(value) in TAKEN:
            raise ValueError(
                f"expected letters or digits, and no name of our own folders (warm, untrained), got {value!r}"
            )
        return value

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.behaviour is not None and self.train is not None:
            raise ValueError(f"arm {self.name!r}: expected behaviour or train, got both")
        for name in ("spoiled", "recordings"):
            if name in self.known and self.train is None:
                raise ValueError(f"arm {self.name!r}: {name} is for an arm that trains")
        if self.spoiled_share < 1 and self.spoiled not in SHUFFLED:
            raise ValueError(
                f"arm {self.name!r}: spoiled_share is the share of the steps that are shuffled: expected spoiled to be "
                f"{' or '.join(map(repr, SHUFFLED))}, got {self.spoiled!r}"
            )
        if (self.known or self.fit is not None) and (self.train or {}).get("against") == "real":
            raise ValueError(
                f"arm {self.name!r}: spoiled, recordings and fit change what a dream knows, and this arm trains in the "
                "real environment: leave them out, or train it in a dream"
            )
        if self.fit is not None and (self.train is None or "model" in self.train):
            raise ValueError(f"arm {self.name!r}: fit is for an arm that trains and names no model")
        if self.after is not None and (self.train is None or "policy" in self.train):
            raise ValueError(f"arm {self.name!r}: after is for an arm that trains and names no policy")
        if self.fit is not None and self.known:
            raise ValueError(
                f"arm {self.name!r}: fit makes a model of all recordings as they are: leave out spoiled and recordings"
            )
        if self.rates and (self.train is None or "learning_rate" in self.train):
            raise ValueError(f"arm {self.name!r}: rates are for an arm that trains and names no learning_rate")
        train = self.train or {}
        if "seed" in train:
            raise ValueError(f"arm {self.name!r}: every arm trains with the seeds of the file: leave out train.seed")
        if self.rates and (str(train.get("algorithm")) in RECORDED or str(train.get("probe")) == "0"):
            raise ValueError(
                f"arm {self.name!r}: real probes choose among rates, and sft, dpo and probe = 0 have no probes: give a "
                "learning_rate instead"
            )
        return self

    def trained(self) -> list[Arm]:
        """The arms that are trained for this arm: itself, or one for each of its rates."""
        if not self.rates:
            return [self]
        return [
            self.model_copy(
                update={
                    "name": f"{self.name}, rate {rate:g}",
                    "rates": (),
                    "train": {**(self.train or {}), "learning_rate": rate},
                }
            )
            for rate in self.rates
        ]

    @property
    def begins_warm(self) -> bool:
        """True if the arm begins with the warm start, or is it."""
        return self.behaviour is None and self.after is None and "policy" not in (self.train or {})

    @property
    def known(self) -> JsonObject:
        """Settings of the recordings that its dream knows."""
        share = {"spoiled_share": self.spoiled_share} if self.spoiled is not None else {}
        told: JsonObject = {"spoiled": self.spoiled, **share, "recordings": self.recordings}
        return {name: value for name, value in told.items() if value is not None}

    @property
    def settings(self) -> JsonObject:
        """All settings that determine the result, with today's defaults. Raises InvalidInput for an invalid setting.

        A setting that `train` chooses itself if it is not given is None then.
        """
        try:
            train = None if self.train is None else settings_of(TrainConfig, None, flags(self.train))
        except InvalidInput as error:
            raise InvalidInput(f"arm {self.name!r}: {error}") from error
        chosen = None if train is None else train.model_dump(mode="json")
        if train is not None and chosen is not None:  # these depend on the policy and on `real_steps` if not given
            derived = {"learning_rate"} | ({"steps"} if train.real_steps is not None else set())
            chosen |= dict.fromkeys(derived - train.model_fields_set)
        return {
            "behaviour": self.behaviour,
            "after": self.after,
            **self.known,
            "fit": None if self.fit is None else self.fit.model_dump(mode="json"),
            "train": chosen,
        }


class Measured(Frozen):
    """Settings of the test: the arms are compared in the real environment, on tasks that nothing else uses."""

    split: str = "test"
    """Split of the tasks."""
    episodes: int = Field(default=500, ge=1)
    """Number of tasks, taken from the end of the split; each is played once per seed."""


class Comparison(Frozen):
    """A difference that the table shows, paired over seeds and tasks."""

    arm: str
    """Name of an arm."""
    against: str
    """Name of the arm that is subtracted from it."""
    goal: str = ""
    """The hoped-for result in words. The table shows it beside the measured one."""


class Plan(Frozen):
    """An experiment file."""

    title: str
    """Heading of the report."""
    env: str
    """The environment: a name, a folder, `module:function` or `file.py:function`, from the current folder."""
    seeds: tuple[int, ...] = Field(min_length=1)
    """Seeds. Each arm is trained and measured with each of them."""
    recorded: tuple[Play | RecordedFile, ...] = Field(min_length=1)
    """Real episodes, to play or from a file, that each seed begins with."""
    warm: WarmStart = WarmStart()
    """The warm start."""
    test: Measured = Measured()
    """The test."""
    held_out: str = ""
    """Only tasks whose id contains this text are tested, and only other tasks are recorded or read from files; empty:
    no such limit."""
    arm: tuple[Arm, ...] = Field(min_length=1)
    """The arms, in the order of the table."""
    compare: tuple[Comparison, ...] = ()
    """The differences that the second table shows."""

    @field_validator("seeds")
    @classmethod
    def _usable(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if twice := sorted({seed for seed in value if value.count(seed) > 1}):
            raise ValueError(f"expected different seeds, got {', '.join(map(str, twice))} more than once")
        if strange := [seed for seed in value if not 0 <= seed < SEEDS]:
            raise ValueError(f"expected numbers from 0 to {SEEDS - 1}, got {strange[0]}")
        return value

    @model_validator(mode="after")
    def _names(self) -> Self:
        names = [arm.name for arm in self.arm]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two arms are called {', '.join(sorted(twice))}")
        folders: dict[str, list[str]] = defaultdict(list)
        for made in (one for arm in self.arm for one in arm.trained()):
            folders[name_of(made)].append(made.name)
        for folder, shared in folders.items():
            if len(shared) > 1:
                raise ValueError(
                    f"arms {', '.join(map(repr, shared))} would have the same folder {folder!r}: rename one"
                )
        trained: set[str] = set()
        for arm in self.arm:
            if arm.after is not None and arm.after not in trained:
                raise ValueError(
                    f"arm {arm.name!r} comes after {arm.after!r}, which is not an arm above it that trains at one rate"
                )
            if arm.train is not None and not arm.rates:
                trained.add(arm.name)
        for one in self.compare:
            if unknown := {one.arm, one.against} - set(names):
                raise ValueError(f"[[compare]] names unknown arms: {', '.join(sorted(unknown))}")
        real = [
            arm.name for arm in self.arm if "real" in ((arm.train or {}).get("against"), (arm.train or {}).get("then"))
        ]
        if self.held_out and real:
            raise ValueError(
                "held_out: practice in the real environment would play held-out tasks too; leave out the arms "
                f"{', '.join(real)}"
            )
        there = sum(play.episodes for play in self.plays)
        if not self.files and (more := [arm.name for arm in self.arm if (arm.recordings or 0) > there]):
            raise ValueError(f"only {there} episodes are recorded, and recordings asks for more: {', '.join(more)}")
        if any(arm.begins_warm for arm in self.arm) and not any(play.warm for play in self.plays):
            raise ValueError("no [[recorded]] play has warm = true: the warm start has nothing to imitate")
        return self

    @property
    def plays(self) -> list[Play]:
        """The episodes to play and record."""
        return [one for one in self.recorded if isinstance(one, Play)]

    @property
    def files(self) -> list[RecordedFile]:
        """The files of episodes that were recorded before."""
        return [one for one in self.recorded if isinstance(one, RecordedFile)]

    def recordable(self, tasks: Sequence[Task]) -> list[Task]:
        """The training tasks that may be recorded."""
        return [task for task in tasks if not self.held_out or self.held_out not in task.id]

    def tested(self, tasks: Sequence[Task]) -> list[Task]:
        """The tasks of the split that are tested. Raises InvalidInput if there are none."""
        found = [task for task in tasks if self.held_out in task.id][-self.test.episodes :]
        if not found:
            raise InvalidInput(f"held_out: no task of the split {self.test.split!r} has {self.held_out!r} in its id")
        return found

    def difference(self, other: Plan) -> str | None:
        """Names of the common settings of all arms that differ in `other`, as text; None if none differs."""
        shared = ("env", "recorded", "warm", "test", "held_out")
        return ", ".join(name for name in shared if getattr(self, name) != getattr(other, name)) or None


def name_of(arm: Arm) -> str:
    """Name of the arm's folder."""
    return _folder_of(arm.name)


def _folder_of(name: str) -> str:
    return re.sub(r"\W+", "_", name.lower()).strip("_")


def flags(settings: Mapping[str, JsonValue], prefix: str = "") -> list[str]:
    """Settings as command line arguments of `dreamgym train`."""

    def pairs() -> Iterator[str]:
        for key, value in settings.items():
            name = f"{prefix}{key}"
            if isinstance(value, dict):
                yield from flags(value, f"{name}.")
            elif isinstance(value, list):
                yield from (f"--{name}", ",".join(map(str, value)))
            else:
                yield from (f"--{name}", str(value))

    return list(pairs())


def read_plan(file: Path) -> Plan:
    """Read an experiment file. Raises InvalidInput if the file, or a setting of one of its arms, is invalid."""
    try:
        given = tomllib.loads(file.read_text(encoding="utf-8"))
        plays = given.get("recorded")
        if isinstance(plays, list) and any("agent" in play for play in plays if isinstance(play, dict)):
            raise InvalidInput(f"{file}: [[recorded]] agent is called behaviour now: write behaviour = …")
        plan = Plan.model_validate(given)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise InvalidInput(f"{file}: {_reason(error, given)}") from error
    except (ValueError, RecursionError) as error:  # ValueError: also a number with too many digits
        raise InvalidInput(f"{file} is not valid TOML: {error}") from error
    for arm in (one for named in plan.arm for one in named.trained()):
        try:
            _ = arm.settings
        except InvalidInput as error:
            raise InvalidInput(f"{file}: {error}") from error
    return plan


def _reason(error: ValidationError, given: JsonObject) -> str:
    """The first fault, with the name of its arm instead of the arm's number."""

    def named(found: re.Match[str]) -> str:
        arms = given["arm"]
        arm = arms[int(found[1])] if isinstance(arms, list) else None
        return f"arm {arm['name']!r}: " if isinstance(arm, dict) and "name" in arm else found[0]

    return re.sub(r"^arm\.(\d+)(?:\.|: )", named, first_reason(error, Plan.model_fields))
