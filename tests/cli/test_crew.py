"""The workers of a cluster: what they spend, the key that they redact with, and what counts as a lost worker."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dreamgym.budget import LEDGER_VARIABLE, Spent, metered, open_ledger
from dreamgym.llm import Message, ScriptedLLM
from dreamgym.redaction import placeholder
from dreamgym.redaction.placeholder import load_key
from dreamgym.runs.cluster import Crew, _note, _version, _worker_class

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Asking:
    """Each unit asks a language model once."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Callable[[int], Awaitable[int]]]:
        model = metered(ScriptedLLM(lambda messages: "yes"), "gpt-4.1-mini")

        async def do(number: int) -> int:
            await model.complete([Message(role="user", content="Is it so?")])
            return number

        yield do


async def test_what_the_workers_of_other_machines_spend_is_counted_by_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(LEDGER_VARIABLE, raising=False)
    worker = _worker_class()()
    assert await worker.begin((_version(), pickle.dumps(Asking()), {}, None, "/no/folder")) is None
    answers = [await worker.do(pickle.dumps(number)) for number in range(3)]
    assert [pickle.loads(answer) for _, _, answer, _ in answers] == [0, 1, 2]
    rest = await worker.close()
    with open_ledger(None) as ledger:
        for spent in (*(spent for *_, spent in answers), rest):
            _note(spent)
        assert (ledger.spent.calls, Spent.model_validate_json(answers[0][3]).calls) == (3, 1)


async def test_a_worker_on_this_machine_counts_in_the_ledger_of_its_command() -> None:
    with open_ledger(None) as ledger:
        worker = _worker_class()()
        await worker.begin((_version(), pickle.dumps(Asking()), {}, None, "/no/folder"))
        assert (await worker.do(pickle.dumps(1)))[3] is None
        await worker.close()
        assert ledger.spent.calls == 1


async def test_a_worker_redacts_with_the_key_of_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DREAMGYM_HOME", str(tmp_path))
    monkeypatch.setattr(placeholder, "_of_another_machine", [])
    own, worker = load_key(), _worker_class()()
    await worker.begin((_version(), pickle.dumps(Asking()), {}, b"k" * 32, "/no/folder"))
    await worker.close()
    assert load_key() == b"k" * 32 != own


class Lost(Exception):
    """Ray's error if a worker has died."""


class Actor:
    """A worker of Ray, which may die."""

    def __init__(self) -> None:
        self.is_dead = False
        self.begin, self.do = SimpleNamespace(remote=self._begin), SimpleNamespace(remote=self._do)

    async def _begin(self, orders: object) -> None:
        if self.is_dead:
            raise Lost

    async def _do(self, unit: bytes) -> tuple[bool, str, bytes, None]:
        if self.is_dead:
            raise Lost
        return True, "", unit, None


async def test_the_idle_places_of_one_lost_worker_do_not_count_as_many_lost_workers() -> None:
    ray: Any = SimpleNamespace(
        put=lambda orders: orders,
        exceptions=SimpleNamespace(RayActorError=Lost, OutOfMemoryError=Lost, NodeDiedError=Lost),
    )
    dead, well = Actor(), Actor()
    actors: Any = [dead, well]
    crew: Crew[int, int] = Crew(ray, "here", Asking(), actors, places=16)
    await crew.ready(32)
    dead.is_dead = True
    assert await asyncio.gather(*map(crew.do, range(40))) == [*range(40)]
    assert crew.present == 16
    for joining in crew._joining:
        joining.cancel()
