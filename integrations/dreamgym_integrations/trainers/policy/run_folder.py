"""What a training run leaves on disk: whose checkpoints these are, which of them are whole, and the policy at the end.

A checkpoint is whole when its curriculum is in it, which is written last. `run.json` beside the checkpoints says which
run they belong to.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput, MissingPackage, TrainingStopped
from dreamgym.training.practice import Settings
from dreamgym.types import Frozen, JsonObject

try:
    from safetensors import SafetensorError
except ImportError as error:
    raise MissingPackage("training", "train") from error

CURRICULUM_FILE = "curriculum.json"
IDENTITY_FILE = "run.json"
FREE = {"probe_every", "save_every", "dead_updates"}
"""Settings that may differ when a run goes on: they decide nothing of what is learned."""
ENDS = 1 << 20
"""Of a weight file so many bytes at either end, and its size, tell it from another."""


class Identity(Frozen):
    """What decides what a run learns. A checkpoint of another one must not be continued."""

    environment: str
    description: str
    """Digest of the environment's description, tools and tasks."""
    base: str
    """Digest of the start policy."""
    settings: JsonObject
    run: str = ""
    """Under this name the store has what the run played; drawn when it begins, and kept when it goes on."""

    def difference(self, other: Identity) -> str | None:
        """What `other` has different, as words; None where nothing is."""
        if self.environment != other.environment:
            return f"its environment was {self.environment!r} and is {other.environment!r} now"
        if self.description != other.description:
            return f"the description, tools or tasks of {self.environment!r} have changed since"
        if self.base != other.base:
            return "it started from another policy"
        names = sorted(name for name in self.settings if self.settings[name] != other.settings.get(name))
        changed = [f"{name} was {self.settings[name]} and is {other.settings.get(name)} now" for name in names]
        return ", ".join(changed) or None


def identity(spec: EnvironmentSpec, base: Path, settings: Settings) -> Identity:
    """Of a run that is about to start."""
    return Identity(
        environment=spec.name,
        description=hashlib.sha256(spec.model_dump_json().encode()).hexdigest(),
        base=_digest(base),
        settings=settings.model_dump(mode="json", exclude=FREE),
    )


def newest_checkpoint(out: Path, mine: Identity) -> Path | None:
    """The newest whole checkpoint of this run in `out`; None where it has none yet.

    Raises:
        InvalidInput: the folder is that of another run; the message names the difference.
    """
    saved = [folder for folder in _checkpoints(out) if (folder / CURRICULUM_FILE).is_file()]
    told = out / IDENTITY_FILE
    if told.is_file():
        theirs = Identity.model_validate_json(told.read_text(encoding="utf-8"))
        difference = theirs.difference(mine)
        if difference is not None:
            raise InvalidInput(f"{out} holds another run: {difference}; start this one in a folder of its own")
    elif saved:
        raise InvalidInput(
            f"{out} has checkpoints but no {IDENTITY_FILE} that says of which run: start in another folder"
        )
    return max(saved, key=step_of, default=None)


def begin(out: Path, mine: Identity, *, resume: bool) -> str:
    """Make the folder this run's: say whose it is, and remove what was cut off while it was saved.

    Returns:
        The run's name.

    Raises:
        InvalidInput: it has checkpoints, and they are not to be continued.
    """
    for folder in _checkpoints(out):
        if not (folder / CURRICULUM_FILE).is_file():
            shutil.rmtree(folder)
        elif not resume:
            raise InvalidInput(f"{out} has checkpoints already: resume the run, or name another folder")
    out.mkdir(parents=True, exist_ok=True)
    run = (name_of(out) if resume else "") or secrets.token_hex(8)
    write_whole(out / IDENTITY_FILE, mine.model_copy(update={"run": run}).model_dump_json(indent=2))
    return run


def name_of(out: Path) -> str:
    """The name of the run in this folder; empty where there is none yet."""
    told = out / IDENTITY_FILE
    return Identity.model_validate_json(told.read_text(encoding="utf-8")).run if told.is_file() else ""


def complete(checkpoint: Path, curriculum: JsonObject) -> None:
    """The last part of a checkpoint, which makes it whole."""
    write_whole(checkpoint / CURRICULUM_FILE, json.dumps(curriculum))


def read_curriculum(checkpoint: Path) -> JsonObject:
    """The curriculum of a whole checkpoint."""
    state: JsonObject = json.loads((checkpoint / CURRICULUM_FILE).read_text(encoding="utf-8"))
    return state


def step_of(checkpoint: Path) -> int:
    """Optimiser steps before it was saved."""
    return int(checkpoint.name.rpartition("-")[2])


def save_policy(model: Any, tokenizer: Any, folder: Path, state: dict[str, Any] | None = None) -> None:
    """Save an ordinary checkpoint folder, whole or not at all; `state`: the weights, where not the model's own."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with no_room(folder):
        model.save_pretrained(partial, state_dict=state)
        tokenizer.save_pretrained(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def write_whole(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    with no_room(path):
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)


@contextmanager
def no_room(path: Path) -> Iterator[None]:
    """Raises TrainingStopped where something cannot be saved: what was saved before is whole."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:  # torch and safetensors wrap what the disk says
        raise TrainingStopped(
            f"{path} cannot be saved: {error}; make room and resume from the checkpoint before it"
        ) from error


def _checkpoints(out: Path) -> list[Path]:
    return list((out / "checkpoints").glob("checkpoint-*"))


def _digest(base: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(base.glob("*")):
        if path.suffix in {".safetensors", ".json", ".bin", ".jinja"} and path.name != "training_args.bin":
            digest.update(f"{path.name}:{path.stat().st_size}:".encode())
            with path.open("rb") as file:
                digest.update(file.read(ENDS))
                file.seek(max(0, path.stat().st_size - ENDS))
                digest.update(file.read(ENDS))
    return digest.hexdigest()
