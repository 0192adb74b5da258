"""A pointer policy points at what the reader knows: its states, its verbs, and how every trainer teaches it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from anyio.from_thread import BlockingPortal
from desks import SPEC, START, Desks, act, recordings, task, untrained
from dreamgym_integrations.trainers.policy.dpo import prefer, preferences
from dreamgym_integrations.trainers.policy.model import load_codec, load_policy
from dreamgym_integrations.trainers.policy.pointer.codec import PointerCodec, PointerTalk
from dreamgym_integrations.trainers.policy.pointer.create import create_pointer_policy
from dreamgym_integrations.trainers.policy.pointer.mapped_state import WORD, MappedEntity, StateMap
from dreamgym_integrations.trainers.policy.pointer.model import distinct
from dreamgym_integrations.trainers.policy.pointer.verbs import learn_verbs
from dreamgym_integrations.trainers.policy.pointer.words_reader import WordsReader, learn_forms, read_words
from dreamgym_integrations.trainers.policy.scratch import create_policy
from dreamgym_integrations.trainers.policy.sft import clone, imitate, rows_of
from growth import grows_linearly
from hypothesis import example, given
from hypothesis import strategies as st
from lamp_runs import broken_after, same, trained, weights
from safetensors.torch import load_file

from dreamgym import EnvironmentSpec, Source, StepResult, Trajectory
from dreamgym.errors import EnvironmentUnavailable, InvalidInput
from dreamgym.reading import ServerReader
from dreamgym.runs.settings import settings_of
from dreamgym.runs.train.config import TrainConfig
from dreamgym.state import StateSchema, as_object
from dreamgym.training.practice import Settings
from dreamgym.training.record import read_record
from dreamgym.training.rollout import Generation, TokenPlayer
from dreamgym.types import JsonObject, StopReason, Task, ToolCall, Transition

SHOP = StateSchema.model_validate(
    {
        "shelves": {"key": "shelf", "fields": {"kind": "string", "open": "boolean?"}},
        "goods": {"key": "good", "fields": {"kind": "string", "where": "array", "sold": "boolean"}},
        "at": "string?",
        "is_night": "boolean",
    }
)
STATE: JsonObject = {
    "shelves": {
        "s1": {"shelf": "s1", "kind": "wood", "open": None},
        "s2": {"shelf": "s2", "kind": "Wood", "open": True},
        "s3": {"shelf": "s3", "kind": "glass case", "open": False},
    },
    "goods": {
        "g1": {"good": "g1", "kind": "green tea", "where": ["s2"], "sold": False},
        "g2": {"good": "g2", "kind": "soap", "where": ["s1", "s3"], "sold": True},
    },
    "at": "s2",
    "is_night": True,
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pointer") / "untrained"
    untrained(folder)
    return folder


@pytest.fixture(scope="module")
def codec(base: Path) -> PointerCodec:
    found = load_codec(base)
    assert isinstance(found, PointerCodec)
    return found


def mapped(state: JsonObject, instruction: str = "Buy tea.", *, marks: bool = True) -> list[MappedEntity]:
    return StateMap(SHOP, marks=marks).episode(instruction).entities(state, refused=False)


def words(entities: Sequence[MappedEntity]) -> list[tuple[str, ...]]:
    return [(one.kind, *one.words) for one in entities]


def test_a_mapped_state_describes_each_entity_and_its_relations_to_others() -> None:
    assert words(mapped(STATE, "Buy green tea.")) == [
        ("$state", "is_night=yes"),
        ("$word", "buy"),
        ("$word", "green"),
        ("$word", "tea"),
        ("shelves", "wood", "open=none", "has.where=soap"),
        ("shelves", "wood", "open=yes", "@at", "has.where=!named", "has.where=green", "has.where=tea"),
        ("shelves", "glass", "case", "open=no", "has.where=soap"),
        ("goods", "green", "tea", "!named", "where.@at"),
    ]


def test_a_mapped_state_does_not_contain_ids() -> None:
    renamed = json.loads(json.dumps(STATE).replace("s1", "x9").replace("g2", "y8"))
    assert words(mapped(renamed)) == words(mapped(STATE))


def test_without_marks_no_entity_is_marked_as_named() -> None:
    with_marks, without = (mapped(STATE, "Buy soap.", marks=marks) for marks in (True, False))
    assert any("!named" in word for one in with_marks for word in one.words)
    assert not any("!named" in word for one in without for word in one.words)


def test_an_entity_is_not_marked_as_named_by_a_part_of_a_word() -> None:
    assert not any("!named" in word for one in mapped(STATE, "Buy soapstone.") for word in one.words)


SHELF = st.builds(
    lambda kind, is_open: {"kind": kind, "open": is_open},
    st.sampled_from(["wood", "glass", "g1"]),
    st.sampled_from([None, True, False]),
)
GOOD = st.builds(
    lambda where, sold: {"kind": "tea", "where": where, "sold": sold},
    st.lists(st.sampled_from(["s1", "s2", "s3"]), max_size=2),
    st.booleans(),
)
CHANGE = st.tuples(st.just("shelves"), st.sampled_from(["s1", "s2", "s3"]), SHELF | st.none()) | st.tuples(
    st.just("goods"), st.sampled_from(["g1", "g2"]), GOOD | st.none()
)


@given(changes=st.lists(CHANGE, max_size=8), at=st.sampled_from([None, "s1", "g1"]))
@example(
    changes=[*(("shelves", one, None) for one in ("s1", "s2", "s3")), ("goods", "g1", None), ("goods", "g2", None)],
    at="s1",
)
def test_a_state_is_mapped_as_if_it_were_the_first_of_its_episode(changes: list[Any], at: str | None) -> None:
    schema = StateMap(SHOP, marks=True)
    episode, state = schema.episode("Buy green tea."), {**STATE, "at": at}
    for collection, identity, entity in changes:
        known = {one: value for one, value in as_object(state[collection]).items() if one != identity}
        state = {**state, collection: known if entity is None else {**known, identity: entity}}
        found = episode.entities(state, refused=False)
        assert found == schema.episode("Buy green tea.").entities(state, refused=False)


def test_the_argument_that_is_pointed_at_follows_from_the_accepted_calls(codec: PointerCodec) -> None:
    told = {verb.tool: (verb.points_at, verb.kinds, {**verb.values, **verb.fields}) for verb in codec.verbs}
    assert told == {
        "go_to": ("place", ("places",), {}),
        "move": ("place", ("places",), {"thing": "held"}),
        "take": ("thing", ("things",), {"place": "at"}),
    }


def test_a_tool_with_a_few_fixed_values_gives_a_verb_for_each_and_a_word_of_the_task_can_be_pointed_at() -> None:
    tools: list[JsonObject] = [{"name": name, "inputSchema": {"type": "object"}} for name in ("search", "sort")]
    spec = EnvironmentSpec(name="shop", tools_list=({"tools": [*tools]},), state=SHOP)
    calls = [
        ToolCall(name="search", arguments={"text": "tea", "limit": 5}),
        ToolCall(name="search", arguments={"text": "tea", "limit": 9}),
        ToolCall(name="sort", arguments={"by": "price"}),
    ]
    recorded = Trajectory(
        id="r",
        task=Task(id="t", env="shop", instruction="Buy tea."),
        transitions=Transition.chain("", [(call, StepResult(observation="done")) for call in calls]),
        source=Source.REAL,
        stop_reason=StopReason.FINISHED,
    )
    five, nine, by_price = learn_verbs(spec, [recorded], ServerReader(spec))
    tea, state = MappedEntity("$word", "tea", ("tea",)), MappedEntity("$state", "", ())
    assert [five.call(tea, {}), nine.call(tea, {}), by_price.call(state, {})] == calls
    assert [verb.pointed_at(calls[1], [state, tea]) for verb in (five, nine, by_price)] == [None, 1, None]


def test_calls_that_leave_out_an_argument_give_a_verb_that_leaves_it_out() -> None:
    spec = EnvironmentSpec(
        name="shop", tools_list=({"tools": [{"name": "search", "inputSchema": {"type": "object"}}]},), state=SHOP
    )
    calls = [ToolCall(name="search", arguments={"text": "tea", **more}) for more in ({"limit": 5}, {})]
    recorded = Trajectory(
        id="r",
        task=Task(id="t", env="shop", instruction="Buy tea."),
        transitions=Transition.chain("", [(call, StepResult(observation="done")) for call in calls]),
        source=Source.REAL,
        stop_reason=StopReason.CLOSED,
    )
    tea = MappedEntity(WORD, "tea", ())
    verbs = learn_verbs(spec, [recorded], ServerReader(spec))
    said = [next(verb.call(tea, {}) for verb in verbs if verb.pointed_at(call, [tea]) == 0) for call in calls]
    assert said == calls


def test_a_refused_policy_from_scratch_suggests_only_policies_that_can_act_there(tmp_path: Path) -> None:
    tools: list[JsonObject] = [{"name": name, "inputSchema": {"type": "object"}} for name in ("get", "put")]
    spec = EnvironmentSpec(name="crm", tools_list=({"tools": [*tools]},))
    recorded = Trajectory(
        id="r",
        task=Task(id="t", env="crm", instruction="Get it."),
        transitions=Transition.chain("", [(ToolCall(name="get", arguments={"id": "a"}), StepResult(observation="A"))]),
        source=Source.REAL,
        stop_reason=StopReason.FINISHED,
    )
    said = {}
    for named in ("pointer", "tiny"):
        with pytest.raises(InvalidInput) as caught:
            create_policy(named, spec, [recorded], tmp_path / named, seed=0)
        said[named] = str(caught.value)
    mend = "use the folder of a language model"
    assert said["pointer"].endswith(f"so a policy cannot point at entities: {mend}")
    assert said["tiny"] == f"a tiny policy acts with one tool that takes one text, and 'crm' has get, put: {mend}"


def test_every_accepted_recorded_action_is_a_choice_that_gives_its_words(codec: PointerCodec) -> None:
    steps = 0
    for trajectory in recordings():
        talk = codec.talk(trajectory.task, SPEC.first(trajectory.task))
        for step in trajectory.transitions:
            text = str(step.action.arguments["command"])
            ids = talk.ids_of(text)
            if not step.result.is_error:
                assert ids is not None
                assert talk.say(Generation(tuple(ids), (0.0,))) == text
                steps += 1
            else:
                talk.skip(text)
            talk.hear(step.result)
    assert steps > 100


def at_desk(codec: PointerCodec, *, holds: bool = False) -> PointerTalk:
    """An episode at the second desk, with the mug on it or, if `holds`, in hand."""
    talk = codec.talk(task(0), StepResult(observation=START))
    heard = [("go to desk 2", "You arrive at desk 2. On the desk 2, you see a mug 1.")]
    if holds:
        heard.append(("take mug 1 from desk 2", "You pick up the mug 1 from the desk 2."))
    for command, answer in heard:
        talk.skip(command)
        talk.hear(StepResult(observation=answer))
    return talk


def test_an_action_that_the_state_does_not_suggest_is_never_sampled(base: Path, codec: PointerCodec) -> None:
    policy, _ = load_policy(base)
    for holds, suggested in ((False, {"go to", "take"}), (True, {"go to", "take", "move"})):
        talk = at_desk(codec, holds=holds)
        sampled = policy.generate([talk.prompt] * 300, seeds_B=range(300))
        said = {at_desk(codec, holds=holds).say(one) for one in sampled}
        assert "" not in said
        verbs = {"go to" if text.startswith("go to") else text.split()[0] for text in said}
        assert verbs <= suggested
        assert ("move" in verbs) == holds


def test_a_state_is_scored_alike_in_any_batch_and_its_choices_add_up_to_one(base: Path, codec: PointerCodec) -> None:
    policy, _ = load_policy(base)
    one, other = codec.talk(task(0), StepResult(observation=START)).prompt, at_desk(codec).prompt
    pad, (shorter, longer) = policy.tokenizer.pad_token_id, sorted([one, other], key=len)
    padded = [[pad] * (len(longer) - len(shorter)) + shorter, longer]
    with torch.inference_mode():
        together = policy.model(torch.tensor(padded)).logits[:, -1].softmax(-1)
        alone = policy.model(torch.tensor([shorter])).logits[0, -1].softmax(-1)
    assert torch.allclose(together[0], alone, atol=1e-6)
    assert together.sum(1).tolist() == pytest.approx([1.0, 1.0], abs=1e-5)
    assert int((alone > 0).sum()) == 3, "three desks to go to, and nothing else is known"


def test_equal_entities_are_scored_as_if_each_were_computed_by_itself(
    base: Path, codec: PointerCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, _ = load_policy(base)
    row = torch.tensor([codec.talk(task(0), StepResult(observation=START)).prompt])

    def scores() -> tuple[torch.Tensor, torch.Tensor]:
        policy.model.zero_grad()
        found = policy.model.scores(row)
        found.logsumexp(1).sum().backward()
        return found.detach(), torch.cat([one.grad.flatten() for one in policy.model.parameters()])

    def each_by_itself(codes_BN: torch.Tensor, is_entity_BN: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return distinct(torch.arange(codes_BN.shape[1]).expand_as(codes_BN), is_entity_BN)

    together = scores()
    monkeypatch.setattr("dreamgym_integrations.trainers.policy.pointer.model.distinct", each_by_itself)
    for one, other in zip(together, scores(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@given(
    codes=st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), min_size=1, max_size=4),
    lengths=st.lists(st.integers(1, 5), min_size=4, max_size=4),
)
def test_distinct_entities_are_counted_and_found_in_each_row(codes: list[list[int]], lengths: list[int]) -> None:
    codes_BN = torch.tensor(codes)
    is_entity_BN = torch.arange(5) < torch.tensor(lengths[: len(codes)]).unsqueeze(1)
    distinct_BN, first_BD, times_BD = (one.tolist() for one in distinct(codes_BN, is_entity_BN))
    for row, length, numbers, firsts, times in zip(codes, lengths, distinct_BN, first_BD, times_BD, strict=False):
        known = row[:length]
        assert [row[firsts[number]] for number in numbers[:length]] == known
        assert [firsts[number] for number in numbers[:length]] == [known.index(code) for code in known]
        assert [times[number] for number in numbers[:length]] == [known.count(code) for code in known]
        assert sum(times) == length


def test_a_call_without_words_is_refused_and_the_next_state_shows_it(codec: PointerCodec) -> None:
    talk = codec.talk(task(0), StepResult(observation=START))
    assert talk.say(Generation((len(codec.verbs) * 100,), (0.0,))) == ""
    talk.hear(StepResult(observation="Nothing happens.", is_error=True))
    assert "!refused" in talk.entities[0].words


def test_a_recorded_episode_gives_a_row_for_each_action_and_refused_ones_can_be_left_out(codec: PointerCodec) -> None:
    trajectory = max(recordings(), key=lambda one: sum(step.result.is_error for step in one.transitions))
    refused = sum(step.result.is_error for step in trajectory.transitions)
    assert refused
    every, accepted = (rows_of(SPEC, codec, [trajectory], mask_refused=masked) for masked in (False, True))
    assert len(every) - len(accepted) == refused
    assert all(sum(label >= 0 for label in row["labels"]) == 1 for row in every)


def success(folder: Path) -> float:
    """Share of 60 sampled episodes that succeed."""
    policy, codec = load_policy(folder)
    player = TokenPlayer(policy, codec, SPEC, lambda version, group: Desks())
    tasks = [task(number) for number in range(100, 160)]

    async def played() -> float:
        rollouts = await player.play(
            tasks, groups=[""] * len(tasks), seeds=[0] * len(tasks), version=0, sampling_seed=0
        )
        return sum(one.success for one in rollouts) / len(rollouts)

    return anyio.run(played)


def test_imitation_teaches_it_to_take_what_the_task_names_in_rooms_it_has_not_seen(base: Path, tmp_path: Path) -> None:
    won = [one for one in recordings(200) if one.success]
    clone(SPEC, won, base, tmp_path / "taught", steps=60, batch=32, learning_rate=3e-3, seed=0)
    assert success(tmp_path / "taught") > success(base) + 0.2


def run(base: Path, out: Path, settings: Settings, portal: BlockingPortal, **more: Any) -> None:
    trained(SPEC, base, out, settings, portal, make=lambda version, group: Desks(), **more)


def test_grpo_raises_its_success(base: Path, tmp_path: Path, portal: BlockingPortal) -> None:
    settings = Settings(steps=20, groups=6, group_size=8, learning_rate=1e-3, save_every=50)
    run(base, tmp_path, settings, portal)
    inside = [float(str(line["inside_success"])) for line in read_record(tmp_path / "m.jsonl")]
    assert sum(inside[-3:]) / 3 > sum(inside[:3]) / 3 + 0.15


@pytest.mark.parametrize("algorithm", ["grpo", pytest.param("ppo", marks=pytest.mark.long)])
def test_an_interrupted_run_ends_with_the_weights_of_an_uninterrupted_one(
    algorithm: str, base: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = Settings.model_validate(
        {"algorithm": algorithm, "steps": 3, "groups": 2, "group_size": 4, "save_every": 2, "probe_every": 1}
    )
    run(base, tmp_path / "straight", settings, portal)
    with pytest.raises(EnvironmentUnavailable, match="gone"):
        run(base, tmp_path / "broken", settings, portal, probe=broken_after(2))
    run(base, tmp_path / "broken", settings, portal, resume=True)
    assert same(weights(tmp_path / "straight" / "policy"), weights(tmp_path / "broken" / "policy"))
    assert not same(weights(tmp_path / "straight" / "policy"), weights(base))


def test_ppo_trains_a_value_head_on_the_state_and_leaves_an_ordinary_policy(
    base: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = Settings(algorithm="ppo", steps=2, groups=4, group_size=6, learning_rate=1e-3, save_every=1)
    run(base, tmp_path, settings, portal)
    saved = load_file(tmp_path / "checkpoints" / "checkpoint-8" / "model.safetensors")
    assert saved["value_head.weight"].abs().sum() > 0
    assert set(weights(tmp_path / "policy")) == set(weights(base))
    assert not same(weights(tmp_path / "policy"), weights(base))


def test_a_divergence_from_the_start_policy_is_measured_with_its_own_head(
    base: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    figures: list[JsonObject] = []
    settings = Settings(steps=2, groups=4, group_size=4, learning_rate=3e-3, save_every=50, beta=0.1)
    run(base, tmp_path, settings, portal, on_learned=figures.append)
    first, *later = (float(str(line["kl"])) for line in figures if "kl" in line)
    assert first == pytest.approx(0.0, abs=1e-5)
    assert later[-1] > 0


def test_dpo_prefers_what_succeeded(base: Path, codec: PointerCodec, tmp_path: Path) -> None:
    played = recordings(200)
    pairs = preferences(SPEC, codec, played)

    def margin(folder: Path) -> float:
        """Mean score of the preferred choices minus that of the rejected ones."""
        policy, _ = load_policy(folder)
        with torch.inference_mode():
            scores = [policy.model(torch.tensor([pair["prompt_ids"]])).logits[0, -1] for pair in pairs]
        differences = [
            score[pair["chosen_ids"][0]] - score[pair["rejected_ids"][0]]
            for score, pair in zip(scores, pairs, strict=True)
        ]
        return float(sum(differences) / len(differences))

    prefer(SPEC, played, base, tmp_path / "preferring", steps=20, batch=16, learning_rate=1e-3, seed=0)
    assert margin(tmp_path / "preferring") > margin(base) + 0.5


def test_without_a_reader_it_points_at_words_of_the_observation_and_copies_them(
    lamp_spec: EnvironmentSpec, lamp_recordings: list[Trajectory], tmp_path: Path
) -> None:
    create_pointer_policy(lamp_spec, lamp_recordings, tmp_path / "untrained", seed=0)
    right = [one for one in lamp_recordings if one.success and len(one.transitions) == 1]
    clone(lamp_spec, right, tmp_path / "untrained", tmp_path / "p", steps=25, batch=16, learning_rate=3e-3, seed=0)
    policy, codec = load_policy(tmp_path / "p")
    assert isinstance(codec, PointerCodec)
    assert [verb.tool for verb in codec.verbs] == ["say {word}"]
    said = []
    for colour in ("red", "mauve"):  # no recording contains the second word
        talk = codec.talk(lamp_spec.tasks[0], StepResult(observation=f"the lamp is {colour}"))
        sampled = policy.generate([talk.prompt] * 20, seeds_B=range(20))
        said.append(
            [
                codec.talk(lamp_spec.tasks[0], StepResult(observation=f"the lamp is {colour}")).say(one)
                for one in sampled
            ]
        )
    assert said[0].count("say red") > 16
    assert set(said[1]) <= {"say the", "say lamp", "say is", "say mauve"}


def test_the_last_word_that_was_read_is_copied_and_the_rest_of_a_command_is_its_form(
    lamp_spec: EnvironmentSpec, lamp_recordings: list[Trajectory]
) -> None:
    (form, *_) = learn_forms(lamp_spec, lamp_recordings)
    reader = WordsReader(lamp_spec, [form])
    call = reader.call(act("Say  RED"))
    assert (form, call) == ("say {word}", ToolCall(name="say {word}", arguments={"word": "'red'"}))
    assert reader.action(call) == act("say red")
    assert reader.call(act("turn it off")) == act("turn it off")


def test_a_long_sentence_is_read_in_linear_time() -> None:
    assert grows_linearly(read_words, lambda size: " ".join(f"w{number}" for number in range(size // 6)))


def test_what_it_cannot_learn_from_is_refused_with_a_reason(tmp_path: Path) -> None:
    silent = [one.model_copy(update={"transitions": one.transitions[:1]}) for one in recordings(1)]
    mute = [
        one.model_copy(update={"transitions": (one.transitions[0].model_copy(update={"action": act("x")}),)})
        for one in silent
    ]
    with pytest.raises(InvalidInput, match=r"no recorded call .* has an entity that the reader .*use --policy tiny or"):
        create_pointer_policy(SPEC, mute, tmp_path / "p", seed=0)
    with pytest.raises(InvalidInput, match="no recorded step of 'desks' to learn words and verbs from"):
        create_pointer_policy(SPEC, [], tmp_path / "p", seed=0)


@pytest.mark.parametrize(
    ("name", "value"), [("lora", 4), ("vllm", "http://127.0.0.1:1"), ("gradient_checkpointing", True)]
)
def test_settings_of_language_models_are_refused_before_a_pointer_policy_is_made_or_trained(
    name: str, value: object, base: Path, codec: PointerCodec, tmp_path: Path, portal: BlockingPortal
) -> None:
    why = f"a pointer policy has no {name}: leave them out"
    for policy in ("pointer", "pointer without marks"):
        with pytest.raises(InvalidInput, match=why):
            settings_of(TrainConfig, None, ["--policy", policy, "--" + name, str(value).lower()])
    with pytest.raises(InvalidInput, match=why):
        run(base, tmp_path / "run", Settings.model_validate({"steps": 1, name: value}), portal)
    if name != "vllm":
        taught: dict[str, Any] = {"steps": 1, "batch": 4, "learning_rate": 1e-3, "seed": 0, name: value}
        with pytest.raises(InvalidInput, match=why):
            imitate(rows_of(SPEC, codec, recordings(4)), base, tmp_path / "taught", **taught)
