"""A LangGraph agent built by hand: a StateGraph of a model and a ToolNode with the tools of an MCP server.

python langgraph_state_graph.py MCP_URL CHAT_URL TASK
"""

import asyncio
import os
import sys

from langchain.mcp import MCPAdapter
from langchain.messages import HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import SecretStr


async def play(task: str, mcp_url: str, policy_url: str) -> str:
    model = ChatOpenAI(
        model=os.environ.get("MODEL", "policy"),
        base_url=policy_url,
        api_key=SecretStr(os.environ.get("OPENAI_API_KEY", "none")),
    )
    async with MCPAdapter(mcp_url) as adapter:
        tools = await adapter.list_tools()

        async def call_model(state: MessagesState) -> MessagesState:
            return {"messages": [await model.bind_tools(tools).ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("model", call_model)
        graph.add_node("tools", ToolNode(tools))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        result = await graph.compile().ainvoke(
            {"messages": [HumanMessage(task)]},
            {"recursion_limit": 100},
        )
    return str(result["messages"][-1].text)


if __name__ == "__main__":
    url, chat_url, text = sys.argv[1:]
    print(asyncio.run(play(text, url, chat_url)))
