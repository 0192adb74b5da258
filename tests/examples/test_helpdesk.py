"""The helpdesk: a second stateful MCP server, which answers in sentences as well as in objects, and its recordings."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp import Client

from dreamgym.environment import EnvironmentSpec, read_jsonl
from dreamgym.state import as_text, changed_fields, parsed
from dreamgym.types import JsonObject, ToolCall, Trajectory

pytestmark = pytest.mark.anyio

EXAMPLE = Path(__file__).parents[2] / "benchmarks" / "studies" / "helpdesk"
MODULES = ("desk", "server", "record")
MIRA = "mira@desk.example"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The example's modules; other examples have modules of the same names."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield SimpleNamespace(**{name: __import__(name) for name in MODULES})
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def desk(example: SimpleNamespace) -> Any:
    """A new desk of start world 0."""
    return example.desk.Desk()


def acted(example: SimpleNamespace, desk: Any, tool: str, arguments: JsonObject) -> tuple[bool, str, frozenset[str]]:
    """Call a tool; return whether the desk refused, its text, and the changed fields."""
    before = desk.state()
    answer = example.server.call(desk, ToolCall(name=tool, arguments=arguments))
    return answer["isError"], answer["content"][0]["text"], changed_fields(before, desk.state())


EFFECTS: list[tuple[int, str, JsonObject, str]] = [
    (0, "show_ticket", {"ticket": "T104"}, "{"),
    (0, "find_tickets", {"tag": "mail", "status": "new"}, '{\n  "count": 1'),
    (0, "show_queue", {}, "It is hour 40. 4 in the queue: T104 (urgent, due at hour 41), T109 (high, due at hour 45)"),
    (0, "agent_workload", {"agent": MIRA}, "Mira Sol has 2 open tickets (T101, T105), 0 closed so far."),
    (1, "read_article", {"slug": "vpn-setup"}, "Setting up the VPN\n\n"),
    (1, "add_comment", {"ticket": "T105", "author": MIRA, "text": "Hm"}, "Comment 1 added to T105."),
    (2, "add_comment", {"ticket": "T105", "author": "ana@office.example", "text": "Hm"}, "Comment 1 added, T105 is op"),
    (1, "tag_ticket", {"ticket": "T105", "add": ["vpn"], "remove": ["network"]}, "T105 is now tagged vpn."),
    (1, "put_on_hold", {"ticket": "T101"}, "T101 waits for ana@office.example."),
    (3, "escalate", {"ticket": "T102"}, "T102 is now high, due at hour 30 and overdue."),
    (3, "escalate", {"ticket": "T107"}, "T107 is now high, due at hour 44."),
    (4, "assign", {"ticket": "T107"}, '{\n  "ticket": "T107",\n  "assignee": "ravi@desk.example"'),
    (3, "assign", {"ticket": "T101", "agent": "tove@desk.example"}, '{\n  "ticket": "T101"'),
    (14, "open_ticket", {"requester": "a@b.c", "subject": "x", "priority": "high", "tags": []}, '{\n  "id": "T110"'),
    (4, "close_ticket", {"ticket": "T108", "resolution": "cable"}, "T108 closed after 15 hours: cable."),
    (5, "close_ticket", {"ticket": "T101", "resolution": "cable"}, "T101 closed after 10 hours: cable."),
    (4, "merge_tickets", {"source": "T103", "target": "T108"}, "T103 is merged into T108; 0 comments moved."),
    (4, "close_by_tag", {"tag": "hardware", "resolution": "cable"}, '{\n  "closed": [\n    "T108"'),
    (4, "pass_hours", {"hours": 6}, "It is hour 46. Overdue since: T104, T105, T109."),
]


@pytest.mark.parametrize(("count", "tool", "arguments", "words"), EFFECTS)
def test_each_tool_changes_the_expected_number_of_fields_and_says_what_it_did(
    example: SimpleNamespace, desk: Any, count: int, tool: str, arguments: JsonObject, words: str
) -> None:
    refused, said, changed = acted(example, desk, tool, arguments)
    assert not refused
    assert said.startswith(words)
    assert len(changed) == count, sorted(changed)


def test_every_tool_is_among_those_whose_effect_is_known_and_reads_are_marked(example: SimpleNamespace) -> None:
    marked = {tool["name"]: tool["annotations"]["readOnlyHint"] for tool in example.server.TOOLS}
    assert marked == {tool: count == 0 for count, tool, *_ in EFFECTS}


REFUSALS: list[tuple[str, JsonObject, str]] = [
    ("show_ticket", {"ticket": "T199"}, "No ticket T199"),
    ("find_tickets", {}, "Give a tag or a status to look for"),
    ("agent_workload", {"agent": "kim@desk.example"}, "Nobody with the address kim@desk.example works here"),
    ("read_article", {"slug": "parking"}, "There is no article called parking"),
    ("add_comment", {"ticket": "T101", "author": "bo@office.example", "text": ""}, "bo@office.example is neither an"),
    ("tag_ticket", {"ticket": "T101", "add": ["vpn"]}, "Nothing to change: T101 is tagged vpn already"),
    ("escalate", {"ticket": "T104"}, "T104 is urgent already, there is nothing above"),
    ("put_on_hold", {"ticket": "T105"}, "Only an open ticket can wait, T105 is waiting"),
    ("assign", {"ticket": "T106"}, "T106 is closed: ordered"),
    ("assign", {"ticket": "T101", "agent": MIRA}, "T101 is with Mira Sol already"),
    ("open_ticket", {"requester": "me", "subject": "x", "priority": "low", "tags": []}, "me is no e-mail address"),
    ("open_ticket", {"requester": "a@b", "subject": "", "priority": "huge", "tags": []}, "Invalid arguments for open_"),
    ("close_ticket", {"ticket": "T101", "resolution": " "}, "A resolution is needed to close a ticket"),
    ("close_ticket", {"ticket": "T104", "resolution": "x"}, "T104 is assigned to nobody; assign it first"),
    ("merge_tickets", {"source": "T101", "target": "T101"}, "A ticket cannot be merged into itself"),
    ("merge_tickets", {"source": "T101", "target": "T106"}, "T106 is closed: ordered"),
    ("close_by_tag", {"tag": "calendar", "resolution": "x"}, "No ticket tagged calendar is being worked on"),
    ("pass_hours", {"hours": 49}, "Between 1 and 48 hours can pass at a time, not 49"),
    ("escalate", {}, "Invalid arguments for escalate: 'ticket' is a required property"),
]


@pytest.mark.parametrize(("tool", "arguments", "words"), REFUSALS)
def test_a_refusal_says_why_and_changes_nothing(
    example: SimpleNamespace, desk: Any, tool: str, arguments: JsonObject, words: str
) -> None:
    refused, said, changed = acted(example, desk, tool, arguments)
    assert refused
    assert said.startswith(words)
    assert not changed


def test_a_merged_ticket_leaves_its_comments_and_its_priority_to_the_other(example: SimpleNamespace, desk: Any) -> None:
    for ticket, text in (("T107", "first"), ("T104", "second")):
        assert not acted(example, desk, "add_comment", {"ticket": ticket, "author": MIRA, "text": text})[0]
    refused, said, _ = acted(example, desk, "merge_tickets", {"source": "T104", "target": "T107"})
    assert not refused
    assert said.endswith("1 comment moved.")
    tickets = desk.state()["tickets"]
    assert [one["text"] for one in tickets["T107"]["comments"]] == ["first", "second"]
    assert (tickets["T107"]["priority"], tickets["T107"]["due_hour"]) == ("urgent", 38)
    assert (tickets["T104"]["status"], tickets["T104"]["comments"]) == ("merged", [])
    refused, said, _ = acted(example, desk, "show_ticket", {"ticket": "T104"})
    assert not refused
    refused, said, _ = acted(example, desk, "escalate", {"ticket": "T104"})
    assert refused
    assert said == "T104 was merged into T107, look there"


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(number=st.integers(0, 10**6), world=st.integers(0, 3))
def test_whatever_is_done_counts_queue_and_due_hours_follow_from_the_tickets(
    example: SimpleNamespace, number: int, world: int
) -> None:
    end: Any = parsed(example.record.session(number, 0, world).transitions[-1].next_state)
    hours = {name: policy["hours"] for name, policy in end["policies"].items()}
    worked_on = [one for one in end["tickets"].values() if one["status"] in ("new", "open", "waiting")]
    for email, agent in end["agents"].items():
        assert agent["open_tickets"] == sum(one["assignee"] == email for one in worked_on)
    for one in worked_on:
        assert one["due_hour"] == one["opened_hour"] + hours[one["priority"]]
        assert one["overdue"] == (one["due_hour"] < end["now"])
    assert sorted(end["queue"]) == sorted(one["id"] for one in worked_on if one["assignee"] is None)
    assert end["queue"] == sorted(end["queue"], key=lambda i: (end["tickets"][i]["due_hour"], i))


async def test_the_server_sends_its_state_unless_it_is_quiet(example: SimpleNamespace, desk: Any) -> None:
    before = desk.state()
    async with Client(example.server.server(desk)) as client:
        result = await client.session.call_tool("escalate", {"ticket": "T107"})
    assert result.meta is not None
    assert result.meta["dreamgym/before"] == before
    assert result.meta["dreamgym/state"] == desk.state() != before
    assert result.structured_content is None
    async with Client(example.server.server(desk, quiet=True)) as client:
        result = await client.session.call_tool("assign", {"ticket": "T107"})
    assert not {"dreamgym/before", "dreamgym/state"} & (result.meta or {}).keys()
    assert result.structured_content == {"ticket": "T107", "assignee": "ravi@desk.example", "open_tickets": 1}


def test_every_recorded_state_fits_the_schema_and_a_fifth_of_the_calls_is_refused(
    example: SimpleNamespace, tmp_path: Path
) -> None:
    example.record.prepare(tmp_path, list(example.record.sessions(30, 3, 2)))
    spec = EnvironmentSpec.load(tmp_path)
    recorded = read_jsonl(tmp_path / "trajectories.jsonl", Trajectory)
    steps = [step for one in recorded for step in one.transitions]
    assert len(steps) == 600
    assert spec.state is not None
    for step in steps:
        state = parsed(step.next_state)
        assert state is not None
        assert spec.state.fault_of(state) is None
        assert step.state == step.next_state or not step.result.is_error
    assert 0.1 < sum(step.result.is_error for step in steps) / len(steps) < 0.3
    counts = Counter(len(changed_fields(parsed(s.state) or {}, parsed(s.next_state) or {})) for s in steps)
    assert min(counts[1], counts[3], sum(number for count, number in counts.items() if count >= 5)) > 15
    with pytest.raises(SystemExit, match="already contains recordings"):
        example.record.prepare(tmp_path, [])


def test_the_same_seed_gives_the_same_sessions_and_each_world_begins_in_its_own_way(example: SimpleNamespace) -> None:
    assert example.record.session(1, 4, 2) == example.record.session(1, 4, 2)
    assert example.record.session(1, 4, 2).transitions != example.record.session(1, 5, 2).transitions
    starts = {as_text(example.desk.start(number)) for number in (0, 1, 2)}
    assert len(starts) == 3
