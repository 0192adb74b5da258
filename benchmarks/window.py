"""Measure how fast the page of `dreamgym view` shows a store of many episodes and an episode of many steps.

    python benchmarks/window.py [--episodes 10000] [--steps 5000]

The store is an embedded PostgreSQL in a temporary folder that is deleted afterwards. A third of its episodes are
dreamed, on the same tasks as the others. One task was played for `--steps` steps in a dream and in reality, which
differ from a step near the end on. The page also shows a run folder with 500 updates of a training run and a report
with the steps behind its numbers.

- server ms: time from the requests of a view to their whole answers, summed over the requests, which are sent over HTTP
  on this machine one after another; median and lowest of the repetitions;
- CPU ms: CPU of PostgreSQL and of the process that answers, which also sends the requests, for the same requests;
- page ms: from the click to the view on the screen, in a headless Chromium, if playwright and a Chromium are installed.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from dreamgym_integrations.environments.browser.chromium import SYSTEM_BROWSERS
from dreamgym_server.app import build_view
from dreamgym_server.doors.view import files
from dreamgym_server.running import running
from dreamgym_server.view.answers import Answers
from dreamgym_server.view.folders import RunFolder
from dreamgym_server.view.library import Library

from dreamgym.embedding import TrigramEncoder
from dreamgym.evaluation.report import PredictedStep
from dreamgym.evaluation.report.behind import StepBehind, cell
from dreamgym.replay.embedded import EmbeddedServer
from dreamgym.replay.keys import transition_id
from dreamgym.replay.postgres import Store, open_store
from dreamgym.replay.postgres.listing import StoredEpisodes
from dreamgym.types import (
    Origin,
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

ENV = "benchmark"
TOKEN = "of-this-benchmark-alone"
SHORT = 10
"""Steps of the episodes that are not long."""
LOADED = 2_000
"""Episodes that are stored in one transaction."""
REPEATED = 7
DIM = 192
UPDATES = 500
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
ROOMS = ("kitchen", "pantry", "hall", "backyard", "laundry", "bedroom", "study", "corridor", "cellar", "attic")
TOOLS = ("go", "take", "open", "look", "drop")


def database_cpu_s(postmaster: int) -> float:
    """Seconds of CPU of the processes of one PostgreSQL."""
    used = 0.0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(") ")[2].split()[1])
            if postmaster in {int(process.name), parent}:
                used += int((process / "schedstat").read_text().split()[0]) / 1e9
        except OSError:  # the process has ended
            continue
    return used


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Store, int]]:
    """An empty store in a temporary folder, and the process id of its PostgreSQL."""
    home = Path(tempfile.mkdtemp(prefix="dreamgym-window-"))
    home.chmod(0o711)
    server = EmbeddedServer.start(home / "postgres")
    try:
        store = await open_store(server.dsn, TrigramEncoder(DIM))
        try:
            yield store, int((home / "postgres" / "data" / "postmaster.pid").read_text().split()[0])
        finally:
            await store.close()
    finally:
        server.release()
        shutil.rmtree(home, ignore_errors=True)


@dataclass(frozen=True)
class View:
    """A view that a person opens, and the requests that the page then sends."""

    name: str
    hash: str
    questions: tuple[tuple[str, dict[str, str]], ...]


def played(name: str, task: str, steps: int, *, dreamed: bool, parts_at: int | None = None) -> Trajectory:
    """An episode; the dream of a task is like its real episode before step `parts_at`, and different from there on."""
    draw = random.Random(task)
    state, transitions = f"{task}: you are outside.", list[Transition]()
    neighbour: tuple[str, ...] = ()
    for number in range(1, steps + 1):
        tool, room = draw.choice(TOOLS), draw.choice(ROOMS)
        other = ", and a door is open" if dreamed and parts_at is not None and number >= parts_at else ""
        answer = (
            f"{task}, {number}: you {tool} and see the {room}{other}. "
            + f"There is a {draw.choice(ROOMS)} beside it. " * 3
        )
        ends = number == steps
        origin = Provenance(
            tier=Tier.MODEL, model="m", retrieved=neighbour, prompt_tokens=900, completion_tokens=40, confidence=0.8
        )
        step = Transition.of(
            state,
            ToolCall(name=tool, arguments={"to": room, "number": number % 50}),
            StepResult(observation=answer, reward=float(ends), terminated=ends, is_error=number % 9 == 0),
            origin if dreamed else None,
        )
        state = step.next_state
        transitions.append(step)
        neighbour = (str(transition_id(step)),)
    return Trajectory(
        id=name,
        task=Task(id=task, env=ENV, instruction=f"Search {task} for the coin.", initial_state=transitions[0].state),
        transitions=tuple(transitions),
        source=Source.SYNTHETIC if dreamed else Source.REAL,
        stop_reason=StopReason.TERMINATED,
        policy_version=len(name) if dreamed else None,
    )


def short_episode(number: int) -> Trajectory:
    """One of the many short episodes: each task was played three times, once in a dream."""
    return played(
        f"episode-{number}", f"house-{number // 3}", SHORT, dreamed=number % 3 == 2, parts_at=1 + number % SHORT
    )


async def fill(store: Store, episodes: int, steps: int) -> None:
    """Store all episodes and tasks that are shown."""
    for first in range(0, episodes, LOADED):
        await store.buffer.add([short_episode(number) for number in range(first, min(first + LOADED, episodes))])
    await store.buffer.add(
        [
            played("long-real", "long", steps, dreamed=False),
            played("long-dream", "long", steps, dreamed=True, parts_at=steps - steps // 10),
        ]
    )
    tasks = [
        Task(
            id=f"varied-{number}",
            env=ENV,
            instruction=f"Search house {number}.",
            parent_id=f"house-{number % 50}",
            origin=Origin.GENERATED,
        )
        for number in range(1_000)
    ]
    await store.buffer.add_tasks(tasks)
    for number, task in enumerate(tasks):
        await store.buffer.record_outcomes(ENV, task.id, 1, [float(one < number % 9) for one in range(8)])


def write_folder(folder: Path) -> None:
    """Write a training run, and a report with 2,000 steps behind its numbers."""
    lines: list[dict[str, object]] = []
    for update in range(UPDATES):
        lines.append(
            {
                "step": update,
                "where": "dream",
                "inside_success": update / UPDATES,
                "refused_share": 0.3,
                "groups": 8,
                "dead_groups": update % 8,
                "mean_steps": 9.0,
                "environment_steps": 600,
                "tiers": {"recorded": 400, "model": 200},
                "rollout_s": 1.0,
            }
        )
        lines.append({"step": update + 1, "loss": 0.2, "kl": 0.01, "entropy": 0.5})
        if update % 25 == 0:
            lines.append({"step": update, "real_success": 0.3, "real_low": 0.2, "real_high": 0.4, "real_episodes": 100})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (folder / "report.json").write_text("{}", encoding="utf-8")
    name = cell("answers", "observation exact", "share")
    with (folder / "behind.jsonl").open("w", encoding="utf-8") as file:
        for number in range(2_000):
            shown = PredictedStep(
                trajectory=f"episode-{number}", step=1, action="go", recorded="hall " * 20, got="attic " * 20
            )
            file.write(StepBehind(setting="m", shown=shown, values={name: float(number % 2)}).model_dump_json() + "\n")


def views(steps: int) -> list[View]:
    """Every view with its requests; the page requests `about` before each view."""
    env = {"env": ENV}
    of_dream, of_real = {"place": "store", "id": "long-dream"}, {"place": "store", "other_place": "store"}
    cell_ = {"name": ".", "setting": "m", "cell": cell("answers", "observation exact", "share")}

    def hashed(view: str, given: dict[str, str]) -> str:
        return f"#/{view}?{httpx2.QueryParams(given)}" if given else f"#/{view}"

    def one(name: str, view: str, given: dict[str, str], *questions: tuple[str, dict[str, str]]) -> View:
        return View(name, hashed(view, given), (("about", {}), *questions))

    store = {"place": "store"}
    middle = str(steps // 2 // 100 * 100 + 1)
    text = {**env, "text": "you open and see the attic"}
    compared = {**of_dream, **of_real, "other": "long-real"}
    return [
        one("overview", "", {}, ("pairs", {})),
        one("episodes", "episodes", store, ("episodes", store)),
        one(
            "episodes, dreamed by a model with success",
            "episodes",
            {**store, "source": "synthetic", "tier": "model", "success": "true"},
            ("episodes", {**store, "source": "synthetic", "tier": "model", "success": "true"}),
        ),
        one(
            "episodes, by a text",
            "episodes",
            {**store, "text": "house-2999"},
            ("episodes", {**store, "text": "house-2999"}),
        ),
        one(
            f"episode of {SHORT} steps",
            "episode",
            {**store, "id": "episode-5"},
            ("episode", {**store, "id": "episode-5"}),
            ("steps", {**store, "id": "episode-5", "first": "1"}),
        ),
        one(
            f"episode of {steps:,} steps, begin",
            "episode",
            of_dream,
            ("episode", of_dream),
            ("steps", {**of_dream, "first": "1"}),
        ),
        one(
            f"episode of {steps:,} steps, middle",
            "episode",
            {**of_dream, "step": middle},
            ("episode", of_dream),
            ("steps", {**of_dream, "first": middle}),
        ),
        one(f"dream beside reality, {steps:,} steps, where they part", "compare", compared, ("compare", compared)),
        one("buffer, coverage", "buffer", env, ("coverage", env)),
        one("buffer, by a text", "buffer", text, ("search", text), ("coverage", env)),
        one(
            "buffer, by a text and three conditions",
            "buffer",
            {**text, "source": "synthetic", "tier": "model", "success": "true"},
            ("search", {**text, "source": "synthetic", "tier": "model", "success": "true"}),
            ("coverage", env),
        ),
        one(
            "buffer, by likeness",
            "buffer",
            {**env, "tool": "go", "state": "house-7, 3: you look and see the hall."},
            ("near", {**env, "tool": "go", "state": "house-7, 3: you look and see the hall."}),
            ("coverage", env),
        ),
        one("curriculum", "curriculum", env, ("tasks", env)),
        one(f"training, {UPDATES} updates", "training", {}, ("runs", {}), ("run", {"name": "."})),
        one("steps behind a number of a report", "behind", cell_, ("behind", {**cell_, "first": "1"})),
    ]


@asynccontextmanager
async def browser_page(address: str) -> AsyncIterator[Any]:
    """A page in a headless Chromium; None if there is none."""
    program = next(filter(None, map(shutil.which, SYSTEM_BROWSERS)), None)
    if program is None or importlib.util.find_spec("playwright") is None:
        yield None
        return
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=QUIET)
        page = await browser.new_page(viewport={"width": 1280, "height": 860})
        page.set_default_timeout(120_000)
        await page.goto(f"{address}#token={TOKEN}")
        await page.wait_for_selector("h1")
        yield page
        await browser.close()


SHOWN = """hash => new Promise((resolve) => {
  const main = document.getElementById("main");
  const began = performance.now();
  main.addEventListener("shown", () => requestAnimationFrame(() => requestAnimationFrame(
    () => resolve(performance.now() - began))), { once: true });
  location.hash = hash;
})"""


async def page_ms(page: Any, view: View) -> float:
    """Time from the click to the view on the screen, the median of three."""
    found = []
    for _ in range(3):
        await page.evaluate(SHOWN, "#/reports?name=nothing")
        found.append(float(await page.evaluate(SHOWN, view.hash)))
    return statistics.median(found)


async def server_ms(http: httpx2.AsyncClient, postmaster: int, view: View) -> tuple[float, float, float, float]:
    """First, median and lowest wall time of the requests of a view, and their median CPU time.

    The first one also fills caches, unless the requests of an earlier view did.
    """
    walls, cpu = list[float](), list[float]()
    for _ in range(REPEATED):
        # reading the database's CPU takes milliseconds of our own, which are not counted
        theirs, own, began = database_cpu_s(postmaster), time.process_time(), time.perf_counter()
        for name, given in view.questions:
            answer = await http.get(name, params=given)
            assert answer.status_code == 200, (name, answer.text)
        walls.append(1e3 * (time.perf_counter() - began))
        own = time.process_time() - own
        cpu.append(1e3 * (own + database_cpu_s(postmaster) - theirs))
    return walls[0], statistics.median(walls), min(walls), statistics.median(cpu)


async def measure(episodes: int, steps: int, say: Callable[[str], None]) -> None:
    """Fill a store, open each view, and print the table."""
    folder = Path(tempfile.mkdtemp(prefix="dreamgym-window-"))
    try:
        async with AsyncExitStack() as stack:
            store, postmaster = await stack.enter_async_context(opened())
            began = time.perf_counter()
            await fill(store, episodes, steps)
            # autovacuum would run during the first views, and count as their CPU
            for statement in ("VACUUM ANALYZE", "ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()"):
                await store.database.fetch(statement, {})
            say(f"stored in {time.perf_counter() - began:.0f} s")
            write_folder(folder)
            library = Library(store=StoredEpisodes(store.database), folder=RunFolder(folder), buffer=store.buffer)
            url = await stack.enter_async_context(running(build_view(Answers(library), TOKEN)))
            http = await stack.enter_async_context(
                httpx2.AsyncClient(
                    base_url=f"{url}/view/api/", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=120
                )
            )
            page = await stack.enter_async_context(browser_page(f"{url}/view/"))
            size = sum(map(len, files().values()))
            print(
                f"{episodes:,} episodes of {SHORT} steps, and two of {steps:,}. All files of the page together: "
                f"{size / 1e3:.0f} kB. Each view {REPEATED} times, in the browser three times.\n"
            )
            print("| view | server ms, first | median | lowest | CPU ms | page ms |\n|---|---|---|---|---|---|")
            for view in views(steps):
                first, median, lowest, cpu = await server_ms(http, postmaster, view)
                shown = "" if page is None else f"{await page_ms(page, view):.0f}"
                print(f"| {view.name} | {first:.0f} | {median:.0f} | {lowest:.0f} | {cpu:.0f} | {shown} |", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=5_000)
    given = parser.parse_args()
    asyncio.run(measure(given.episodes, given.steps, lambda text: print(text, file=sys.stderr, flush=True)))


if __name__ == "__main__":
    main()
