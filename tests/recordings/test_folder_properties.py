"""A folder is built from any recording, cut off anywhere, and no complete episode is lost."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from folder_stage import Tape, contents, crm, trajectories
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from dreamgym.environment import EnvironmentSpec
from dreamgym.recordings.folder import build_folder

WORDS = st.sampled_from(["get", "find", "nope", "Ada", "", "x" * 300, 'é"\\\n\u2028', "Tool nope not found"])
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(
    st.sampled_from(["name", "arguments", "content", "isError", "cursor", "nextCursor", "tools", "uri", "serverInfo"]),
    VALUES,
    max_size=4,
)
TOOLS = st.lists(
    st.builds(lambda name, schema: {"name": name, "inputSchema": schema}, WORDS, OBJECTS | VALUES), max_size=3
)
CALLS = st.builds(lambda name, arguments: {"name": name, "arguments": arguments}, WORDS, OBJECTS | VALUES)
METHODS = ["initialize", "server/discover", "tools/list", "tools/call", "resources/list", "resources/read", "ping", ""]
EVENTS = st.one_of(
    st.fixed_dictionaries(
        {
            "kind": st.just("exchange"),
            "session": st.just("s"),
            "method": st.sampled_from(METHODS) | st.just("tools/call"),
            "params": CALLS | OBJECTS,
            "started_at": st.floats(0, 9, allow_nan=False) | st.just(float("nan")),
            "ended_at": st.floats(0, 9),
        },
        optional={
            "result": st.none() | OBJECTS | st.builds(lambda tools: {"tools": tools}, TOOLS),
            "error": st.none() | OBJECTS | st.builds(lambda text: {"code": -32602, "message": text}, WORDS),
        },
    ),
    st.fixed_dictionaries(
        {"kind": st.just("note"), "at": st.just(1.0)},
        optional={
            "task": WORDS,
            "task_id": WORDS,
            "answer": WORDS,
            "success": st.booleans(),
            "proposed": st.booleans(),
        },
    ),
    st.fixed_dictionaries({"kind": st.just("loss"), "reason": WORDS, "at": st.just(1.0)}),
    OBJECTS,
)


@settings(max_examples=150, deadline=None)
@given(events=st.lists(EVENTS, max_size=12), cut=st.integers(0, 400))
def test_a_recording_cut_off_anywhere_loses_no_complete_episode(events: list[dict[str, Any]], cut: int) -> None:
    with TemporaryDirectory() as place:
        folder = crm(Path(place))
        Tape(folder, "whole", at=1e9).hello().call("get", "Ada", id="x1").note(task="Who is x1?", success=True)
        text = "".join(json.dumps({"run": "torn", **event}) + "\n" for event in events)
        encoded = text.encode()
        (folder / "recordings" / "torn.jsonl").write_bytes(encoded[: max(0, len(encoded) - cut)])
        report = build_folder(folder)
        whole = trajectories(folder)["crm-whole"]
        assert [step.result.observation for step in whole.transitions] == ["Ada"]
        assert (whole.task.instruction, whole.final_reward) == ("Who is x1?", 1.0)
        assert EnvironmentSpec.load(folder).name == "crm"
        before = contents(folder)
        assert build_folder(folder) == report
        assert contents(folder) == before


@settings(max_examples=60, deadline=None)
@given(calls=st.integers(1, 5), cut=st.integers(0, 2000))
def test_every_call_whose_line_is_whole_is_in_the_trajectory(calls: int, cut: int) -> None:
    with TemporaryDirectory() as place:
        folder = crm(Path(place))
        Tape(folder, "whole", at=1e9).hello()
        tape = Tape(folder, "torn")
        for number in range(calls):
            tape.call("get", f"answer {number}", id=str(number))
        encoded = tape.file.read_bytes()
        kept = encoded[: max(0, len(encoded) - cut)]
        tape.file.write_bytes(kept)
        build_folder(folder)
        complete = sum(_is_json(line) for line in kept.split(b"\n") if line)
        steps = [step for one in trajectories(folder).values() for step in one.transitions]
        assert [step.result.observation for step in steps] == [f"answer {number}" for number in range(complete)]


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
