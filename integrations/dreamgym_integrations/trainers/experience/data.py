"""The data of a fit: its settings, and the training rows made from the recordings.

An unfinished fit is in `OUT.partial`, with its rows. A resumed fit learns from these rows, whatever has been recorded
since.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset, disable_progress_bars
from pydantic import Field
from transformers import AutoConfig, AutoTokenizer
from transformers.utils import logging

from dreamgym.dream.model import Part
from dreamgym.embedding import Encoder
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.files import write_whole
from dreamgym.recordings.contradictions import contradicted
from dreamgym.recordings.splits import split
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.types import Frozen, Trajectory
from dreamgym_integrations.models.checkpoint import check_tokenizer
from dreamgym_integrations.trainers.common.distributed import Processes, of_first
from dreamgym_integrations.trainers.common.progress import Say, TimeLeft
from dreamgym_integrations.trainers.experience.rows import Example, answer_ids, examples, row

logging.disable_progress_bar()
disable_progress_bars()

PREPARED_FILE = "prepared.json"
TINY = "tiny"
EVALUATIONS = 20
"""Number of times that the held-out loss is measured over a whole run."""
HELD_OUT_ROWS = 200
"""Most held-out rows of one measurement; they are spread evenly over all."""


class FitSettings(Frozen):
    """The settings that, with the recordings, determine a fitted model."""

    base: str
    """`tiny`, `local`, a .gguf file, or a checkpoint folder."""
    demonstrations: int = Field(default=3, ge=0)
    without: tuple[Part, ...] = ()
    lora: bool = False
    steps: int = Field(default=1500, ge=1)
    """Most updates. Training ends earlier if the held-out loss no longer falls."""
    batch: int = Field(default=16, ge=1)
    """Rows per update, over all processes."""
    micro_batch: int = Field(default=8, ge=1)
    """Rows that a process computes at once."""
    learning_rate: float = Field(default=3e-3, gt=0)
    max_tokens: int = Field(default=2048, ge=16)
    """Most tokens of a row; longer rows are left out."""
    held_out: float = Field(default=0.1, ge=0, le=1)
    patience: int = Field(default=4, ge=1)
    """Number of measurements of the held-out loss without an improvement, after which training ends."""
    seed: int = 0


class PreparedFit(Frozen):
    """A fit before training: its settings, and figures about the rows made from the recordings."""

    settings: FitSettings
    env: str
    base: str
    """Folder of the model to start from."""
    known: tuple[str, ...]
    held_out: tuple[str, ...]
    rows: int
    held_out_rows: int
    too_long: int
    contradicted: int
    """Number of known calls with another outcome in another recording. They are learned all the same."""
    tokens: int
    longest: int
    longest_answer: int = 0
    """Tokens of the longest answer that is learned; 0 if the fit was prepared by a version that did not count them."""
    seconds: float
    """Seconds of retrieval and tokenisation."""


def working_folder(out: Path) -> Path:
    """The folder of a fit that is not finished."""
    return out.with_name(f"{out.name}.partial")


def prepare(
    spec: EnvironmentSpec,
    recorded: Sequence[Trajectory],
    out: Path,
    settings: FitSettings,
    encoder: Encoder,
    *,
    resume: bool = False,
    say: Say = lambda text: None,
) -> PreparedFit:
    """Make the rows, and the untrained model if the base is `tiny`. A resumed fit keeps those it has.

    With several processes, the first makes them for all.

    Raises:
        InvalidInput: the folder exists already, there is nothing to learn or to hold out, or the base cannot be used.
        FirstFailed: in the other processes, if the first one failed.
    """

    def begin() -> PreparedFit:
        work = working_folder(out)
        if out.exists():
            raise InvalidInput(f"{out} exists already: name another folder with --out, or delete it")
        if resume and (work / PREPARED_FILE).is_file():
            return _resumed(work, settings, spec.name)
        if work.exists() and not resume:
            raise InvalidInput(f"{work} holds an unfinished fit: continue it with --resume, or delete it")
        known, held_out = split(recorded, settings.held_out, settings.seed)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        try:
            return _prepared(spec, known, held_out, work, settings, encoder, say)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)  # a fit could not be continued with its contents
            raise

    return of_first(Processes(), begin)


def _resumed(work: Path, settings: FitSettings, env: str) -> PreparedFit:
    prepared = PreparedFit.model_validate_json((work / PREPARED_FILE).read_text(encoding="utf-8"))
    if prepared.env != env:
        raise InvalidInput(f"{work} was begun for environment {prepared.env!r}, not {env!r}: give another --out")
    before, now = prepared.settings.model_dump(mode="json"), settings.model_dump(mode="json")
    if changed := [f"{name} was {before[name]}" for name in before if before[name] != now[name]]:
        raise InvalidInput(f"{work} was begun with other settings: {', '.join(changed)}; resume with those")
    return prepared


def _prepared(
    spec: EnvironmentSpec,
    known: Sequence[Trajectory],
    held_out: Sequence[Trajectory],
    work: Path,
    settings: FitSettings,
    encoder: Encoder,
    say: Say,
) -> PreparedFit:
    started = time.monotonic()
    base = work / "base" if settings.base == TINY else _base(settings.base)

    async def made() -> tuple[list[Example], list[Example]]:
        buffer = MemoryBuffer(encoder)
        await buffer.add(known)
        learned, tested = (
            examples(
                spec,
                buffer,
                trajectories,
                demonstrations=settings.demonstrations,
                without=frozenset(settings.without),
                seed=settings.seed,
                on_progress=TimeLeft(say, what).tell,
            )
            for trajectories, what in ((known, "calls prepared"), (held_out, "held-out calls prepared"))
        )
        return [one async for one in learned], [one async for one in tested]

    learned, tested = asyncio.run(made())
    if settings.base == TINY:
        from dreamgym_integrations.trainers.experience.tiny import create_tiny_model

        create_tiny_model(learned, base, max_tokens=settings.max_tokens, seed=settings.seed)
    tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True)
    # a model from scratch has to learn the language of the prompts too, and to copy from them
    rows = [row(tokenizer, example, whole=settings.base == TINY) for example in learned]
    test_rows = [row(tokenizer, example) for example in tested]
    train, test = ([one for one in found if one.tokens <= settings.max_tokens] for found in (rows, test_rows))
    too_long = len(rows) + len(test_rows) - len(train) - len(test)
    if not train or not test:
        longest = max((one.tokens for one in (*rows, *test_rows)), default=0)
        raise InvalidInput(
            f"expected at least one row to learn and one held-out row of {spec.name!r} with at most "
            f"{settings.max_tokens} tokens, found {len(train)} and {len(test)}: {too_long} rows are longer, the "
            f"longest has {longest} tokens; raise --max-tokens, or record more episodes"
        )
    longest = max(one.tokens for one in (*train, *test))
    room = getattr(AutoConfig.from_pretrained(base, local_files_only=True), "max_position_embeddings", None)
    if room is not None and longest > room:
        raise InvalidInput(
            f"--base {settings.base}: it reads at most {room} tokens, and the longest row has {longest}: give "
            f"--max-tokens {room}, which leaves longer rows out"
        )
    Dataset.from_list([one.model_dump() for one in train]).save_to_disk(str(work / "rows" / "train"))
    # few enough that all measurements cost a quarter of the training: a forward pass is a third of a row's update
    measured = min(HELD_OUT_ROWS, max(16, settings.steps * settings.batch * 3 // (4 * EVALUATIONS)))
    every = -(-len(test) // measured)
    Dataset.from_list([one.model_dump() for one in test[::every]]).save_to_disk(str(work / "rows" / "held_out"))
    prepared = PreparedFit(
        settings=settings,
        env=spec.name,
        base=str(base.resolve()),
        known=tuple(one.id for one in known),
        held_out=tuple(one.id for one in held_out),
        rows=len(train),
        held_out_rows=len(test),
        too_long=too_long,
        contradicted=len(contradicted(spec, known)),
        tokens=sum(one.tokens for one in train),
        longest=longest,
        longest_answer=max(
            len(answer_ids(tokenizer, example))
            for example, one in zip(learned, rows, strict=True)
            if one.tokens <= settings.max_tokens
        ),
        seconds=time.monotonic() - started,
    )
    write_whole(work / PREPARED_FILE, prepared.model_dump_json(indent=2))
    return prepared


def _base(name: str) -> Path:
    """The checkpoint folder for `--base`, except for `tiny`, which is made from the rows."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        check_tokenizer(folder)
        return folder
    if name.endswith(".gguf") or name.partition(":")[0] == "local":
        from dreamgym_integrations.trainers.experience.gguf import dequantised

        return dequantised(name)
    raise InvalidInput(f"--base {name!r}: expected `tiny`, `local`, a .gguf file or a transformers checkpoint folder")
