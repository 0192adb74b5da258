"""Make an environment folder of the helpdesk from long sessions drawn by a seed, without an LLM.

    python benchmarks/studies/helpdesk/record.py --out helpdesk/ --sessions 60 --seed 1

The calls of a session are drawn while they are played, so that a sensible call fits the state that the earlier ones
have left; about a fifth is refused. They go to the tools in this process, not through a server.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from desk import AGENTS, ARTICLES, PRIORITIES, WORKED_ON, Desk, World

from dreamgym.content import result_of
from dreamgym.files import write_whole
from dreamgym.state import as_text
from dreamgym.types import Provenance, Source, StopReason, Task, Tier, ToolCall, Trajectory, Transition
from server import TOOLS, call

HERE = Path(__file__).resolve().parent
ENV = "helpdesk"
SESSION_CALLS = 20
SENSELESS = 0.4
"""Share of calls whose arguments are not chosen to fit; some of them fit by chance."""
LOOKS = 0.5
"""Share of changes that are followed by a read of what changed."""
WEIGHTS = {
    "show_ticket": 6,
    "find_tickets": 5,
    "show_queue": 4,
    "agent_workload": 4,
    "read_article": 4,
    "add_comment": 10,
    "tag_ticket": 7,
    "escalate": 8,
    "put_on_hold": 5,
    "assign": 14,
    "open_ticket": 9,
    "close_ticket": 9,
    "merge_tickets": 7,
    "close_by_tag": 3,
    "pass_hours": 5,
}
TAGS = ("vpn", "network", "mail", "printer", "hardware", "accounts", "calendar", "floor-2")
TROUBLES = ("Keyboard is dead", "Cannot sign in", "Wiki is slow", "No sound in calls", "Scanner is offline")
NOTES = ("Looking into it", "Have you restarted it?", "Yes, twice", "Still the same", "It works from home")
FIXES = ("restarted", "cable replaced", "settings corrected", "account unlocked", "duplicate")
PEOPLE = ("ana@office.example", "bo@office.example", "cy@office.example", "gus@office.example")


def session(number: int, seed: int, world: int = 0) -> Trajectory:
    """One session, as `dreamgym record` would make it; always the same for the same arguments."""
    draw = random.Random(f"{world}/{seed}/{number}")
    desk = Desk(world)
    begin = as_text(desk.state())
    steps: list[Transition] = []
    while len(steps) < SESSION_CALLS:
        before = desk.state()
        steps.append(_step(desk, _drawn(before, draw)))
        if before != desk.state() and draw.random() < LOOKS and len(steps) < SESSION_CALLS:
            steps.append(_step(desk, _look(before, desk.state(), draw)))
    what = f"Session {number}: do what the helpdesk is asked, call by call."
    i = f"session-{seed}-{number}"
    task = Task(id=i, env=ENV, instruction=what, initial_state=begin, metadata={"split": "sessions"})
    return Trajectory(
        id=f"{ENV}-{i}", task=task, transitions=tuple(steps), source=Source.REAL, stop_reason=StopReason.CLOSED
    )


def _step(desk: Desk, action: ToolCall) -> Transition:
    before = as_text(desk.state())
    result = result_of(call(desk, action))
    after = as_text(desk.state())
    result = result.model_copy(update={"info": {**result.info, "state": after}})
    real = Provenance(tier=Tier.REAL)
    return Transition(state=before, action=action, result=result, next_state=after, provenance=real)


def _drawn(world: World, draw: random.Random) -> ToolCall:
    (tool,) = draw.choices(list(WEIGHTS), list(WEIGHTS.values()))
    sensible = draw.random() >= SENSELESS
    arguments = _arguments(tool, world, draw, sensible=sensible)
    if not sensible and draw.random() < 0.4:
        arguments = _spoiled(arguments, draw)
    return ToolCall(name=tool, arguments=arguments)


def _arguments(tool: str, world: World, draw: random.Random, *, sensible: bool) -> dict[str, Any]:
    """Arguments of a tool; if they must be sensible, for a ticket that is worked on."""
    tickets = [one for one in world["tickets"].values() if not sensible or one["status"] in WORKED_ON]
    tickets = tickets or list(world["tickets"].values())
    if sensible and tool == "escalate":
        tickets = [one for one in tickets if one["priority"] != PRIORITIES[-1]] or tickets
    if sensible and tool == "put_on_hold":
        tickets = [one for one in tickets if one["status"] == "open"] or tickets
    if sensible and tool == "close_ticket":
        tickets = [one for one in tickets if one["assignee"]] or tickets
    one = draw.choice(tickets)
    agent = draw.choice(AGENTS)[0]
    if tool == "find_tickets":
        found = {"tag": draw.choice(TAGS), "status": draw.choice((*WORKED_ON, "closed"))}
        return {name: found[name] for name in draw.choice((("tag",), ("status",), ("tag", "status")))}
    if tool == "assign":
        return {"ticket": one["id"]} if draw.random() < 0.5 else {"ticket": one["id"], "agent": agent}
    if tool == "tag_ticket":
        removed = {"remove": [draw.choice(one["tags"])]} if one["tags"] and draw.random() < 0.3 else {}
        return {"ticket": one["id"], "add": draw.sample(TAGS, draw.choice((1, 1, 2))), **removed}
    others: dict[str, dict[str, Any]] = {
        "show_queue": {},
        "agent_workload": {"agent": agent},
        "read_article": {"slug": draw.choice(ARTICLES)[0]},
        "add_comment": {
            "ticket": one["id"],
            "author": draw.choice((agent, one["requester"])),
            "text": draw.choice(NOTES),
        },
        "open_ticket": {
            "requester": draw.choice(PEOPLE),
            "subject": draw.choice(TROUBLES),
            "priority": draw.choice(PRIORITIES),
            "tags": draw.sample(TAGS, draw.choice((1, 2))),
        },
        "close_ticket": {"ticket": one["id"], "resolution": draw.choice(FIXES)},
        "merge_tickets": {"source": one["id"], "target": draw.choice(tickets)["id"]},
        "close_by_tag": {"tag": draw.choice(TAGS), "resolution": draw.choice(FIXES)},
        "pass_hours": {"hours": draw.choice((1, 2, 4, 8, 12))},
    }
    return others.get(tool, {"ticket": one["id"]})


def _spoiled(arguments: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """The arguments with one of them wrong or missing."""
    if not arguments:
        return arguments
    name = draw.choice(list(arguments))
    wrong: dict[str, Any] = {
        "ticket": f"T{draw.randint(150, 250)}",
        "source": f"T{draw.randint(150, 250)}",
        "target": f"T{draw.randint(150, 250)}",
        "agent": f"{draw.choice(('kim', 'lee', 'max'))}@desk.example",
        "author": f"{draw.choice(('kim', 'lee', 'max'))}@desk.example",
        "requester": draw.choice(("nobody", "the boss")),
        "slug": draw.choice(("coffee-machine", "vpn", "parking")),
        "priority": draw.choice(("huge", "asap")),
        "resolution": "",
        "hours": draw.choice((0, -2, 49, 100)),
    }
    if name in wrong:
        return {**arguments, name: wrong[name]}
    return {key: value for key, value in arguments.items() if key != name}


def _look(before: World, after: World, draw: random.Random) -> ToolCall:
    """A read of what has just changed."""
    looks = [ToolCall(name="show_queue", arguments={})] if before["queue"] != after["queue"] else []
    for kind, tool, argument in (("tickets", "show_ticket", "ticket"), ("agents", "agent_workload", "agent")):
        for i, entity in after[kind].items():
            if entity != before[kind].get(i):
                looks.append(ToolCall(name=tool, arguments={argument: i}))
    statuses = {one["status"] for i, one in after["tickets"].items() if one != before["tickets"].get(i)}
    looks += [ToolCall(name="find_tickets", arguments={"status": status}) for status in sorted(statuses)]
    return draw.choice(looks or [ToolCall(name="show_queue", arguments={})])


def sessions(count: int, seed: int, worlds: int = 1) -> Iterator[Trajectory]:
    """`count` sessions; the start worlds are taken in turn."""
    return (session(number, seed, number % worlds) for number in range(count))


def prepare(folder: Path, played: list[Trajectory]) -> None:
    """Write a complete environment folder. Exits if it contains recordings."""
    if (folder / "trajectories.jsonl").exists() or (folder / "recordings").exists():
        sys.exit(f"{folder} already contains recordings: give another --out, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    here = json.dumps([sys.executable, str(HERE / "server.py")])
    text = (HERE / "env.toml").read_text(encoding="utf-8")
    write_whole(folder / "env.toml", text.replace('["python", "benchmarks/studies/helpdesk/server.py"]', here))
    write_whole(folder / "tools.json", json.dumps({"tools": list(TOOLS)}, indent=2) + "\n")
    write_whole(folder / "tasks.jsonl", "".join(f"{one.task.model_dump_json()}\n" for one in played))
    write_whole(folder / "trajectories.jsonl", "".join(f"{one.model_dump_json()}\n" for one in played))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the environment folder; a new one")
    parser.add_argument("--sessions", type=int, default=60, help=f"sessions of {SESSION_CALLS} calls; default: 60")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sessions")
    parser.add_argument("--worlds", type=int, default=1, help="start worlds that the sessions take in turn; default: 1")
    given = parser.parse_args()
    played = list(sessions(given.sessions, given.seed, given.worlds))
    prepare(given.out, played)
    print(f"{given.out}: {len(played)} sessions of {SESSION_CALLS} calls", file=sys.stderr)


if __name__ == "__main__":
    main()
