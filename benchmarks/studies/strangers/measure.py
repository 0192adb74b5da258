"""Measure how true the dream of an MCP server by other authors is, on sessions that were never recorded.

    python benchmarks/studies/strangers/measure.py --models nearest

The command prints the page docs/results/strangers.md as Markdown, which `benchmarks/publish.py` keeps. The dream knows
ten recorded episodes of a server (recordings/NAME), and continues each new session from its own answers. The real
answers are recorded too, so no server and no database is needed; `record.py` explains how they were made. The page also
shows held-out recorded calls, compared as by `dreamgym check --held-out 0.4`; how many facts of the real answers are in
the prompt of a language model; and the helpdesk study, measured as on its own page. Results are kept in runs/strangers,
and a second start continues from there. After a change of the core's code, everything is measured again.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import time
from pathlib import Path

from facts import Told, told
from judged import Judged
from material import Material, load
from report import Cell, Helpdesk, page
from servers import SERVERS

from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.load import load_model
from dreamgym.dream.model import ExperienceModel
from dreamgym.embedding import Encoder, load_encoder
from dreamgym.environment import load_spec, read_jsonl
from dreamgym.evaluation.episodes import UNANSWERED, perform, repeating
from dreamgym.evaluation.kept import KeptRows, edition
from dreamgym.evaluation.material import material
from dreamgym.evaluation.predictions import predict
from dreamgym.evaluation.steps import step_fidelity
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.types import Frozen, Source, StepResult, Trajectory, Transition

STUDIES = Path(__file__).resolve().parents[1]
HELD_OUT = 0.4
HELPDESK_STEPS = 200


class Done(Frozen):
    """The calls of one session, or of all held-out episodes."""

    id: str
    calls: tuple[Judged, ...]


class Prompts(Frozen):
    """Facts in the prompts for one server."""

    sessions: tuple[Told, ...]
    held_out: tuple[Told, ...]


class Study:
    """The measurements that are kept in a folder.

    Args:
        out: the folder.
        encoder: encoder of the retrieval keys.
    """

    def __init__(self, out: Path, encoder: Encoder) -> None:
        self._out, self._encoder = out, encoder

    async def cell(self, given: Material, name: str, model: ExperienceModel) -> Cell:
        """Measure one server under one model."""
        kept = KeptRows(Done, self._out, f"{given.spec.name}-{name}", self._basis(given, model.name))
        done = {one.id: one.calls for one in kept.read()}
        buffer = MemoryBuffer(self._encoder)
        await buffer.add(given.known)
        for session in given.sessions:
            if session.id not in done:
                _say(f"{given.spec.name}, {name}: {session.id}")
                played = await perform(
                    given.spec,
                    lambda: DreamEnvironment(given.spec, model, buffer),
                    session.task,
                    repeating([step.action for step in session.transitions]),
                    seed=0,
                    source=Source.SYNTHETIC,
                    patient=True,
                )
                assert len(played.transitions) == len(session.transitions), f"{session.id}: {played.error}"
                rows = tuple(
                    _judged(given, session, number, None if _is_unanswered(step) else step, step.result.observation)
                    for number, step in enumerate(played.transitions, start=1)
                )
                rows = _while_alike(rows)
                done[session.id] = rows
                kept.add(Done(id=session.id, calls=rows))
        if "" not in done:
            _say(f"{given.spec.name}, {name}: held-out calls")
            split = material(given.spec, given.known, held_out=HELD_OUT, all_steps=True)
            compared = await predict(given.spec, model, split.known, split.steps, self._encoder)
            by_id = {one.id: one for one in given.known}
            done[""] = tuple(
                _judged(given, by_id[call.trajectory], call.step, call.predicted, call.failure or "")
                for call in compared
            )
            kept.add(Done(id="", calls=done[""]))
        sessions = [call for session in given.sessions for call in done[session.id]]
        return Cell(server=given.spec.name, model=name, sessions=tuple(sessions), held_out=done[""])

    async def prompts(self, given: Material) -> Prompts:
        """Measure the facts in the prompts of a language model."""
        kept = KeptRows(Prompts, self._out, f"{given.spec.name}-prompts", self._basis(given, "prompts"))
        if rows := kept.read():
            return rows[0]
        _say(f"{given.spec.name}: facts in the prompt")
        split = material(given.spec, given.known, held_out=HELD_OUT, all_steps=True)
        row = Prompts(
            sessions=tuple(await told(given.spec, given.known, given.sessions, given.again, self._encoder)),
            held_out=tuple(await told(given.spec, split.known, split.held_out, given.again, self._encoder)),
        )
        kept.add(row)
        return row

    async def helpdesk(self, name: str, model: ExperienceModel) -> Helpdesk:
        """Measure the helpdesk as in docs/results/helpdesk.md: the state after each held-out call."""
        kept = KeptRows(Helpdesk, self._out, f"helpdesk-{name}", [edition(), model.name])
        if rows := kept.read():
            return rows[0]
        _say(f"helpdesk, {name}: {HELPDESK_STEPS} held-out calls")
        folder = self._out / "helpdesk"
        spec = load_spec(str(folder))
        recorded = read_jsonl(folder / "trajectories.jsonl", Trajectory)
        split = material(spec, recorded, held_out=0.3, limit=HELPDESK_STEPS)
        calls = await predict(spec, model, split.known, split.steps, load_encoder("trigram"))
        row = Helpdesk.of(name, step_fidelity(calls, explicit=True), calls)
        kept.add(row)
        return row

    def _basis(self, given: Material, model: str) -> list[str]:
        """All that an answer depends on, and the code that judges it."""
        code = [file.read_text(encoding="utf-8") for file in (Path(__file__), Path(__file__).with_name("judged.py"))]
        rows = [one.model_dump_json() for one in (*given.known, *given.sessions)]
        facts = Path(__file__).with_name("facts.py").read_text(encoding="utf-8")
        refuses = [given.server.refuses, *sorted(given.server.reads)]
        spec = given.spec.model_dump_json(exclude={"tasks"})
        return [edition(), model, self._encoder.fingerprint, spec, *refuses, facts, *code, *rows]


def played_again(given: Material) -> Cell:
    """The cell of the real server's second play, in which every difference counts."""
    split = material(given.spec, given.known, held_out=HELD_OUT, all_steps=True)

    def rows(trajectories: tuple[Trajectory, ...]) -> tuple[Judged, ...]:
        return tuple(
            _judged(
                given, one, number, step.model_copy(update={"result": given.again.get((one.id, number), step.result)})
            ).model_copy(update={"again": None})
            for one in trajectories
            for number, step in enumerate(one.transitions, start=1)
        )

    return Cell(
        server=given.spec.name, model="the real server", sessions=rows(given.sessions), held_out=rows(split.held_out)
    )


def _judged(given: Material, session: Trajectory, number: int, step: Transition | None, failure: str = "") -> Judged:
    real = session.transitions[number - 1]
    is_session = session.id in {one.id for one in given.sessions}

    def is_refused(result: StepResult) -> bool:
        return result.is_error or re.match(given.server.refuses, result.observation) is not None

    return Judged(
        server=given.spec.name,
        session=session.id,
        kind=given.kind(session.id) if is_session else None,
        step=number,
        action=real.action,
        is_read=real.action.name in given.server.reads,
        real=real.result,
        again=given.again.get((session.id, number)),
        got=step.result if step is not None else None,
        failure=failure if step is None else None,
        tier=step.provenance.tier.value if step is not None else None,
        is_accepted=not is_refused(real.result),
        is_refused=step is not None and is_refused(step.result),
    )


def _while_alike(calls: tuple[Judged, ...]) -> tuple[Judged, ...]:
    """The calls of a session, without the answers after a write that reality accepted and the dream did not answer.

    The agent is told that such a write had no effect, so dream and reality differ from there on.
    """
    lost = [call.step for call in calls if call.got is None and call.is_accepted and not call.is_read]
    if not lost:
        return calls
    why = {"got": None, "failure": f"call {lost[0]}, a write, had no answer", "tier": None, "is_refused": False}
    return tuple(call.model_copy(update=why) if call.step > lost[0] else call for call in calls)


def _is_unanswered(step: Transition) -> bool:
    return step.result.info.get("stop") == UNANSWERED


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


async def measured(servers: list[str], models: list[str], study: Study) -> str:
    """Measure all cells; return the page."""
    materials = [load(SERVERS[name]) for name in servers]
    cells, desks = [], []
    for name in models:
        model = load_model(name)
        try:
            cells += [await study.cell(given, name, model) for given in materials]
            if name == "nearest":  # 200 calls; other models need minutes for each
                desks.append(await study.helpdesk(name, model))
        finally:
            await model.close()
    cells += [played_again(given) for given in materials]
    prompts = {given.spec.name: await study.prompts(given) for given in materials}
    packages = {given.spec.name: given.server.package for given in materials}
    return page(cells, desks, {name: (one.sessions, one.held_out) for name, one in prompts.items()}, packages)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    out = Path("runs") / "strangers"
    parser.add_argument("--models", default="nearest", help="comma separated, as for --model; default: nearest")
    parser.add_argument("--servers", default=",".join(SERVERS), help=f"default: {','.join(SERVERS)}")
    parser.add_argument("--out", type=Path, default=out / "cells", help=f"default: {out / 'cells'}")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if not (desk := given.out / "helpdesk").exists():
        script = str(STUDIES / "helpdesk" / "record.py")
        subprocess.run([sys.executable, script, "--sessions", "60", "--seed", "1", "--out", str(desk)], check=True)
    study = Study(given.out, load_encoder())
    print(asyncio.run(measured(given.servers.split(","), given.models.split(","), study)), end="")


if __name__ == "__main__":
    main()
