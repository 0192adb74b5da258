r"""Make an environment folder: recordings of a public MCP server under a scripted agent, and unrecorded tasks.

    python -m venv runs/language-model/sqlite
    runs/language-model/sqlite/bin/pip install mcp-server-sqlite==2025.4.25 'mcp<2'
    python benchmarks/studies/language_model/record.py --server runs/language-model/sqlite/bin/mcp-server-sqlite \
        --out runs/language-model/chandler

The episodes pass through `dreamgym record`, as those of any agent would. All tasks have a check. Of the tasks to
practise, `--recorded` are recorded; the others have only their check.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

from chandler import ENV, Plan, browsing, plans
from mcp import Client

from dreamgym.environment import read_jsonl
from dreamgym.files import write_whole
from dreamgym.types import JsonObject, Trajectory

HERE = Path(__file__).resolve().parent
DREAMGYM = str(Path(sys.executable).with_name("dreamgym"))


@contextmanager
def recorder(folder: Path, server: Path) -> Iterator[str]:
    """Run `dreamgym record` in front of the server; yield its URL. It writes the folder's files when it ends."""
    command = [DREAMGYM, "record", ENV, "--out", str(folder), "--port", "0", "--"]
    command += [sys.executable, str(HERE / "fresh.py"), str(server.absolute())]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip().removesuffix("/mcp")
        if not url:
            sys.exit(f"dreamgym record ended with exit code {process.wait()}; see above")
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
        process.stdout.close()


async def played(url: str, plan: Plan) -> None:
    """Play one recorded run. Exits if the server does not answer as the check requires."""
    run = plan.task.id
    post(f"{url}/record/{run}", {"task": plan.task.instruction, "task_id": run})
    said = []
    async with Client(f"{url}/record/{run}/mcp") as client:
        await client.list_tools()
        for call in plan.calls:
            result = await client.call_tool(call.name, call.arguments)
            said += [block.text for block in result.content if block.type == "text"]
    wanted = plan.task.metadata.get("answers")
    if wanted is not None and wanted != said:
        sys.exit(f"{run}: expected {wanted}, and the server answered {said}")
    outcome: JsonObject = {"answer": plan.answer, **({} if wanted is None else {"success": True})}
    post(f"{url}/record/{run}/finish", outcome)


def post(url: str, body: JsonObject) -> None:
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=120):
        pass


def complete(folder: Path, all_plans: Sequence[Plan]) -> None:
    """Write all tasks into the folder, the tasks with their checks into its recordings, and a lower step limit."""
    description = folder / "env.toml"
    write_whole(description, description.read_text(encoding="utf-8").replace("max_steps = 50", "max_steps = 4"))
    tasks = {plan.task.id: plan.task for plan in all_plans}
    write_whole(folder / "tasks.jsonl", "".join(f"{task.model_dump_json()}\n" for task in tasks.values()))
    episodes = read_jsonl(folder / "trajectories.jsonl", Trajectory)
    checked = [one.model_copy(update={"task": tasks[one.task.id]}) for one in episodes]
    write_whole(folder / "trajectories.jsonl", "".join(f"{one.model_dump_json()}\n" for one in checked))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--server", type=Path, required=True, help="the installed mcp-server-sqlite")
    parser.add_argument("--out", type=Path, required=True, help="the environment folder; a new one")
    parser.add_argument("--recorded", type=int, default=27, help="number of training tasks to record; default: 27")
    given = parser.parse_args()
    if given.out.exists():
        parser.error(f"{given.out} exists: give another --out, or remove it")
    train = list(plans("train", 90))
    others = [*plans("dev", 18), *plans("test", 54)]
    shown = [*train[: given.recorded], *browsing()]
    with recorder(given.out, given.server) as url:
        for plan in shown:
            asyncio.run(played(url, plan))
    complete(given.out, [*train, *others, *browsing()])
    print(f"{given.out}: {len(shown)} episodes, {len(train)} tasks to practise")


if __name__ == "__main__":
    main()
