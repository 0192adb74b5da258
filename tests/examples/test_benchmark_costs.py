"""The benchmarks count what they measure, and leave nothing behind."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dreamgym.environment import from_place
from dreamgym.runs.stored import described

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NO_PROCESS = -1
"""A process id that no process has."""

pytestmark = pytest.mark.anyio


def named(benchmark: str, name: str) -> Any:
    """A function or a class of a benchmark."""
    return from_place("function", f"{BENCHMARKS / benchmark}.py:{name}")


def work(seconds: float) -> None:
    """Use CPU for some time."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


async def test_a_step_does_not_cost_what_reading_its_cost_takes() -> None:
    def of_others() -> tuple[float, float]:
        work(0.2)
        return 0.0, 0.0

    async def step(action: object) -> None:
        work(0.001)

    tried = await named("server_overhead", "timed")([step], of_others)
    assert 0.001 * len(tried.waits_ms) <= tried.cpu_s[0] < 0.2
    assert tried.wall_s >= 0.001 * len(tried.waits_ms)


async def test_a_view_and_a_query_do_not_cost_what_reading_their_cost_takes() -> None:
    clock = named("store", "Clock")(NO_PROCESS)
    began = time.process_time()
    clock.read()
    reading = time.process_time() - began
    _, own, database = clock.read()
    assert own < reading / 4
    assert database == 0

    view = named("window", "View")(name="nothing", hash="", questions=())
    *_, cpu_ms = await named("window", "server_ms")(None, NO_PROCESS, view)
    assert cpu_ms < 1000 * reading / 4


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    "measured",
    [
        "import replay_nearest as it; sys.argv[1:] = ['--dsn', dsn, '--worlds=2', '--questions=20']; "
        "asyncio.run(it.main())",
        "import server_overhead as it; it.CONCURRENT = (1,); asyncio.run(it.measure(0, 'trigram', dsn))",
        "import call_overhead as it; it.SESSIONS = (1,); os.environ[it.ENCODER] = 'trigram'; "
        "asyncio.run(it.measure(1, 0, ['sdk', 'ours, PostgreSQL'], dsn, None))",
    ],
    ids=lambda measured: measured.split()[1],
)
async def test_a_benchmark_leaves_nothing_in_the_store(measured: str, dsn: str) -> None:
    before = await described(None, None)
    script = f"import asyncio, os, sys; sys.path.insert(0, {str(BENCHMARKS)!r}); dsn = {dsn!r}; {measured}"
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)
    assert await described(None, None) == before


@pytest.mark.slow
@pytest.mark.long
def test_fewer_calls_than_rounds_are_measured_once_a_round() -> None:
    command = [sys.executable, str(BENCHMARKS / "recorder_overhead.py"), "--calls=1", "--rounds=2"]
    done = subprocess.run([*command, "--only=no-op stdio/stdio"], capture_output=True, text=True, check=True)
    assert "no-op" in done.stdout
    assert "stdio/stdio" in done.stdout


async def test_a_table_of_recorded_pages_counts_the_episodes_that_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DREAMGYM_WEBSHOP", raising=False)
    printed = named("webshop_pages", "printed")
    monkeypatch.setattr(sys.modules[printed.__module__], "TASKS", 40)
    await printed(None, 1)
    shown = capsys.readouterr().out
    assert shown.startswith("Of 40 wishes of training")
    first = [line.split(" (")[0] for line in shown.splitlines() if line.endswith(" s |")]
    assert first == ["| 75"] * 3 + ["| 80"] * 3
    assert "of 80 recorded episodes" in shown
