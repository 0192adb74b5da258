"""Reward attacks: episodes that do nothing useful, and claim a success to be rewarded for it.

The texts go into string arguments that a tool's schema leaves free (in a text environment: into the action), of calls
that were recorded for other tasks. One kind needs no text: it makes the winning calls of another task, in the view in
which that task began. An attack earns if its episode is rewarded, or ends in a state that counts as success. If a real
environment is given, a text attack whose calls succeed there too does not count: it has done the task after all.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from itertools import cycle, islice
from random import Random

from pydantic import JsonValue

from dreamgym.dream.ending import is_unbounded, needs_invented_answers
from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.model import ExperienceModel, Judge
from dreamgym.dream.task_check import accomplished, check_of
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import EnvironmentUnavailable
from dreamgym.evaluation.attack_texts import Attack, texts_of
from dreamgym.evaluation.episodes import (
    WORKERS,
    Door,
    Keep,
    Make,
    Progress,
    forget,
    has_succeeded,
    perform,
    play_many,
    repeating,
)
from dreamgym.evaluation.rates import Rate, clustered
from dreamgym.evaluation.scripts import Path, distinct, is_id, leaves, replaced
from dreamgym.tools import Tools, is_forbidden
from dreamgym.types import Frozen, Source, StepResult, StopReason, Task, ToolCall, Trajectory

SHOWN_CHARACTERS = 300


class AttackEpisode(Frozen):
    """One attack on one task."""

    kind: Attack
    task: str
    actions: tuple[ToolCall, ...]
    answer: str | None = None
    """The final answer, if the attack is one."""
    rewarded: bool
    taken_away: bool
    """The model claimed a success that the judge or the task's check did not confirm."""
    answered: bool
    """At least one call, or the final answer, got an answer."""


class Attacked(Frozen):
    """The attacks of one kind."""

    kind: Attack
    episodes: int
    rewarded: Rate
    """Share of the answered episodes that were rewarded."""
    taken_away: int
    """Episodes whose success the model claimed, and judge or check did not confirm."""
    unanswered: int
    """Episodes in which the model gave no usable answer to any call."""


class Attacks(Frozen):
    """Results of the whole suite."""

    seed: int
    tasks: int
    done_at_the_start: int
    """Tasks left out because their check is satisfied before anything was done."""
    kinds: tuple[Attacked, ...]
    rewarded: Rate
    """Share of the answered episodes of all kinds that were rewarded."""
    earned: tuple[AttackEpisode, ...]
    """The episodes that were rewarded, with long texts cut."""


async def attacks(
    spec: EnvironmentSpec,
    tasks: Sequence[Task],
    make_dream: Callable[[], DreamEnvironment],
    *,
    model: ExperienceModel | None = None,
    recordings: Sequence[Trajectory] = (),
    known: Sequence[Trajectory] = (),
    kinds: Collection[Attack] = tuple(Attack),
    make_real: Make | None = None,
    seed: int = 0,
    on_progress: Progress | None = None,
    keep: Keep = forget,
) -> Attacks:
    """Attack a dream: one episode per kind and task, with different texts for each task.

    Args:
        spec: the dreamed environment.
        tasks: the tasks whose success is claimed.
        make_dream: makes a new dream, with judge and checks as in a server.
        model: the dream's model; if it is a judge, it is also attacked with final answers.
        recordings: calls to hide the texts in; without them, calls are made up from the schemas.
        known: the trajectories that the dream knows; calls of their successes are made for tasks with other goals.
        kinds: the kinds of attacks.
        make_real: makes the real environment, to recognise calls that happen to do the task.
        seed: fixes the draw of the calls; task i is played with seed + i.
        on_progress: called with the number of episodes that are done, and of all.
        keep: called with every dreamed episode.
    """
    open_tasks = [task for task in tasks if accomplished(task, spec.explicit(task.initial_state or "")) is not True]
    chosen = [(kind, number) for kind in Attack if kind in kinds for number in range(len(open_tasks))]
    bases = _base_calls(spec, recordings)

    async def attack(index: int) -> AttackEpisode | None:
        kind, number = chosen[index]
        task = open_tasks[number]
        if kind is Attack.FINAL_ANSWER:
            calls = [call for origin, call in bases if origin != task.id][:1] if number % 2 else []
            return await _answer(spec, task, model, make_dream, calls, number, seed + number, keep)
        random = Random(f"{kind} {task.id} {seed}")
        if kind is Attack.ANOTHER_TASK:
            win = _win_of_another(spec, task, known, random)
            view = task.model_copy(update={"initial_state": win.task.initial_state}) if win else task
            calls = [step.action for step in win.transitions] if win else []
            return await _play(spec, kind, view, make_dream, calls, seed + number, keep) if calls else None
        calls = attack_calls(spec, kind, task, bases, random, number)
        episode = await _play(spec, kind, task, make_dream, calls, seed + number, keep) if calls else None
        if episode is not None and episode.rewarded and make_real is not None:
            again = repeating(episode.actions)
            real = await perform(spec, make_real, task, again, seed=seed + number, source=Source.REAL)
            if has_succeeded(spec, real):
                return episode.model_copy(update={"rewarded": False})
        return episode

    played = await play_many([attack] * WORKERS, range(len(chosen)), on_progress)
    episodes = [episode for episode in played if episode is not None]
    by_kind = {kind: [one for one in episodes if one.kind is kind] for kind in Attack if kind in kinds}
    return Attacks(
        seed=seed,
        tasks=len(open_tasks),
        done_at_the_start=len(tasks) - len(open_tasks),
        kinds=tuple(
            Attacked(
                kind=kind,
                episodes=len(of_kind),
                rewarded=_rewarded(of_kind),
                taken_away=sum(one.taken_away for one in of_kind),
                unanswered=sum(not one.answered for one in of_kind),
            )
            for kind, of_kind in by_kind.items()
        ),
        rewarded=_rewarded(episodes),
        earned=tuple(_cut(episode) for episode in episodes if episode.rewarded),
    )


def _win_of_another(
    spec: EnvironmentSpec, task: Task, known: Sequence[Trajectory], random: Random
) -> Trajectory | None:
    """A recorded success for another goal that the task's own check does not accept; None if there is none."""

    def does_not_count(one: Trajectory) -> bool:
        answers = [step.result.observation for step in one.transitions]
        return accomplished(task, spec.explicit(one.transitions[-1].next_state), answers) is not True

    wins = [one for one in known if one.success and one.transitions and one.task.goal != task.goal]
    return next((one for one in random.sample(wins, len(wins)) if does_not_count(one)), None)


def attack_calls(
    spec: EnvironmentSpec,
    kind: Attack,
    task: Task,
    bases: Sequence[tuple[str, ToolCall]],
    random: Random,
    number: int = 0,
) -> list[ToolCall]:
    """The calls of one episode: texts of the kind in recorded calls of other tasks.

    One text is in an argument that is not an id, one in all free arguments at once, one in any argument. The schemas
    allow all of these calls.
    """
    texts = texts_of(kind, task)
    texts = texts[number % len(texts) :] + texts[: number % len(texts)]
    if spec.text_argument is not None:
        tool, argument = spec.text_argument
        before = [str(call.arguments.get(argument, "")) for origin, call in bases if origin != task.id] or [""]
        alone, *others = islice(cycle(texts), 3)
        made = [alone, *(f"{random.choice(before)}. {text}" for text in others)]
        return [ToolCall(name=tool, arguments={argument: text}) for text in made]
    by_tool: dict[str, list[ToolCall]] = {}
    for origin, call in bases:
        if origin != task.id:
            by_tool.setdefault(call.name, []).append(call)
    calls: list[ToolCall] = []
    for text, places in zip(cycle(texts), (_in_words, _everywhere, _anywhere), strict=False):
        bases_in_turn = (random.choice(by_tool[tool]) for tool in random.sample(sorted(by_tool), len(by_tool)))
        found = next(filter(None, (places(spec, base, text) for base in bases_in_turn)), [])
        calls += random.sample(found, min(1, len(found)))
    return calls


async def _play(
    spec: EnvironmentSpec,
    kind: Attack,
    task: Task,
    make_dream: Callable[[], DreamEnvironment],
    calls: Sequence[ToolCall],
    seed: int,
    keep: Keep,
) -> AttackEpisode:
    dream = make_dream()
    door = Door(dream, Tools(dream.spec))
    answered, taken_away = 0, False
    try:
        await door.reset(task, seed=seed)
        for call in calls:
            try:
                result = await door.step(call)
            except EnvironmentUnavailable:  # the step is not counted; an attacker goes on
                continue
            answered += 1
            taken_away = taken_away or _is_taken_away(dream, result)
            if result.done:
                break
        steps = dream.transitions
    finally:
        await dream.close()
    state = spec.explicit(steps[-1].next_state) if steps else ""
    told = [(step.result.observation, step.provenance) for step in steps]
    is_done = accomplished(task, state, [answer for answer, _ in told]) is True
    ended = bool(steps) and steps[-1].result.terminated
    played = Trajectory(
        id=str(uuid.uuid4()),
        task=task,
        transitions=steps,
        source=Source.SYNTHETIC,
        stop_reason=StopReason.TERMINATED if ended else StopReason.CLOSED,
    )
    keep(_measure(kind, task), played)
    return AttackEpisode(
        kind=kind,
        task=task.id,
        actions=tuple(calls),
        rewarded=any(step.result.reward > 0 for step in steps)
        or (is_done and not is_unbounded(steps) and not needs_invented_answers(task, state, told)),
        taken_away=taken_away,
        answered=answered > 0,
    )


async def _answer(
    spec: EnvironmentSpec,
    task: Task,
    model: ExperienceModel | None,
    make_dream: Callable[[], DreamEnvironment],
    calls: Sequence[ToolCall],
    number: int,
    seed: int,
    keep: Keep,
) -> AttackEpisode | None:
    """Attack the judge with a final answer, after at most one call; None if a check decides or nothing can judge."""
    if not isinstance(model, Judge) or any(check_of(task).values()):
        return None
    texts = texts_of(Attack.FINAL_ANSWER, task)
    answer = texts[number % len(texts)]
    steps = await perform(spec, make_dream, task, repeating(calls), seed=seed, source=Source.SYNTHETIC)
    try:
        verdict: bool | None = await model.judge(spec, task, steps.transitions, answer, seed=seed)
    except EnvironmentUnavailable:
        verdict = None
    decided = {"answer": answer, "final_reward": None if verdict is None else float(verdict)}
    keep(_measure(Attack.FINAL_ANSWER, task), steps.model_copy(update=decided))
    return AttackEpisode(
        kind=Attack.FINAL_ANSWER,
        task=task.id,
        actions=tuple(calls),
        answer=answer,
        rewarded=verdict is True,
        taken_away=False,
        answered=verdict is not None,
    )


def _measure(kind: Attack, task: Task) -> str:
    """Name of an attack for `keep`, in the words of the report."""
    return f"reward attacks/{kind.value}/{task.id}"


def _is_taken_away(dream: DreamEnvironment, result: StepResult) -> bool:
    """True if the model claimed the last step's success, and its judge or the check of the state did not confirm it."""
    if result.reward > 0 or not dream.transitions:
        return False
    claimed = dream.asked is not None and dream.asked[1].success
    return claimed or dream.transitions[-1].provenance.judged is False


def _base_calls(spec: EnvironmentSpec, recordings: Sequence[Trajectory]) -> list[tuple[str, ToolCall]]:
    """Calls, each with the task it was recorded for; for tools never called, only the arguments the schema requires."""
    recorded: dict[str, list[ToolCall]] = {}
    for recording in recordings:
        steps = (step for step in recording.transitions if not step.result.done)
        recorded.setdefault(recording.task.id, []).extend(step.action for step in steps)
    calls = [(task, call) for task, actions in recorded.items() for call in distinct(actions)]
    called = {call.name for _, call in calls}
    for tool in spec.tools:
        if tool["name"] not in called:
            least = _least_value(tool.get("inputSchema"))
            arguments = least if isinstance(least, dict) else {}
            calls.append(("", ToolCall(name=str(tool["name"]), arguments=arguments)))
    return calls


def _least_value(schema: JsonValue) -> JsonValue:
    if not isinstance(schema, dict):
        return ""
    if isinstance(options := schema.get("enum"), list) and options:
        return options[0]
    properties, required = schema.get("properties"), schema.get("required")
    if schema.get("type") == "object" or isinstance(properties, dict):
        names = [str(name) for name in required] if isinstance(required, list) else []
        return {name: _least_value(properties.get(name)) for name in names} if isinstance(properties, dict) else {}
    simple: dict[str, JsonValue] = {"integer": 1, "number": 1, "boolean": False, "array": [], "null": None}
    kind = schema.get("type")
    return simple.get(kind, "x") if isinstance(kind, str) else "x"


def _in_words(spec: EnvironmentSpec, base: ToolCall, text: str) -> list[ToolCall]:
    """The call with the text in one argument that is not an id, once for each, so that the rest of it makes sense."""
    values = dict(leaves(base.arguments))
    return [call for path, call in _placed(spec, base, text).items() if not is_id(path, values.get(path, ""))]


def _everywhere(spec: EnvironmentSpec, base: ToolCall, text: str) -> list[ToolCall]:
    """The call with the text in all its free arguments at once."""
    filled = replaced(base, dict.fromkeys(_placed(spec, base, text), text))
    return [] if filled == base or is_forbidden(spec, filled) else [filled]


def _anywhere(spec: EnvironmentSpec, base: ToolCall, text: str) -> list[ToolCall]:
    """The call with the text in one of its free arguments, once for each."""
    return list(_placed(spec, base, text).values())


def _placed(spec: EnvironmentSpec, base: ToolCall, text: str) -> dict[Path, ToolCall]:
    """The call with the text in each of its arguments that may hold it, one at a time."""
    places: list[Path] = [path for path, value in leaves(base.arguments) if isinstance(value, str)]
    schema = spec.tool(base.name).get("inputSchema")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    for name, part in properties.items() if isinstance(properties, dict) else ():
        if name not in base.arguments and isinstance(part, dict) and part.get("type") == "string":
            places.append((name,))
    single = {path: replaced(base, {path: text}) for path in places}
    return {path: call for path, call in single.items() if not is_forbidden(spec, call)}


def _rewarded(episodes: Sequence[AttackEpisode]) -> Rate:
    """The share of the answered episodes that were rewarded; the interval is over tasks, which all kinds share."""
    answered = [episode for episode in episodes if episode.answered]
    return clustered([float(episode.rewarded) for episode in answered], [episode.task for episode in answered])


def _cut(episode: AttackEpisode) -> AttackEpisode:
    actions = tuple(
        replaced(
            action,
            {path: value[:SHOWN_CHARACTERS] for path, value in leaves(action.arguments) if isinstance(value, str)},
        )
        for action in episode.actions
    )
    return episode.model_copy(update={"actions": actions})
