"""Record three public MCP servers under a LangGraph agent, dream them from at most ten episodes, and compare.

    python benchmarks/studies/mirror/run.py --models nearest,local

For each server, the agent works through `dreamgym record`, and all recordings except the held-out ones are seeded. The
same agent plays a held-out task against the dream and against the real server. `dreamgym check` compares held-out calls
for each model, with and without recordings, and for a second play of the real server. Results are kept in
`runs/mirror`, and a second start continues from there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from urllib.request import Request, urlopen

from dreamgym_client.playing import Played, play_agent
from dreamgym_integrations.models.chat_server import chat_server
from fresh import node
from plans import PLANS, Plan, chat_model

from dreamgym.environment import read_jsonl
from dreamgym.episode import load_agent
from dreamgym.evaluation.calls import Agreement
from dreamgym.evaluation.report import CheckReport
from dreamgym.recordings.splits import split
from dreamgym.replay.embedded import EmbeddedServer, default_folder
from dreamgym.runs.opening import Against
from dreamgym.runs.server_process import server, with_dsn
from dreamgym.types import Task, Trajectory

HERE = Path(__file__).parent
AGENT = f"{HERE.parents[2] / 'examples' / 'langgraph_create_agent.py'}:play"
DREAMGYM = str(Path(sys.executable).with_name("dreamgym"))
HELD_OUT = 0.4
COLUMN = 58
OBSERVATION = 3 * COLUMN


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def record(name: str, folder: Path) -> None:
    """Let the agent play all tasks through the recorder."""
    if folder.exists() and len(recorded(folder)) == len(PLANS[name]):
        return
    shutil.rmtree(folder, ignore_errors=True)
    say(f"{name}: recording {len(PLANS[name])} episodes")
    command = [DREAMGYM, "record", name, "--out", str(folder), "--port", "0", "--"]
    command += [sys.executable, str(HERE.resolve() / "fresh.py"), name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip().removesuffix("/mcp")
        if not url:
            sys.exit(f"dreamgym record ended with exit code {process.wait()}; see above")
        asyncio.run(work(url, PLANS[name]))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
    say(f"{name}: {len(recorded(folder))} episodes recorded")


async def work(url: str, plans: tuple[Plan, ...]) -> None:
    """Let the agent work; task and outcome go to the recorder's control API, because they are not in the traffic."""
    agent = load_agent(AGENT)
    async with chat_server(chat_model) as chat_url:
        for plan in plans:
            post(f"{url}/record/{plan.id}", {"task": plan.instruction, "task_id": plan.id})
            answer = await agent(plan.instruction, f"{url}/record/{plan.id}/mcp", chat_url)
            post(f"{url}/record/{plan.id}/finish", {"answer": answer, "success": answer == plan.right})


def post(url: str, body: dict[str, object]) -> None:
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=120):
        pass


def recorded(folder: Path) -> list[Trajectory]:
    file = folder / "trajectories.jsonl"
    return read_jsonl(file, Trajectory) if file.exists() else []


def compare(folder: Path, cell: Path, *options: str) -> None:
    """Measure one cell of the table with `dreamgym check`, and keep its report."""
    if cell.exists():
        return
    say(f"{cell.stem}: dreamgym check {folder} {' '.join(options)}")
    command = [DREAMGYM, "check", str(folder), "--held-out", str(HELD_OUT), "--json", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"dreamgym check ended with exit code {done.returncode}; see above")
    part = cell.with_suffix(".part")
    part.write_text(done.stdout, encoding="utf-8")
    part.replace(cell)


@contextmanager
def database() -> Iterator[str]:
    """An empty database for a single episode: the server stores what is played, and a dream must not find it."""
    folder = default_folder().with_name("dreamgym-mirror")
    shutil.rmtree(folder, ignore_errors=True)
    started = EmbeddedServer.start(folder)
    try:
        yield started.dsn
    finally:
        started.release()
    shutil.rmtree(folder)


def play_both(folder: Path, models: list[str]) -> None:
    """Let the agent play the first held-out task in reality and in each model's dream."""
    known, held_out = split(recorded(folder), HELD_OUT, seed=0)
    files = {model: folder.with_name(f"{folder.name}-{file_name(model)}.txt") for model in models}
    missing = [model for model in models if not files[model].exists()]
    if not missing:
        return
    seeds = folder.with_name(f"{folder.name}-known.jsonl")
    seeds.write_text("".join(f"{one.model_dump_json()}\n" for one in known), encoding="utf-8")
    task = held_out[0].task
    say(f"{folder.name}: the agent plays {task.id!r} on the real server")
    real = played(folder, None, None, task)
    for model in missing:
        say(f"{folder.name}: the agent plays {task.id!r} in the dream of {model}")
        dream = played(folder, model, seeds, task)
        text = "\n".join(beside(told(f"DREAM ({model})", dream), told("REAL", real)))
        files[model].write_text(f"{task.instruction}\n\n{text}\n", encoding="utf-8")


def played(folder: Path, model: str | None, seeds: Path | None, task: Task) -> Played:
    """Play one episode of the agent through `dreamgym-serve`, without a model on the real server."""

    async def run(url: str) -> Played:
        async with chat_server(chat_model) as chat_url:
            return await play_agent(url, task.env, load_agent(AGENT), chat_url, task, 0)

    with database() as dsn:
        if seeds is not None:
            subprocess.run([DREAMGYM, "seed", str(folder), str(seeds)], check=True, env=with_dsn(os.environ, dsn))
        against = Against.REAL if model is None else Against.DREAM
        with server(str(folder), against, model=model, dsn=dsn) as url:
            return asyncio.run(run(url))


def told(title: str, episode: Played) -> list[str]:
    lines = [title]
    for step in episode.trajectory.transitions:
        arguments = ", ".join(f"{name}={value!r}" for name, value in step.action.arguments.items())
        lines += textwrap.wrap(f"> {step.action.name}({arguments})", COLUMN)
        said = ("ERROR " if step.result.is_error else "") + " ".join(step.result.observation.split())
        lines += textwrap.wrap(textwrap.shorten(said, OBSERVATION, placeholder=" …"), COLUMN)
    return [*lines, *textwrap.wrap(f"answer: {episode.answer}", COLUMN)]


def beside(left: list[str], right: list[str]) -> Iterator[str]:
    for a, b in zip_longest(left, right, fillvalue=""):
        yield f"{a:<{COLUMN}} | {b}".rstrip()


def file_name(model: str) -> str:
    return "".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in model)


def tables(out: Path) -> str:
    """All measured cells, in total and per tool, as Markdown."""
    reports = [CheckReport.model_validate_json(cell.read_text("utf-8")) for cell in sorted(out.glob("*.json"))]
    reports.sort(key=lambda one: (one.env, one.model is not None, one.model or "", one.k or 0))
    head = "calls | answered | schema | errors | exact | similarity"
    lines = [f"| server | against | {head} |", "|---" * 8 + "|"]
    lines += [f"| {one.env} | {against(one)} | {one.total.calls} | {totals(one.total)} |" for one in reports]
    for env in sorted({one.env for one in reports}):
        lines += ["", f"| {env} | against | {head} |", "|---" * 8 + "|"]
        of_env = [one for one in reports if one.env == env]
        for tool in sorted({tool for one in of_env for tool in one.tools}):
            rows = [(one, one.tools[tool]) for one in of_env if tool in one.tools]
            lines += [f"| {tool} | {against(one)} | {scores.calls} | {counts(scores)} |" for one, scores in rows]
    return "\n".join(lines) + "\n"


def against(report: CheckReport) -> str:
    return "the real server" if report.model is None else f"{report.model}, k = {report.k}"


def totals(scores: Agreement) -> str:
    rates = (scores.answered, scores.valid, scores.errors, scores.exact, scores.similarity)
    return " | ".join(f"{100 * r.mean:.0f} % [{100 * r.low:.0f}, {100 * r.high:.0f}]" if r.n else "" for r in rates)


def counts(scores: Agreement) -> str:
    rates = (scores.answered, scores.valid, scores.errors, scores.exact)
    shown = [f"{r.mean * r.n:.0f} of {r.n}" if r.n else "" for r in rates]
    return " | ".join([*shown, f"{scores.similarity.mean:.2f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", default="nearest", help="comma separated, as for --model; default: nearest")
    parser.add_argument("--servers", default=",".join(PLANS), help=f"default: {','.join(PLANS)}")
    parser.add_argument("--out", type=Path, default=Path("runs") / "mirror", help="default: runs/mirror")
    given = parser.parse_args()
    models, out = given.models.split(","), given.out
    node()
    out.mkdir(parents=True, exist_ok=True)
    for name in given.servers.split(","):
        record(name, out / name)
        compare(out / name, out / f"{name}-real.json", "--against", "real")
        play_both(out / name, models)
        for model in models:
            dreamed = ("--against", "dream", "--model")
            compare(out / name, out / f"{name}-{file_name(model)}.json", *dreamed, model)
            compare(out / name, out / f"{name}-{file_name(model)}-k0.json", *dreamed, f"{model} -k 0")
    (out / "report.md").write_text(tables(out), encoding="utf-8")
    for text in sorted(out.glob("*.txt")):
        print(f"\n{text.stem}: {text.read_text(encoding='utf-8')}")
    print((out / "report.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
