"""A LangChain agent and its own tracer. Only the tests that need a traced run import this, because it takes seconds."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool, ToolException, tool
from langchain_core.tracers.langchain import LangChainTracer
from langchain_core.utils.function_calling import convert_to_openai_tool
from langsmith import Client

from dreamgym.types import JsonObject


class KeptRuns(Client):
    """A client that sends nothing and keeps the runs as LangSmith would store them."""

    def __init__(self) -> None:
        super().__init__(api_url="http://127.0.0.1:9", api_key="none", auto_batch_tracing=False)
        self.rows: dict[str, dict[str, Any]] = {}

    def create_run(self, **fields: Any) -> None:  # type: ignore[override]
        self.rows[str(fields["id"])] = fields

    def update_run(self, run_id: object, **fields: Any) -> None:
        self.rows[str(run_id)].update({name: value for name, value in fields.items() if value is not None})


class Scripted(GenericFakeChatModel):
    """A model with prepared answers that accepts tools."""

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self.bind(tools=[convert_to_openai_tool(one) for one in tools])


@tool
def find(q: str) -> dict[str, int]:
    """Find a person."""
    if q != "Mia":
        raise ToolException(f"no {q} here")
    return {"id": 7}


def plain(value: object) -> object:
    """A value that JSON does not have, in the form of LangSmith's API."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return value.model_dump() if hasattr(value, "model_dump") else repr(value)


def traced() -> list[JsonObject]:
    """The runs of one agent: a call that succeeds, one that fails, and an answer."""
    find_or_tell: BaseTool = find
    find_or_tell.handle_tool_error = True
    calls = [{"name": "find", "args": {"q": name}, "id": name} for name in ("Mia", "Bob")]
    said = [AIMessage("let me look", tool_calls=[call]) for call in calls]
    agent = create_agent(Scripted(messages=iter([*said, AIMessage("Number 7.")])), [find_or_tell])
    client = KeptRuns()
    agent.invoke({"messages": [HumanMessage("Who is Mia?")]}, config={"callbacks": [LangChainTracer(client=client)]})
    names = ("id", "name", "run_type", "start_time", "end_time", "inputs", "outputs", "extra", "error", "trace_id")
    kept = [{key: row.get(key) for key in (*names, "parent_run_id", "dotted_order")} for row in client.rows.values()]
    listed: list[JsonObject] = json.loads(json.dumps(kept, default=plain))
    return listed
