"""Playing on a Ray cluster: the same bytes as in one process, nothing lost or doubled, errors in one sentence."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from command_line import Command

from dreamgym.environment import read_jsonl
from dreamgym.types import Trajectory

SECRET = "sk-never-to-be-seen"
MARBLES = '''
import os
import signal
from pathlib import Path

from dreamgym.environment import EnvironmentSpec
from dreamgym.types import StepResult, Task, ToolCall

TOOL = {"name": "draw", "inputSchema": {"type": "object", "properties": {}}}


class Marbles:
    """Three draws. The process that draws the fifth task first is killed in it, once."""

    tools = (TOOL,)

    async def reset(self, task, *, seed=None):
        self.task, self.seed, self.drawn = task, seed, 0
        return StepResult(observation=f"seed {seed}")

    async def step(self, action):
        self.drawn += 1
        if self.task.id == "bag-4" and self.drawn == 2 and "DEATH" in os.environ:
            death = Path(os.environ["DEATH"])
            if not death.exists():
                death.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        if self.task.id == "bag-2":
            raise ZeroDivisionError("a fault of the program")
        return StepResult(observation=f"{self.seed * self.drawn}", reward=1.0, terminated=self.drawn == 3)

    async def close(self):
        pass


async def draw(first, environment, seed):
    result = first
    while not result.done:
        result = await environment.step(ToolCall(name="draw", arguments={}))


class Bags:
    behaviours = {"draw": draw}
    spec = EnvironmentSpec(name="marbles", tools_list={"tools": [TOOL]}, adapter=f"{__file__}:bags")
    create = Marbles

    def tasks(self, split):
        return [Task(id=f"bag-{n}", env="marbles", instruction="Draw.") for n in range(8)]


def bags(options):
    return Bags()
'''

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="ray is not installed: pip install -c constraints.txt '.[cluster]'",
)


def collect(out: str, *flags: str) -> list[str]:
    return ["collect", "marbles.py:bags", "--agent", "draw", "--episodes", "8", "--out", out, *flags]


@pytest.fixture(autouse=True)
def _marbles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("marbles.py").write_text(MARBLES)


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short name: Ray's sockets have no room for a long one."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@needs_ray
@pytest.mark.slow
def test_a_cluster_whose_worker_dies_writes_the_bytes_of_one_process_and_logs_no_key(
    dreamgym: Command, short: Path
) -> None:
    assert dreamgym(*collect("alone.jsonl"))[0] == 0
    variables = {"DEATH": str(Path("death").resolve()), "RAY_TMPDIR": str(short), "OPENAI_API_KEY": SECRET}
    done = subprocess.run(
        [sys.executable, "-m", "dreamgym", *collect("spread.jsonl", "--cluster", "local")],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Path("death").exists(), "a worker was killed"
    assert "failed: ZeroDivisionError: a fault of the program" in done.stderr
    assert sorted(Path("spread.jsonl").read_bytes().splitlines()) == sorted(
        Path("alone.jsonl").read_bytes().splitlines()
    )
    assert len({one.id for one in read_jsonl(Path("spread.jsonl"), Trajectory)}) == 7
    logs = [file for file in short.rglob("*") if file.is_file()]
    assert logs
    assert not [file for file in logs if SECRET.encode() in file.read_bytes()]


@needs_ray
@pytest.mark.slow
@pytest.mark.long
def test_workers_of_another_version_are_refused_and_nothing_is_written(dreamgym: Command, short: Path) -> None:
    other = Path("other", "dreamgym")
    other.mkdir(parents=True)
    (other / "__init__.py").write_text('__version__ = "0.0.9"\n')
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--head", f"--port={port}", "--num-cpus=1", "--block"]
    ray += ["--include-dashboard=false", "--object-store-memory=100000000", f"--temp-dir={short}"]
    paths = os.pathsep.join([str(other.parent.resolve()), os.environ.get("PYTHONPATH", "")])
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64, "RAY_USAGE_STATS_ENABLED": "0"}
    environ = {**os.environ, **token, "PYTHONPATH": paths}
    with subprocess.Popen(ray, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True) as head:
        try:
            assert head.stdout is not None
            assert any("Ray runtime started" in line for line in head.stdout)
            done = subprocess.run(
                [sys.executable, "-m", "dreamgym", *collect("out.jsonl", "--cluster", f"127.0.0.1:{port}")],
                env={**os.environ, **token},
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            head.send_signal(signal.SIGTERM)
    assert done.returncode == 2
    assert "has no dreamgym, or a version without clusters" in done.stderr
    assert "install the same on every machine of the cluster" in done.stderr
    assert not Path("out.jsonl").exists()


@needs_ray
@pytest.mark.slow
@pytest.mark.long
def test_nodes_that_are_killed_cost_no_episode_and_double_none() -> None:
    benchmark = Path(__file__).parents[2] / "benchmarks" / "cluster.py"
    command = [sys.executable, str(benchmark), "--episodes", "0", "--kills", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    killed, episodes, _, lost, doubled, digest, alone = done.stdout.splitlines()[-1].strip("| ").split(" | ")
    assert (killed, episodes, lost, doubled) == ("2", "600", "0", "0")
    assert digest == alone


@pytest.mark.parametrize("answer", [None, b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["nobody", "a web server"])
@needs_ray
def test_an_address_at_which_no_cluster_answers_gives_one_sentence(dreamgym: Command, answer: bytes | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer or b"")

        if answer is None:
            server.close()
        else:
            Thread(target=serve, daemon=True).start()
        code, out, err = dreamgym(*collect("out.jsonl", "--cluster", f"127.0.0.1:{port}"))
    assert (code, out) == (1, "")
    told = f"no Ray cluster answers at '127.0.0.1:{port}': start its head with `ray start --head`, or give `local`"
    assert err.strip() == f"dreamgym: {told}"
    assert not Path("out.jsonl").exists()


@needs_ray
def test_a_malformed_address_is_misuse(dreamgym: Command) -> None:
    for address in ("ray://head:10001", "head", "head:0", ":6379"):
        code, _, err = dreamgym(*collect("out.jsonl", "--cluster", address))
        assert code == 2
        assert f"cluster {address!r}: expected `local`, or HOST:PORT" in err


def test_a_dream_on_other_machines_needs_a_database_that_its_workers_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    from dreamgym.errors import InvalidInput
    from dreamgym.runs.cluster import check_reachable_store

    monkeypatch.delenv("DREAMGYM_DSN", raising=False)
    with pytest.raises(InvalidInput, match="set DREAMGYM_DSN to one that they can reach"):
        check_reachable_store("head:6379", None)
    check_reachable_store("local", None)
    check_reachable_store("head:6379", "postgresql://db/dreams")


def test_the_workers_of_a_cluster_get_the_prices_and_keys_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    from dreamgym.runs.cluster import variables

    given = {"DREAMGYM_PRICE": "2,8", "OPENAI_BASE_URL": "http://host/v1", "MISTRAL_API_KEY": SECRET}
    for name, value in {**given, "OTHER_SECRET": SECRET}.items():
        monkeypatch.setenv(name, value)
    sent = variables()
    assert given.items() <= sent.items()
    assert "OTHER_SECRET" not in sent


def test_a_budget_on_a_cluster_is_refused_before_anything_starts(dreamgym: Command) -> None:
    code, _, err = dreamgym(*collect("out.jsonl", "--cluster", "local", "--budget", "3 calls"))
    assert code == 2
    assert "a budget cannot be shared by the workers of a cluster: leave out --budget or --cluster" in err
