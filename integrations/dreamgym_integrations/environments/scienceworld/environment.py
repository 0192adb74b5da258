"""One world of ScienceWorld as an environment: its commands and its answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from dreamgym.errors import InvalidInput
from dreamgym.types import JsonObject, StepResult, Task, ToolCall
from dreamgym_integrations.environments.base import act_tool, check_goal, command_of
from dreamgym_integrations.environments.lease import Lease
from dreamgym_integrations.environments.scienceworld.simulator import CommandResult, Simulator, Variation, simulators

COMMANDS = (
    "look around; inventory; task; wait; wait1; objects; look at OBJ; look in OBJ; read OBJ; open OBJ; close OBJ; "
    "activate OBJ; deactivate OBJ; pick up OBJ; put down OBJ; move OBJ to OBJ; pour OBJ in OBJ; dunk OBJ in OBJ; "
    "mix OBJ; use OBJ on OBJ; eat OBJ; flush OBJ; connect OBJ to OBJ; disconnect OBJ; go OBJ; teleport to OBJ; "
    "focus on OBJ"
)
ACT = act_tool(
    "Do one thing in the house of experiments. Where a command could mean several things, answer the "
    f"list with a number. Commands, OBJ being the name of a thing or a place: {COMMANDS}.",
    example="go to kitchen",
)
AMBIGUOUS = "Ambiguous request"
_REFUSED = re.compile(
    r"(?:No known action|Unknown action|It'?s not clear|I'm not sure|You can't|Something can't|That can't|ERROR: )"
    r"|(?:The|That|This) .*(?: is already | already appears | is not | isn't | does not | can't be | appears broken"
    r"| is empty)"
)


def world_of(task: Task) -> Variation:
    """The world of a task, from its metadata. Raises InvalidInput if the metadata is not that of a world."""
    kind, variation = task.metadata.get("task"), task.metadata.get("variation")
    if not isinstance(kind, str) or not isinstance(variation, int) or variation < 0:
        raise InvalidInput(
            f"task {task.id!r}: expected metadata.task, a name, and metadata.variation, a whole number; "
            f"got {kind!r} and {variation!r}"
        )
    return Variation(kind, variation, str(task.metadata.get("simplifications", "easy")))


def is_refusal(reply: str) -> bool:
    """True for a reply of one line which says that nothing was done."""
    return "\n" not in reply and _REFUSED.match(reply) is not None


class ScienceWorldEnvironment:
    """Plays one world at a time. The task fixes the world; the seed of `reset` is ignored.

    Args:
        lists_commands: every result has `info["admissible"]`, each at the cost of twenty steps.
    """

    def __init__(self, *, lists_commands: bool = False) -> None:
        self.tools: Sequence[JsonObject] = (ACT,)
        self.task: Task | None = None
        self._lists_commands = lists_commands
        self._lease = Lease(simulators.take, simulators.give_back, simulators.drop)
        self._playing = False
        self._started = 0

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        """Start the world in `task.metadata`. The observation shows the place and the inventory."""
        world = world_of(task)
        self._playing = False
        self._lease = self._lease.renewed()

        def start(simulator: Simulator) -> CommandResult:
            answer = simulator.load(world)
            check_goal(task, simulator.description())
            return answer

        answer, view, commands = await self._ask(start)
        self.task, self._playing, self._started = task, True, answer.score
        return StepResult(observation=view, info={"score": answer.score, **commands})

    async def step(self, action: ToolCall) -> StepResult:
        """Give one command. Success is an end with a score of 100; a wrong focus ends the episode too."""
        command = command_of(action, is_playing=self._playing and not self._lease.ended)
        answer, view, commands = await self._ask(lambda simulator: simulator.step(command))
        self._playing = not answer.ended
        score = f"\nScore: {answer.score}." if answer.score != self._started else ""
        asked = f"{answer.reply}\n" if answer.reply.startswith(AMBIGUOUS) else ""
        return StepResult(
            observation=answer.reply,
            reward=float(answer.completed and answer.score == 100),
            terminated=answer.ended,
            is_error=is_refusal(answer.reply),
            info={"state": f"{asked}{view}{score}", "score": answer.score, **commands},
        )

    async def close(self) -> None:
        self._lease.end()

    async def _ask(self, ask: Callable[[Simulator], CommandResult]) -> tuple[CommandResult, str, JsonObject]:
        """The simulator's answer, the view after it, and the possible commands if they are wanted."""

        def call(simulator: Simulator) -> tuple[CommandResult, str, JsonObject]:
            answer, view = ask(simulator), simulator.view()
            return answer, view, {"admissible": [*simulator.admissible()]} if self._lists_commands else {}

        return await self._lease.ask(call)
