"""A complete run folder: a training run with rollouts and a curriculum, a report, and episodes."""

from __future__ import annotations

import json
from pathlib import Path

from dreamgym_server.view.folders import RunFolder
from dreamgym_server.view.library import Library
from screen import episode, run_folder

from dreamgym.environment import load_spec
from dreamgym.replay.grouped import as_line
from dreamgym.runs.fidelity import check, fidelity
from dreamgym.types import Source, Task, Trajectory

ENV = """name = "house"
deterministic = true
[limits]
max_steps = 20
"""
TOOLS = {
    "tools": [
        {
            "name": "go",
            "inputSchema": {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]},
        }
    ]
}
RUN = "0123456789abcdef"
UPDATES = 6


def played() -> list[Trajectory]:
    """Return a dreamed and a real episode of one task, whose answers part at step 3."""
    return [
        episode("dream-1", ["kitchen", "hall", "attic", "coin"], dreamed=True),
        episode("real-1", ["kitchen", "hall", "cellar", "coin"]),
    ]


def metrics() -> list[dict[str, object]]:
    """The record of six updates in a dream with two probes in reality."""
    return [
        {"step": 0, "real_success": 0.2, "real_low": 0.1, "real_high": 0.3, "real_episodes": 100},
        *(
            {
                "step": update,
                "where": "dream",
                "inside_success": 0.1 * update,
                "refused_share": 0.5,
                "groups": 8,
                "dead_groups": 2,
                "mean_steps": 9.5,
                "environment_steps": 600,
                "tiers": {"model": 51, "recorded": 500 - 50 * update},
                "rollout_s": 6.7,
            }
            for update in range(UPDATES)
        ),
        {"step": 5, "loss": 0.3, "kl": 0.01, "entropy": 0.6},
        {"step": 6, "real_success": 0.4, "real_low": 0.3, "real_high": 0.5, "real_episodes": 100},
    ]


def write_run(folder: Path) -> None:
    """Write a training run: its record, a rollout of each update, and the curriculum of its newest checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics()))
    (folder / "run.json").write_text(json.dumps({"run": RUN}))
    with (folder / "rollouts.jsonl").open("w") as file:
        for update in range(UPDATES):
            rollout = episode(f"rollout-{update}", ["kitchen", f"room {update}"], dreamed=True)
            file.write(as_line(f"{RUN}-{update}-0", rollout.model_copy(update={"policy_version": update})))
    checkpoint = folder / "checkpoints" / "checkpoint-5"
    checkpoint.mkdir(parents=True)
    parent = Task(id="t1", env="house", instruction="Find the coin.", initial_state="start")
    child = parent.model_copy(update={"id": "t1-varied", "initial_state": "cellar", "parent_id": "t1"})
    groups = {"t1": (8, 4.0), "t1-varied": (8, 8.0)}
    (checkpoint / "curriculum.json").write_text(
        json.dumps(
            {
                "generated": [child.model_dump(mode="json")],
                "groups": {
                    name: [{"iteration": 5, "attempts": attempts, "total": total, "squares": total}]
                    for name, (attempts, total) in groups.items()
                },
            }
        )
    )


def write_report(folder: Path) -> None:
    """Write a report and a check over eight recorded episodes, of which the dream knows half."""
    home = folder.parent / "house"
    home.mkdir()
    (home / "env.toml").write_text(ENV)
    (home / "tools.json").write_text(json.dumps(TOOLS))
    recorded = []
    for number in range(8):
        one = episode(f"recorded-{number}", ["kitchen", f"room {number % 4}", "coin"])
        recorded.append(one.model_copy(update={"task": one.task.model_copy(update={"id": f"t{number}"})}))
    (home / "trajectories.jsonl").write_text("".join(f"{one.model_dump_json()}\n" for one in recorded))
    assert load_spec(str(home)).name == "house"
    fidelity(str(home), ["nearest"], held_out=0.5, closed_loop=2, out=folder)
    check(str(home), "dream", "nearest", held_out=0.5, out=folder)


def whole_run(folder: Path) -> Library:
    """Write all of this into one run folder, with the two episodes of `played`."""
    write_run(folder)
    write_report(folder / "report")
    library = run_folder(folder, *played())
    assert isinstance(library.folder, RunFolder)
    assert {one.source for one in played()} == {Source.REAL, Source.SYNTHETIC}
    return library
