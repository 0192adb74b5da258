"""ALFWorld's games as tasks, read from the user's folder and indexed once.

Two forms are read: the folder that `alfworld-download` fills (json_2.1.1/SPLIT/TASK/TRIAL), and packed rows
(SPLIT.jsonl.xz, one game per line). Only the PDDL problem, the wording of the task and the flag `solvable` of a game
file are used. Its grammar may be of a release with the wording "put X in/on Y", so it is never played. No package is
needed.

Splits are the original's: dev is valid_seen, test is valid_unseen. If a folder of packed rows has neither, the splits
are cut by floor plan: numbers that end in 5 are dev, those that end in 0 are test, and no floor plan is in two splits.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import sqlite3
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from pydantic import BaseModel, Field, JsonValue, ValidationError, model_validator

from dreamgym.environment import first_reason
from dreamgym.errors import InvalidInput, UnknownName
from dreamgym.types import Task
from dreamgym_integrations.environments.alfworld.wording import start_text
from dreamgym_integrations.environments.base import check_split

SPLITS: Mapping[str, tuple[str, ...]] = {
    "train": ("train", "valid_train"),
    "dev": ("valid_seen",),
    "test": ("valid_unseen",),
}
GOALS: Mapping[str, tuple[str, str]] = {
    "pick_and_place_simple": ("put a {obj} in {recep}", "put some {obj} on {recep}"),
    "look_at_obj_in_light": ("look at {obj} under the {toggle}", "examine the {obj} with the {toggle}"),
    "pick_clean_then_place_in_recep": ("put a clean {obj} in {recep}", "clean some {obj} and put it in {recep}"),
    "pick_heat_then_place_in_recep": ("put a hot {obj} in {recep}", "heat some {obj} and put it in {recep}"),
    "pick_cool_then_place_in_recep": ("put a cool {obj} in {recep}", "cool some {obj} and put it in {recep}"),
    "pick_two_obj_and_place": ("put two {obj} in {recep}", "find two {obj} and put them in {recep}"),
}
"""The original's wordings of the six task types. The name of a game picks one if its file has no wording."""
DOWNLOAD = "run `alfworld-download` to get the official data"
FORM = 1
"""Version of the index's form: raise it when that form changes."""

Read = TypeVar("Read", bound=BaseModel)

_AT = re.compile(r"\(receptacleAtLocation ([^\s?]\S*) ", re.IGNORECASE)
_THING = re.compile(r"\b[A-Za-z]+_bar_\w+")
_GOAL = re.compile(r"Your task is to: (?!UNKNOWN GOAL)(.+?)\.?(?=\\n|\n|\")")


class Targets(BaseModel):
    """The objects that a task is about."""

    object_target: str
    parent_target: str = ""
    toggle_target: str = ""


class Annotation(BaseModel):
    """How a person described the task."""

    task_desc: str


class Annotations(BaseModel):
    """How people described the task."""

    anns: list[Annotation] = Field(default_factory=list)


class TrialScene(BaseModel):
    """Where a trial of the official data plays."""

    scene_num: int


class Trial(BaseModel):
    """The fields that are read of a traj_data.json of the official data, or of a packed row."""

    task_type: str
    pddl_params: Targets
    turk_annotations: Annotations = Annotations()
    scene: TrialScene | None = None
    scene_num: int | None = None
    game: str = ""
    pddl_problem: str = ""

    @property
    def floor_plan(self) -> int:
        """Number of the floor plan in the simulator that the rooms come from."""
        return self.scene.scene_num if self.scene is not None else self.scene_num or 0

    @model_validator(mode="after")
    def _plays_somewhere(self) -> Trial:
        if self.scene is None and self.scene_num is None:
            raise ValueError("expected scene_num, the number of the floor plan")
        return self


class GameFile(BaseModel):
    """The fields of a game.tw-pddl that are used."""

    pddl_problem: str
    grammar: str
    solvable: bool | None = None


class GameRow(NamedTuple):
    """One game."""

    source: str
    """The original's name of the split."""
    game: str
    goal: str
    trial: Trial
    problem: str


class Games:
    """The games of one data folder.

    Args:
        data: the user's folder.
        cache: where the index is kept, under a name that changes with the data.
        incomplete: leave out trials whose game file is missing, instead of refusing the folder.
    """

    def __init__(self, data: Path, cache: Path, *, incomplete: bool = False) -> None:
        if not data.is_dir():
            raise InvalidInput(
                f"ALFWorld's data folder {data} does not exist: {DOWNLOAD}, or set [real] data to the games' folder"
            )
        self._data = data
        root = data / "json_2.1.1" if (data / "json_2.1.1").is_dir() else data
        rows = packed_files(root)
        found = rows or official_files(root, incomplete)
        if not found:
            trials = "trials such as train/TASK/TRIAL/traj_data.json"
            wanted = trials if root.name == "json_2.1.1" else "a folder json_2.1.1"
            raise InvalidInput(f"{root}: expected {wanted}, or train.jsonl.xz, found neither: {DOWNLOAD}")
        self._index = cache / f"games-{_digest(found)}.sqlite"
        if not self._index.exists():
            by_source = not rows or any(source in (*SPLITS["dev"], *SPLITS["test"]) for source, _ in found)
            _write(self._index, packed(rows) if rows else official(found), by_source)

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split, in an order that mixes the types. Raises UnknownName, or InvalidInput if none."""
        check_split(split)
        with closing(self._open()) as index:
            rows = index.execute("SELECT task FROM game WHERE split = ? ORDER BY place", (split,)).fetchall()
        if not rows:
            missing = " or ".join(SPLITS[split])
            raise InvalidInput(f"{self._data} has no games for {split}, expected {missing} in it: {DOWNLOAD}")
        return [Task.model_validate_json(row[0]) for row in rows]

    def problem(self, game: str) -> str:
        """The PDDL problem of a game. Raises UnknownName."""
        return zlib.decompress(self._of(game, "problem")).decode()

    def instruction(self, game: str) -> str:
        """The instruction of a game's task. Raises UnknownName."""
        return Task.model_validate_json(self._of(game, "task")).instruction

    def _of(self, game: str, column: Literal["problem", "task"]) -> bytes:
        with closing(self._open()) as index:
            row = index.execute(f"SELECT {column} FROM game WHERE name = ?", (game,)).fetchone()
            if row is None:
                some = [name for (name,) in index.execute("SELECT name FROM game ORDER BY place LIMIT 5")]
                raise UnknownName("game of ALFWorld", game, some, f"these are a few of those in {self._data}")
        content: bytes = row[0]
        return content

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(f"{self._index.resolve().as_uri()}?mode=ro", uri=True)


def packed_files(root: Path) -> list[tuple[str, Path]]:
    """The files of packed rows, each with the original's name of its split."""
    sources = [source for split in SPLITS.values() for source in split]
    files = [(source, root / f"{source}.jsonl{end}") for source in sources for end in ("", ".xz")]
    return [(source, file) for source, file in files if file.is_file()]


def packed(files: Sequence[tuple[str, Path]]) -> Iterator[GameRow]:
    """Games of packed rows. Raises InvalidInput with file, line and reason."""
    for source, file in files:
        number = 0
        try:
            with (
                lzma.open(file, "rt", encoding="utf-8")
                if file.suffix == ".xz"
                else file.open(encoding="utf-8") as lines
            ):
                for number, line in enumerate(lines, start=1):
                    trial = Trial.model_validate_json(line)
                    if not trial.game or not trial.pddl_problem:
                        raise InvalidInput(f"{file}, line {number}: expected a row with game and pddl_problem")
                    require_whole(trial.pddl_problem, f"{file}, line {number}: pddl_problem")
                    yield GameRow(source, trial.game, worded(trial), trial, trial.pddl_problem)
        except (EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{file} is cut off or damaged after line {number}: {error}. Copy it again") from error
        except (ValidationError, ValueError) as error:
            raise InvalidInput(f"{file}, line {number}: {first_reason(error)}") from error


def official_files(root: Path, incomplete: bool) -> list[tuple[str, Path]]:
    """traj_data.json of every trial that is a text game. Raises InvalidInput if files of games are missing."""
    found: list[tuple[str, Path]] = []
    missing: list[Path] = []
    for source in [source for split in SPLITS.values() for source in split]:
        for folder, folders, files in os.walk(root / source):
            folders.sort()
            trial = folder.removeprefix(str(root))  # a folder above, such as /media/removable, says nothing of the game
            there = {"traj_data.json", "game.tw-pddl"}.intersection(files)
            if not there or "movable" in trial or "Sliced" in trial:
                continue
            if len(there) == 2:
                found.append((source, Path(folder, "traj_data.json")))
            else:
                missing.append(Path(folder))
    if missing and not (incomplete and found):
        raise InvalidInput(
            f"{len(missing)} of {len(missing) + len(found)} trials have no game.tw-pddl, or no traj_data.json, such as "
            f"{missing[0]}: the download is incomplete; run `alfworld-download` again"
            + (", or leave them out with [real] incomplete = true" if found else "")
        )
    return found


def official(files: Sequence[tuple[str, Path]]) -> Iterator[GameRow]:
    """The solvable games of the official data. Raises InvalidInput with the file and the reason."""
    for source, file in files:
        game_file = file.with_name("game.tw-pddl")
        trial = _read(file, Trial)
        game = _read(game_file, GameFile)
        if trial.task_type not in GOALS or not game.solvable:
            continue
        require_whole(game.pddl_problem, f"{game_file}: pddl_problem")
        goal = _GOAL.search(game.grammar)
        name = f"{file.parent.parent.name}/{file.parent.name}"
        yield GameRow(source, name, goal[1] if goal else worded(trial, name), trial, game.pddl_problem)


def require_whole(problem: str, what: str = "pddl_problem") -> None:
    """Raises InvalidInput if a PDDL problem is cut off: a part of its goal would be a goal too.

    Args:
        problem: the problem.
        what: its name in the message.
    """
    text = problem.lower()
    missing = [part for part in ("(:init", "(receptacleatlocation ", "(:goal") if part not in text]
    if missing or text.count("(") != text.count(")"):
        fault = f"without {', '.join(missing)}" if missing else "with more or fewer closing than opening brackets"
        raise InvalidInput(f"{what}: expected a whole PDDL problem of ALFWorld, got one {fault}")


def worded(trial: Trial, game: str = "") -> str:
    """The task in one of the original's wordings, always the same for one game. Raises ValueError."""
    if trial.task_type not in GOALS:
        raise ValueError(f"task_type: expected one of {', '.join(GOALS)}, got {trial.task_type!r}")
    wording = GOALS[trial.task_type][_place(game or trial.game)[0] % 2]
    targets = trial.pddl_params
    return wording.format(
        obj=targets.object_target.lower(), recep=targets.parent_target.lower(), toggle=targets.toggle_target.lower()
    )


def start(problem: str) -> str:
    """The first observation: all places to go to, with the numbers that the package gives them."""
    names = names_of(problem)
    return start_text([names[place] for place in sorted({place.lower() for place in _AT.findall(problem)})])


def names_of(problem: str) -> dict[str, str]:
    """The names of all places and things by id in lower case, sorted by id. The numbers of a kind count down."""
    ids = {thing.lower() for thing in _THING.findall(problem)}
    kinds = {thing: thing.split("_bar_")[0] + ("basin" if "basin" in thing else "") for thing in ids}
    left = Counter(kinds.values())
    names = {}
    for thing in sorted(ids):
        names[thing] = f"{kinds[thing]} {left[kinds[thing]]}"
        left[kinds[thing]] -= 1
    return names


def _write(index: Path, rows: Iterator[GameRow], by_source: bool) -> None:
    """Write all games or none: the index is renamed into place when it is complete."""
    index.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=index.parent) as folder:
        with closing(sqlite3.connect(Path(folder, "index"))) as new, new:
            new.execute("CREATE TABLE game (name TEXT PRIMARY KEY, split TEXT, place BLOB, task TEXT, problem BLOB)")
            for row in rows:
                if by_source:
                    split = next(split for split, sources in SPLITS.items() if row.source in sources)
                else:
                    split = {0: "test", 5: "dev"}.get(row.trial.floor_plan % 10, "train")
                descriptions: list[JsonValue] = [said.task_desc for said in row.trial.turk_annotations.anns]
                task = Task(
                    id=row.game.replace("/", "-"),
                    env="alfworld",
                    instruction=f"Your task is to: {row.goal}.",
                    initial_state=start(row.problem),
                    metadata={
                        "game": row.game,
                        "split": split,
                        "task_type": row.trial.task_type,
                        "floor_plan": row.trial.floor_plan,
                        "descriptions": descriptions,
                    },
                )
                problem = zlib.compress(row.problem.encode(), 1)
                new.execute(
                    "INSERT OR REPLACE INTO game VALUES (?, ?, ?, ?, ?)",
                    (row.game, split, _place(row.game), task.model_dump_json(), problem),
                )
        Path(folder, "index").replace(index)


def _place(game: str) -> bytes:
    """Hash of a game's name, which decides the order of the tasks and the choice of a wording."""
    return hashlib.sha256(game.encode()).digest()


def _digest(files: Sequence[tuple[str, Path]]) -> str:
    """Digest that changes when a file is changed, added or removed, or the game beside a traj_data.json."""
    games = ((source, file.with_name("game.tw-pddl")) for source, file in files if file.name == "traj_data.json")
    every = [*files, *((source, file) for source, file in games if file.exists())]
    known = [(source, str(file.resolve()), (stat := file.stat()).st_size, stat.st_mtime_ns) for source, file in every]
    return hashlib.sha256(json.dumps([FORM, known]).encode()).hexdigest()[:20]


def _read(file: Path, model: type[Read]) -> Read:
    try:
        return model.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        reason = first_reason(error)
        raise InvalidInput(f"{file} cannot be used: {reason}. Download it again: {DOWNLOAD}") from error
