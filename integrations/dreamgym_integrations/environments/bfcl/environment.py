"""One conversation of the benchmark as an environment: its functions are tools, and `next_request` moves it on.

The user's messages are in the explicit state, since they are part of the world that a simulation has to know. The
reward is the referee's. It comes at the end, after the last message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dreamgym.errors import EpisodeFinished, InvalidInput
from dreamgym.schema import fault_under
from dreamgym.state import as_text
from dreamgym.tools import INVALID_ARGUMENTS, UNKNOWN_TOOL
from dreamgym.types import JsonObject, StepResult, Task, ToolCall
from dreamgym_integrations.environments.base import check_goal
from dreamgym_integrations.environments.bfcl.state import System
from dreamgym_integrations.environments.bfcl.suite import Conversation, Suite
from dreamgym_integrations.environments.bfcl.tasks import instruction_of, state_of, text_of
from dreamgym_integrations.environments.bfcl.tools import NEXT
from dreamgym_integrations.environments.bfcl.world import ApiInstances, FunctionResult, Referee

OVER = "The user has no further request. The conversation is over."


class BfclEnvironment:
    """Plays one conversation at a time. The task fixes the world; the seed of `reset` is ignored."""

    def __init__(self, suite: Suite, systems: Mapping[str, System], tools: Sequence[JsonObject]) -> None:
        self.tools = tools
        self._suite = suite
        self._systems = systems
        self._tools = {str(tool["name"]): tool for tool in tools}
        self._playing: tuple[Conversation, ApiInstances, Referee] | None = None

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        """Start the conversation with the id `task.metadata["conversation"]`."""
        self._playing = None
        name = task.metadata.get("conversation")
        conversation = self._suite.conversations.get(name) if isinstance(name, str) else None
        if conversation is None:
            raise InvalidInput(
                f"task {task.id!r}: expected the id of a conversation in metadata.conversation, got {name!r}"
            )
        check_goal(task, instruction_of(conversation))
        make = self._suite.make
        world = ApiInstances(conversation, make)
        self._playing = conversation, world, Referee(conversation, make, self._suite.owners)
        state = as_text(state_of(conversation, 1, world, self._systems))
        return StepResult(observation="", info={"state": state})

    async def step(self, action: ToolCall) -> StepResult:
        """Call a function, or ask for the next request."""
        if self._playing is None:
            raise EpisodeFinished("the conversation is over or was never started: reset starts one")
        conversation, world, referee = self._playing
        if refusal := self._refusal(conversation, action):
            return self._told(refusal, is_error=True)
        if action.name == NEXT:
            referee.close_request(world)
            return self._next(conversation, referee)
        answer = world.call(self._suite.owners[action.name], action)
        referee.note(answer)
        return self._shown(action.name, answer)

    def verdict(self) -> bool:
        """True if the conversation is fulfilled as it is. It closes the open requests, so no step may follow."""
        if self._playing is None:
            raise EpisodeFinished("the conversation is over or was never started: reset starts one")
        conversation, world, referee = self._playing
        while len(referee.verdicts) < len(conversation.messages):
            referee.close_request(world)
        return all(referee.verdicts)

    async def close(self) -> None:
        self._playing = None

    def _refusal(self, conversation: Conversation, action: ToolCall) -> str | None:
        """Reason to refuse the call without trying it; None if there is none."""
        tool = self._tools.get(action.name)
        if tool is None:
            return UNKNOWN_TOOL.replace("{tool}", action.name)
        owner = self._suite.owners.get(action.name)
        if owner is not None and (owner not in conversation.classes or action.name in conversation.excluded):
            return f"{action.name} does not work in this conversation."
        schema = tool["inputSchema"]
        assert isinstance(schema, dict)
        fault = fault_under(schema, action.arguments)
        return fault and INVALID_ARGUMENTS.replace("{reason}", fault)

    def _next(self, conversation: Conversation, referee: Referee) -> StepResult:
        """The next message, or the end with its reward."""
        verdicts = referee.verdicts
        if len(verdicts) < len(conversation.messages):
            return self._told(conversation.messages[len(verdicts)])
        result = self._told(OVER, fulfilled=sum(verdicts), requests=len(verdicts))
        self._playing = None
        return result.model_copy(update={"reward": float(all(verdicts)), "terminated": True})

    def _shown(self, tool: str, answer: FunctionResult) -> StepResult:
        """A function's answer as a tool result; text only if it does not fit the tool's output schema."""
        schema = self._tools[tool].get("outputSchema")
        fits = answer.is_error or not isinstance(schema, dict) or fault_under(schema, answer.structured) is None
        return self._told(text_of(answer), is_error=answer.is_error, structured=answer.structured if fits else {})

    def _told(self, text: str, *, is_error: bool = False, **info: JsonObject | int) -> StepResult:
        assert self._playing is not None
        conversation, world, referee = self._playing
        state = state_of(conversation, len(referee.verdicts) + 1, world, self._systems)
        return StepResult(observation=text, is_error=is_error, info={"state": as_text(state), **info})
