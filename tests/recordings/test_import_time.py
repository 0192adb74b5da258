"""The time to import a file, which may come from a stranger, grows no faster than its size."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from growth import grows_linearly
from importer_stage import spec

from dreamgym.recordings.importers import ImportReport, read_file


def chat(count: int) -> str:
    messages: list[object] = [{"role": "user", "content": "Find it."}]
    for number in range(count):
        call = {"id": str(number), "type": "function", "function": {"name": "find", "arguments": '{"q": "x"}'}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": str(number), "content": "not here"})
    return json.dumps({"messages": messages})


def one_turn(count: int, ids: bool) -> str:
    """One turn of many calls, answered in the reverse order if they have ids."""
    calls = [{"function": {"name": "find", "arguments": "{}"}, **({"id": str(n)} if ids else {})} for n in range(count)]
    answers = [{"role": "tool", "content": "no", **({"tool_call_id": str(n)} if ids else {})} for n in range(count)]
    return json.dumps({"messages": [{"role": "assistant", "tool_calls": calls}, *reversed(answers)]})


def monologue(count: int) -> str:
    return json.dumps({"messages": [{"role": "assistant", "content": "Well, then."}] * count})


def langchain(count: int) -> str:
    messages: list[object] = [{"type": "human", "data": {"content": "Find it."}}]
    for number in range(count):
        call = {"name": "find", "args": {"q": "x"}, "id": str(number), "type": "tool_call"}
        messages.append({"type": "ai", "data": {"content": "", "tool_calls": [call]}})
        messages.append({"type": "tool", "data": {"content": "not here", "tool_call_id": str(number), "name": "find"}})
    return json.dumps({"messages": messages})


def agentgym(text: str) -> str:
    turns = [("human", "Go."), ("gpt", f"{text}\nAction: look"), ("human", f"Observation: {text}")]
    return json.dumps({"conversations": [{"from": who, "value": said} for who, said in turns]})


def spans(count: int) -> str:
    told = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "find", "gen_ai.tool.call.result": "none"}
    attributes = [{"key": name, "value": {"stringValue": value}} for name, value in told.items()]
    found = [
        {"traceId": "t", "spanId": str(n), "parentSpanId": str(n - 1), "name": "find", "attributes": attributes}
        for n in range(count)
    ]
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": found}]}]})


def runs(count: int, *, nested: bool) -> str:
    """LangSmith tool runs: all children of one root if `nested`, else a chain, each a child of the one before."""
    rows = [
        {"id": str(n), "run_type": "tool", "name": "find", "inputs": {}, "outputs": {"output": 1}} for n in range(count)
    ]
    if nested:
        return json.dumps({"id": "root", "run_type": "chain", "child_runs": rows})
    return "\n".join(json.dumps({**row, "parent_run_id": str(n - 1)}) for n, row in enumerate(rows))


def generations(count: int) -> str:
    """A Langfuse trace of many model calls, each with the definition of a tool of its own."""
    rows = [
        {"id": str(n), "type": "GENERATION", "input": {"messages": [], "tools": [{"name": str(n)}]}, "output": "x"}
        for n in range(count)
    ]
    return json.dumps(
        {"id": "t", "observations": [*rows, *({**row, "type": "SPAN", "name": row["id"]} for row in rows)]}
    )


def items(count: int, kind: str) -> str:
    """Calls of the Responses API, all in one turn, and then their results."""
    calls = [{"type": kind, "call_id": str(n), "name": "find", "arguments": "{}", "output": "x"} for n in range(count)]
    answers = [{"type": "function_call_output", "call_id": str(n), "output": "x"} for n in range(count)]
    return json.dumps([*calls, *answers])


def responses(count: int) -> str:
    """Stored responses, each of which continues the one before."""
    call = {"type": "mcp_call", "id": "a", "name": "find", "arguments": "{}", "output": "x"}
    rows = [
        {"object": "response", "id": str(n), "previous_response_id": str(n - 1), "output": [call]} for n in range(count)
    ]
    return "\n".join(map(json.dumps, rows))


FILES: dict[str, Callable[[int], str]] = {
    "a long conversation": lambda size: chat(size // 200),
    "many calls in one turn": lambda size: one_turn(size // 100, ids=True),
    "many calls without ids in one turn": lambda size: one_turn(size // 100, ids=False),
    "an agent that talks to itself": lambda size: monologue(size // 45),
    "a long conversation of LangChain": lambda size: langchain(size // 200),
    "blanks before no action": lambda size: agentgym(" \t" * (size // 2)),
    "lines of blanks": lambda size: agentgym(" \n" * (size // 2)),
    "many actions": lambda size: agentgym("Action:\n" * (size // 8)),
    "a chain of spans": lambda size: spans(size // 330),
    "a chain of runs": lambda size: runs(size // 120, nested=False),
    "a run with many children": lambda size: runs(size // 90, nested=True),
    "a trace of many generations": lambda size: generations(size // 200),
    "many functions called at once": lambda size: items(size // 160, "function_call"),
    "many MCP tools called at once": lambda size: items(size // 160, "mcp_call"),
    "a chain of responses": lambda size: responses(size // 170),
    "opening brackets": lambda size: "[" * size,
    "opening braces": lambda size: '{"a":' * (size // 5),
    "quotes": lambda size: '"' * size,
    "escaped quotes": lambda size: '"' + '\\"' * (size // 2),
    "empty lines": lambda size: "\n" * size,
    "commas": lambda size: "[" + "1," * (size // 2),
    "small documents": lambda size: "{}\n" * (size // 3),
    "objects that end in a fault": lambda size: ('{"a":[' + "0," * 100 + '0],"b":\n') * (size // 217) + "@",
    "numbers that JSON does not have": lambda size: '{"a":[' + "NaN,\n" * (size // 5) + "0]}",
    "broken documents": lambda size: "{]\n" * (size // 3),
}


@pytest.mark.parametrize("name", FILES)
def test_an_import_takes_time_in_proportion_to_the_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / "file.jsonl"

    def read(text: str) -> None:
        file.write_text(text, encoding="utf-8")
        ImportReport().add(read_file(file), spec("find"))

    assert grows_linearly(read, FILES[name])
