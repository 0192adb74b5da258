"""The study of strangers' servers: its recordings are those of its plans, and it counts answers as defined."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dreamgym.dream.nearest import NearestModel
from dreamgym.embedding import TrigramEncoder
from dreamgym.recordings.folder.server import fault_words, invalid_arguments
from dreamgym.types import StepResult, ToolCall

pytestmark = pytest.mark.anyio

STUDY = Path(__file__).parents[2] / "benchmarks" / "studies" / "strangers"
NAMES = ("sqlite", "git", "time", "think", "excel", "tasks", "word")
READ, WRITE = ToolCall(name="read", arguments={}), ToolCall(name="write", arguments={"text": "b"})
A, B = StepResult(observation="a"), StepResult(observation="b")


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The study's modules; other studies have modules of the same names."""
    monkeypatch.syspath_prepend(str(STUDY))
    names = [file.stem for file in STUDY.glob("*.py")]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    used = ("public_server", "servers", "material", "judged", "facts", "measure", "report")
    yield SimpleNamespace(**{name: __import__(name) for name in used})
    for name in names:
        sys.modules.pop(name, None)


def judged(study: SimpleNamespace, *calls: tuple[ToolCall, StepResult, StepResult | None], kind: str) -> list[Any]:
    return [
        study.judged.Judged(
            server="s",
            session="one",
            kind=kind,
            step=number,
            action=action,
            is_read=action.name == "read",
            real=real,
            got=got,
            tier=None if got is None else "model",
            is_accepted=not real.is_error,
            is_refused=got is not None and got.is_error,
        )
        for number, (action, real, got) in enumerate(calls, start=1)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_the_recordings_of_a_server_are_the_calls_of_its_plans_and_sessions(study: SimpleNamespace, name: str) -> None:
    server = study.servers.SERVERS[name]
    kept = study.material.load(server)
    made = {one.id: tuple(step.action for step in one.transitions) for one in (*kept.known, *kept.sessions)}
    assert made == {f"{name}-{one.id}": one.calls for one in (*server.plans, *server.sessions)}
    assert all(number <= len(made[trajectory]) for trajectory, number in kept.again)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "time"])
def test_eight_sessions_of_a_server_with_state_write_what_was_never_recorded(study: SimpleNamespace, name: str) -> None:
    server = study.servers.SERVERS[name]
    recorded = {call.canonical() for plan in server.plans for call in plan.calls}
    new = [
        session.id
        for session in server.sessions
        if session.kind is study.public_server.Kind.READ_AFTER_WRITE
        and any(
            call.canonical() not in recorded
            for call in session.calls
            if call.name not in server.reads or name == "think"
        )
    ]
    assert len(new) >= 8


def test_the_recordings_are_small(study: SimpleNamespace) -> None:
    files = [file for file in study.material.RECORDINGS.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 300_000


def test_words_that_differ_between_two_real_plays_may_differ_in_an_answer(study: SimpleNamespace) -> None:
    def commit(text: str) -> StepResult:
        return StepResult(observation=f"Committed {text} on main")

    is_like = study.judged.is_like
    assert is_like(commit("4f2a"), commit("9c01"), commit("77de"))
    assert not is_like(commit("4f2a"), commit("9c01"), None)
    assert not is_like(StepResult(observation="Committed 4f2a on tides"), commit("9c01"), commit("77de"))
    assert not is_like(commit("4f2a").model_copy(update={"is_error": True}), commit("9c01"), commit("77de"))


def test_a_sequence_is_right_if_every_read_is_exact_and_misleading_if_any_answer_is_wrong(
    study: SimpleNamespace,
) -> None:
    def counted(*calls: tuple[ToolCall, StepResult, StepResult | None]) -> tuple[float, float]:
        got = study.judged.counts(judged(study, *calls, kind="read after write"))
        return got.sequences.mean, got.misleading.mean

    assert counted((WRITE, A, A), (READ, B, B)) == (1, 0)
    assert counted((WRITE, A, B), (READ, B, B)) == (1, 1)
    assert counted((WRITE, A, A), (READ, B, A)) == (0, 1)
    assert counted((WRITE, A, A), (READ, B, None)) == (0, 0)


def test_a_repeat_counts_if_reality_answered_as_before_and_the_dream_at_all(study: SimpleNamespace) -> None:
    def repeats(*calls: tuple[ToolCall, StepResult, StepResult | None]) -> tuple[float, int]:
        got = study.judged.counts(judged(study, *calls, kind="repeated reads")).repeats
        return got.mean, got.n

    assert repeats((READ, A, B), (READ, A, B)) == (1, 1)
    assert repeats((READ, A, A), (WRITE, A, A), (READ, A, B)) == (0, 1)
    assert repeats((READ, A, A), (READ, A, None)) == (0, 1)
    assert repeats((READ, A, None), (READ, A, None)) == (0, 0)
    assert repeats((READ, A, A), (WRITE, A, A), (READ, B, B)) == (0, 0)


def test_a_repeat_is_undisturbed_if_no_accepted_write_stands_in_between(study: SimpleNamespace) -> None:
    refusal = StepResult(observation="no", is_error=True)

    def undisturbed(*calls: tuple[ToolCall, StepResult, StepResult | None]) -> tuple[float, int]:
        got = study.judged.counts(judged(study, *calls, kind="repeated reads")).undisturbed
        return got.mean, got.n

    assert undisturbed((READ, A, A), (READ, A, A)) == (1, 1)
    assert undisturbed((READ, A, A), (WRITE, refusal, refusal), (READ, A, B)) == (0, 1)
    assert undisturbed((READ, A, A), (WRITE, A, A), (READ, A, None)) == (0, 0)


def test_a_read_that_has_no_answer_after_a_write_is_named_with_the_write(study: SimpleNamespace) -> None:
    rows = judged(study, (READ, A, A), (WRITE, A, A), (READ, A, None), kind="repeated reads")
    page = study.report.page([study.report.Cell(server="s", model="m", sessions=rows, held_out=())], [], {}, {})
    assert "- s, m, one 3: `read {}` after `write`: no answer" in page


@pytest.mark.parametrize("name", NAMES)
def test_the_stored_words_of_a_servers_refusals_are_what_recording_learns(study: SimpleNamespace, name: str) -> None:
    kept = study.material.load(study.servers.SERVERS[name])
    calls = [(step.action, step.result) for one in kept.known for step in one.transitions]
    tools = {tool["name"]: tool for tool in kept.spec.tools}
    mirror = kept.spec.mirror
    assert invalid_arguments(calls, tools) == mirror.invalid_arguments
    assert fault_words(calls, tools, mirror.invalid_arguments) == (mirror.fault_words, mirror.tells_all_faults)


def test_a_valid_call_that_the_dream_refuses_is_counted_but_one_without_an_answer_is_not(
    study: SimpleNamespace,
) -> None:
    refusal = StepResult(observation="no", is_error=True)
    rows = judged(study, (READ, A, refusal), (READ, A, None), (WRITE, refusal, refusal), kind="new arguments")
    got = study.judged.counts(rows)
    assert (got.false_refusals.mean, got.false_refusals.n) == (0.5, 2)
    assert (got.refusals.mean, got.refusals.n) == (1, 1)


def test_facts_are_the_words_of_the_answer_that_are_neither_in_the_call_nor_from_a_clock(
    study: SimpleNamespace,
) -> None:
    call = ToolCall(name="read", arguments={"name": "rope"})
    real, again = (
        StepResult(observation=f'{{"name": "rope", "price": 12.5, "at": "{at}"}}') for at in ("10:01", "10:02")
    )
    assert study.facts.facts_of(call, real, again) == ("12.5",)


async def test_a_measurement_needs_no_server_and_a_second_start_asks_the_model_nothing(
    study: SimpleNamespace, tmp_path: Path
) -> None:
    given, measuring = (
        study.material.load(study.servers.SERVERS["sqlite"]),
        study.measure.Study(tmp_path, TrigramEncoder()),
    )
    first = await measuring.cell(given, "nearest", NearestModel())
    assert len(first.sessions) == sum(len(one.transitions) for one in given.sessions)
    assert {call.kind for call in first.held_out} == {None}

    class Silent(NearestModel):
        async def predict(self, query: object) -> Any:
            raise AssertionError("asked again")

    assert await measuring.cell(given, "nearest", Silent()) == first
    page = study.report.page([first, study.measure.played_again(given)], [], {}, {})
    assert "| sqlite | the real server | 59 | 59 of 59" in page
    assert page.count("\n  - real: ") == sum(call.wrong for call in (*first.sessions, *first.held_out))
