"""A print shop whose state follows rules that no other server of the tests has, and recordings of its tools."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

from dreamgym.state import StateSchema, as_text
from dreamgym.types import Provenance, StepResult, Tier, ToolCall, Transition

SCHEMA = StateSchema.model_validate(
    {
        "clock": "integer",
        "line": "array",
        "jobs": {
            "key": "job",
            "fields": {
                "press": "string?",
                "pages": "integer",
                "grade": "string",
                "needs": "array",
                "stage": "string",
                "by": "integer",
                "late": "boolean",
            },
        },
        "presses": {"key": "press", "fields": {"can": "array", "load": "integer"}},
        "grades": {"key": "grade", "fields": {"days": "integer"}},
    }
)
GRADES = {"slow": 9, "plain": 4, "quick": 1}
NEEDS = ("colour", "fold", "glue", "thick")
State = dict[str, Any]
"""Single values, and entities by kind and id."""


class Refusal(Exception):
    """The shop refuses a call."""


def start(draw: random.Random) -> State:
    """A shop with three presses and some jobs."""
    state: State = {
        "clock": 10,
        "line": [],
        "jobs": {},
        "presses": {
            "north": {"press": "north", "can": ["colour", "fold"], "load": 0},
            "south": {"press": "south", "can": ["glue"], "load": 0},
            "west": {"press": "west", "can": [], "load": 0},
        },
        "grades": {grade: {"grade": grade, "days": days} for grade, days in GRADES.items()},
    }
    for number in range(draw.randint(4, 7)):
        job = f"J{number + 1}"
        press, stage = draw.choice([(None, "waits"), *((p, s) for p in state["presses"] for s in ("runs", "done"))])
        state["jobs"][job] = {
            "job": job,
            "press": press,
            "pages": draw.randint(2, 60),
            "grade": draw.choice(list(GRADES)),
            "needs": sorted(draw.sample(NEEDS, draw.randint(0, 2))),
            "stage": stage,
            "by": draw.randint(6, 18),
            "late": False,
        }
    return _settled(state)


def _settled(state: State) -> State:
    jobs = list(state["jobs"].values())
    for one in jobs:
        one["late"] = one["stage"] != "done" and one["by"] < state["clock"]
    for press in state["presses"].values():
        press["load"] = sum(one["pages"] for one in jobs if one["press"] == press["press"] and one["stage"] == "runs")
    waiting = sorted((one for one in jobs if one["stage"] == "waits"), key=lambda one: (-one["pages"], one["job"]))
    state["line"] = [one["job"] for one in waiting]
    return state


def _job(state: State, job: str) -> State:
    if job not in state["jobs"]:
        raise Refusal(f"There is no job {job}")
    found: State = state["jobs"][job]
    return found


def place(state: State, job: str) -> str:
    """Send a job to the least loaded press of those that can do some of its needs, or of all if there are none."""
    one = _job(state, job)
    if one["stage"] != "waits":
        raise Refusal(f"{job} does not wait, it {one['stage']}")
    presses = list(state["presses"].values())
    able = [press for press in presses if set(press["can"]) & set(one["needs"])]
    one["press"] = min(able or presses, key=lambda press: (press["load"], press["press"]))["press"]
    one["stage"] = "runs"
    return f"{job} runs on {one['press']}."


def line(state: State) -> str:
    """List the waiting jobs, the largest first."""
    waiting = [state["jobs"][job] for job in state["line"]]
    if not waiting:
        return "Nothing waits."
    return f"{len(waiting)} wait: {'; '.join(f'''{one['job']} ({one['pages']} pages)''' for one in waiting)}."


def needing(state: State, need: str, stage: str | None = None) -> str:
    """List the jobs with a certain need."""
    found = [one for one in state["jobs"].values() if need in one["needs"] and stage in (None, one["stage"])]
    return f"Needing {need}: {', '.join(one['job'] for one in found) or 'none'}"


def relabel(state: State, job: str, add: list[str], drop: list[str] | None = None) -> str:
    """Change the needs of a job."""
    one = _job(state, job)
    needs = sorted({*one["needs"], *add} - set(drop or []))
    if needs == one["needs"]:
        raise Refusal(f"{job} needs just that")
    one["needs"] = needs
    return f"{job} now needs {', '.join(needs) or 'nothing'}."


def hurry(state: State, job: str) -> str:
    """Raise a job to the next grade."""
    one = _job(state, job)
    grades = list(GRADES)
    if one["grade"] == grades[-1]:
        raise Refusal(f"{job} is {one['grade']} already")
    one["grade"] = grades[grades.index(one["grade"]) + 1]
    return f"{job} is {one['grade']} now."


def join(state: State, job: str, other: str) -> str:
    """Merge a job into another one, which gets its pages and needs, and the quicker grade of both."""
    gone, kept = _job(state, job), _job(state, other)
    if job == other:
        raise Refusal(f"{job} cannot join itself")
    kept["pages"] += gone["pages"]
    kept["grade"] = min(gone["grade"], kept["grade"], key=lambda grade: GRADES[grade])
    kept["needs"] = sorted({*kept["needs"], *gone["needs"]})
    del state["jobs"][job]
    return f"{other} has {kept['pages']} pages now."


def wait(state: State, days: int) -> str:
    """Let some days pass."""
    early = {one["job"] for one in state["jobs"].values() if not one["late"]}
    state["clock"] += days
    _settled(state)
    late = [one["job"] for one in state["jobs"].values() if one["late"] and one["job"] in early]
    return f"Day {state['clock']}, newly late: {', '.join(late) or 'none'}."


TOOLS: dict[str, Callable[..., str]] = {one.__name__: one for one in (place, line, needing, relabel, hurry, join, wait)}


def call(tool: str, draw: random.Random, state: State) -> ToolCall:
    """A call of a tool that mostly fits the state."""
    job = draw.choice(list(state["jobs"])) if draw.random() < 0.9 else f"J{draw.randint(50, 90)}"
    waiting = [job for job in state["line"] if draw.random() < 0.8] or [job]
    arguments: dict[str, State] = {
        "place": {"job": draw.choice(waiting)},
        "line": {},
        "needing": {"need": draw.choice(NEEDS), **draw.choice([{}, {"stage": draw.choice(("waits", "runs", "done"))}])},
        "relabel": {"job": job, "add": draw.sample(NEEDS, 1), **draw.choice([{}, {"drop": draw.sample(NEEDS, 1)}])},
        "join": {"job": job, "other": draw.choice(list(state["jobs"]))},
        "wait": {"days": draw.randint(1, 4)},
    }
    return ToolCall(name=tool, arguments=arguments.get(tool, {"job": job}))


def play(state: State, action: ToolCall) -> Transition:
    """Make a call; return it as a recorded transition."""
    after = copy.deepcopy(state)
    try:
        answer, refused = TOOLS[action.name](after, **action.arguments), False
    except Refusal as refusal:
        answer, refused, after = str(refusal), True, copy.deepcopy(state)
    return Transition(
        state=as_text(state),
        action=action,
        result=StepResult(observation=answer, is_error=refused),
        next_state=as_text(_settled(after)),
        provenance=Provenance(tier=Tier.REAL),
    )


def recordings(count: int, seed: int, tools: tuple[str, ...] = tuple(TOOLS)) -> list[Transition]:
    """Return `count` recorded calls of each tool, each in a new shop."""
    draw = random.Random(seed)
    found: list[Transition] = []
    for tool in tools:
        for _ in range(count):
            state = start(draw)
            found.append(play(state, call(tool, draw, state)))
    return found
