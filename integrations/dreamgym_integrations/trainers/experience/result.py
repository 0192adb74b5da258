"""Completes a trained checkpoint for `--model`: adds what it was fitted to, its measured fidelity, and its card."""

from __future__ import annotations

import asyncio
import itertools
import math
import shutil
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from dreamgym.dream.fitted import FILE, FittedModel, Fitting, tokenizer_digest
from dreamgym.dream.model import ExperienceModel, Part
from dreamgym.dream.nearest import NearestModel
from dreamgym.embedding import Encoder
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.evaluation.calibration import fitted
from dreamgym.evaluation.calls import Compared
from dreamgym.evaluation.material import drawn
from dreamgym.evaluation.predictions import RecordedStep, predict, steps_of
from dreamgym.evaluation.report.tables import markdown, rate
from dreamgym.evaluation.steps import step_fidelity
from dreamgym.types import Trajectory
from dreamgym_integrations.models.checkpoint import CheckpointModel
from dreamgym_integrations.trainers.common.progress import Say, TimeLeft
from dreamgym_integrations.trainers.experience.data import PreparedFit, working_folder

VERSIONS = ("dreamgym", "torch", "transformers", "trl")
TOGETHER = 16
"""Questions that are asked at once; the checkpoint answers them in one batch."""

CARD = """# {name}

An experience model of the environment `{env}`: given a task, the steps so far, the state, similar recorded transitions
and an action, it predicts the environment's answer. Made by `dreamgym fit` from `{base}` ({parameters:,} parameters).
It does nothing else: it does not judge final answers, and it does not plan.

    dreamgym serve {env} --model {name}

## Data

| | |
|---|---|
| trajectories learned, held out | {known}, {held_out} |
| rows learned, held out | {rows}, {held_out_rows} |
| left out, longer than {max_tokens} tokens | {too_long} |
| calls that another recording contradicts (learned all the same) | {contradicted} |
| tokens, longest row | {tokens:,}, {longest} |
| seconds for retrieval and tokenising | {seconds:.0f} |

## Training

Supervised fine-tuning on the recorded answer: reasoning, next state, outcome. {settings}

| update | loss | held-out loss |
|---|---|---|
{losses}

The weights are those of the best held-out loss.

## Fidelity

{fidelity}

`dreamgym fidelity {env} --model {name}` measures more. A policy's reward in a simulation does not measure its reward
in the real environment.
"""

MEASURED = """{steps} held-out steps, each predicted from what was recorded before it. In brackets 95 % intervals.
`without recorded`: the answer is never copied from a recording of exactly this step. The weights were chosen by the
loss on the same held-out trajectories, so the figures of `fitted` may be a little too good.

{table}"""


def finish(
    spec: EnvironmentSpec,
    recorded: Sequence[Trajectory],
    out: Path,
    prepared: PreparedFit,
    losses: Sequence[dict[str, float]],
    encoder: Encoder,
    *,
    steps: int,
    say: Say = lambda text: None,
) -> None:
    """Write the missing files into the trained folder, then move it to `out`.

    Args:
        spec: the environment.
        recorded: all trajectories that the fit began with.
        out: folder of the finished model.
        prepared: the fit before training.
        losses: the trainer's log.
        encoder: encoder for retrieval, the same as in training.
        steps: number of held-out steps that are predicted for the card.
        say: called with each line of progress.

    Raises:
        InvalidInput: recordings of the fit no longer exist.
    """
    work = working_folder(out)
    trained = work / "trained"
    settings = prepared.settings
    fitting = Fitting(
        env=prepared.env,
        demonstrations=settings.demonstrations,
        without=settings.without,
        base=settings.base,
        tokenizer=tokenizer_digest(trained),
        seed=settings.seed,
        rows=prepared.rows,
        longest_answer=prepared.longest_answer,
        steps=int(max((line["step"] for line in losses), default=0)),
        learned=prepared.known,
        versions={name: version(name) for name in VERSIONS},
    )
    (trained / FILE).write_text(fitting.model_dump_json(indent=2) + "\n", encoding="utf-8")
    by_id = {one.id: one for one in recorded}
    if gone := [name for name in (*prepared.known, *prepared.held_out) if name not in by_id]:
        raise InvalidInput(
            f"{len(gone)} recordings of this fit no longer exist ({gone[0]} is one), so the model cannot be measured: "
            "restore them and continue with --resume"
        )
    known = [by_id[name] for name in prepared.known]
    held_out = drawn(steps_of(by_id[name] for name in prepared.held_out), steps, settings.seed)
    measured = asyncio.run(_measured(spec, trained, known, held_out, encoder, prepared, say))
    calibration = fitted(measured["fitted"], model=out.name, env=spec.name)
    if calibration is not None:
        calibration.save(trained / "calibration.json")
    card = _card(spec, out, trained, prepared, losses, measured)
    (trained / "README.md").write_text(card, encoding="utf-8")
    trained.rename(out)
    shutil.rmtree(work)


async def _measured(
    spec: EnvironmentSpec,
    trained: Path,
    known: Sequence[Trajectory],
    steps: Sequence[RecordedStep],
    encoder: Encoder,
    prepared: PreparedFit,
    say: Say,
) -> dict[str, list[Compared]]:
    llm = CheckpointModel(trained)
    assert llm.fitting is not None
    ours = FittedModel(llm, llm.fitting)
    settings: list[tuple[str, ExperienceModel, set[Part]]] = [
        ("nearest", NearestModel(), set()),
        ("fitted", ours, set()),
        ("fitted without recorded", ours, {Part.RECORDED}),
    ]
    measured: dict[str, list[Compared]] = {}
    for name, model, without in settings:
        progress, numbers = TimeLeft(say, f"held-out steps predicted, {name}"), itertools.count(1)

        def tell(call: Compared, progress: TimeLeft = progress, numbers: Iterator[int] = numbers) -> None:
            progress.tell(next(numbers), len(steps))

        measured[name] = await predict(
            spec,
            model,
            known,
            steps,
            encoder,
            without=without,
            seed=prepared.settings.seed,
            parallel=TOGETHER,
            on_step=tell,
        )
    await ours.close()
    return measured


def _card(
    spec: EnvironmentSpec,
    out: Path,
    trained: Path,
    prepared: PreparedFit,
    losses: Sequence[dict[str, float]],
    measured: dict[str, list[Compared]],
) -> str:
    from safetensors import safe_open

    parameters = 0
    for file in trained.glob("*.safetensors"):
        with safe_open(file, framework="np") as tensors:
            names = tensors.keys()
            parameters += sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)
    rows, last = list[str](), float("nan")
    for line in losses:
        last = line.get("loss", last)
        if "eval_loss" in line:
            rows.append(f"| {int(line['step'])} | {last:.4f} | {line['eval_loss']:.4f} |")
    settings = prepared.settings.model_dump(mode="json", exclude={"base"})
    counts = prepared.model_dump(exclude={"settings", "base", "env", "known", "held_out"})
    return CARD.format(
        name=out.name,
        env=spec.name,
        base=prepared.settings.base,
        parameters=parameters,
        known=len(prepared.known),
        held_out=len(prepared.held_out),
        max_tokens=prepared.settings.max_tokens,
        settings=", ".join(f"{name} {value}" for name, value in settings.items()),
        losses="\n".join(rows),
        fidelity=_fidelity(spec, measured),
        **counts,
    )


def _fidelity(spec: EnvironmentSpec, measured: dict[str, list[Compared]]) -> str:
    """The card's table of the model's fidelity, compared with a model that copies the nearest recording."""
    steps = len(measured["fitted"])
    if not steps:
        return "It has not been measured."
    head = ("", "answered", "state exact", "of what is not recorded", "observation exact", "errors agree", "similarity")
    rows: list[tuple[str, ...]] = [head]
    for name, calls in measured.items():
        found = step_fidelity(calls, explicit=spec.state is not None)
        shares = (
            found.answered,
            found.state["all"].exact,
            found.unseen.exact,
            found.observation,
            found.errors,
            found.similarity,
        )
        rows.append((name, *map(rate, shares)))
    return MEASURED.format(steps=steps, table="\n".join(markdown(rows)))
