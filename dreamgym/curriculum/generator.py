"""M_task: varies the tasks that the policy solves only sometimes, and returns only variations that can be played.

The steps are variation → validation → selection: the model that selects sees only what can be played. A variation of a
task in a recorded world keeps the instruction and starts somewhere else, because only then do the recordings show
whether it can be solved, and what reward that gives. If no recorded step solves anything, for example because a judge
decides about the answer, the instruction itself is varied, and the experience model's own LLM proposes and selects.
Whether the variation can be solved is then only the opinion of that model; the curriculum drops tasks that nobody
solves.
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from importlib.resources import files
from string import Template
from typing import Protocol

from pydantic import JsonValue

from dreamgym.dream.prompt import as_data
from dreamgym.dream.questions import Answer, Form, ask
from dreamgym.dream.task_check import accomplished
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput, PredictionError
from dreamgym.llm import LLM, Message
from dreamgym.redaction import redact_by, redacted_task
from dreamgym.replay.keys import check_storable
from dreamgym.types import JsonObject, Origin, Task, Trajectory

MAX_TOKENS = 1024
MAX_INSTRUCTION = 2_000
"""Most characters of an instruction. A longer one means that the model repeats itself."""
SHOWN_STARTS = 20


class RecordedWorlds:
    """The recorded worlds as graphs: which states lead where, and from which states the task can be solved.

    Args:
        trajectories: the recordings; they are grouped by their world.
    """

    def __init__(self, trajectories: Iterable[Trajectory]) -> None:
        self._from: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        self._won: dict[tuple[str, str], set[str]] = defaultdict(set)
        """States before a success, by world and goal."""
        self.tasks: dict[str, Task] = {}
        """The recorded tasks by id."""
        for trajectory in trajectories:
            self.tasks[trajectory.task.id] = trajectory.task
            for transition in trajectory.transitions:
                self._from[trajectory.world_id][transition.next_state].add(transition.state)
                if transition.result.terminated and transition.result.reward > 0:
                    self._won[trajectory.world_id, trajectory.task.goal].add(transition.state)

    def known(self, world: str) -> bool:
        """True if a trajectory was recorded in this world."""
        return world in self._from

    def starts(self, task: Task, max_steps: int) -> dict[str, int]:
        """State to the number of recorded steps that solve the task from it, if they are at most `max_steps`."""
        world = task.world
        distance = dict.fromkeys(self._won.get((world, task.goal), ()), 1)
        queue = deque(distance)
        while queue:
            state = queue.popleft()
            for before in sorted(self._from[world][state]):
                if before not in distance and distance[state] < max_steps:
                    distance[before] = distance[state] + 1
                    queue.append(before)
        return distance


class TaskGenerator(Protocol):
    """Makes new tasks out of valuable ones."""

    async def vary(self, parents: Sequence[Task], *, seed: int) -> list[Task]:
        """At most one playable variation per parent; none for a parent without one."""


class StartVariation:
    """Varies where an episode starts, within the parent's recorded world. Needs no LLM.

    Args:
        spec: gives the step limit.
        worlds: what was recorded.
    """

    def __init__(self, spec: EnvironmentSpec, worlds: RecordedWorlds) -> None:
        self._spec = spec
        self._worlds = worlds

    async def vary(self, parents: Sequence[Task], *, seed: int) -> list[Task]:
        """One other start per parent, drawn from the starts that the recordings show to be solvable."""
        tasks = []
        for parent in parents:
            starts = _other_starts(self._worlds, parent, self._spec.max_steps)
            if starts:
                start = random.Random(f"{seed}:{parent.id}").choice(starts)
                tasks.append(variation(parent, parent.instruction, start))
        return tasks


class LanguageVariation:
    """Lets the experience model's LLM propose variations and select the hardest feasible one (paper, appendix C.2-3).

    Args:
        spec: description of the environment.
        llm: the language model that proposes and selects.
        worlds: validates variations of tasks whose world was recorded.
        on_failure: called with a parent for which the model gave nothing usable, and the reason.
        held_out: returns the tasks of dev and test, whose words no variation may have. It is called once, when words
            are varied.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        llm: LLM,
        worlds: RecordedWorlds,
        *,
        on_failure: Callable[[Task, PredictionError], None] = lambda parent, error: None,
        held_out: Callable[[], Iterable[Task]] = tuple,
    ) -> None:
        self._spec = spec
        self._llm = llm
        self._worlds = worlds
        self._on_failure = on_failure
        self._held_out = held_out

    async def vary(self, parents: Sequence[Task], *, seed: int) -> list[Task]:
        """One validated variation per parent; a parent for which the model gives nothing usable yields none."""
        tasks = []
        for parent in parents:
            try:
                proposals = await self._propose(parent, seed)
                if proposals:
                    tasks.append(await self._select(parent, proposals, seed))
            except PredictionError as error:
                self._on_failure(parent, error)
        return tasks

    async def _propose(self, parent: Task, seed: int) -> list[Task]:
        """Proposals that are well-defined, differ from known tasks and, as far as is known, can be played."""
        starts = _other_starts(self._worlds, parent, self._spec.max_steps)
        if not starts and self._spec.deterministic and self._worlds.known(parent.world):
            return []  # the world is recorded, and no recording solves the task from elsewhere in it
        answer = await self._ask("vary", _Proposals, seed, task=_shown(parent), starts=[*starts[:SHOWN_STARTS]])
        if starts:
            wanted = [p for p in answer.variations if p.instruction == parent.instruction and p.initial_state in starts]
            proposals = [variation(parent, p.instruction, p.initial_state) for p in wanted]
        else:
            known = (parent, *self._known)
            proposals = [variation(parent, p.instruction.strip(), parent.initial_state) for p in answer.variations]
            proposals = [task for task in proposals if not any(_has_same_words(task, one) for one in known)]
        return list({content_of(task): task for task in proposals if _well_defined(task)}.values())

    @cached_property
    def _known(self) -> list[Task]:
        """The tasks that are described, recorded or held out, redacted as the parents are."""
        redact = redact_by(self._spec.redact)
        described = [redacted_task(task, redact) for task in self._spec.tasks]
        return [*described, *self._worlds.tasks.values(), *self._held_out()]

    async def _select(self, parent: Task, proposals: Sequence[Task], seed: int) -> Task:
        answer = await self._ask(
            "select", _Selection, seed, task=_shown(parent), candidates=[_shown(t) for t in proposals]
        )
        if not 1 <= answer.selection <= len(proposals):
            raise PredictionError(f"selected variation {answer.selection} of {len(proposals)}")
        return proposals[answer.selection - 1]

    async def _ask(self, template: str, form: type[Form], seed: int, **data: JsonValue) -> Form:
        text = files("dreamgym.curriculum").joinpath(f"{template}.txt").read_text(encoding="utf-8")
        environment: JsonObject = {"description": self._spec.description, "rules": self._spec.rules}
        prompt = Template(text).substitute(environment=as_data(environment), data=as_data(data))
        messages = [Message(role="user", content=prompt)]
        asked = await ask(self._llm, messages, form, form.model_json_schema(), max_tokens=MAX_TOKENS, seed=seed)
        return asked.answer


class _Proposal(Answer):
    instruction: str
    initial_state: str | None


class _Proposals(Answer):
    variations: list[_Proposal]


class _Selection(Answer):
    reasoning: str
    selection: int


def variation(parent: Task, instruction: str, initial_state: str | None) -> Task:
    """A generated task in the parent's world. Its id depends on its content alone, not on its parent.

    The parent's own checks, `success` and `answers`, are valid for its own instruction only: with another one, a judge
    decides.
    """
    metadata: JsonObject = {**parent.metadata, "world": parent.world}
    if instruction != parent.instruction:
        metadata.pop("success", None)
        metadata.pop("answers", None)
    task = Task(
        id="generated",
        env=parent.env,
        instruction=instruction,
        initial_state=initial_state,
        origin=Origin.GENERATED,
        parent_id=parent.id,
        metadata=metadata,
    )
    digest = hashlib.sha256(repr(content_of(task)).encode()).hexdigest()[:12]
    return task.model_copy(update={"id": f"generated-{digest}"})


def content_of(task: Task) -> tuple[str, str, str | None]:
    """World, instruction (case and blanks ignored) and start. Tasks that share all three play the same."""
    return task.world, words_of(task.instruction), task.initial_state


def words_of(instruction: str) -> str:
    """The instruction with case and blanks ignored."""
    return " ".join(instruction.casefold().split())


def _has_same_words(task: Task, known: Task) -> bool:
    """True if a known task has the same instruction, and starts alike or at an unknown start."""
    starts_alike = known.initial_state is None or known.initial_state == (task.initial_state or "")
    return starts_alike and words_of(task.instruction) == words_of(known.instruction)


def _other_starts(worlds: RecordedWorlds, parent: Task, max_steps: int) -> list[str]:
    """The recorded starts from which the parent can be solved, without its own and those where it is accomplished.

    There are none if its check wants answers: some were given on the way to the other start.
    """
    if parent.metadata.get("answers"):
        return []
    starts = worlds.starts(parent, max_steps).keys() - {parent.initial_state or ""}
    return sorted(start for start in starts if accomplished(parent, start) is not True)


def _well_defined(task: Task) -> bool:
    """True if the task has an instruction of at most MAX_INSTRUCTION characters, and the store can keep it."""
    try:
        check_storable(task, f"task {task.id!r}")
    except InvalidInput:
        return False
    return 0 < len(task.instruction) <= MAX_INSTRUCTION


def _shown(task: Task) -> JsonObject:
    return {"instruction": task.instruction, "initial_state": task.initial_state}
