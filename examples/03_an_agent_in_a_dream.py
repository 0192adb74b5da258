"""An unchanged LangGraph agent plays a task in the dream. In the real game only its MCP URL would differ.

python examples/03_an_agent_in_a_dream.py [CHAT_URL]

CHAT_URL is any OpenAI-compatible endpoint. Without it, a script that searches the house replaces the model.
"""

import asyncio
import sys
from pathlib import Path

from dreamgym_client.playing import play_agent
from dreamgym_integrations.models.chat_server import chat_server
from langgraph_create_agent import play as agent

import dreamgym
from dreamgym.runs.side_by_side import explore

RECORDED = Path(__file__).parent / "coin"


async def main(chat_url: str | None) -> None:
    async with (
        dreamgym.open_worlds(str(RECORDED), against="dream", model="nearest") as worlds,
        dreamgym.served(worlds) as url,
        chat_server(explore) as scripted_url,
    ):
        task = worlds.spec.tasks[0]
        played = await play_agent(url, "coin", agent, chat_url or scripted_url, task, seed=0)
    for step in played.trajectory.transitions:
        print(f"> {step.action.arguments['command']}\n{step.result.observation}   [{step.provenance.tier}]")
    print(f"the agent says: {played.answer}\nreward {played.trajectory.total_reward:g}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
