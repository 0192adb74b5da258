"""The tap pairs requests with their answers, in every framing."""

from __future__ import annotations

import json

import pytest
from dreamgym_server.recorder.pairing import Ended, Form, Heard, Tap
from dreamgym_server.recorder.strip_state import Events
from growth import grows_linearly
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from dreamgym.types import JsonObject


def heard(
    message: object,
    at: float = 0,
    *,
    agent: bool = True,
    form: Form = Form.JSON,
    scope: str = "pipe",
    run: str = "run",
    **more: object,
) -> Heard:
    """A message from one side, as the tap gets it."""
    payload = message if isinstance(message, bytes) else json.dumps(message).encode()
    return Heard(run, "session", scope, agent, form, payload, at, **more)  # type: ignore[arg-type]


def asks(request_id: JsonValue, method: str = "tools/call", **params: JsonValue) -> JsonObject:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


def answers(request_id: JsonValue, result: JsonValue) -> JsonObject:
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def said(tap: Tap, *events: Heard | Ended) -> list[JsonObject]:
    """The events that the tap makes of these messages and ends."""
    return [out for event in events for out in (tap.hear(event) if isinstance(event, Heard) else tap.end(event))]


def test_a_request_and_its_answer_are_an_exchange_with_both_times() -> None:
    call = asks(7, name="add", arguments={"n": 1})
    (exchange,) = said(Tap(), heard(call, 10.0), heard(answers(7, {"content": []}), 12.5, agent=False))
    assert exchange == {
        "kind": "exchange",
        "run": "run",
        "session": "session",
        "method": "tools/call",
        "params": {"name": "add", "arguments": {"n": 1}},
        "result": {"content": []},
        "error": None,
        "protocol": None,
        "started_at": 10.0,
        "ended_at": 12.5,
    }


def test_parallel_calls_keep_their_own_start_and_end_whatever_order_they_end_in() -> None:
    events = said(
        Tap(),
        heard(asks(1, name="slow"), 1),
        heard(asks(2, name="quick"), 2),
        heard(answers(2, {}), 3, agent=False),
        heard(answers(1, {}), 9, agent=False),
    )
    spans = [(event["params"], event["started_at"], event["ended_at"]) for event in events]
    assert spans == [({"name": "quick"}, 2, 3), ({"name": "slow"}, 1, 9)]


def test_two_open_requests_with_the_same_id_are_distinguished_by_their_scope() -> None:
    events = said(
        Tap(),
        heard(asks(1, name="a"), scope="post-1"),
        heard(asks(1, name="b"), scope="post-2"),
        heard(answers(1, {"of": "a"}), agent=False, scope="post-1"),
        heard(answers(1, {"of": "b"}), agent=False, scope="post-2"),
    )
    assert [(event["params"], event["result"]) for event in events] == [
        ({"name": "a"}, {"of": "a"}),
        ({"name": "b"}, {"of": "b"}),
    ]


def test_an_id_as_a_number_differs_from_the_same_id_as_text() -> None:
    events = said(Tap(), heard(asks(1)), heard(answers("1", {}), agent=False))
    assert [event["kind"] for event in events] == ["loss"]


def test_an_answer_on_a_resumed_stream_finds_its_request() -> None:
    tap = Tap()
    lost = said(tap, heard(asks(1), scope="post"), Ended("run", "post", "the stream broke off", 5))
    late = said(tap, heard(answers(1, {"late": True}), 8, agent=False, scope="get"))
    assert [event["kind"] for event in lost + late] == ["loss", "exchange"]
    assert late[0]["result"] == {"late": True}


def test_an_answer_on_a_stream_that_may_be_resumed_is_lost_only_if_it_never_comes() -> None:
    tap, later = Tap(), Ended("run", "post", "the server's response ended without it", 5, may_resume=True)
    (exchange,) = said(tap, heard(asks(1), scope="post"), later, heard(answers(1, {}), agent=False, scope="get"))
    assert exchange["kind"] == "exchange"
    assert said(tap, heard(asks(2, name="slow"), scope="post"), later) == []
    assert [event["reason"] for event in tap.unanswered("the recording was ended", 9)] == [
        "tools/call 'slow' has no answer: the recording was ended"
    ]


def test_a_refusal_without_an_id_is_the_answer_to_the_only_request_of_its_scope() -> None:
    refusal = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "Session not found"}}
    (exchange,) = said(Tap(), heard(asks(4), scope="post"), heard(refusal, agent=False, scope="post", status=404))
    assert exchange["error"] == {"code": -32600, "message": "Session not found"}


def test_an_unchanged_listing_is_recorded_once_and_a_changed_one_again() -> None:
    tap, kept = Tap(), []
    for number, tools in enumerate((["a"], ["a"], ["a", "b"], ["a", "b"], ["a"])):
        exchange = (heard(asks(number, "tools/list")), heard(answers(number, {"tools": [*tools]}), agent=False))
        kept += [event["result"] for event in said(tap, *exchange)]
    assert kept == [{"tools": ["a"]}, {"tools": ["a", "b"]}, {"tools": ["a"]}]


def test_every_run_has_its_own_first_listing() -> None:
    tap = Tap()
    for run in ("one", "two"):
        events = said(
            tap, heard(asks(1, "tools/list"), run=run), heard(answers(1, {"tools": []}), agent=False, run=run)
        )
        assert [event["run"] for event in events] == [run]


def test_every_page_of_a_listing_is_kept() -> None:
    tap = Tap()
    events = said(
        tap,
        heard(asks(1, "tools/list")),
        heard(answers(1, {"tools": [], "nextCursor": "2"}), agent=False),
        heard(asks(2, "tools/list", cursor="2")),
        heard(answers(2, {"tools": []}), agent=False),
        heard(asks(3, "tools/list")),
        heard(answers(3, {"tools": [], "nextCursor": "2"}), agent=False),
    )
    assert [event["params"] for event in events] == [{}, {"cursor": "2"}]


def test_two_equal_tool_calls_are_two_exchanges() -> None:
    tap = Tap()
    twice = [heard(asks(1, name="add")), heard(answers(1, {}), agent=False)] * 2
    assert len(said(tap, *twice)) == 2


def test_the_protocol_comes_from_the_request_or_else_from_the_handshake() -> None:
    tap = Tap()
    version = "io.modelcontextprotocol/protocolVersion"
    events = said(
        tap,
        heard(asks(1, "initialize", protocolVersion="2025-11-25")),
        heard(answers(1, {"protocolVersion": "2025-06-18"}), agent=False),
        heard(asks(2, name="old")),
        heard(answers(2, {}), agent=False),
        heard(asks(3, name="new", _meta={version: "2026-07-28"})),
        heard(answers(3, {}), agent=False),
        heard(asks(4, name="odd", _meta={version: 5})),
        heard(answers(4, {}), agent=False),
    )
    assert [event["protocol"] for event in events] == ["2025-06-18", "2025-06-18", "2026-07-28", "2025-06-18"]


def test_a_question_of_the_server_and_its_answer_are_not_an_exchange() -> None:
    question = {"jsonrpc": "2.0", "id": 0, "method": "sampling/createMessage", "params": {}}
    assert said(Tap(), heard(question, agent=False), heard(answers(0, {"role": "assistant"}))) == []


def test_an_invalid_message_is_a_loss_that_does_not_quote_it() -> None:
    events = said(Tap(), heard(b"Password: hunter2", agent=False), heard([1, "x"], agent=False))
    assert [event["reason"] for event in events] == [
        "the server sent something other than JSON-RPC; it was passed on and is not recorded"
    ] * 3


def test_a_request_that_is_never_answered_is_a_loss_with_the_reason() -> None:
    tap = Tap()
    events = said(tap, heard(asks(1, name="hang")), Ended("run", "pipe", "the server ended with exit code 1", 3))
    assert [event["reason"] for event in events] == [
        "tools/call 'hang' has no answer: the server ended with exit code 1"
    ]
    assert list(tap.unanswered("the recording was ended", 9)) == []


def test_a_cancelled_request_is_a_loss_once() -> None:
    tap = Tap()
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    events = said(tap, heard(asks(1, name="hang")), heard(cancel), Ended("run", "pipe", "the agent left", 3))
    assert [event["reason"] for event in events] == ["tools/call 'hang' has no answer: the agent cancelled it"]


def test_a_message_that_is_cut_off_at_the_end_is_a_loss() -> None:
    events = said(
        Tap(),
        heard(b'{"jsonrpc": "2.0", "id', agent=False, form=Form.LINES),
        Ended("run", "pipe", "the server died", 1),
    )
    assert [event["reason"] for event in events] == ["the last message was cut off: the server died"]


@given(st.lists(st.text(max_size=20), min_size=1, max_size=5), st.data())
def test_lines_and_server_sent_events_may_be_cut_anywhere(texts: list[str], data: st.DataObject) -> None:
    messages = [answers(number, {"text": text}) for number, text in enumerate(texts)]
    form = data.draw(st.sampled_from([Form.LINES, Form.EVENTS]))
    newline = data.draw(st.sampled_from(["\n", "\r\n"]))
    if form is Form.LINES:
        stream = "".join(json.dumps(message) + newline for message in messages).encode()
    else:
        frame = f": ping{newline}{newline}event: message{newline}id: 1{newline}data: %s{newline}{newline}"
        stream = "".join(frame % json.dumps(message, ensure_ascii=False) for message in messages).encode()
    tap = Tap()
    for number in range(len(texts)):
        assert said(tap, heard(asks(number))) == []
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    parts = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    events = said(tap, *(heard(part, agent=False, form=form) for part in parts))
    assert [event["result"] for event in events] == [{"text": text} for text in texts]


@pytest.mark.parametrize(
    ("form", "begin", "end"), [(Form.LINES, b"", b"\n"), (Form.EVENTS, b"data: ", b"\n\n"), (Form.EVENTS, b": ", b"\n")]
)
def test_a_message_in_many_parts_takes_time_in_proportion_to_its_length(form: Form, begin: bytes, end: bytes) -> None:
    def read(message: bytes) -> None:
        tap, events = Tap(), Events()
        for at in range(0, len(message), 64):
            part = message[at : at + 64]
            list(tap.hear(Heard("r", "s", "scope", False, form, part, 1.0)))
            if form is Form.EVENTS:
                events.pass_on(part)

    assert grows_linearly(read, lambda size: begin + b"x" * size + end)
