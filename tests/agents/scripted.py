"""A scripted chat model that plays `coin` by what it reads, and the episodes that its play must give."""

from collections.abc import Sequence
from random import Random

from dreamgym_integrations.environments.textworld_express.coin import Explorer
from dreamgym_integrations.models.chat_server import Reply
from pydantic import JsonValue

from dreamgym.environment import Environment
from dreamgym.types import JsonObject, StepResult, Task, ToolCall

FOUND = "I have the coin."
GAVE_UP = "I did not find the coin."


def asked(task: Task, view: str) -> str:
    """The user's message. It contains the task's id, so that every episode has a different conversation."""
    return f"{task.instruction} This is {task.id}.\n{view}"


def next_command(user: str, observations: Sequence[str]) -> str | None:
    """The next command, or None to stop: an explorer with some slips, all determined by the texts read so far."""
    random = Random(user)
    explorer = Explorer(random)
    command = None
    for observation in [user.rpartition("\n")[2], *observations]:
        if observation == "you take the coin." or observation == "The session has ended.":
            return None
        command = explorer.look(observation.removeprefix("unknown action. ").removeprefix("you carry nothing. "))
        if random.random() < 0.2:
            command = random.choice(["inventory", "coin", "move north", "look around"])
    return command


def plays_coin(messages: list[JsonObject], tools: list[JsonObject]) -> Reply:
    """The scripted model's answer to a chat request."""
    user = next(_text(message["content"]) for message in messages if message["role"] == "user")
    observations = [_text(message["content"]) for message in messages if message["role"] == "tool"]
    command = next_command(user, observations)
    if command is None:
        return Reply(FOUND if "you take the coin." in observations else GAVE_UP)
    return Reply(tool_calls=(ToolCall(name="act", arguments={"command": command}),))


def _text(content: JsonValue) -> str:
    """A message's text, which some frameworks send in parts."""
    if isinstance(content, list):
        return "".join(str(part["text"]) for part in content if isinstance(part, dict))
    return str(content)


async def played_directly(environment: Environment, task: Task, seed: int, limit: int) -> list[tuple[str, StepResult]]:
    """The commands and answers of the same script without server, protocol, chat or framework."""
    start = await environment.reset(task, seed=seed)
    steps: list[tuple[str, StepResult]] = []
    while len(steps) < limit and not (steps and steps[-1][1].done):
        command = next_command(asked(task, start.observation), [result.observation for _, result in steps])
        assert command is not None
        steps.append((command, await environment.step(ToolCall(name="act", arguments={"command": command}))))
    await environment.close()
    return steps
