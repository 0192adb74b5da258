"""An agent's conversations with a pointer policy: each request is read from its beginning.

In the first message of the user, the first line is the task, and the other lines are the first observation. Actions and
their answers follow, as calls and messages of tools or as texts. System prompts are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.training.rollout import Generation, Segment, action_text, parse_action
from dreamgym.types import JsonObject, StepResult, Task, ToolCall
from dreamgym_integrations.models.chat_server import Reply
from dreamgym_integrations.trainers.policy.conversation import Prompt, plain_message
from dreamgym_integrations.trainers.policy.tool_call_format import check_tools, reply_of

if TYPE_CHECKING:
    from dreamgym_integrations.trainers.policy.pointer.codec import PointerTalk


@dataclass(frozen=True)
class PointerPrompt(Prompt):
    """A request as a mapped state."""

    talk: PointerTalk
    """The episode up to this request."""


class PointerConversations:
    """The conversations of one episode, see `EpisodeConversations`: each answer is a segment of its own.

    Args:
        spec: description of the environment.
        talk: begins an episode.
    """

    def __init__(self, spec: EnvironmentSpec, talk: Callable[[Task, StepResult], PointerTalk]) -> None:
        self._spec, self._talk = spec, talk
        self.segments: list[Segment] = []
        self.last: Segment | None = None
        self.unheard = 0

    def prompt(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> PointerPrompt:
        """A request as tokens. Raises InvalidInput if it has no task, or tools that the policy cannot call."""
        check_tools(tools, knows_tools=self._spec.text_argument is None)
        plain = [plain_message(message) for message in messages]
        start = next((n for n, message in enumerate(plain) if message["role"] == "user"), None)
        if start is None:
            raise InvalidInput("expected a message of the user with the task, and the first observation below it")
        instruction, _, observation = str(plain[start]["content"]).partition("\n")
        task = Task(id="asked", env=self._spec.name, instruction=instruction)
        talk = self._talk(task, StepResult(observation=observation))
        actions: list[str] = []
        for message in plain[start + 1 :]:
            if message["role"] == "assistant":
                actions += self._actions(message)
            elif message["role"] in ("tool", "user") and actions:
                talk.skip(actions.pop(0))
                talk.hear(StepResult(observation=str(message["content"])))
        return PointerPrompt(talk.prompt, tools, talk)

    def record(self, prompt: Prompt, sampled: Generation) -> Reply:
        """Keep what the policy sampled, and return it as the reply to the request."""
        assert isinstance(prompt, PointerPrompt), "these conversations made it"
        text = prompt.talk.say(sampled)
        self.last = prompt.talk.segments[-1]
        self.segments.append(self.last)
        if prompt.tools and self._spec.text_argument is None and text:
            return Reply(tool_calls=(parse_action(self._spec, text),))
        return reply_of(text, prompt.tools, knows_tools=self._spec.text_argument is None)

    def _actions(self, message: JsonObject) -> Iterator[str]:
        """The actions in a message of the policy, as texts."""
        calls = message.get("tool_calls")
        if not isinstance(calls, list) or not calls:
            yield str(message["content"])
            return
        for call in calls:
            function = call["function"] if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(arguments := function["arguments"], dict):
                yield action_text(self._spec, ToolCall(name=str(function["name"]), arguments=arguments))
