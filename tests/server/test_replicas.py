"""Several server processes on one database: any of them serves any call, and one that is killed loses nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from answers import meta_of, text_of
from dreamgym_client.control import ControlClient
from dreamgym_client.environment import RemoteEnvironment
from dreamgym_server.live import EpisodeAnswer
from dreamgym_server.sessions import Episodes, NewEpisode
from dreamgym_server.sources import RealWorlds
from mcp import Client
from round_robin import round_robin
from server_stage import CounterEnvironment, CounterModel, Someone, Stage, counter_spec

from dreamgym.dream.model import Query, Verdict
from dreamgym.errors import EnvironmentUnavailable
from dreamgym.replay.postgres import Store
from dreamgym.types import Task, ToolCall

pytestmark = pytest.mark.anyio

TASK = Task(id="count", env="counter", instruction="Count.", initial_state="count 0")
TOOLS = '{"tools": [{"name": "add", "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}}}]}'


def add(n: int) -> ToolCall:
    return ToolCall(name="add", arguments={"n": n})


class Fleet:
    """Real `dreamgym-serve` processes on one database, with the counting and the unsteady model as a plugin."""

    def __init__(self, home: Path, dsn: str) -> None:
        self._home, self._dsn = home, dsn
        (home / "env.toml").write_text('name = "counter"\n')
        (home / "tools.json").write_text(TOOLS)
        (home / "tasks.jsonl").write_text(TASK.model_dump_json() + "\n")
        plugin = home / "counting-1.0.dist-info"
        plugin.mkdir()
        (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1.0\n")
        models = "counting = counting_model:CountingModel\nunsteady = unsteady_model:UnsteadyModel\n"
        (plugin / "entry_points.txt").write_text(f"[dreamgym.models]\n{models}")
        self._processes: list[Process] = []

    async def start(
        self, *options: str, model: str = "counting:", gate: str = "", port: int = 0
    ) -> tuple[Process, int]:
        """Start a server process. Returns it and its port."""
        path = os.pathsep.join([str(Path(__file__).parent), str(self._home)])
        usual = [str(self._home), "--port", str(port)]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dreamgym.cli.serve", *usual, "--model", f"{model}{gate}", *options),
            stdout=PIPE,
            env={**os.environ, "PYTHONPATH": path, "DREAMGYM_ENCODER": "trigram", "DREAMGYM_DSN": self._dsn},
        )
        self._processes.append(process)
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode()
        return process, urlsplit(url).port or 0

    async def stop(self) -> None:
        """Kill the processes that still run."""
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.communicate()


@pytest.fixture
async def fleet(tmp_path: Path, dsn: str) -> AsyncIterator[Fleet]:
    fleet = Fleet(tmp_path, dsn)
    yield fleet
    await fleet.stop()


class Gate:
    """A gate at which predictions wait. `asked` has their process ids; `opened` lets all through, now and later."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[int] = asyncio.Queue()
        self.opened = asyncio.Event()
        self.address = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pid, _, _ = (await reader.readline()).decode().partition(" ")
        self.asked.put_nowait(int(pid))
        await self.opened.wait()
        writer.write(b"go\n")
        writer.close()


@asynccontextmanager
async def gate() -> AsyncIterator[Gate]:
    """Serve a closed gate, which opens at the end."""
    made = Gate()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield made
        made.opened.set()


async def test_two_processes_behind_a_round_robin_serve_64_parallel_episodes_and_none_is_wrong(fleet: Fleet) -> None:
    started = await asyncio.gather(fleet.start(), fleet.start())

    async def play(number: int) -> list[str]:
        made = await control.create("counter", task_id="count", seed=number)
        async with Client(made.mcp_url, mode="legacy" if number % 2 else "auto") as client:
            answers = [await client.call_tool("add", {"n": number + 1}) for _ in range(4)]
        state = await control.finish("counter", made.episode)
        assert state.trajectory is not None
        assert [step.result.observation for step in state.trajectory.transitions] == [text_of(a) for a in answers]
        served.update(str(step.provenance.model) for step in state.trajectory.transitions)
        return [text_of(answer) for answer in answers]

    served: Counter[str] = Counter()
    async with round_robin([port for _, port in started]) as url, ControlClient(url) as control:
        played = await asyncio.gather(*map(play, range(64)))
    assert played == [[f"count {(number + 1) * step}" for step in (1, 2, 3, 4)] for number in range(64)]
    assert set(served) == {f"counting-{process.pid}" for process, _ in started}
    assert served.total() == 4 * 64
    assert min(served.values()) > 64


async def test_a_server_killed_in_mid_step_and_restarted_loses_no_step_and_doubles_none(fleet: Fleet) -> None:
    async with gate() as before, gate() as after:
        process, port = await fleet.start(gate=before.address)
        remotes = [RemoteEnvironment(f"http://127.0.0.1:{port}", "counter") for _ in range(8)]
        await asyncio.gather(*(remote.reset(TASK, seed=seed) for seed, remote in enumerate(remotes)))
        steps = asyncio.gather(*(remote.step(add(1)) for remote in remotes), return_exceptions=True)
        assert {await before.asked.get() for _ in remotes} == {process.pid}
        process.send_signal(signal.SIGKILL)
        assert {type(failure) for failure in await steps} == {EnvironmentUnavailable}
        await process.wait()
        after.opened.set()
        await fleet.start(gate=after.address, port=port)
        first = await asyncio.gather(*(remote.step(add(1)) for remote in remotes))
        second = await asyncio.gather(*(remote.step(add(2)) for remote in remotes))
        trajectories = await asyncio.gather(*(remote.trajectory() for remote in remotes))
        await asyncio.gather(*(remote.close() for remote in remotes))
    assert [result.observation for result in first] == ["count 1"] * 8
    assert [result.observation for result in second] == ["count 3"] * 8
    played = [[step.result.observation for step in trajectory.transitions] for trajectory in trajectories]
    assert played == [["count 1", "count 3"]] * 8


async def test_when_one_of_two_servers_is_killed_in_mid_step_the_other_takes_the_step(fleet: Fleet) -> None:
    async with gate() as closed, gate() as opened:
        opened.opened.set()
        doomed, port = await fleet.start(gate=closed.address)
        _, other = await fleet.start(gate=opened.address)
        async with ControlClient(f"http://127.0.0.1:{port}") as control:
            made = await control.create("counter", task_id="count")
        path = urlsplit(made.mcp_url).path
        async with round_robin([port, other]) as url, httpx2.AsyncClient(base_url=url) as http:
            params = {"name": "add", "arguments": {"n": 1}}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            headers = {"accept": "application/json"}
            first = asyncio.create_task(http.post(path, json=body, headers=headers))
            assert await closed.asked.get() == doomed.pid
            doomed.send_signal(signal.SIGKILL)
            with pytest.raises(httpx2.TransportError):
                await first
            resent = [(await http.post(path, json=body, headers=headers)).json()["result"] for _ in range(2)]
        async with ControlClient(f"http://127.0.0.1:{other}") as control:
            state = await control.read("counter", made.episode)
    assert [result["content"][0]["text"] for result in resent] == ["count 1", "count 2"]
    assert state.step == 2


async def said(port: int, seed: int) -> list[bytes]:
    """Play an episode of two steps and return the answers as bytes, without the episode's id."""
    url = f"http://127.0.0.1:{port}"
    async with ControlClient(url) as control, httpx2.AsyncClient() as http:
        made = await control.create("counter", task_id="count", seed=seed, group="one")
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        bodies = [{**call, "params": {"name": "add", "arguments": {"n": n}}} for n in (1, 2)]
        headers = {"accept": "application/json"}
        answers = [(await http.post(made.mcp_url, json=body, headers=headers)).content for body in bodies]
        await control.finish("counter", made.episode, success=False)
    return [answer.replace(made.episode.encode(), b"") for answer in answers]


async def test_the_same_seed_model_and_database_give_the_same_bytes_in_every_process(fleet: Fleet) -> None:
    (_, here), (_, there) = await asyncio.gather(fleet.start(model="unsteady:"), fleet.start(model="unsteady:"))
    first = await said(here, seed=1)
    assert await said(there, seed=1) == await said(here, seed=1) == first
    assert set(await said(there, seed=2)).isdisjoint(first)
    _, forgetful = await fleet.start(model="unsteady: without cache")
    assert set(await said(forgetful, seed=1)).isdisjoint(first)


def replicas(stage: Stage) -> tuple[Episodes, Episodes]:
    """Two server processes without HTTP, on the same stores."""
    here, there = (Episodes({"counter": stage.dream()}, stage.episodes, stage.buffer) for _ in range(2))
    return here, there


@pytest.mark.parametrize("faster", ["the first", "the resend"])
async def test_a_resend_that_reaches_another_process_while_the_first_call_runs_is_the_same_step(
    stage: Stage, faster: str
) -> None:
    here, there = replicas(stage)
    made = await here.create("counter", NewEpisode())
    answers, reached = [asyncio.Event(), asyncio.Event()], [asyncio.Event(), asyncio.Event()]

    def before(query: Query) -> object:
        turn = len(stage.model.asked) - 1
        reached[turn].set()
        return answers[turn].wait()

    stage.model.before = before
    first = asyncio.create_task(here.call("counter", made.id, add(1), Someone(gone=True)))
    await reached[0].wait()
    resend = asyncio.create_task(there.call("counter", made.id, add(1), Someone()))
    await reached[1].wait()
    order = [(answers[0], first), (answers[1], resend)]
    for may_answer, call in order if faster == "the first" else reversed(order):
        may_answer.set()
        await call
    stage.model.before = lambda query: None
    assert (resend.result().step, resend.result().text, resend.result().uncounted) == (1, "count 1", "")
    assert (await here.call("counter", made.id, add(1), Someone())).step == 2
    assert (await there.read("counter", made.id)).version == 2


async def test_a_process_that_shares_an_episode_predicts_no_step_of_another_process_again(stage: Stage) -> None:
    here, there = replicas(stage)
    made = await here.create("counter", NewEpisode())
    answers: list[EpisodeAnswer] = [
        await (here, there)[turn % 2].call("counter", made.id, add(1), Someone()) for turn in range(8)
    ]
    assert [answer.text for answer in answers] == [f"count {n}" for n in range(1, 9)]
    assert len(stage.model.asked) == 8 + 1


async def test_a_verdict_includes_a_step_that_another_process_took_meanwhile(stage: Stage) -> None:
    judged: list[int] = []
    asked, go_on = asyncio.Event(), asyncio.Event()

    class Judging(CounterModel):
        async def judge_step(self, query: object, prediction: object) -> Verdict:
            return Verdict(accomplished=False)

        async def judge(
            self, spec: object, task: object, history: Sequence[object], answer: str | None, *, seed: int
        ) -> bool:
            judged.append(len(history))
            asked.set()
            await go_on.wait()
            return len(history) == 1

    stage.model = Judging()
    here, there = replicas(stage)
    made = await here.create("counter", NewEpisode())
    finish = asyncio.create_task(here.finish("counter", made.id, answer="done"))
    await asked.wait()
    await there.call("counter", made.id, add(1), Someone())
    go_on.set()
    ended = await finish
    assert (judged, ended.final_reward, ended.version) == ([0, 1], 1.0, 1)


async def test_an_environment_whose_episode_ended_in_another_process_is_closed(stage: Stage) -> None:
    closed = asyncio.Event()

    class Closing(CounterEnvironment):
        async def close(self) -> None:
            closed.set()

    spec = counter_spec()
    here, there = (
        Episodes({"counter": RealWorlds(spec, create)}, stage.episodes, stage.buffer)
        for create in (lambda: Closing(spec), lambda: CounterEnvironment(spec))
    )
    made = await here.create("counter", NewEpisode())
    await here.sweep()
    await asyncio.wait({asyncio.create_task(closed.wait())}, timeout=0)
    assert not closed.is_set()
    await there.finish("counter", made.id)
    await here.sweep()
    await closed.wait()


async def test_parallel_calls_of_one_episode_over_two_processes_are_taken_one_after_the_other(store: Store) -> None:
    stage = Stage(store.buffer, store.episodes)
    async with stage.serve() as (here, http), stage.serve() as (there, _):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        path = urlsplit(made["mcp_url"]).path

        async def call(turn: int) -> tuple[int, str]:
            async with Client((here, there)[turn % 2] + path) as client:
                result = await client.call_tool("add", {"n": 1})
                return int(meta_of(result)["dreamgym/step"]), text_of(result)

        answers = await asyncio.gather(*map(call, range(8)))
    assert sorted(answers) == [(n, f"count {n}") for n in range(1, 9)]


async def test_the_first_calls_of_a_session_may_be_parallel_and_reach_different_processes(store: Store) -> None:
    stage = Stage(store.buffer, store.episodes)
    async with stage.serve() as (here, _), stage.serve() as (there, _):
        ports = [urlsplit(url).port or 0 for url in (here, there)]
        async with round_robin(ports) as url, Client(f"{url}/envs/counter/mcp", mode="legacy") as client:
            results = await asyncio.gather(*(client.call_tool("add", {"n": 1}) for _ in range(4)))
    assert sorted(text_of(result) for result in results) == ["count 1", "count 2", "count 3", "count 4"]
