"""A dream of the shop from recordings alone: pages are read and rendered again, and purchases keep their reward."""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

pytest.importorskip("rapidfuzz", reason="the shop needs the extra dreamgym[webshop]")
pytest.importorskip("snowballstemmer", reason="the shop needs the extra dreamgym[webshop]")

from answers import text_of
from dreamgym_client.control import ControlClient
from dreamgym_integrations.environments.webshop import WebShop, webshop_products
from dreamgym_integrations.environments.webshop.reader import WebShopReader
from dreamgym_integrations.trainers.policy.pointer.verbs import learn_verbs
from dreamgym_server.app import build
from dreamgym_server.running import running
from dreamgym_server.sources import DreamWorlds
from growth import grows_linearly
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client

from dreamgym.curriculum.goal_variation import goal_variation
from dreamgym.curriculum.page_variation import PageVariation
from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.model import Prediction, Query, Verdict
from dreamgym.dream.nearest import NearestModel
from dreamgym.dream.pages import PageWorlds
from dreamgym.embedding import TrigramEncoder
from dreamgym.episode import play
from dreamgym.errors import NotRecorded
from dreamgym.reading import PageReader
from dreamgym.replay.memory import MemoryBuffer, MemoryEpisodeStore
from dreamgym.state import as_object
from dreamgym.types import (
    JsonObject,
    Provenance,
    Source,
    StepResult,
    Task,
    Tier,
    ToolCall,
    Trajectory,
    Transition,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", autouse=True)
def _no_catalogue_of_the_machine() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DREAMGYM_WEBSHOP", raising=False)
        yield


def shop() -> WebShop:
    return webshop_products({})


async def visits(behaviour: str, tasks: Sequence[Task], *, first_seed: int = 0) -> list[Trajectory]:
    """Play one episode of each task in the real shop."""
    real = shop()
    player = real.behaviours[behaviour]
    return [
        await play(real.create(), task, player, spec=real.spec, seed=first_seed + number, source=Source.REAL)
        for number, task in enumerate(tasks)
    ]


@pytest.fixture(scope="module")
def tasks() -> Sequence[Task]:
    return shop().tasks("train")[:40]


@pytest.fixture(scope="module")
def recorded(tasks: Sequence[Task]) -> list[Trajectory]:
    kinds = ("rule_50", "mixed_rule", "random")
    return [one for number, kind in enumerate(kinds) for one in asyncio.run(visits(kind, tasks, first_seed=number))]


@pytest.fixture(scope="module")
def known(recorded: list[Trajectory]) -> PageWorlds:
    return PageWorlds.of(recorded, shop().reader, shop().goals)


@pytest.fixture(scope="module")
def buffer(recorded: list[Trajectory]) -> MemoryBuffer:
    filled = MemoryBuffer(TrigramEncoder())
    asyncio.run(filled.add(recorded))
    return filled


def click(element: str) -> ToolCall:
    return ToolCall(name="click", arguments={"element": element})


def search(query: str) -> ToolCall:
    return ToolCall(name="search", arguments={"query": query})


def test_a_number_that_is_too_long_is_none_of_the_shop() -> None:
    reader, task = shop().reader, shop().tasks("train")[0]
    state = reader.start(task, StepResult(observation=task.initial_state or ""))
    call = reader.call(ToolCall(name="search", arguments={"keywords": "shirt"}))
    page = f"Page {'9' * 5000} (Total results: 1) [SEP] B01 [SEP] ${'9' * 400}"
    words = f"Instruction: [SEP] {task.instruction} [SEP] {page}"
    result = reader.result(call, StepResult(observation=words))
    json.dumps(reader.after(state, call, result), allow_nan=False)


def read(trajectory: Trajectory, reader: WebShopReader) -> list[tuple[JsonObject, ToolCall, StepResult]]:
    """For each step: the state after it, its call and its result, as the reader returns them."""
    state = reader.start(trajectory.task, StepResult(observation=trajectory.task.initial_state or ""))
    found = []
    for step in trajectory.transitions:
        call = reader.call(step.action)
        result = reader.result(call, step.result)
        state = reader.after(state, call, result)
        found.append((state, call, result))
    return found


def test_every_page_except_the_receipt_is_read_and_rendered_again(recorded: list[Trajectory]) -> None:
    reader = shop().reader
    assert isinstance(reader, PageReader)
    kinds = Counter[str]()
    for trajectory in recorded:
        for (_, call, result), step in zip(read(trajectory, reader), trajectory.transitions, strict=True):
            assert result.structured is not None
            words = reader.observation(call, result.structured, trajectory.task.instruction)
            kinds[str(result.structured["kind"])] += 1
            if step.result.terminated:
                assert words == "Thank you for shopping with us!"
            else:
                assert words == step.result.observation
    assert set(kinds) == {"search", "results", "item", "part", "receipt"}


TEXTS = st.text(min_size=1, max_size=20).map(str.strip).filter(lambda text: text and "[SEP]" not in text)
KNOWN = ["Back to Search", "< Prev", "Next >", "B00ABCDEFG", "$9.99", "color", "red", "Price: $1.0", "Buy Now"]
PAGES = st.lists(TEXTS | st.sampled_from(KNOWN), min_size=1, max_size=30)


@given(PAGES, TEXTS)
def test_any_page_of_texts_is_read_and_rendered_again(texts: list[str], wish: str) -> None:
    reader = shop().reader
    page = " [SEP] ".join(["Instruction:", wish, *texts])
    task = Task(id="any", env="webshop", instruction=wish)
    state = reader.start(task, StepResult(observation=""))
    for call in (search("anything"), click(texts[-1])):
        result = reader.result(call, StepResult(observation=page))
        assert result.structured is not None
        assert result.structured["texts"] == texts
        state = reader.after(state, call, result)
        assert reader.schema.fault_of(state) is None
        assert set(as_object(state["links"])) <= {text.lower() for text in texts}
        if texts != ["Search"]:
            assert reader.observation(call, result.structured, wish) == page


def test_the_links_of_a_page_are_its_clickable_elements(recorded: list[Trajectory]) -> None:
    reader = shop().reader
    for trajectory in recorded[:60]:
        for (state, _, _), step in zip(read(trajectory, reader), trajectory.transitions, strict=True):
            admissible = step.result.info.get("admissible", [])
            assert isinstance(admissible, list)
            clicks = {str(one)[len("click[") : -1] for one in admissible if one != "search[…]"}
            assert set(as_object(state["links"])) == clicks


def test_a_state_contains_the_chosen_options_and_the_bought_product(recorded: list[Trajectory]) -> None:
    reader, compared = shop().reader, 0
    for trajectory in recorded:
        for (state, _, _), step in zip(read(trajectory, reader), trajectory.transitions, strict=True):
            told = str(step.result.info.get("state", ""))
            if "chosen: " in told:
                names = ", ".join(f"{name}: {value}" for name, value in sorted(as_object(state["chosen"]).items()))
                assert told.endswith(f"chosen: {names or 'nothing'}")
                assert told == reader.words(step.result.observation, state)
                compared += names != ""
            if step.result.terminated:
                assert str(state["bought"]).upper() in step.result.observation
    assert compared > 20


def test_answers_from_recorded_pages_are_those_of_the_shop(known: PageWorlds, tasks: Sequence[Task]) -> None:
    answered = Counter[bool]()
    for trajectory in asyncio.run(visits("mixed_rule", tasks, first_seed=500)):
        episode = known.episode(trajectory.task)
        for step in trajectory.transitions:
            answer = episode.answer(step.action, step.state)
            if answer is None:
                break
            if answer.provenance.tier is not Tier.EFFECTS:
                break  # a guess
            answered[True] += 1
            assert answer.is_error == step.result.is_error
            assert answer.terminated == step.result.terminated
            if not answer.terminated:
                assert (answer.observation, answer.next_state) == (step.result.observation, step.next_state)
            elif answer.success:
                assert step.result.reward == 1
    assert answered[True] > 120


def test_a_purchase_keeps_its_result_for_the_same_wish_and_is_open_for_an_unknown_wish(
    known: PageWorlds, recorded: list[Trajectory]
) -> None:
    worth = Counter[tuple[bool, bool]]()
    won = {one.task.goal for one in recorded if one.success}
    for trajectory in recorded:
        if not trajectory.transitions[-1].result.terminated:
            continue
        episode = known.episode(trajectory.task)
        episode.resume(trajectory.transitions[:-1])
        answer = episode.answer(trajectory.transitions[-1].action)
        assert answer is not None
        assert answer.terminated
        assert (answer.success, answer.provenance.open_end) == (trajectory.success, False)
        worth[trajectory.success, trajectory.task.goal in won] += 1
        elsewhere = trajectory.task.model_copy(update={"instruction": "Find me what nobody ever wished for"})
        unknown = known.episode(elsewhere)
        unknown.resume(trajectory.transitions[:-1])
        open_end = unknown.answer(trajectory.transitions[-1].action)
        assert open_end is not None
        assert (open_end.success, open_end.provenance.open_end) == (False, True)
    assert set(worth) == {(True, True), (False, True), (False, False)}


@pytest.mark.parametrize("episodes", [1, 2, 3])
async def test_a_page_stands_only_for_addresses_that_recordings_show_to_be_the_same(
    tasks: Sequence[Task], episodes: int
) -> None:
    few = PageWorlds.of(await visits("rule", tasks[:episodes]), shop().reader)
    tiers = Counter[Tier]()
    for task in tasks[:10]:
        environment, episode = shop().create(), few.episode(task)
        shown = await environment.reset(task)
        for wish in (task.instruction.strip(), None):
            call = click(shown.observation.split(" [SEP] ")[-3].lower()) if wish is None else search(wish)
            shown, answer = await environment.step(call), episode.answer(call)
            if answer is None:
                break
            tiers[answer.provenance.tier] += 1
            assert answer.provenance.tier is Tier.MODEL or answer.observation == shown.observation
    assert set(tiers) == {Tier.EFFECTS, Tier.MODEL}


@pytest.mark.parametrize("is_first", [True, False])
def test_a_purchase_with_contradictory_results_is_open(recorded: list[Trajectory], is_first: bool) -> None:
    won = next(one for one in recorded if one.success)
    last = won.transitions[-1]
    worthless = last.model_copy(update={"result": last.result.model_copy(update={"reward": 0.0})})
    lost = won.model_copy(update={"id": "lost", "transitions": (*won.transitions[:-1], worthless), "final_reward": 0.0})
    played = [lost, *recorded] if is_first else [*recorded, lost]
    episode = PageWorlds.of(played, shop().reader).episode(won.task)
    episode.resume(won.transitions[:-1])
    answer = episode.answer(last.action)
    assert answer is not None
    assert (answer.success, answer.provenance.checked, answer.provenance.open_end) == (False, None, True)


def unread_before_the_end(won: Trajectory) -> Trajectory:
    """The recording, but the page before its last is one that the reader cannot read."""
    *first, page, last = won.transitions
    unread = page.result.model_copy(update={"observation": "<html>", "is_error": False})
    odd = page.model_copy(update={"result": unread})
    return won.model_copy(update={"transitions": (*first, odd, last)})


def test_a_page_that_cannot_be_read_is_not_taken_for_the_page_before_it(recorded: list[Trajectory]) -> None:
    won = next(one for one in recorded if one.success)
    learned = PageWorlds.of([unread_before_the_end(won)], shop().reader)
    whole = PageWorlds.of([won], shop().reader)
    assert {kind for kind, _ in whole.contents} - {kind for kind, _ in learned.contents} == {"receipt"}
    assert whole.moves.keys() - learned.moves.keys() == {("item", "click", "buy now")}
    assert (dict(learned.worth), learned.successes) == ({}, {})


def test_an_episode_with_a_page_that_cannot_be_read_has_an_open_end(
    known: PageWorlds, recorded: list[Trajectory]
) -> None:
    won = next(one for one in recorded if one.success)
    episode, unread = known.episode(won.task), unread_before_the_end(won)
    episode.resume(unread.transitions[:-1])
    assert episode.answer(won.transitions[-1].action) is None, "the open page is not known"
    episode.resume(won.transitions[:-1])
    bought = episode.answer(won.transitions[-1].action)
    assert bought is not None
    assert (bought.success, bought.provenance.open_end) == (False, True)


async def test_an_end_that_nobody_can_judge_truncates_the_episode_without_a_reward(
    buffer: MemoryBuffer, tasks: Sequence[Task]
) -> None:
    dream = DreamEnvironment(shop().spec, NearestModel(), buffer)
    unknown = tasks[0].model_copy(update={"instruction": "Find me what nobody ever wished for"})
    episode = await play(dream, unknown, shop_rule(tasks[0]), spec=shop().spec, seed=0, source=Source.SYNTHETIC)
    assert episode.transitions[-1].result.truncated
    assert not episode.transitions[-1].result.terminated
    assert episode.reward is None


def shop_rule(task: Task):  # type: ignore[no-untyped-def]
    """Return the behaviour `rule`, played for the wish of this task whatever it reads."""
    rule = shop().behaviours["rule"]

    async def for_the_wish(first: StepResult, environment: object, seed: int) -> None:
        await rule(StepResult(observation=task.initial_state or ""), environment, seed)  # type: ignore[arg-type]

    return for_the_wish


async def test_a_click_on_a_missing_element_is_refused_and_shows_the_page_again(
    buffer: MemoryBuffer, tasks: Sequence[Task]
) -> None:
    dream = DreamEnvironment(shop().spec, NearestModel(), buffer)
    first = await dream.reset(tasks[0])
    refused = await dream.step(click("buy now"))
    assert (refused.is_error, refused.observation) == (True, first.observation)


async def test_a_product_that_nobody_opened_shows_its_data_from_the_results(known: PageWorlds) -> None:
    opened = {json.loads(parts)["product"] for kind, parts in known.contents if kind == "item"}
    for kind, parts in known.contents:
        texts = as_object(known.contents[kind, parts])["texts"]
        assert isinstance(texts, list)
        unseen = next((str(text) for text in texts if str(text).isupper() and str(text).lower() not in opened), None)
        if kind == "results" and unseen is not None and len(unseen) == 10:
            break
    else:
        pytest.fail("every product was opened")
    query = str(json.loads(parts)["query"])
    episode = known.episode(Task(id="new", env="webshop", instruction=query))
    assert episode.answer(search(query)) is not None
    shown = episode.answer(click(unseen.lower()))
    assert shown is not None
    assert shown.provenance.tier is Tier.MODEL
    assert str(texts[texts.index(unseen) + 1]) in shown.observation


async def test_a_search_in_other_words_shows_the_results_of_the_most_similar_recorded_search(
    known: PageWorlds, recorded: list[Trajectory]
) -> None:
    task = next(one.task for one in recorded if one.success)
    wish = task.instruction.strip()
    episode, again = known.episode(task), known.episode(task)
    first = episode.answer(search(wish))
    other = again.answer(search(wish.replace("Find me", "please find")))
    strange = known.episode(task).answer(search("zzz qqq"))
    assert first is not None
    assert other is not None
    assert (other.observation, other.provenance.tier) == (first.observation, Tier.MODEL)
    assert strange is None


class Gullible:
    """A language model that shows any product that a search names, and with `claims` reports each step as a success."""

    name = "gullible"
    demonstrations = 1
    learns_from_dreams = False

    def __init__(self, *, claims: bool) -> None:
        self._claims = claims

    async def predict(self, query: Query) -> Prediction:
        words = str(query.action.arguments.get("query", ""))
        page = ["Instruction:", query.task.instruction.strip(), "Back to Search", "Page 1 (Total results: 1)", "Next >"]
        shown = " [SEP] ".join([*page, words.removeprefix("zzz qqq ").upper(), "Something", "$1.0"])
        return Prediction(
            observation=shown,
            next_state=shown,
            success=self._claims,
            terminated=self._claims,
            provenance=Provenance(tier=Tier.MODEL, model=self.name),
        )

    async def judge_step(self, query: Query, prediction: Prediction) -> Verdict:
        return Verdict(accomplished=False)

    async def judge(self, task: Task, transitions: Sequence[Transition], answer: str) -> Verdict:
        return Verdict(accomplished=False)

    async def close(self) -> None:
        pass


async def test_a_purchase_from_a_page_that_a_language_model_was_tricked_into_is_not_rewarded(
    buffer: MemoryBuffer, recorded: list[Trajectory], known: PageWorlds
) -> None:
    whole = next(one for one in recorded if one.success)
    calls = known.successes[whole.task.goal]
    product = next(str(one.arguments["element"]) for one in calls if str(one.arguments.get("element")).startswith("dg"))
    dream = DreamEnvironment(shop().spec, Gullible(claims=False), buffer)
    await dream.reset(whole.task)
    await dream.step(search(f"zzz qqq {product}"))
    results = [await dream.step(call) for call in calls[calls.index(click(product)) :]]
    assert not any(result.reward for result in results)
    assert not results[-1].terminated
    assert results[-1].info["open_end"] is True
    again = DreamEnvironment(shop().spec, Gullible(claims=False), buffer)
    again.resume(whole.task, seed=0, transitions=dream.transitions[:-1])
    assert await again.step(calls[-1]) == results[-1]


async def test_the_judge_decides_a_success_that_a_language_model_claims_for_a_page(
    buffer: MemoryBuffer, tasks: Sequence[Task]
) -> None:
    dream = DreamEnvironment(shop().spec, Gullible(claims=True), buffer)
    await dream.reset(tasks[0])
    claimed = await dream.step(search("zzz qqq dg00000001"))
    assert claimed.reward == 0
    assert dream.provenance is not None
    assert dream.provenance.judged is False


def test_a_long_search_has_no_answer_and_takes_time_in_proportion_to_its_length(
    known: PageWorlds, tasks: Sequence[Task]
) -> None:
    episode = known.episode(tasks[0])
    assert episode.answer(search("word " * 200_000)) is None
    assert grows_linearly(lambda text: episode.answer(search(text)), lambda size: "word " * (size // 5))


def test_a_page_that_was_recorded_in_two_versions_is_named_and_left_out(
    recorded: list[Trajectory], caplog: pytest.LogCaptureFixture
) -> None:
    whole = next(one for one in recorded if one.success and "$" in one.transitions[0].result.observation)
    dearer = [
        {"result": step.result.model_copy(update={"observation": step.result.observation.replace("$", "$9")})}
        for step in whole.transitions
    ]
    steps = tuple(step.model_copy(update=price) for step, price in zip(whole.transitions, dearer, strict=True))
    changed = whole.model_copy(update={"id": "another day", "transitions": steps})
    with caplog.at_level(logging.WARNING):
        known = PageWorlds.of([*recorded, changed], shop().reader)
    assert "left out of the dream" in caplog.text
    assert known.episode(whole.task).answer(whole.transitions[0].action) is None
    searched = whole.transitions[0].action
    other = next(one for one in recorded if one.transitions[0].action not in (searched, click("search")))
    assert known.episode(other.task).answer(other.transitions[0].action) is not None


async def test_a_dream_that_only_repeats_raises_not_recorded_for_an_unknown_page(
    buffer: MemoryBuffer, tasks: Sequence[Task]
) -> None:
    dream = DreamEnvironment(shop().spec, NearestModel(), buffer)
    await dream.reset(tasks[0])
    with pytest.raises(NotRecorded, match="no recorded page"):
        await dream.step(search("zzz qqq"))


async def test_an_episode_goes_on_from_its_stored_steps_alone(buffer: MemoryBuffer, tasks: Sequence[Task]) -> None:
    dream = DreamEnvironment(shop().spec, NearestModel(), buffer)
    (whole,) = await visits("rule", tasks[2:3])
    await dream.reset(whole.task)
    for step in whole.transitions:
        again = DreamEnvironment(shop().spec, NearestModel(), buffer)
        again.resume(whole.task, seed=0, transitions=dream.transitions)
        assert await again.step(step.action) == await dream.step(step.action)


async def test_new_wishes_are_reached_in_the_dream_and_fulfilled_by_the_same_calls_in_the_shop(
    known: PageWorlds, tasks: Sequence[Task]
) -> None:
    real = shop()
    variation = goal_variation(real.spec, known)
    assert isinstance(variation, PageVariation)
    wishes = {task.instruction.strip(): task for split in ("train", "dev", "test") for task in real.tasks(split)}
    parents = [task for task in tasks if variation.is_recorded(task)]
    found, played = 0, 0
    for parent in parents:
        async for task in variation.new_goals(parent, seed=0, trials=30):
            found += 1
            assert task.instruction != parent.instruction
            assert task.instruction in str(task.initial_state)
            if (wished := wishes.get(task.instruction)) is None:
                continue
            check = as_object(as_object(task.metadata["success"])["properties"])
            environment = real.create()
            await environment.reset(wished)
            chosen = as_object(as_object(check["chosen"])["properties"]).values()
            elements = [as_object(check["bought"])["const"], *(as_object(one)["const"] for one in chosen), "buy now"]
            results = [await environment.step(search(task.instruction))]
            results += [await environment.step(click(str(element))) for element in elements]
            assert results[-1].reward == 1
            played += 1
    assert found > 20
    assert played > 5


async def test_no_new_wish_is_recorded_or_held_out_for_a_test(
    known: PageWorlds, tasks: Sequence[Task], recorded: list[Trajectory]
) -> None:
    async def made(tested: Sequence[Task]) -> list[Task]:
        variation = goal_variation(shop().spec.model_copy(update={"tasks": tuple(tested)}), known)
        assert variation is not None
        parents = [task for task in tasks if variation.is_recorded(task)]
        return [task for parent in parents async for task in variation.new_goals(parent, seed=0, trials=10)]

    found = await made([])
    assert {task.instruction.strip() for task in found}.isdisjoint(one.task.instruction.strip() for one in recorded)
    tested = [task.model_copy(update={"metadata": {"split": "test"}}) for task in found[::2]]
    left = {task.instruction for task in await made(tested)}
    assert left
    assert left.isdisjoint(task.instruction for task in tested)


async def test_a_wish_without_a_recorded_success_is_named(known: PageWorlds, tasks: Sequence[Task]) -> None:
    failures: list[str] = []
    variation = goal_variation(shop().spec, known, lambda task, reason: failures.append(reason))
    assert variation is not None
    parent = next(task for task in tasks if not variation.is_recorded(task))
    assert await variation.vary([parent], seed=0) == []
    assert parent.id in failures[0]


def test_a_pointer_policy_can_search_and_click(recorded: list[Trajectory]) -> None:
    verbs = {(verb.tool, verb.points_at, verb.kinds) for verb in learn_verbs(shop().spec, recorded, shop().reader)}
    assert ("search", "query", ("queries",)) in verbs
    assert ("click", "element") in {verb[:2] for verb in verbs}


async def test_an_mcp_client_buys_in_the_dream_and_the_control_api_returns_the_reward(
    buffer: MemoryBuffer, recorded: list[Trajectory]
) -> None:
    whole = next(one for one in recorded if one.success)
    worlds = DreamWorlds(shop().spec, NearestModel(), buffer)
    async with running(build([worlds], buffer, MemoryEpisodeStore())) as url, ControlClient(url) as control:
        opened = await control.create(shop().spec.name, task=whole.task, seed=0)
        async with Client(opened.mcp_url) as client:
            for step in whole.transitions:
                said = text_of(await client.call_tool(step.action.name, dict(step.action.arguments)))
                shown, _, score = step.result.observation.partition(" [SEP] Your code:")
                assert said == shown, "the agent does not see its score"
                assert bool(score) is step.result.terminated
        told = await control.read(shop().spec.name, opened.episode)
    assert (told.terminated, told.reward) == (True, 1.0)
