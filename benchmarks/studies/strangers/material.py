"""Recordings of a server, which are kept in recordings/NAME, so that measuring needs no server.

Of each episode only calls and answers are kept, because the states of these recordings repeat the answers. tools.json
lists only the tools that are called, because two of the servers have forty and more. A dream may know known.jsonl, the
ten recorded episodes. sessions.jsonl has the new sessions as the real server answered them. again.jsonl has the answers
of a second real play that differ from the first, which depend on the clock or on chance.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from public_server import Kind, Server
from pydantic import Field, JsonValue

from dreamgym.environment import EnvironmentSpec, load_spec, read_jsonl
from dreamgym.evaluation.calls import is_same
from dreamgym.types import (
    Frozen,
    JsonObject,
    Provenance,
    Source,
    StepResult,
    StopReason,
    Task,
    Tier,
    ToolCall,
    Trajectory,
    Transition,
)

RECORDINGS = Path(__file__).resolve().parent / "recordings"
SECONDS = {"started_s", "ended_s"}
"""Names in a result's `info` that are of no use here and differ with every play."""


class Again(Frozen):
    """Another real answer to a call."""

    trajectory: str
    step: int
    """Counted from 1."""
    result: StepResult


class Answered(Frozen):
    """One call and its answer."""

    action: ToolCall
    observation: str
    is_error: bool = False
    info: JsonObject = Field(default_factory=dict)
    """Value of `StepResult.info`, without the structured content if that is the observation as JSON."""
    is_structured: bool = False
    """True if the structured content is the observation as JSON."""


class Episode(Frozen):
    """A trajectory in the form in which it is kept."""

    id: str
    task: Task
    stop_reason: StopReason
    calls: tuple[Answered, ...]
    answer: str | None = None
    final_reward: float | None = None

    @classmethod
    def of(cls, trajectory: Trajectory) -> Episode:
        """Convert a trajectory. The times of its calls are lost."""
        calls = []
        for step in trajectory.transitions:
            info = {name: value for name, value in step.result.info.items() if name not in SECONDS}
            is_structured = "structured" in info and info["structured"] == _as_json(step.result.observation)
            if is_structured:
                del info["structured"]
            calls.append(
                Answered(
                    action=step.action,
                    observation=step.result.observation,
                    is_error=step.result.is_error,
                    info=info,
                    is_structured=is_structured,
                )
            )
        return cls(
            id=trajectory.id,
            task=trajectory.task,
            stop_reason=trajectory.stop_reason,
            calls=tuple(calls),
            answer=trajectory.answer,
            final_reward=trajectory.final_reward,
        )

    def trajectory(self) -> Trajectory:
        """The trajectory as it was recorded, except for the times."""
        state, steps = self.task.initial_state or "", []
        for call in self.calls:
            info = {**call.info, **({"structured": _as_json(call.observation)} if call.is_structured else {})}
            result = StepResult(observation=call.observation, is_error=call.is_error, info=info)
            steps.append(Transition.of(state, call.action, result, Provenance(tier=Tier.REAL)))
            state = result.state
        return Trajectory(
            id=self.id,
            task=self.task,
            transitions=tuple(steps),
            source=Source.REAL,
            stop_reason=self.stop_reason,
            answer=self.answer,
            final_reward=self.final_reward,
        )


class Material(NamedTuple):
    """One server's recordings."""

    server: Server
    spec: EnvironmentSpec
    known: tuple[Trajectory, ...]
    """The ten episodes, which a dream may know."""
    sessions: tuple[Trajectory, ...]
    again: Mapping[tuple[str, int], StepResult]
    """Real answers of the second play that differ from the first, by trajectory and step counted from 1."""

    def kind(self, session: str) -> Kind:
        """Kind of a session."""
        return next(one.kind for one in self.server.sessions if session == f"{self.spec.name}-{one.id}")


def load(server: Server, folder: Path = RECORDINGS) -> Material:
    """Read what is kept of a server."""
    here = folder / server.name
    return Material(
        server,
        load_spec(str(here)),
        tuple(one.trajectory() for one in read_jsonl(here / "known.jsonl", Episode)),
        tuple(one.trajectory() for one in read_jsonl(here / "sessions.jsonl", Episode)),
        {(one.trajectory, one.step): one.result for one in read_jsonl(here / "again.jsonl", Again)},
    )


def keep(server: Server, recorded: Path, folder: Path = RECORDINGS) -> None:
    """Keep what `record.py` made of a server.

    Args:
        server: the recorded server.
        recorded: the folder in which record.py left NAME, NAME-sessions, NAME-again and NAME-plans-again.
        folder: the folder in which the recordings are kept.
    """
    name, here = server.name, folder / server.name
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir(parents=True)
    calls = [*(one.calls for one in server.plans), *(one.calls for one in server.sessions)]
    played = {call.name for some in calls for call in some}
    listing = json.loads((recorded / name / "tools.json").read_text(encoding="utf-8"))
    listing["tools"] = [tool for tool in listing["tools"] if tool["name"] in played]
    about = json.loads((recorded / name / "server.json").read_text(encoding="utf-8"))
    for file, content in (("tools.json", listing), ("server.json", about)):
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        (here / file).write_text(text + "\n", encoding="utf-8")
    (here / "env.toml").write_text(
        f'# {server.package}, recorded by record.py.\nname = "{name}"\ndescription = "{name}"\n', encoding="utf-8"
    )

    def episodes(part: str) -> list[Episode]:
        return [Episode.of(one) for one in read_jsonl(recorded / part / "trajectories.jsonl", Trajectory)]

    known, sessions = episodes(name), episodes(f"{name}-sessions")
    second = {one.id: one.trajectory() for one in (*episodes(f"{name}-plans-again"), *episodes(f"{name}-again"))}
    _write(here / "known.jsonl", known)
    _write(here / "sessions.jsonl", sessions)
    differing = []
    for first in (one.trajectory() for one in (*known, *sessions)):
        both = zip(first.transitions, second[first.id].transitions, strict=True)
        for step, (one, two) in enumerate(both, start=1):
            assert one.action == two.action, f"{first.id}: call {step} of the second play is another"
            if not is_same(one.result, two.result):
                differing.append(Again(trajectory=first.id, step=step, result=two.result))
    _write(here / "again.jsonl", differing)
    shutil.copy(recorded / name / "observed.json", here / "observed.json")


def _as_json(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return None
    return value


def _write(file: Path, rows: Iterable[Episode | Again]) -> None:
    file.write_text("".join(f"{row.model_dump_json(exclude_defaults=True)}\n" for row in rows), encoding="utf-8")
