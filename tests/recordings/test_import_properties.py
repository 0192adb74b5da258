"""Imports of arbitrary files: our own lines come back unchanged, and junk is reported and never causes a crash."""

import gzip
import json
import lzma
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from importer_stage import imported, only, spec, steps
from pydantic import JsonValue

from dreamgym.environment import read_jsonl, read_trajectories
from dreamgym.errors import InvalidInput, UnknownName
from dreamgym.recordings.importers import (
    FORMATS,
    Document,
    ImportedEpisode,
    ImportReport,
    Skipped,
    files,
    importer_named,
    read_file,
)
from dreamgym.types import (
    JsonObject,
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

words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
# fmt: off
KEYS = st.sampled_from([
    "messages", "role", "content", "tool_calls", "function", "name", "arguments", "id", "tool_call_id",
    "type", "data", "lc", "kwargs", "conversations", "from", "value", "loss", "traj", "task_id", "info",
    "task", "reward", "resourceSpans", "scopeSpans", "spans", "traceId", "spanId", "context", "trace_id",
    "attributes", "key", "stop_reason", "transitions", "steps", "status", "args", "artifact", "parts",
    "function_call", "values", "parentSpanId", "run_type", "child_runs", "parent_run_id", "dotted_order", "inputs",
    "outputs", "extra", "invocation_params", "start_time", "observations", "traceId", "parentObservationId", "input",
    "output", "level", "call_id", "tools", "object", "previous_response_id", "action", "observation",
])
WORDS = st.sampled_from([
    "user", "assistant", "tool", "human", "ai", "constructor", "function", "gpt", "execute_tool", "error",
    "find", "{}", "{bad", "llm", "GENERATION", "SPAN", "TOOL", "ERROR", "function_call", "mcp_call",
    "function_call_output",
    "mcp_list_tools", "response", "2026-11-01T10:00:00Z", "Action:x", "###STOP###", "0x1",
    '{"q": "\\ud800"}', '{"q": NaN}', "[" * 300 + "]" * 300, '{"q": ' * 300 + "1" + "}" * 300,
])
# fmt: on
plausible = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=25,
)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    transitions, state = [], draw(words)
    for _ in range(draw(st.integers(0, 3))):
        result = StepResult(observation=draw(words), is_error=draw(st.booleans()), reward=draw(st.integers(0, 1)))
        action = ToolCall(name="find", arguments=draw(st.dictionaries(words, json_values, max_size=2)))
        provenance = Provenance(tier=Tier.REAL)
        transitions.append(
            Transition(state=state, action=action, result=result, next_state=result.state, provenance=provenance)
        )
        state = result.state
    return Trajectory(
        id=draw(st.uuids()).hex,
        task=Task(id=draw(words.filter(bool)), env="crm", instruction=draw(words)),
        transitions=tuple(transitions),
        source=draw(st.sampled_from(Source)),
        stop_reason=draw(st.sampled_from(StopReason)),
        answer=draw(st.none() | words),
    )


@settings(deadline=None)
@given(st.lists(trajectories(), min_size=1, max_size=4, unique_by=lambda trajectory: trajectory.id))
def test_our_own_lines_come_back_unchanged_with_their_ids_and_sources(played: list[Trajectory]) -> None:
    with TemporaryDirectory() as folder:
        report = imported(Path(folder), spec("find"), *(trajectory.model_dump_json() for trajectory in played))
    assert (report.trajectories, report.skipped) == (played, [])


@settings(max_examples=300, deadline=None)
@given(plausible)
def test_no_value_of_any_shape_crashes_an_importer(value: Any) -> None:
    document = Document("here", value)
    for importer in FORMATS.values():
        assert importer.matches(value) in (True, False)
        report = ImportReport()
        found = list(importer.read([document]))
        assert all(isinstance(item, ImportedEpisode | Skipped | Trajectory) for item in found)
        report.add(((importer.name, item) for item in found), spec("find"))
        assert len(report.trajectories) + len(report.skipped) + report.repeated == len(found)


junk = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=12).map(lambda text: f"!{text}")


@settings(max_examples=200, deadline=None)
@given(st.lists(junk | plausible.map(json.dumps), min_size=1, max_size=5))
def test_no_file_crashes_the_import_and_every_unused_line_is_reported(lines: list[str]) -> None:
    with TemporaryDirectory() as folder:
        report = imported(Path(folder), spec("find"), *lines)
    mentioned = " ".join(skipped.where for skipped in report.skipped)
    assert all(f"line {number}" in mentioned for number, line in enumerate(lines, start=1) if line.startswith("!"))
    if not report.trajectories:  # the spans of a file are reported together
        spans = any("gen_ai" in skipped.reason or "trace" in skipped.where for skipped in report.skipped)
        lists = [number for number, line in enumerate(lines, start=1) if line != "[]" and not spans]
        assert all(f"line {number}" in mentioned for number in lists)


@pytest.mark.parametrize(
    ("content", "offset"),
    [
        (b"\x89PNG\xff", 0),
        (b"PK\x03\x04\x14\x00\xb5\xff", 6),
        ("\ufeff{}".encode("utf-16-le"), 0),
        (gzip.compress(b"PK\x03\x04\xb5", mtime=0), 4),
    ],
)
def test_a_file_that_is_not_text_is_refused_with_its_name_and_its_first_bytes(
    content: bytes, offset: int, tmp_path: Path
) -> None:
    (tmp_path / "picture").write_bytes(content)
    with pytest.raises(InvalidInput) as refused:
        list(read_file(tmp_path / "picture"))
    begin = b"PK\x03\x04\xb5" if content.startswith(b"\x1f") else content[:8]
    assert str(refused.value) == (
        f"{tmp_path / 'picture'}: cannot be read: expected text in UTF-8, plain or compressed with xz or gzip, got "
        f"bytes that begin with {begin!r} and are not UTF-8 at offset {offset}: unpack or convert the file"
    )


CHAT: list[JsonObject] = [
    {"role": "user", "content": "Is Mia there?"},
    {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "find", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "#7"},
]


def test_a_broken_line_is_reported_and_the_others_are_kept(tmp_path: Path) -> None:
    report = imported(tmp_path, spec("find"), {"messages": CHAT}, '{"messages": [', "NaN", {"nothing": "known"})
    assert len(report.trajectories) == 1
    assert [skipped.where for skipped in report.skipped] == [
        "file.jsonl, line 2",
        "file.jsonl, line 3",
        "file.jsonl, line 4",
    ]
    assert "is not valid JSON" in report.skipped[0].reason
    assert report.skipped[2].reason.startswith(
        "has an unknown format: an object with 'nothing'; known formats: dreamgym"
    )


@pytest.mark.parametrize("indent", [None, 2])
def test_a_list_that_is_cut_off_gives_the_conversations_that_are_whole_and_one_fault(
    indent: int | None, tmp_path: Path
) -> None:
    asked = [[{**CHAT[0], "content": name}, *CHAT[1:]] for name in ("one", "two", "three")]
    whole = json.dumps([{"messages": chat} for chat in asked], indent=indent)
    report = imported(tmp_path, spec("find"), whole[: whole.index("three")])
    assert [trajectory.task.instruction for trajectory in report.trajectories] == ["one", "two"]
    (skipped,) = report.skipped
    assert "is not valid JSON: Unterminated string" in skipped.reason


FIVE = [{"messages": [{**CHAT[0], "content": name}, *CHAT[1:]]} for name in ("one", "two", "three", "four", "five")]


@pytest.mark.parametrize(("begin", "between", "end"), [("[", ", ", "]"), ("", " ", "")])
def test_the_reason_says_if_what_follows_a_fault_on_its_line_was_not_read(
    begin: str, between: str, end: str, tmp_path: Path
) -> None:
    texts = [json.dumps(chat) for chat in FIVE]
    texts[2] = texts[2].replace('"tool"', "tool")
    for separator, read in ((between, ["one", "two"]), (f"{between}\n", ["one", "two", "four", "five"])):
        report = imported(tmp_path, spec("find"), begin + separator.join(texts) + end)
        assert [trajectory.task.instruction for trajectory in report.trajectories] == read
        (skipped,) = report.skipped
        assert skipped.reason.startswith("is not valid JSON: Expecting value at line ")
        assert skipped.reason.endswith("; what follows it on this line was not read") is (len(read) == 2)


@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize("indent", [1, 2, 4, "\t"])
@pytest.mark.parametrize(
    ("begin", "between", "end"), [("[\n", ",\n", "\n]"), ("[", ", ", "]"), ("[", "\n,", "\n]"), ("", "\n", "")]
)
def test_a_broken_value_over_many_lines_is_one_fault_and_loses_no_other(
    begin: str, between: str, end: str, indent: int | str, place: int, tmp_path: Path
) -> None:
    others = [chat["messages"][0]["content"] for chat in FIVE if chat is not FIVE[place]]
    for broken in ('"tool_call_id" "1"', '"tool_call_id": 1x', ""):
        texts = [json.dumps(chat, indent=indent) for chat in FIVE]
        texts[place] = texts[place].replace('"tool_call_id": "1"', broken)
        report = imported(tmp_path, spec("find"), begin + between.join(texts) + end)
        assert [trajectory.task.instruction for trajectory in report.trajectories] == others
        (skipped,) = report.skipped
        assert skipped.reason.startswith("is not valid JSON: Expecting ")


@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize("pad", ["", " ", "    ", "\t"])
@pytest.mark.parametrize(("begin", "comma", "end"), [("[", ",", "]"), ("[\n", ",", "\n]"), ("", "", "")])
def test_a_line_without_its_closing_brace_is_one_fault_and_loses_no_other(
    begin: str, comma: str, end: str, pad: str, place: int, tmp_path: Path
) -> None:
    others = [chat["messages"][0]["content"] for chat in FIVE if chat is not FIVE[place]]
    texts = [json.dumps(chat) for chat in FIVE]
    texts[place] = texts[place][:-1]
    report = imported(tmp_path, spec("find"), begin + f"{comma}\n{pad}".join(texts) + end)
    assert [trajectory.task.instruction for trajectory in report.trajectories] == others
    (skipped,) = report.skipped
    assert skipped.reason.startswith("is not valid JSON: Expecting ")
    assert "not read" not in skipped.reason


@pytest.mark.parametrize("compress", [lzma.compress, gzip.compress])
def test_a_compressed_file_with_more_than_the_memory_may_hold_is_refused(
    compress: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_UNPACKED_BYTES", 2**20)
    bomb = tmp_path / "bomb.json"
    bomb.write_bytes(compress(b" " * 2**22))
    with pytest.raises(InvalidInput, match="expected at most 1,048,576 bytes in a compressed file"):
        list(read_file(bomb))


@pytest.mark.parametrize("compress", [lzma.compress, gzip.compress])
def test_compressed_files_are_read_directly(compress: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(compress(json.dumps(CHAT).encode()))
    report = ImportReport()
    report.add(read_file(tmp_path / "file"), spec("find"))
    assert steps(only(report)) == [("find", {}, "#7")]


def test_one_file_may_hold_several_formats(tmp_path: Path) -> None:
    run = {"task_id": 1, "reward": 1.0, "traj": CHAT}
    report = imported(tmp_path, spec("find"), {"messages": CHAT}, run)
    assert report.formats == {"tau-bench": 1, "openai": 1}


def test_a_given_format_is_used_without_guessing(tmp_path: Path) -> None:
    report = imported(tmp_path, spec("find"), {"messages": CHAT}, format_name="tau-bench")
    assert report.trajectories == []
    with pytest.raises(UnknownName, match="unknown format 'xml': expected one of agentgym, dreamgym, langchain"):
        importer_named("xml")


def test_the_same_content_has_the_same_id_and_counts_once(tmp_path: Path) -> None:
    twice = imported(tmp_path, spec("find"), CHAT, {"messages": CHAT})
    assert (len(twice.trajectories), twice.repeated) == (1, 1)
    assert twice.trajectories == imported(tmp_path, spec("find"), CHAT).trajectories
    elsewhere = imported(tmp_path, spec("find", name="erp"), CHAT)
    assert elsewhere.trajectories[0].id != twice.trajectories[0].id


def test_another_trajectory_with_the_id_of_an_earlier_one_is_reported(tmp_path: Path) -> None:
    line = only(imported(tmp_path, spec("find"), CHAT)).model_dump(mode="json")
    report = imported(tmp_path, spec("find"), line, {**line, "answer": "another"}, line)
    assert (len(report.trajectories), report.repeated) == (1, 1)
    assert [one.where for one in report.skipped] == [f"trajectory {line['id']!r}"]
    assert report.skipped[0].reason == "an earlier one has this id and other content; give it another id"


def test_calls_that_differ_in_the_type_of_a_value_alone_are_different(tmp_path: Path) -> None:
    line: Any = only(imported(tmp_path, spec("find"), CHAT)).model_dump(mode="json")
    lines: list[JsonValue] = []
    for arguments in ({"q": 1, "all": "no"}, {"q": True, "all": "no"}, {"q": 1.0, "all": "no"}, {"all": "no", "q": 1}):
        line["transitions"][0]["action"]["arguments"] = arguments
        lines.append(json.dumps(line))
    report = imported(tmp_path, spec("find"), *lines)
    assert (len(report.trajectories), report.repeated, len(report.skipped)) == (1, 1, 2)
    with pytest.raises(InvalidInput, match="trajectory 2: an earlier trajectory has the id"):
        read_trajectories(tmp_path / "file.jsonl")


def test_a_file_that_begins_with_a_byte_order_mark_is_refused_with_what_to_do(tmp_path: Path) -> None:
    line = only(imported(tmp_path, spec("find"), CHAT)).model_dump_json()
    (tmp_path / "marked.jsonl").write_text(line, encoding="utf-8-sig")
    with pytest.raises(InvalidInput, match=r"byte order mark .*: save it as UTF-8 without one"):
        read_jsonl(tmp_path / "marked.jsonl", Trajectory)


def test_only_the_trajectory_with_text_that_cannot_be_stored_is_lost(tmp_path: Path) -> None:
    nul, surrogate = ([{**CHAT[0], "content": text}, *CHAT[1:]] for text in ("a\0", "\ud800"))
    deep = [*CHAT[:2], {**CHAT[2], "content": json.loads("[" * 200 + "]" * 200)}]
    report = imported(tmp_path, spec("find"), nul, surrogate, deep, CHAT)
    assert len(report.trajectories) == 1
    reasons = {skipped.where: skipped.reason for skipped in report.skipped}
    assert "surrogates not allowed" in reasons["file.jsonl, line 2"]
    assert reasons["file.jsonl, line 3"] == "cannot be used: it is nested deeper than 100 levels"
    assert "NUL" in reasons["file.jsonl, line 1"]


def test_a_number_that_is_too_large_is_reported_and_not_stored_as_null(tmp_path: Path) -> None:
    in_a_text = json.loads(json.dumps(CHAT).replace('"{}"', '"{\\"n\\": 1e999}"'))
    report = imported(tmp_path, spec("find"), in_a_text, json.dumps(CHAT).replace('"#7"', '{"n": 1e999}'), CHAT)
    assert len(report.trajectories) == 1
    reasons = [skipped.reason for skipped in report.skipped]
    assert len(reasons) == 2
    assert all("it contains a number that is too large" in reason for reason in reasons)


def test_a_deep_value_over_many_lines_ends_the_reading_and_is_reported(tmp_path: Path) -> None:
    report = imported(tmp_path, spec("find"), CHAT, *['{"a":'] * 5000, CHAT)
    assert len(report.trajectories) == 1
    (skipped,) = report.skipped
    assert skipped.reason.endswith("it is nested deeper than 100 levels; what follows it was not read")


def test_a_trajectory_of_another_environment_is_reported(tmp_path: Path) -> None:
    other = only(imported(tmp_path, spec("find", name="erp"), CHAT))
    report = imported(tmp_path, spec("find"), other.model_dump_json())
    assert report.skipped[0].reason == "belongs to environment 'erp', not 'crm'"


calls_made = st.lists(
    st.tuples(
        st.dictionaries(words, json_values, max_size=2).filter(lambda given: set(given) != {"input"}),
        words.filter(lambda told: told.lstrip()[:1] not in ("{", "[")).filter(bool),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


def told_by(product: str, made: list[tuple[Any, str, bool]]) -> list[JsonObject]:
    """Calls of `find`, each with its arguments, its answer and whether that is an error, as a product records them."""
    if product == "langsmith":
        common: JsonObject = {"trace_id": "t", "run_type": "tool", "name": "find"}
        return [
            {**common, "id": str(n), "start_time": n, "inputs": given}
            | ({"error": told} if failed else {"outputs": {"output": told}})
            for n, (given, told, failed) in enumerate(made)
        ]
    if product == "langfuse":
        common = {"traceId": "t", "type": "TOOL", "name": "find"}
        return [
            {**common, "id": str(n), "startTime": f"2026-11-01T10:00:{n:02}Z", "input": given}
            | ({"level": "ERROR", "statusMessage": told} if failed else {"output": told})
            for n, (given, told, failed) in enumerate(made)
        ]
    common = {"type": "mcp_call", "name": "find"}
    items: list[JsonValue] = [
        {**common, "id": str(n), "arguments": json.dumps(given), "error" if failed else "output": told}
        for n, (given, told, failed) in enumerate(made)
    ]
    return [{"input": "Who?", "output": items}]


@settings(deadline=None)
@given(calls_made, st.sampled_from(["langsmith", "langfuse", "openai-responses"]), st.randoms())
def test_every_product_gives_the_same_steps_for_any_order_of_its_rows(
    made: list[tuple[Any, str, bool]], product: str, order: Random
) -> None:
    rows = told_by(product, made)
    order.shuffle(rows)
    with TemporaryDirectory() as folder:
        report = imported(Path(folder), spec("find"), *rows)
    (trajectory,) = report.trajectories
    assert steps(trajectory) == [("find", given, told) for given, told, _ in made]
    assert [step.result.is_error for step in trajectory.transitions] == [failed for _, _, failed in made]


SHORT: JsonObject = {
    "id": "one",
    "task": {"id": "t", "env": "crm", "instruction": "Who is Mia?", "initial_state": "a desk"},
    "transitions": [
        {"action": {"name": "find", "arguments": {"q": "Mia"}}, "result": {"observation": "#7"}},
        {"action": {"name": "find"}, "result": {"observation": "no query", "is_error": True}},
    ],
}


def test_a_line_of_ours_needs_nothing_that_only_a_recorder_knows(tmp_path: Path) -> None:
    trajectory = only(imported(tmp_path, spec("find"), SHORT))
    assert (trajectory.id, trajectory.source, trajectory.stop_reason) == ("one", Source.IMPORTED, StopReason.CLOSED)
    assert steps(trajectory) == [("find", {"q": "Mia"}, "#7"), ("find", {}, "no query")]
    assert [(step.state, step.next_state) for step in trajectory.transitions] == [("a desk", "#7"), ("#7", "no query")]
    assert [step.provenance.tier for step in trajectory.transitions] == [Tier.REAL, Tier.REAL]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"transitions": [{"tool": "find", "args": {}}]}, "transitions.0.tool: unknown key"),
        ({"transitions": [{"action": {"name": "find"}}]}, "transitions.0.result: Field required"),
        (
            {"transitions": [{"action": {"name": "find"}, "result": {}}]},
            "transitions.0.result.observation: Field required",
        ),
        ({"task": {"instruction": "Who?"}}, "task.id: Field required"),
        ({"task": None}, "task: Input should be a valid dictionary or instance of Task"),
    ],
)
def test_a_line_that_is_nearly_ours_is_reported_with_the_faulty_field(
    line: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    (skipped,) = imported(tmp_path, spec("find"), {**SHORT, **line}).skipped
    assert skipped.reason == f"is not a trajectory: {reason}; docs/importing.md shows one in full"


def test_import_reports_a_faulty_line_of_ours_but_seed_refuses_the_file(tmp_path: Path) -> None:
    line = only(imported(tmp_path, spec("find"), CHAT)).model_dump(mode="json")
    report = imported(tmp_path, spec("find"), {**line, "source": "dreamt"}, line)
    assert len(report.trajectories) == 1
    assert report.skipped[0].reason.startswith("is not a trajectory: source: Input should be")
    with pytest.raises(InvalidInput):
        read_jsonl(tmp_path / "file.jsonl", Trajectory)


def test_rewards_whose_sum_is_beyond_any_number_are_reported_and_not_stored(tmp_path: Path) -> None:
    line = only(imported(tmp_path, spec("find"), CHAT)).model_dump(mode="json")
    line["transitions"][0]["result"]["reward"] = line["final_reward"] = 1e308
    report = imported(tmp_path, spec("find"), line)
    assert report.trajectories == []
    assert "expected rewards with a finite sum" in report.skipped[0].reason


def test_a_trajectory_whose_task_has_a_check_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    line = only(imported(tmp_path, spec("find"), CHAT)).model_dump(mode="json")
    line["task"]["metadata"] = {"success": {"type": "nonsense"}}
    report = imported(tmp_path, spec("find"), line)
    assert report.trajectories == []
    assert f"task {line['task']['id']!r}: its check: " in report.skipped[0].reason
