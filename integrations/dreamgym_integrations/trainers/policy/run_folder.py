"""The folder of a policy's training run: the identity of the run, and the curriculum in each checkpoint.

A checkpoint is whole if it contains its curriculum, which is written last. `run.json` beside the checkpoints identifies
the run that they belong to; `curriculum.json` beside them is the curriculum before the first update.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from pathlib import Path

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.files import write_whole
from dreamgym.training.old_settings import without_old_settings
from dreamgym.training.practice import Settings
from dreamgym.types import Frozen, JsonObject
from dreamgym_integrations.trainers.common.checkpoints import checkpoints, newest_with, saving, unfinished

CURRICULUM_FILE = "curriculum.json"
IDENTITY_FILE = "run.json"
FREE = {"probe_every", "save_every", "dead_updates"}
"""Settings that may differ when a run is resumed: they have no effect on what is learned."""
ENDS = 1 << 20
"""Number of bytes at each end of a weight file that, with its size, identify it."""


class Identity(Frozen):
    """Everything that determines what a run learns. A run must not continue from a checkpoint of another identity."""

    environment: str
    description: str
    """Digest of the environment's description, tools and tasks."""
    base: str
    """Digest of the start policy."""
    settings: JsonObject
    run: str = ""
    """Name of the run's episodes in the store; drawn when the run begins, and kept when it is resumed."""

    def difference(self, other: Identity) -> str | None:
        """Describe how `other` differs; None if it does not."""
        if self.environment != other.environment:
            return f"its environment was {self.environment!r} and is {other.environment!r} now"
        if self.description != other.description:
            return f"the description, tools or tasks of {self.environment!r} have changed since"
        if self.base != other.base:
            return "it started from another policy"
        settings = without_old_settings(self.settings)
        names = sorted(name for name in settings if settings[name] != other.settings.get(name))
        changed = [f"{name} was {settings[name]} and is {other.settings.get(name)} now" for name in names]
        return ", ".join(changed) or None


def identity(spec: EnvironmentSpec, base: Path, settings: Settings) -> Identity:
    """The identity of a run that is about to start."""
    learned_from = settings.model_dump(mode="json", exclude=FREE)
    if settings.vllm:
        learned_from["vllm"] = True  # the server's address does not matter
    if settings.tinker:  # the server's name of a model; that of a folder here does not matter
        learned_from["tinker"] = "weights of a run" if (base / "tinker.json").is_file() else str(base)
    return Identity(
        environment=spec.name,
        description=hashlib.sha256(spec.model_dump_json().encode()).hexdigest(),
        base=_digest(base),
        settings=learned_from,
    )


def newest_checkpoint(out: Path, mine: Identity) -> Path | None:
    """The newest whole checkpoint of this run in `out`; None if it has none yet.

    Raises:
        InvalidInput: the folder belongs to another run, whose difference the message contains, or its checkpoints
            are gone.
    """
    newest = newest_with(out, CURRICULUM_FILE)
    theirs = _identity_in(out)
    if theirs is not None:
        difference = theirs.difference(mine)
        if difference is not None:
            raise InvalidInput(f"{out} contains another run: {difference}; start this one in another folder")
    elif newest is not None:
        raise InvalidInput(
            f"{out} has checkpoints but no {IDENTITY_FILE} that identifies their run: start in another folder"
        )
    if newest is None and (out / "policy").exists():
        raise InvalidInput(
            f"{out} has the policy of a run whose checkpoints are gone: it cannot be continued; give another --out"
        )
    return newest


def begin(out: Path, mine: Identity, *, resume: bool) -> str:
    """Mark the folder as this run's, and remove checkpoints whose saving was interrupted.

    Returns:
        The run's name.

    Raises:
        InvalidInput: the folder has checkpoints, and `resume` is False.
    """
    for folder in unfinished(out):
        shutil.rmtree(folder)
    for folder in checkpoints(out):
        if not (folder / CURRICULUM_FILE).is_file():
            shutil.rmtree(folder)
        elif not resume:
            raise InvalidInput(f"{out} has checkpoints already: resume the run, or name another folder")
    out.mkdir(parents=True, exist_ok=True)
    before = _identity_in(out) if resume else None
    run = secrets.token_hex(8) if before is None or not before.run else before.run
    with saving(out / IDENTITY_FILE):
        write_whole(out / IDENTITY_FILE, mine.model_copy(update={"run": run}).model_dump_json(indent=2))
    return run


def _identity_in(out: Path) -> Identity | None:
    """The identity of the run in this folder; None if there is no run in it yet."""
    file = out / IDENTITY_FILE
    return Identity.model_validate_json(file.read_text(encoding="utf-8")) if file.is_file() else None


def complete(checkpoint: Path, curriculum: JsonObject) -> None:
    """Write the last part of a checkpoint, which makes it whole."""
    with saving(checkpoint / CURRICULUM_FILE):
        write_whole(checkpoint / CURRICULUM_FILE, json.dumps(curriculum))


def keep_only(folder: Path, name: str) -> None:
    """Delete everything in `folder`, except what has this name."""
    for other in folder.iterdir():
        if other.name != name and other.is_dir():
            shutil.rmtree(other)
        elif other.name != name:
            other.unlink()


def first_curriculum(out: Path, curriculum: JsonObject, *, resume: bool) -> JsonObject:
    """The curriculum before the first update. A resumed run has that of its beginning, whatever was stored since."""
    if resume and (out / CURRICULUM_FILE).is_file():
        return read_curriculum(out)
    complete(out, curriculum)
    return curriculum


def read_curriculum(checkpoint: Path) -> JsonObject:
    """The curriculum of a whole checkpoint."""
    state: JsonObject = json.loads((checkpoint / CURRICULUM_FILE).read_text(encoding="utf-8"))
    return state


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
