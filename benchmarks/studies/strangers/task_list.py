"""`@kazuph/mcp-taskmanager`: requests with tasks to be done and approved. It answers in JSON, refusals included.

A session begins with one request that is half done.
"""

from __future__ import annotations

import json
from pathlib import Path

from public_server import Kind, Plan, Server, Session, call, world
from pydantic import JsonValue

from dreamgym.types import JsonObject, ToolCall

NAME = "tasks"
FILE = "tasks.json"


def _stored(number: int, title: str, description: str, *, done: bool) -> JsonObject:
    return {
        "id": f"task-{number}",
        "title": title,
        "description": description,
        "done": done,
        "approved": done,
        "completedDetails": "as agreed" if done else "",
    }


START: JsonObject = {
    "requests": [
        {
            "requestId": "req-1",
            "originalRequest": "Fit out the boat",
            "splitDetails": "Fit out the boat",
            "tasks": [
                _stored(1, "Buy rope", "40 metres", done=True),
                _stored(2, "Paint the hull", "Blue, two coats", done=False),
                _stored(3, "Mend the sail", "The tear at the top", done=False),
            ],
            "completed": False,
        }
    ]
}


def prepare(place: Path, installed: Path) -> None:
    """Store one request that is half done."""
    (place / FILE).write_text(json.dumps(START), encoding="utf-8")


def plan(request: str, *tasks: tuple[str, str]) -> ToolCall:
    return call("request_planning", originalRequest=request, tasks=_tasks(tasks))


def add(request: str, *tasks: tuple[str, str]) -> ToolCall:
    return call("add_tasks_to_request", requestId=request, tasks=_tasks(tasks))


def _tasks(tasks: tuple[tuple[str, str], ...]) -> list[JsonValue]:
    return [{"title": title, "description": description} for title, description in tasks]


def task(tool: str, number: int, **others: JsonValue) -> ToolCall:
    return call(tool, requestId="req-1", taskId=f"task-{number}", **others)


def upcoming(request: str = "req-1") -> ToolCall:
    return call("get_next_task", requestId=request)


def details(number: int) -> ToolCall:
    return call("open_task_details", taskId=f"task-{number}")


LIST = call("list_requests")

PLANS = (
    Plan(
        "what-is-next",
        "What is the next task for the boat?",
        (LIST, upcoming()),
        r'"title": "([^"]+)"',
        "Paint the hull",
    ),
    Plan(
        "hull-is-painted",
        "The hull is painted, and I have seen it: approve it. What is next?",
        (
            task("mark_task_done", 2, completedDetails="two coats"),
            task("approve_task_completion", 2),
            upcoming(),
        ),
        r'"title": "([^"]+)"',
        "Mend the sail",
    ),
    Plan(
        "plan-a-trip",
        "Plan a trip to the island: pack food, then check the weather.",
        (
            plan("Trip to the island", ("Pack food", "For two days"), ("Check the weather", "Wind and tide")),
            upcoming("req-2"),
        ),
        r'"title": "([^"]+)",\s+"description": "[^"]+"\s+\},\s+"message"',
        "Pack food",
    ),
    Plan(
        "details-of-sail",
        "What is torn on the sail?",
        (details(9), LIST, details(3)),
        r'"description": "([^"]+)"',
        "The tear at the top",
    ),
    Plan(
        "approve-too-early",
        "Approve the sail, if it is done.",
        (task("approve_task_completion", 3), details(3)),
        r'"done": (\w+)',
        "false",
    ),
    Plan(
        "hull-is-red",
        "The hull is to be red. Change the task.",
        (task("update_task", 2, description="Red, two coats"), details(2)),
        r'"description": "([^"]+)"',
        "Red, two coats",
    ),
    Plan(
        "one-more-task",
        "Add a task to the boat: test the lamp, at night.",
        (add("req-1", ("Test the lamp", "At night")), LIST),
        r'"totalTasks": (\d+)',
        "4",
    ),
    Plan(
        "no-sail",
        "The sail needs no mending. Take that task out.",
        (task("delete_task", 3), details(3), upcoming()),
        r'"message": "(Task not found)"',
        "Task not found",
    ),
    Plan(
        "finish-the-boat",
        "Close the whole request for the boat, if that is possible.",
        (
            call("approve_request_completion", requestId="req-1"),
            task("mark_task_done", 2),
            task("mark_task_done", 3),
            upcoming(),
        ),
        r'"status": "(all_tasks_done)"',
        "all_tasks_done",
    ),
    Plan(
        "wrong-request",
        "What is next for request 5? If there is none, for the boat.",
        (upcoming("req-5"), call("get_next_task", request="req-1"), upcoming()),
        r'"title": "([^"]+)"',
        "Paint the hull",
    ),
)

SESSIONS = (
    Session(
        "sail-is-mended",
        Kind.READ_AFTER_WRITE,
        (task("mark_task_done", 3, completedDetails="sewn by Clara"), details(3), LIST),
    ),
    Session(
        "plan-a-party",
        Kind.READ_AFTER_WRITE,
        (
            plan("Party on the pier", ("Buy lanterns", "Twelve of them"), ("Invite the crew", "By letter")),
            LIST,
            upcoming("req-2"),
            details(4),
        ),
    ),
    Session(
        "sail-is-patched",
        Kind.READ_AFTER_WRITE,
        (task("update_task", 3, title="Patch the sail"), details(3)),
    ),
    Session(
        "add-pump",
        Kind.READ_AFTER_WRITE,
        (add("req-1", ("Check the pump", "It leaks"), ("Charge the battery", "Overnight")), details(5), LIST),
    ),
    Session(
        "no-painting",
        Kind.READ_AFTER_WRITE,
        (task("delete_task", 2), upcoming(), details(2), LIST),
    ),
    Session(
        "hull-done-and-approved",
        Kind.READ_AFTER_WRITE,
        (
            task("mark_task_done", 2, completedDetails="three coats"),
            details(2),
            task("approve_task_completion", 2),
            details(2),
        ),
    ),
    Session(
        "two-plans",
        Kind.READ_AFTER_WRITE,
        (
            plan("Repair the pier", ("Replace planks", "Seven are rotten")),
            plan("Paint the buoys", ("Buy paint", "Signal red")),
            details(5),
            upcoming("req-3"),
        ),
    ),
    Session(
        "everything-done",
        Kind.READ_AFTER_WRITE,
        (
            task("mark_task_done", 2, completedDetails="varnished too"),
            task("approve_task_completion", 2),
            task("mark_task_done", 3, completedDetails="by hand"),
            task("approve_task_completion", 3),
            call("approve_request_completion", requestId="req-1"),
            LIST,
        ),
    ),
    Session("next-three-times", Kind.REPEATED_READS, (upcoming(), upcoming(), upcoming())),
    Session(
        "details-around-writes",
        Kind.REPEATED_READS,
        (
            details(1),
            task("update_task", 3, description="The tear at the bottom"),
            details(1),
            plan("Clean the shed", ("Sweep", "With the new broom")),
            details(1),
        ),
    ),
    Session("list-twice", Kind.REPEATED_READS, (LIST, details(2), LIST, details(2))),
    Session(
        "other-reads",
        Kind.NEW_ARGUMENTS,
        (details(1), details(2)),
    ),
    Session(
        "other-writes",
        Kind.NEW_ARGUMENTS,
        (
            plan("Winter storage", ("Empty the tank", "Before the frost"), ("Cover the boat", "Green tarpaulin")),
            task("update_task", 2, title="Varnish the hull", description="Clear, one coat"),
            add("req-1", ("Oil the winch", "Both sides")),
            task("mark_task_done", 3, completedDetails="double seam"),
        ),
    ),
    Session(
        "refused",
        Kind.REFUSALS,
        (
            upcoming("req-7"),
            details(42),
            task("mark_task_done", 1),
            task("delete_task", 1),
            task("approve_task_completion", 2),
            task("update_task", 8, title="Nothing"),
            call("mark_task_done", requestId="req-1"),
        ),
    ),
)

SERVER = Server(
    name=NAME,
    package="npm @kazuph/mcp-taskmanager 1.1.1",
    command=lambda there: ("node", str(there / "npm/node_modules/@kazuph/mcp-taskmanager/dist/index.js")),
    prepare=prepare,
    plans=PLANS,
    sessions=SESSIONS,
    environment={"TASK_MANAGER_FILE_PATH": str(world(NAME) / FILE)},
    reads=frozenset({"get_next_task", "open_task_details", "list_requests"}),
    refuses=r'\{\s*"status": "(error|task_not_found|already_\w+)"',
)
