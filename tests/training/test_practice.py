"""An iteration plays groups. Their episodes share task, seed and group name, and nothing with another group."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from lamp import LampEnvironment

from dreamgym import EnvironmentSpec, StepResult, Task, ToolCall
from dreamgym.curriculum.sampler import Curriculum
from dreamgym.embedding import TrigramEncoder
from dreamgym.errors import InvalidInput
from dreamgym.redaction import RedactionRules
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.training.practice import Practice, Settings
from dreamgym.training.probe import evaluate
from dreamgym.training.record import read_record
from dreamgym.training.rollout import Generation, Segment, TokenPlayer

pytestmark = pytest.mark.anyio


class Mute:
    """A policy that always says the same, and its codec."""

    max_tokens = 100

    def generate(self, prompts_B: Sequence[Sequence[int]], *, seeds_B: Sequence[int]) -> list[Generation]:
        return [Generation(ids=(1,), logprobs=(0.0,)) for _ in prompts_B]

    def talk(self, task: Task, first: StepResult) -> MuteTalk:
        return MuteTalk()


class MuteTalk:
    """An episode of `Mute`."""

    has_room = True
    words = "nothing"

    def __init__(self) -> None:
        self.segments = [Segment([0])]

    @property
    def prompt(self) -> list[int]:
        return self.segments[0].ids

    def ids_of(self, text: str) -> list[int] | None:
        return None

    def say(self, sampled: Generation) -> str:
        self.segments[0].say(sampled)
        return self.words

    def skip(self, text: str) -> None:
        pass

    def hear(self, result: StepResult) -> bool:
        self.segments[0].hear([0])
        return self.has_room


class Noting(LampEnvironment):
    """A lamp that notes the version, group, task and seed of each start."""

    def __init__(self, version: int, group: str, notes: list[tuple[int, str, str, int | None]]) -> None:
        super().__init__()
        self._made, self._notes = (version, group), notes

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        self._notes.append((*self._made, task.id, seed))
        return await super().reset(task, seed=seed)


async def test_the_episodes_of_a_group_share_its_name_task_and_seed(lamp_spec: EnvironmentSpec, tmp_path: Path) -> None:
    settings = Settings(steps=2, groups=3, group_size=4)
    notes: list[tuple[int, str, str, int | None]] = []

    async def play(iteration: int) -> None:
        curriculum = Curriculum(lamp_spec.tasks, share=0, seed=0)
        practice = Practice(lamp_spec, curriculum, None, settings, tmp_path / f"{len(notes)}.jsonl")
        player = TokenPlayer(Mute(), Mute(), lamp_spec, lambda v, g: Noting(v, g, notes))
        await practice.iterate(player, iteration)
        await practice.iterate(player, iteration + 1)

    await play(1)
    await play(1)
    groups = [notes[start : start + 4] for start in range(0, len(notes), 4)]
    assert [len(set(group)) for group in groups] == [1] * 12
    assert len({group[0][1] for group in groups}) == 12, "names are never used again, not even by another run"
    assert [group[0][0] for group in groups] == [1, 1, 1, 2, 2, 2] * 2
    assert [group[0][2:] for group in groups[:6]] == [group[0][2:] for group in groups[6:]], "one seed, the same play"


async def test_too_few_real_steps_for_an_update_are_refused_and_the_last_update_may_be_smaller(
    lamp_spec: EnvironmentSpec, tmp_path: Path
) -> None:
    settings = Settings(groups=3, group_size=2)  # an update may take 3 groups of 2 episodes of 3 steps
    player = TokenPlayer(Mute(), Mute(), lamp_spec, lambda version, group: LampEnvironment())

    def practice(real_steps: int) -> Practice:
        curriculum = Curriculum(lamp_spec.tasks, share=0, seed=0)
        record = tmp_path / f"{real_steps}.jsonl"
        return Practice(lamp_spec, curriculum, None, settings, record, where="real", real_steps=real_steps)

    with pytest.raises(InvalidInput, match="5 real steps are not enough for another update"):
        await practice(5).iterate(player, 0)
    enough = practice(30)
    played = [await enough.iterate(player, iteration) for iteration in range(2)]
    assert [[len(group) for group in groups] for groups in played] == [[2, 2, 2], [2, 2]]
    assert enough.spent
    taken = sum(int(str(line["environment_steps"])) for line in read_record(tmp_path / "30.jsonl"))
    assert taken == 30


async def test_a_run_that_is_resumed_with_fewer_real_steps_than_it_took_is_over(
    lamp_spec: EnvironmentSpec, tmp_path: Path
) -> None:
    player = TokenPlayer(Mute(), Mute(), lamp_spec, lambda version, group: LampEnvironment())

    def practice(real_steps: int) -> Practice:
        curriculum, settings = Curriculum(lamp_spec.tasks, share=0, seed=0), Settings(groups=2, group_size=2)
        return Practice(lamp_spec, curriculum, None, settings, tmp_path / "m", where="real", real_steps=real_steps)

    await practice(12).iterate(player, 0)
    resumed = practice(6)
    await resumed.rewind(1)
    assert resumed.spent
    with pytest.raises(InvalidInput, match=r"6 real steps are not enough for another update: .* 12 are already used"):
        await resumed.iterate(player, 1)


class OpenEnded(LampEnvironment):
    """A red lamp whose reward nobody knows; the other lamps are judged."""

    async def step(self, action: ToolCall) -> StepResult:
        result = await super().step(action)
        return result.model_copy(update={"info": {"open_end": True}}) if self._colour == "red" else result


class Denying(LampEnvironment):
    """A lamp that says of each step that its end is not open."""

    async def step(self, action: ToolCall) -> StepResult:
        result = await super().step(action)
        return result.model_copy(update={"info": {"open_end": False}})


async def test_a_reward_is_unknown_only_if_the_environment_says_that_the_end_is_open(
    lamp_spec: EnvironmentSpec,
) -> None:
    player = TokenPlayer(Mute(), Mute(), lamp_spec, lambda version, group: Denying())
    assert (await evaluate(player, lamp_spec.tasks[:2])).outcomes == (0.0, 0.0)


class Halved(LampEnvironment):
    """A lamp that begins and answers with half a surrogate pair, as a file's name may contain it."""

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        await super().reset(task, seed=seed)
        return StepResult(observation="caf\udce9")

    async def step(self, action: ToolCall) -> StepResult:
        await super().step(action)
        return StepResult(observation="caf\udce9")


class Reading(Mute):
    """A codec that encodes what it is told, and keeps it."""

    def __init__(self) -> None:
        self.told: list[bytes] = []

    def talk(self, task: Task, first: StepResult) -> MuteTalk:
        self.told.append(first.observation.encode())
        return ReadingTalk(self.told)


class ReadingTalk(MuteTalk):
    """An episode of `Reading`."""

    def __init__(self, told: list[bytes]) -> None:
        super().__init__()
        self._told = told

    def hear(self, result: StepResult) -> bool:
        self._told.append(result.observation.encode())
        return super().hear(result)


async def test_a_policy_reads_an_observation_with_half_a_surrogate_pair_as_it_would_be_stored(
    lamp_spec: EnvironmentSpec,
) -> None:
    codec = Reading()
    evaluation = await evaluate(
        TokenPlayer(Mute(), codec, lamp_spec, lambda version, group: Halved()), lamp_spec.tasks[:1]
    )
    assert (evaluation.outcomes, evaluation.failed) == ((0.0,), 0)
    assert codec.told == [b"caf?"] * lamp_spec.max_steps, "the first observation, and one per step but the last"


class Stuck(LampEnvironment):
    """A lamp that cannot be closed."""

    async def close(self) -> None:
        raise RuntimeError("the lamp is stuck")


async def test_an_environment_that_cannot_be_closed_is_logged_and_its_episode_counts(
    lamp_spec: EnvironmentSpec, caplog: pytest.LogCaptureFixture
) -> None:
    player = TokenPlayer(Mute(), Mute(), lamp_spec, lambda version, group: Stuck())
    assert (await evaluate(player, lamp_spec.tasks[:2])).outcomes == (0.0, 0.0)
    assert caplog.text.count("an episode could not be closed: RuntimeError: the lamp is stuck") == 2


class Short(Mute):
    """A policy whose episodes have room for one action."""

    def talk(self, task: Task, first: StepResult) -> MuteTalk:
        talk = MuteTalk()
        talk.has_room = False
        return talk


async def test_an_episode_cut_at_its_limit_of_tokens_has_a_reward_only_if_the_environment_ends_by_itself(
    lamp_spec: EnvironmentSpec,
) -> None:
    for ends_itself in (True, False):
        spec = lamp_spec.model_copy(update={"ends_itself": ends_itself})
        player = TokenPlayer(Short(), Short(), spec, lambda version, group: LampEnvironment())
        (episode,) = await player.play(spec.tasks[:1], groups=["g"], seeds=[0], version=0, sampling_seed=0)
        assert len(episode.actions) == 1
        assert episode.reward == (0.0 if ends_itself else None)


async def test_an_evaluation_counts_episodes_of_unknown_reward_apart_from_failures(lamp_spec: EnvironmentSpec) -> None:
    player = TokenPlayer(Mute(), Mute(), lamp_spec, lambda version, group: OpenEnded())
    evaluation = await evaluate(player, lamp_spec.tasks[:4])
    assert [task.metadata["colour"] for task in lamp_spec.tasks[:4]] == ["red", "green", "blue", "white"]
    assert evaluation.outcomes == (None, 0.0, 0.0, 0.0)
    assert (evaluation.success.n, evaluation.unjudged, evaluation.failed) == (3, 1, 0)


async def test_the_figures_of_an_evaluation_leave_failed_episodes_out(lamp_spec: EnvironmentSpec) -> None:
    lamps = iter([LampEnvironment(fails_after=0), LampEnvironment(), LampEnvironment(fails_after=0), LampEnvironment()])
    evaluation = await evaluate(
        TokenPlayer(Mute(), Mute(), lamp_spec, lambda version, group: next(lamps)), lamp_spec.tasks[:4]
    )
    (whole,) = {await steps_alone(lamp_spec, task) for task in lamp_spec.tasks[1:4:2]}
    assert (evaluation.failed, evaluation.success.n, evaluation.mean_steps) == (2, 2, whole)


async def steps_alone(spec: EnvironmentSpec, task: Task) -> float:
    """Mean number of steps of an evaluation of one task."""
    player = TokenPlayer(Mute(), Mute(), spec, lambda version, group: LampEnvironment())
    return (await evaluate(player, [task])).mean_steps


class Seeded(LampEnvironment):
    """Notes the seeds with which it is reset."""

    seeds: ClassVar[list[int | None]] = []

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        self.seeds.append(seed)
        return await super().reset(task, seed=seed)


async def test_each_episode_of_an_evaluation_has_a_seed_of_its_own(lamp_spec: EnvironmentSpec) -> None:
    Seeded.seeds.clear()
    player = TokenPlayer(Mute(), Mute(), lamp_spec, lambda version, group: Seeded())
    await evaluate(player, lamp_spec.tasks[:5], seed=7, batch=2)
    assert Seeded.seeds == [7, 8, 9, 10, 11]


async def test_an_episode_whose_first_prompt_has_no_room_is_lost_and_one_warning_says_why(
    lamp_spec: EnvironmentSpec, caplog: pytest.LogCaptureFixture
) -> None:
    codec = Mute()
    codec.max_tokens = len(MuteTalk().prompt)
    player = TokenPlayer(Mute(), codec, lamp_spec, lambda version, group: LampEnvironment())
    asked: dict[str, Any] = {"groups": [""], "seeds": [0], "version": 0, "sampling_seed": 0}
    for _ in range(2):
        (rollout,) = await player.play(lamp_spec.tasks[:1], **asked)
        assert (rollout.reward, rollout.success, rollout.actions, rollout.error) == (0.0, False, [], None)
    assert caplog.text.count("the first prompt of task 'lamp-0' has 1 tokens") == 1
    played = await evaluate(player, lamp_spec.tasks[:3], seed=7, batch=2)
    assert (played.success.n, played.success.mean, played.failed) == (3, 0.0, 0)


class Right(Mute):
    """A policy that says the colour of every lamp but the red one."""

    def talk(self, task: Task, first: StepResult) -> MuteTalk:
        talk = MuteTalk()
        talk.words = "nothing" if task.metadata["colour"] == "red" else f"say {task.metadata['colour']}"
        return talk


async def test_success_of_an_update_is_a_share_of_the_episodes_whose_reward_is_known(
    lamp_spec: EnvironmentSpec, tmp_path: Path
) -> None:
    tasks = lamp_spec.tasks[:4]  # one of them is the red lamp
    record, curriculum = tmp_path / "m.jsonl", Curriculum(tasks, share=0, seed=0)
    practice = Practice(lamp_spec, curriculum, None, Settings(groups=4, group_size=2), record)
    await practice.iterate(TokenPlayer(Right(), Right(), lamp_spec, lambda version, group: OpenEnded()), 0)
    (line,) = read_record(record)
    assert (line["inside_success"], line["unjudged"]) == (1.0, 2)


class Unsure(LampEnvironment):
    """A red lamp whose answers have a low confidence; the other lamps' have a high one."""

    async def step(self, action: ToolCall) -> StepResult:
        result = await super().step(action)
        return result.model_copy(update={"info": {"confidence": 0.2 if self._colour == "red" else 0.9}})


async def test_an_episode_below_the_least_confidence_counts_as_one_without_a_reward(
    lamp_spec: EnvironmentSpec, tmp_path: Path
) -> None:
    record, curriculum = tmp_path / "m.jsonl", Curriculum(lamp_spec.tasks[:4], share=0, seed=0)
    settings = Settings(groups=4, group_size=2, least_confidence=0.5)
    practice = Practice(lamp_spec, curriculum, None, settings, record)
    await practice.iterate(TokenPlayer(Right(), Right(), lamp_spec, lambda version, group: Unsure()), 0)
    (line,) = read_record(record)
    assert (line["inside_success"], line["unjudged"], line["failed"]) == (1.0, 2, 0)


async def test_a_group_with_fewer_than_two_known_rewards_is_dead(lamp_spec: EnvironmentSpec, tmp_path: Path) -> None:
    record, curriculum = tmp_path / "m.jsonl", Curriculum(lamp_spec.tasks[:4], share=0, seed=0)
    practice = Practice(lamp_spec, curriculum, None, Settings(groups=4, group_size=2), record)
    await practice.iterate(TokenPlayer(Right(), Right(), lamp_spec, lambda version, group: OpenEnded()), 0)
    (line,) = read_record(record)
    assert isinstance(line["values"], list)
    assert sorted(line["values"], key=str) == [0.0, 0.0, 0.0, None]
    assert (line["groups"], line["dead_groups"]) == (4, 4)


async def test_an_update_without_a_known_reward_tells_failed_episodes_from_unjudged_ones(
    lamp_spec: EnvironmentSpec, tmp_path: Path
) -> None:
    red, lamps = lamp_spec.tasks[:1], iter([OpenEnded(), OpenEnded(fails_after=0)])
    practice = Practice(lamp_spec, Curriculum(red, share=0, seed=0), None, Settings(groups=1, group_size=2), tmp_path)
    with pytest.raises(InvalidInput) as told:
        await practice.iterate(TokenPlayer(Right(), Right(), lamp_spec, lambda version, group: next(lamps)), 0)
    assert "no episode of an update has a known reward (1 of 2 failed: " in str(told.value)
    assert "give the tasks a check of their own (metadata.success)" in str(told.value)


class Piecemeal(LampEnvironment):
    """A lamp that gives the same reward in three parts, in an order that differs between episodes."""

    orders = itertools.cycle([(0.1, 0.2, 0.3), (0.3, 0.2, 0.1)])

    def __init__(self) -> None:
        super().__init__()
        self._parts = [*next(self.orders)]

    async def step(self, action: ToolCall) -> StepResult:
        await super().step(action)
        part = self._parts.pop()
        return StepResult(observation="on", reward=part, terminated=not self._parts)


async def test_a_group_whose_rewards_differ_only_by_rounding_is_dead(
    lamp_spec: EnvironmentSpec, tmp_path: Path
) -> None:
    record, curriculum = tmp_path / "m.jsonl", Curriculum(lamp_spec.tasks[:4], share=0, seed=0)
    practice = Practice(lamp_spec, curriculum, None, Settings(groups=4, group_size=2), record)
    groups = await practice.iterate(TokenPlayer(Right(), Right(), lamp_spec, lambda version, group: Piecemeal()), 0)
    assert all(len({episode.total_reward for episode in group}) == 2 for group in groups), "0.6 and 0.6000000000000001"
    (line,) = read_record(record)
    assert (line["groups"], line["dead_groups"]) == (4, 4)
    assert not curriculum.most_valuable(4)


async def test_the_tasks_that_practice_stores_are_redacted_and_those_that_it_plays_are_not(
    lamp_spec: EnvironmentSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DREAMGYM_HOME", str(tmp_path))
    played: list[str] = []

    class Told(LampEnvironment):
        async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
            played.append(task.instruction)
            return await super().reset(task, seed=seed)

    task = lamp_spec.tasks[0].model_copy(update={"instruction": "ask ann.lee@corp.net, password: hunter2xyz99"})
    spec = lamp_spec.model_copy(update={"redact": RedactionRules(), "tasks": (task,)})
    curriculum, settings = Curriculum([task], share=0, seed=0), Settings(groups=1, group_size=2)
    buffer = MemoryBuffer(TrigramEncoder())
    practice = Practice(spec, curriculum, None, settings, tmp_path / "m.jsonl", where="real", buffer=buffer)
    await practice.iterate(TokenPlayer(Mute(), Mute(), spec, lambda version, group: Told()), 0)
    assert played == [task.instruction] * 2
    (stored,) = await buffer.tasks("lamp")
    assert (stored.id, stored.world, stored.metadata) == (task.id, task.world, task.metadata)
    assert re.fullmatch(r"ask user-\w+@example\.com, password: REDACTED-PASSWORD-\w+", stored.instruction)
    (value,) = await buffer.task_values("lamp")
    assert (value.task_id, value.attempts) == (task.id, 2)


async def test_a_probe_that_could_not_play_is_recorded_as_unknown(lamp_spec: EnvironmentSpec, tmp_path: Path) -> None:
    record, curriculum = tmp_path / "m.jsonl", Curriculum(lamp_spec.tasks, share=0, seed=0)
    player = TokenPlayer(Mute(), Mute(), lamp_spec, lambda version, group: LampEnvironment(fails_after=0))
    practice = Practice(lamp_spec, curriculum, None, Settings(), record)
    practice.note_probe(3, "real", await evaluate(player, lamp_spec.tasks[:4]))
    (line,) = read_record(record)
    assert (line["real_success"], line["real_low"], line["real_high"], line["real_episodes"]) == (None, None, None, 0)
