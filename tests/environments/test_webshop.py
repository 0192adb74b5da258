"""WebShop as an environment: what an agent reads, what is refused, how an episode ends, and errors for bad data."""

import json
import lzma
import re
from pathlib import Path

import pytest

pytest.importorskip("rapidfuzz", reason="the shop needs the extra dreamgym[webshop]")
pytest.importorskip("snowballstemmer", reason="the shop needs the extra dreamgym[webshop]")

from dreamgym_integrations.environments.base import SPLITS
from dreamgym_integrations.environments.webshop import WebShop, webshop
from dreamgym_integrations.environments.webshop.catalogue import SMALL

from dreamgym.environment import EnvironmentSpec
from dreamgym.episode import play
from dreamgym.errors import EpisodeFinished, InvalidInput, UnknownName
from dreamgym.testing import check_environment
from dreamgym.types import JsonObject, Source, StepResult, Task, ToolCall, Trajectory

pytestmark = pytest.mark.anyio

ROW: JsonObject = {
    "asin": "B000000001",
    "name": "Tin Cup",
    "full_description": "A cup.",
    "small_description": ["Of tin"],
    "pricing": "$3.99 - $10.99",
    "product_category": "Home › Kitchen › Cups",
    "category": "garden",
    "query": "cups",
    "customization_options": {"Color": [{"value": "Red/Blue "}], "Size": None},
}
DEMAND: JsonObject = {"attributes": ["tin"], "instruction": "Find me a tin cup", "instruction_attributes": ["tin"]}


@pytest.fixture(autouse=True)
def _no_catalogue_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DREAMGYM_WEBSHOP", raising=False)


def folder(place: Path, row: JsonObject, demand: JsonObject = DEMAND) -> Path:
    (place / "items_shuffle_1000.json").write_text(json.dumps([row]))
    (place / "items_ins_v2_1000.json").write_text(json.dumps({str(row.get("asin")): demand}))
    return place


def call(text: str) -> ToolCall:
    name, _, argument = text.rstrip("]").partition("[")
    return ToolCall(name=name, arguments={"query" if name == "search" else "element": argument})


async def said(task: Task, calls: list[str], real: WebShop | None = None) -> list[StepResult]:
    environment = (real or webshop({})).create()
    results = [await environment.reset(task)]
    results += [await environment.step(call(text)) for text in calls]
    await environment.close()
    return results


async def played(real: WebShop, behaviour: str, tasks: list[Task]) -> list[Trajectory]:
    environment = real.create()
    episodes = [
        await play(environment, task, real.behaviours[behaviour], spec=real.spec, seed=seed, source=Source.REAL)
        for seed, task in enumerate(tasks)
    ]
    await environment.close()
    assert not any(episode.error for episode in episodes)
    return episodes


def wish(words: str) -> Task:
    """Return the task of the small catalogue with these words, whatever catalogue the machine has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DREAMGYM_WEBSHOP", raising=False)
        return next(task for split in SPLITS for task in webshop({}).tasks(split) if words in task.instruction)


LAMP = wish("remote control, energy efficient floor lamps with color: white")
LAMP_CALLS = ["search[corner floor lamp with remote control]", "click[dg00000038]", "click[white]", "click[Buy Now]"]


async def test_the_shop_keeps_the_contract_of_an_environment() -> None:
    real = webshop({})
    await check_environment(real.create, real.tasks("train")[:3], deterministic=True)
    nowhere = ToolCall(name="click", arguments={"element": "nowhere"})
    await check_environment(real.create, real.tasks("test")[:3], action=nowhere, deterministic=True)


async def test_the_wished_product_is_bought_in_four_steps() -> None:
    start, found, product, chosen, bought = await said(LAMP, LAMP_CALLS)
    assert start.observation == f"WebShop [SEP] Instruction: [SEP] {LAMP.instruction} [SEP] Search"
    assert start.info == {"admissible": ["search[…]"]}
    assert "Page 1 (Total results: " in found.observation
    assert found.observation.split(" [SEP] ")[5:8] == [
        "DG00000038",
        "Penumbry Corner Floor Lamp, Remote Control",
        "$44.0",
    ]
    assert "[SEP] color [SEP] black [SEP] white [SEP] Penumbry" in product.observation
    assert product.info["admissible"] == [
        f"click[{name}]"
        for name in ("back to search", "< prev", "description", "features", "reviews", "buy now", "black", "white")
    ]
    assert (chosen.observation, chosen.reward) == (product.observation, 0.0)
    assert (bought.reward, bought.terminated, bought.info["score"]) == (1.0, True, 1.0)
    assert 'options [SEP] {"color": "white"}' in bought.observation


async def test_the_state_contains_what_the_page_does_not_show() -> None:
    *_, product, chosen, _ = await said(LAMP, LAMP_CALLS)
    hidden = " [SEP] query: corner floor lamp with remote control [SEP] page: 1 [SEP] product: DG00000038"
    assert product.state == f"{product.observation}{hidden} [SEP] chosen: nothing"
    assert chosen.state == f"{product.observation}{hidden} [SEP] chosen: color: white"


async def test_a_wrong_option_lowers_the_score_and_is_not_a_success() -> None:
    calls = [*LAMP_CALLS[:2], "click[black]", "click[buy now]"]
    bought = (await said(LAMP, calls))[-1]
    assert (bought.reward, bought.terminated) == (0.0, True)
    assert bought.info["score"] == 0.75
    assert bought.info["parts"] == {"kind": 1.0, "attributes": 2, "options": 0, "price": True}


async def test_a_new_search_discards_the_chosen_options() -> None:
    again = await said(LAMP, [*LAMP_CALLS[:3], "search[lamp]", LAMP_CALLS[1], "click[buy now]"])
    assert "options [SEP] {} [SEP]" in again[-1].observation


async def test_pages_turn_and_lead_back() -> None:
    calls = ["search[floor lamp]", "click[next >]", "click[< prev]", LAMP_CALLS[1], "click[features]", "click[< prev]"]
    _, first, second, back, product, features, again = await said(LAMP, [*calls])
    assert "Page 2" in second.observation
    assert (back.state, again.state) == (first.state, product.state)
    assert features.observation.endswith("< Prev [SEP] Remote control [SEP] Energy efficient")


@pytest.mark.parametrize("impossible", ["click[buy now]", "click[dg00000001]", "click[]", "click[search]", "search[]"])
async def test_an_action_that_the_page_does_not_offer_is_refused_with_the_same_page(impossible: str) -> None:
    start, refused = await said(LAMP, [impossible])
    assert refused.is_error
    assert (refused.observation, refused.state, refused.reward) == (start.observation, start.state, 0.0)


async def test_an_action_after_the_purchase_is_refused() -> None:
    environment = webshop({}).create()
    await environment.reset(LAMP)
    for text in LAMP_CALLS:
        await environment.step(call(text))
    with pytest.raises(EpisodeFinished):
        await environment.step(call("search[lamp]"))


async def test_unknown_tools_and_arguments_are_named() -> None:
    environment = webshop({}).create()
    await environment.reset(LAMP)
    with pytest.raises(UnknownName, match="click, search"):
        await environment.step(ToolCall(name="buy"))
    with pytest.raises(InvalidInput, match="search expects a string 'query', got 3"):
        await environment.step(ToolCall(name="search", arguments={"query": 3}))
    with pytest.raises(InvalidInput, match="expected a goal below 162, got 4000"):
        await environment.reset(Task(id="x", env="webshop", instruction="", metadata={"goal": 4000}))


@pytest.mark.parametrize("other", [{"seed": 1}, {"catalogue": True}])
async def test_a_wish_of_another_catalogue_or_seed_is_refused_instead_of_playing_the_goal_with_its_number(
    tmp_path: Path, other: JsonObject
) -> None:
    shop = webshop({"catalogue": str(folder(tmp_path, ROW))} if "catalogue" in other else other)
    goals = {task.metadata["goal"]: task for split in SPLITS for task in shop.tasks(split)}
    task = next(
        task
        for split in SPLITS
        for task in webshop({}).tasks(split)
        if task.metadata["goal"] in goals and task.instruction != goals[task.metadata["goal"]].instruction
    )
    with pytest.raises(InvalidInput, match="play with the catalogue and the seed that the task was made with"):
        await shop.create().reset(task)


async def test_a_refused_reset_ends_the_visit_before_it() -> None:
    environment = webshop({}).create()
    await environment.reset(LAMP)
    with pytest.raises(InvalidInput, match="expected a goal below"):
        await environment.reset(LAMP.model_copy(update={"metadata": {}}))
    with pytest.raises(EpisodeFinished):
        await environment.step(call(LAMP_CALLS[0]))


async def test_a_product_whose_id_has_small_letters_is_opened_and_bought(tmp_path: Path) -> None:
    real = webshop({"catalogue": str(folder(tmp_path, {**ROW, "asin": "cup-1", "customization_options": {}}))})
    (task,) = [task for split in SPLITS for task in real.tasks(split)]
    assert (await said(task, ["search[cup]", "click[cup-1]", "click[buy now]"], real))[-1].reward == 1


async def test_the_expert_buys_every_wish_of_the_small_catalogue() -> None:
    real = webshop({})
    episodes = await played(real, "expert", [task for split in SPLITS for task in real.tasks(split)])
    assert len(episodes) == 162
    assert [episode.task.id for episode in episodes if not episode.success] == []
    assert not any(step.result.is_error for episode in episodes for step in episode.transitions)


async def test_random_play_seldom_wins_and_noisy_play_often_enough_to_learn_from() -> None:
    real = webshop({})
    tasks = list(real.tasks("train"))
    rates = {
        name: sum(episode.success for episode in await played(real, name, tasks)) / len(tasks)
        for name in ("random", "noisy", "mixed")
    }
    assert rates["random"] <= 0.05 < 0.15 <= rates["noisy"] <= 0.5 < rates["mixed"] < 0.8


async def test_tasks_start_as_the_shop_does_and_share_no_product_between_splits() -> None:
    real = webshop({})
    environment = real.create()
    products: dict[str, set[str]] = {}
    for split in SPLITS:
        assert len(real.tasks(split)) >= 30
        for task in real.tasks(split):
            assert (await environment.reset(task)).observation == task.initial_state
            products.setdefault(split, set()).add(task.instruction.split(" with ")[0])
    assert not products["test"] & (products["train"] | products["dev"])
    assert not products["train"] & products["dev"]
    with pytest.raises(UnknownName, match="dev, test, train"):
        real.tasks("validation")


def test_another_catalogue_is_another_environment_and_is_named_by_option_or_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(tmp_path, ROW)
    spec = webshop({"catalogue": str(tmp_path), "max_steps": 7}).spec
    assert (spec.name, spec.max_steps) == ("webshop-1", 7)
    assert spec.options == {"catalogue": str(tmp_path.resolve()), "max_steps": 7}
    monkeypatch.setenv("DREAMGYM_WEBSHOP", str(tmp_path))
    assert webshop({}).spec.name == "webshop-1"
    assert webshop({"seed": 3, "attributes": True}).spec.name == "webshop-1-seed3-attributes"
    assert EnvironmentSpec.model_validate(spec.model_dump()) == spec


async def test_prices_options_and_attributes_are_read_as_the_original_reads_them(tmp_path: Path) -> None:
    real = webshop({"catalogue": str(folder(tmp_path, ROW)), "attributes": True})
    (task,) = [task for split in SPLITS for task in real.tasks(split)]
    assert task.instruction.startswith("Find me a tin cup with color: red | blue, and price lower than ")
    *_, product, attributes = await said(task, ["search[cup]", "click[b000000001]", "click[attributes]"], real)
    assert "color [SEP] red | blue [SEP] Tin Cup [SEP] Price: $3.99 to $10.99 [SEP] Rating: N.A." in product.observation
    assert attributes.observation.endswith("< Prev [SEP] tin [SEP] garden [SEP] cups [SEP] Home › Kitchen › Cups")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"pricing": "absent"}, "row 1, product B000000001: missing field 'pricing'"),
        (
            {"pricing": "call us"},
            "row 1, product B000000001: expected a price such as '\\$3.99' as 'pricing', got 'call",
        ),
        ({"pricing": 3}, "expected a price such as"),
        ({"name": None}, "expected a text as 'name', got None"),
        ({"asin": "absent"}, "row 1: expected a product with an 'asin'"),
        ({"customization_options": {"Color": ["red"]}}, "expected an option such as"),
        ({"asin": "much too long"}, "expected products, got none"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, change: JsonObject, fault: str) -> None:
    row = {key: value for key, value in {**ROW, **change}.items() if value != "absent"}
    with pytest.raises(InvalidInput, match=fault):
        _ = webshop({"catalogue": str(folder(tmp_path, row))}).spec


def test_an_empty_price_counts_as_a_hundred_dollars(tmp_path: Path) -> None:
    (task,) = webshop({"catalogue": str(folder(tmp_path, {**ROW, "pricing": ""}))}).tasks("test")[:1]
    assert re.search(r", and price lower than 1[234]0\.00 dollars$", task.instruction)


def test_missing_and_half_downloaded_data_are_errors_of_one_sentence(tmp_path: Path) -> None:
    def fault() -> str:
        with pytest.raises(InvalidInput) as caught:
            _ = webshop({"catalogue": str(tmp_path)}).spec
        return str(caught.value)

    assert fault().startswith(
        f"catalogue {tmp_path}: there is no items_shuffle_1000.json or items_shuffle_1000.json.xz"
    )
    packed = lzma.compress(json.dumps([ROW]).encode())
    (tmp_path / "items_shuffle_1000.json.xz").write_bytes(packed[: len(packed) // 2])
    assert "items_shuffle_1000.json.xz: cannot be read" in fault()
    assert fault().endswith("if the download is incomplete, download it again")
    (tmp_path / "items_shuffle_1000.json.xz").write_bytes(packed)
    assert "there is no items_ins_v2_1000.json" in fault()
    (tmp_path / "items_ins_v2_1000.json").write_text('{"B000000001": ')
    assert "items_ins_v2_1000.json: cannot be read" in fault()
    (tmp_path / "items_ins_v2_1000.json").write_text("[]")
    assert "expected an object of demands by asin, got list" in fault()
    (tmp_path / "items_ins_v2_1000.json").write_text("{}")
    assert fault().startswith("the catalogue has no goals")


def test_options_are_checked_by_name() -> None:
    with pytest.raises(InvalidInput, match="environment 'webshop', its options: colour"):
        webshop({"colour": "red"})
    assert webshop({}).spec.options == {}
    assert SMALL.joinpath("items_shuffle.json").is_file()
