"""Play one episode in a dream of recorded play, in this process.

python examples/01_play_a_dream.py
"""

import asyncio
from pathlib import Path

import dreamgym

RECORDED = Path(__file__).parent / "coin"
"""An environment folder: a description, tools, tasks, and 40 recorded episodes of the game."""


async def main() -> None:
    async with dreamgym.open_worlds(str(RECORDED), against="dream", model="nearest") as worlds:
        task = worlds.spec.tasks[0]
        environment = worlds.create("by hand")
        result = await environment.reset(task, seed=0)
        print(f"{task.instruction}\n{result.observation}")
        for command in ("move east", "move west", "take coin", "fly to the moon"):
            result = await environment.step(dreamgym.ToolCall(name="act", arguments={"command": command}))
            print(f"> {command}\n{'refused: ' if result.is_error else ''}{result.observation}")
            if result.done:
                print(f"reward {result.reward:g}")
                break
        await environment.close()


if __name__ == "__main__":
    asyncio.run(main())
