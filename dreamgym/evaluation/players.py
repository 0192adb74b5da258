"""Players for a closed loop: agents without a language model, good ones and deliberately bad ones.

The players of a real environment are its behaviours. Players made of recordings know no environment: they make the
recorded calls of a task, or spoil them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from random import Random

from dreamgym.dream.task_check import accomplished, check_of
from dreamgym.environment import Behaviour, Environment, EnvironmentSpec
from dreamgym.evaluation.episodes import last_state
from dreamgym.evaluation.scripts import Ids, Reads, Script, distinct
from dreamgym.state import mentioned, parsed
from dreamgym.types import StepResult, Task, ToolCall, Trajectory

BAD = frozenset({"first_half", "shuffled", "of_another_task", "wrong_ids", "idle", "random"})
"""Players that are bad on purpose: a dream in which they do better than in reality plays along."""
READS_AFTER_A_WRITE = 2
SESSION_STEPS = 20

ScriptedCall = tuple[Script, int]
"""A recorded episode, and the index of one of its calls."""
Draw = Callable[[Script, Random], Sequence[ScriptedCall]]
"""Chooses the calls to make among the recorded ones."""
Change = Callable[[ToolCall, Random], ToolCall]


@dataclass(frozen=True)
class ScriptedPlayer:
    """A way to play the tasks of an environment."""

    name: str
    behaviour: Callable[[Task], Behaviour | None]
    """The behaviour in a task; None if the player does not know the task."""

    @property
    def bad(self) -> bool:
        return self.name in BAD


def players_of(
    spec: EnvironmentSpec, recordings: Sequence[Trajectory] = (), behaviours: Mapping[str, Behaviour] | None = None
) -> tuple[ScriptedPlayer, ...]:
    """The players of the real environment, and those that can be made of recordings.

    Args:
        spec: the environment that is played.
        recordings: recordings of the tasks that will be played. A dream that was grounded in these very episodes can
            repeat them; held-out episodes test more.
        behaviours: the behaviours of the real environment, by name.
    """

    def playing(behaviour: Behaviour) -> Callable[[Task], Behaviour]:
        return lambda task: behaviour

    own = [ScriptedPlayer(name, playing(behaviour)) for name, behaviour in (behaviours or {}).items()]
    names = {player.name for player in own}
    return (*own, *(player for player in _recorded(spec, recordings) if player.name not in names))


def tasks_of(spec: EnvironmentSpec, recordings: Sequence[Trajectory]) -> tuple[Task, ...]:
    """The tasks of the recordings, each once.

    Tasks with a check come first, since the check decides who succeeded; among them, those that a recording
    accomplished.
    """
    tasks = {one.task.id: one.task for one in recordings if one.transitions}.values()
    done = {one.task.id for one in recordings if one.transitions and _succeeded(spec, one)}
    return tuple(sorted(tasks, key=lambda task: (not any(check_of(task).values()), task.id not in done)))


def sessions(spec: EnvironmentSpec, recordings: Sequence[Trajectory]) -> ScriptedPlayer:
    """A player of long sessions with reads after writes: recorded calls of the task, then of other tasks.

    After each call that may write, it makes up to two recorded reads that share an argument with it. If the task's
    state is explicit, it makes only those calls of other tasks that name something in that state.
    """
    reads, scripts = Reads(spec, recordings), _competent(spec, recordings)
    pool = distinct([action for script in scripts.values() for action in script.actions if reads(action)])

    def of(task: Task) -> Behaviour | None:
        if task.id not in scripts:
            return None

        async def behaviour(start: StepResult, environment: Environment, seed: int) -> None:
            random = Random(f"{task.id} {seed}")
            others = random.sample(sorted(scripts.keys() - {task.id}), len(scripts) - 1)
            result, made = start, 0
            for identity in (task.id, *others):
                answers: dict[int, StepResult] = {}
                for index in range(len(scripts[identity].actions)):
                    action = scripts[identity].call(index, answers)
                    if identity != task.id and not _is_of_this_world(action, task):
                        continue
                    after = () if reads(action) else _reads_about(action, pool, random)
                    for place, call in enumerate((action, *after)):
                        if result.done or made == SESSION_STEPS:
                            return
                        result, made = await environment.step(call), made + 1
                        if place == 0 and not result.is_error:
                            answers[index] = result

        return behaviour

    return ScriptedPlayer("sessions", of)


def _recorded(spec: EnvironmentSpec, recordings: Sequence[Trajectory]) -> Iterator[ScriptedPlayer]:
    scripts = _competent(spec, recordings)
    if not scripts:
        return
    reads, ids = Reads(spec, recordings), Ids(recordings)
    everything = [(script, index) for script in map(Script, recordings) for index in range(len(script.actions))]

    def another(script: Script, random: Random) -> Sequence[ScriptedCall]:
        return _all(random.choice([one for one in scripts.values() if one.task.instruction != script.task.instruction]))

    def idle(script: Script, random: Random) -> Sequence[ScriptedCall]:
        only = [step for step in _all(script) if reads(script.actions[step[1]])] or _all(script)[:1]
        return list(islice(cycle(only), len(script.actions) + 1))

    def drawn(script: Script, random: Random) -> Sequence[ScriptedCall]:
        return random.choices(everything, k=2 * len(script.actions))

    yield _scripted(spec, "recorded", scripts, lambda script, random: _all(script))
    yield _scripted(spec, "first_half", scripts, lambda script, random: _all(script)[: len(script.actions) // 2])
    yield _scripted(spec, "shuffled", scripts, _shuffled)
    if len({one.task.instruction for one in scripts.values()}) > 1:
        yield _scripted(spec, "of_another_task", scripts, another)
    yield _scripted(spec, "wrong_ids", scripts, lambda script, random: _all(script), ids.spoiled)
    yield _scripted(spec, "idle", scripts, idle)
    yield _scripted(spec, "random", scripts, drawn)


def _competent(spec: EnvironmentSpec, recordings: Sequence[Trajectory]) -> dict[str, Script]:
    """One recorded episode of each task; one that accomplished it, if there is one."""
    chosen: dict[str, Trajectory] = {}
    for recording in (recording for recording in recordings if recording.transitions):
        before = chosen.get(recording.task.id)
        if before is None or (_succeeded(spec, recording) and not _succeeded(spec, before)):
            chosen[recording.task.id] = recording
    return {task: Script(recording) for task, recording in chosen.items()}


def _succeeded(spec: EnvironmentSpec, recording: Trajectory) -> bool:
    answers = [step.result.observation for step in recording.transitions]
    return recording.success or bool(accomplished(recording.task, last_state(spec, recording), answers))


def _scripted(
    spec: EnvironmentSpec, name: str, scripts: Mapping[str, Script], draw: Draw, change: Change | None = None
) -> ScriptedPlayer:
    def of(task: Task) -> Behaviour | None:
        own = scripts.get(task.id)
        if own is None:
            return None

        async def behaviour(start: StepResult, environment: Environment, seed: int) -> None:
            random = Random(f"{name} {task.id} {seed}")
            answers_of: dict[int, dict[int, StepResult]] = {}
            result = start
            for script, index in islice(draw(own, random), spec.max_steps):
                if result.done:
                    return
                answers = answers_of.setdefault(id(script), {})
                action = script.call(index, answers)
                result = await environment.step(change(action, random) if change else action)
                if not result.is_error:
                    answers[index] = result

        return behaviour

    return ScriptedPlayer(name, of)


def _all(script: Script) -> list[ScriptedCall]:
    return [(script, index) for index in range(len(script.actions))]


def _shuffled(script: Script, random: Random) -> Sequence[ScriptedCall]:
    order = _all(script)
    for _ in range(10):  # a shuffle of two calls keeps their order every other time
        random.shuffle(order)
        if [script.actions[index] for _, index in order] != list(script.actions):
            break
    return order


def _reads_about(action: ToolCall, pool: Sequence[ToolCall], random: Random) -> Sequence[ToolCall]:
    """Recorded reads that share an argument with a call; any reads if none does."""
    words = {word for word in mentioned(action.arguments) if not word.isdecimal()}
    about = [read for read in pool if words & mentioned(read.arguments)] or pool
    return random.sample(about, min(READS_AFTER_A_WRITE, len(about)))


def _is_of_this_world(action: ToolCall, task: Task) -> bool:
    world = parsed(task.initial_state or "")
    words = {word for word in mentioned(action.arguments) if not word.isdecimal()}
    if world is None or not words:
        return True
    keys = {key for part in world.values() if isinstance(part, dict) for key in part}
    return bool(words & (mentioned(world) | keys))
