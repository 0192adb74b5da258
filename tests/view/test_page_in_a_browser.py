"""The page as a person uses it, in a real Chromium."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import pytest
from dreamgym_server.app import build
from dreamgym_server.running import running
from dreamgym_server.sources import DreamWorlds
from dreamgym_server.view.answers import Answers
from dreamgym_server.view.export import asked, export
from dreamgym_server.view.folders import RunFolder
from dreamgym_server.view.hand import Hand
from dreamgym_server.view.library import Library
from dreamgym_server.view.parameters import Parameters
from screen import TOKEN, Screen, episode, run_folder, served
from server_stage import CounterModel, counter_spec
from whole_run import metrics, played

from dreamgym.errors import InvalidInput
from dreamgym.replay.keys import transition_id
from dreamgym.replay.postgres import Store
from dreamgym.replay.postgres.listing import StoredEpisodes
from dreamgym.state import objects
from dreamgym.types import JsonObject, Source, Trajectory

pytestmark = pytest.mark.anyio
HOSTILE = [
    "<script>globalThis.hacked = 1</script>",
    "<img src=x onerror='globalThis.hacked = 1'>",
    "</pre></main><iframe srcdoc='<script>parent.hacked = 1</script>'></iframe>",
    "<svg><animate onbegin='globalThis.hacked = 1' attributeName=x dur=1s>",
    "<a href='javascript:globalThis.hacked = 1'>here</a>",
    "{{constructor.constructor('globalThis.hacked = 1')()}} ${globalThis.hacked = 1}",
    "\u202eright to left, \u2028 a line separator, &lt;entities&gt; and \\u003cescapes\\u003e",
]


@pytest.fixture
def pair(tmp_path: Path) -> Library:
    """A run folder with a dreamed and a real episode of one task, whose answers part at step 3."""
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics()))
    return run_folder(tmp_path, *played())


async def test_a_newcomer_finds_the_step_at_which_dream_and_reality_part_with_one_click(
    screen: Screen, pair: Library
) -> None:
    async with served(pair) as address:
        await screen.open(address)
        await screen.page.get_by_role("link", name="they part at step 3").click()
        await screen.sees("The first 2 calls and their answers are the same. They part at step 3.")
        parting = screen.page.locator("#parting")
        await parting.filter(has_text="Here they part: the same call, another answer.").wait_for()
        assert await parting.locator("mark").all_inner_texts() == ["attic", "cellar"]
        assert await parting.evaluate("one => one === document.activeElement")


async def test_the_token_leaves_the_address_and_a_tab_without_it_asks_for_it(screen: Screen, pair: Library) -> None:
    async with served(pair) as address:
        await screen.page.goto(address)
        await screen.sees("This page needs a token")
        await screen.page.get_by_label("Token").fill("wrong")
        await screen.page.get_by_role("button", name="Open").click()
        await screen.sees("This page needs a token")
        await screen.open(address)
        assert "token" not in screen.page.url
        await screen.page.reload()
        await screen.sees("Dream beside reality")
        other = Screen(await screen.page.context.new_page())  # another tab of the same browser
        await other.page.goto(f"{address}#/episodes")
        await other.sees("2 episodes")


async def test_a_step_shows_the_source_of_its_answer_and_links_to_it(screen: Screen, tmp_path: Path) -> None:
    recorded = episode("recorded-1", ["kitchen", "hall"])
    dream = episode("dream-1", ["kitchen", "hall"], dreamed=True)
    first = dream.transitions[0]
    retrieved = (str(transition_id(recorded.transitions[1])),)
    told = first.provenance.model_copy(update={"retrieved": retrieved, "prompt_tokens": 1200, "completion_tokens": 34})
    first = first.model_copy(update={"reasoning": "It is next to the hall.", "provenance": told})
    dream = dream.model_copy(update={"transitions": (first, *dream.transitions[1:])})
    async with served(run_folder(tmp_path, recorded, dream)) as address:
        await screen.open(address, "#/episode?place=episodes.jsonl&id=dream-1&step=1")
        step = screen.page.locator("#step-1")
        await step.filter(has_text="confidence 50 %").wait_for()
        assert "1,200 tokens in, 34 out" in await step.inner_text()
        await step.get_by_text("Reasoning").click()
        await screen.sees("It is next to the hall.")
        await step.get_by_text("Made from 1 recorded step").click()
        await step.get_by_role("link", name="recorded-1, step 2").click()
        await screen.page.locator("#step-2.wanted").wait_for()
        assert await screen.page.locator("#step-2").get_by_text("hall").count()


async def test_success_in_the_dream_stands_beside_the_real_probe_with_its_interval(
    screen: Screen, pair: Library
) -> None:
    async with served(pair) as address:
        await screen.open(address, "#/training")
        chart = screen.page.get_by_role("figure").filter(has_text="Success over updates")
        await chart.get_by_text("Numbers").click()
        rows = await chart.get_by_role("row").all_inner_texts()
        assert [row.split() for row in rows][-1] == ["6", "30", "%", "40", "%", "[30", "%,", "50", "%]"]
        assert await chart.locator("canvas").count() == 1
        await screen.page.get_by_label("Update", exact=True).fill("3")
        await screen.page.get_by_role("button", name="Show").click()
        await screen.sees("nothing to learn from 2 of 8 groups, 50 % of actions refused")
        assert "update=3" in screen.page.url


async def test_the_buffer_is_searched_and_shows_where_a_dream_would_guess(screen: Screen, store: Store) -> None:
    await store.buffer.add([episode("real-1", ["kitchen", "the old hall"])])
    library = Library(store=StoredEpisodes(store.database), buffer=store.buffer)
    async with served(library) as address:
        await screen.open(address, "#/buffer")
        await screen.sees("50 % of these pairs are recorded")
        await screen.page.get_by_label("Text of a step").fill("OLD hall")
        await screen.page.get_by_role("button", name="Search").click()
        await screen.sees("1 step found among 2 that were looked through")
        await screen.page.get_by_text("Search by likeness").click()
        await screen.page.get_by_label("Tool", exact=True).fill("go")
        await screen.page.get_by_label("State", exact=True).fill("start")
        await screen.page.get_by_label("Arguments as JSON").fill("x")
        await screen.page.get_by_role("button", name="What is most like it?").click()
        alert = screen.page.get_by_role("alert")
        await alert.filter(has_text="its arguments as a JSON object").wait_for()
        assert await screen.page.get_by_label("State", exact=True).input_value() == "start"
        await screen.page.get_by_label("Arguments as JSON").fill('{"to": "place 1"}')
        await screen.page.get_by_role("button", name="What is most like it?").click()
        await screen.sees("the same state and call")
        await screen.page.get_by_role("link", name="real-1, step 1").click()
        await screen.page.locator("#step-1.wanted").wait_for()


async def test_filters_narrow_the_list_and_the_number_of_matches_is_shown(screen: Screen, tmp_path: Path) -> None:
    some = [episode(f"e{number}", ["one"], dreamed=number % 2 == 0) for number in range(60)]
    async with served(run_folder(tmp_path, *some)) as address:
        await screen.open(address, "#/episodes")
        await screen.sees("60 episodes, 50 of them on this page")
        await screen.page.get_by_role("link", name="Older").click()
        await screen.sees("Newest")
        assert await screen.page.locator(".episodes tbody tr").count() == 10
        await screen.page.get_by_role("combobox", name="Answered by").select_option("model")
        await screen.sees("30 episodes match")
        await screen.page.get_by_label("Task or id").fill("e4")
        await screen.page.get_by_role("button", name="Apply").click()
        await screen.sees("6 episodes match")


async def test_recorded_html_stays_text_in_every_view(screen: Screen, tmp_path: Path) -> None:
    pairs = [hostile_pair(number, hostile) for number, hostile in enumerate(HOSTILE)]
    async with served(run_folder(tmp_path, *(one for pair in pairs for one in pair))) as address:
        await screen.open(address)
        for hostile, (dream, real) in zip(HOSTILE, pairs, strict=True):
            shown = {"place": "episodes.jsonl", "id": dream.id}
            both = {**shown, "other_place": "episodes.jsonl", "other": real.id}
            for view, given in (("episodes", {}), ("episode", shown), ("compare", both)):
                await screen.go(f"#/{view}?{httpx2.QueryParams(given)}")
                await screen.page.locator(f"main[data-shown={view}]").get_by_text(hostile[:9]).first.wait_for()
                inside = "script, iframe, img, object, embed, animate, [onerror], [onbegin], a[href^='javascript']"
                assert await screen.page.locator("main").locator(inside).count() == 0
                assert await screen.page.evaluate("() => globalThis.hacked") is None


def hostile_pair(number: int, hostile: str) -> tuple[Trajectory, Trajectory]:
    """A dream and a recording that have this text in all their fields."""
    dream = episode(f"dream-{number}", [hostile, hostile + "!"], dreamed=True, instruction=hostile)
    real = episode(f"real {hostile}", [hostile, hostile], instruction=hostile)
    spiked = dream.transitions[0].model_copy(update={"reasoning": hostile, "next_state": f'{{"{hostile[:9]}": 1}}'})
    action = spiked.action.model_copy(update={"arguments": {hostile: hostile}})
    transitions = (spiked.model_copy(update={"action": action}), *dream.transitions[1:])
    return dream.model_copy(update={"transitions": transitions, "answer": hostile, "error": hostile}), real


async def test_an_episode_that_is_being_played_grows_on_the_screen_until_it_is_over(
    screen: Screen, store: Store
) -> None:
    library = Library(store=StoredEpisodes(store.database))
    app = build([DreamWorlds(counter_spec(), CounterModel(), store.buffer)], store.buffer, store.episodes)
    async with running(app) as url, served(library) as address, httpx2.AsyncClient(base_url=url) as http:
        made = (await http.post("/envs/counter/episodes", json={})).json()
        await screen.open(address, f"#/episode?id={made['episode']}")
        await screen.sees("No call was made yet.")
        for number in (1, 2):
            await called(http, made["episode"])
            await screen.sees(f"count {number}")
        await http.post(f"/envs/counter/episodes/{made['episode']}/finish", json={"success": True})
        await screen.sees("It is over after 2 steps: the agent finished, reward 1.")
        assert await screen.page.locator(".step").count() == 2


async def test_a_message_is_shown_if_an_episode_is_deleted_while_it_is_watched(screen: Screen, store: Store) -> None:
    library = Library(store=StoredEpisodes(store.database))
    app = build([DreamWorlds(counter_spec(), CounterModel(), store.buffer)], store.buffer, store.episodes)
    async with running(app) as url, served(library) as address, httpx2.AsyncClient(base_url=url) as http:
        made = (await http.post("/envs/counter/episodes", json={})).json()
        await screen.open(address, f"#/episode?id={made['episode']}")
        await screen.sees("No call was made yet.")
        await store.episodes.delete(made["episode"])
        await screen.sees("This episode was deleted. What you see is what was shown before.")


async def test_an_episode_is_forked_at_a_step_and_played_on_by_hand(screen: Screen, store: Store) -> None:
    app = build(
        [DreamWorlds(counter_spec(), CounterModel(), store.buffer)], store.buffer, store.episodes, token="secret" * 4
    )
    library = Library(store=StoredEpisodes(store.database))
    async with (
        running(app) as url,
        served(library, hand=Hand(url, "secret" * 4)) as page,
        httpx2.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {'secret' * 4}"}) as http,
    ):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        for _ in range(2):
            await called(http, made["episode"])
        await screen.open(page, f"#/episode?id={made['episode']}")
        await screen.page.get_by_role("button", name="Fork after step 1").click()
        await screen.sees("Play on by hand")
        assert made["episode"] not in screen.page.url
        form = screen.page.get_by_role("form", name="Play on by hand")
        await form.get_by_label("n", exact=True).fill("6")
        await form.get_by_role("button", name="Call").click()
        await screen.sees("count 7")
        await form.get_by_label("n", exact=True).fill("-1")
        await form.get_by_role("button", name="Call").click()
        await screen.sees("The call was not a step: ")
        assert await screen.page.locator(".step").count() == 2
        untouched = (await http.get(f"/envs/counter/episodes/{made['episode']}")).json()
    assert (untouched["step"], untouched["stop_reason"]) == (2, None)


async def test_a_read_only_page_cannot_change_anything(screen: Screen, store: Store) -> None:
    app = build([DreamWorlds(counter_spec(), CounterModel(), store.buffer)], store.buffer, store.episodes)
    library = Library(store=StoredEpisodes(store.database))
    async with running(app) as url, served(library) as address, httpx2.AsyncClient(base_url=url) as http:
        made = (await http.post("/envs/counter/episodes", json={})).json()
        await called(http, made["episode"])
        await screen.open(address, f"#/episode?id={made['episode']}")
        await screen.page.locator("#step-1").wait_for()
        assert await screen.page.get_by_role("button", name="Fork").count() == 0
        refused = [
            (await http.post(f"{address}api/{name}", headers={"Authorization": f"Bearer {TOKEN}"})).status_code
            for name in ("fork", "call", "episodes")
        ]
    assert refused == [405, 405, 405]


async def test_the_page_says_that_its_server_is_away_and_comes_back_by_itself(screen: Screen, pair: Library) -> None:
    async with served(pair) as address:
        port = int(address.split(":")[2].split("/")[0])
        await screen.open(address, "#/episodes")
        await screen.sees("2 episodes")
    await screen.sees("The server does not answer. This list is filled again when it does.")
    async with served(pair, port):
        await screen.page.locator("#away").wait_for(state="hidden")
        await screen.sees("2 episodes")


async def test_an_empty_store_is_reported_and_new_episodes_are_shown_when_they_come(
    screen: Screen, store: Store
) -> None:
    async with served(Library(store=StoredEpisodes(store.database))) as address:
        await screen.open(address)
        await screen.sees("Nothing is stored yet.")
        await screen.go("#/episodes")
        await screen.sees("Nothing was played yet.")
        await store.buffer.add([episode("first", ["one"])])
        await screen.sees("1 episode")


async def test_everything_can_be_reached_and_opened_with_the_keyboard(screen: Screen, pair: Library) -> None:
    async with served(pair) as address:
        await screen.open(address)
        press = screen.page.keyboard.press
        await press("d")
        await screen.page.locator("#parting").wait_for()
        await press("k")
        assert await focused(screen, "one => one.dataset.step") == "2"
        await press("e")
        await screen.sees("2 episodes")
        await press("/")
        assert await focused(screen, "one => one.name") == "text"
        await press("Escape")
        await screen.page.locator(".episodes a.task").first.focus()
        await press("Enter")
        await screen.page.locator("#step-1").wait_for()
        await press("j")
        await press("j")
        assert await focused(screen, "one => one.id") == "step-2"
        await press("?")
        await screen.page.get_by_role("dialog").wait_for()
        await press("Escape")
        assert await screen.page.get_by_role("dialog").count() == 0
        await press("o")
        await screen.sees("Dream beside reality")


async def test_an_exported_copy_opens_from_a_file_with_everything_in_it(
    screen: Screen, pair: Library, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    assert await export(Answers(pair), site, lambda text: None) == 2
    await screen.page.goto((site / "index.html").as_uri())
    await screen.page.get_by_role("link", name="they part at step 3").click()
    await screen.page.locator("#parting").wait_for()
    await screen.page.locator("#parting").get_by_role("link", name="3").first.click()
    await screen.page.locator("#step-3.wanted").wait_for()
    await screen.go("#/episodes?tier=real")
    await screen.sees("1 episode match")
    await screen.go("#/episode?place=episodes.jsonl&id=nobody")
    await screen.sees("This is not in the exported copy.")


async def test_an_exported_copy_takes_the_place_of_an_older_one_and_of_nothing_else(
    pair: Library, tmp_path: Path
) -> None:
    site, mine = tmp_path / "site", tmp_path / "mine"
    await export(Answers(pair), site, lambda text: None)
    assert await export(Answers(Library(folder=RunFolder(tmp_path))), site, lambda text: None) == 2
    mine.mkdir()
    (mine / "thesis.txt").write_text("years")
    with pytest.raises(InvalidInput, match="is not empty and does not contain an exported page"):
        await export(Answers(pair), mine, lambda text: None)
    assert [one.name for one in mine.iterdir()] == ["thesis.txt"]


async def test_an_interrupted_export_leaves_the_older_copy_and_can_be_repeated(
    pair: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, site = tmp_path / "older", tmp_path / "site"
    await export(Answers(pair), older, lambda text: None)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Answers, "pairs", interrupted)
        for folder in (older, site):
            with pytest.raises(KeyboardInterrupt):
                await export(Answers(pair), folder, lambda text: None)
    assert (older / "data" / "site.js").is_file()
    for folder in (older, site):
        assert await export(Answers(pair), folder, lambda text: None) == 2
        assert [one.name for one in folder.iterdir() if "unfinished" in one.name] == []


async def test_an_episode_that_is_deleted_during_an_export_is_left_out(
    pair: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Answers.episodes

    async def with_a_deleted_one(self: Answers, given: Parameters) -> JsonObject:
        page = await listed(self, given)
        (first, *others) = objects(page["episodes"])
        return {**page, "episodes": [first, {**first, "id": "deleted"}, *others]}

    monkeypatch.setattr(Answers, "episodes", with_a_deleted_one)
    assert await export(Answers(pair), tmp_path / "site", lambda text: None) == 2


async def test_an_exported_copy_has_the_comparison_that_the_overview_links_to(tmp_path: Path) -> None:
    real = [episode(f"real-{number}", ["hall"]) for number in range(3)]
    imported = episode("imported", ["cellar"]).model_copy(update={"source": Source.IMPORTED})
    answers = Answers(run_folder(tmp_path, *real, imported, episode("dream", ["attic"], dreamed=True)))
    (pair,) = objects((await answers.pairs({}))["pairs"])
    assert [one["id"] for one in pair.values() if isinstance(one, dict)] == ["dream", "imported"]
    await export(answers, tmp_path / "site", lambda text: None)
    place = "episodes.jsonl"
    wanted = asked("compare", {"place": place, "id": "dream", "other_place": place, "other": "imported"})
    assert any(wanted in file.read_text() for file in (tmp_path / "site" / "data").glob("e*.js"))


async def test_a_file_is_refused_as_the_folder_of_an_export(pair: Library, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is a file: name a folder"):
        await export(Answers(pair), tmp_path / "metrics.jsonl", lambda text: None)


async def test_an_exported_copy_has_all_tasks_of_a_curriculum(pair: Library, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / "checkpoint-1"
    checkpoint.mkdir(parents=True)
    tasks = [{"id": f"t{number}", "env": "c", "instruction": "x", "origin": "generated"} for number in range(300)]
    (checkpoint / "curriculum.json").write_text(json.dumps({"generated": tasks, "groups": {}}))
    await export(Answers(pair), tmp_path / "site", lambda text: None)
    script = (tmp_path / "site" / "data" / "site.js").read_text()
    answers = json.loads(script[script.index("{") : script.rindex(";")])["answers"]
    pages = [answers[f"tasks?first={first}&run=."]["tasks"] for first in (1, 201)]
    assert {task["id"] for page in pages for task in page} == {f"t{number}" for number in range(300)}


async def focused(screen: Screen, what: str) -> object:
    return await screen.page.evaluate(f"() => ({what})(document.activeElement)")


async def called(http: httpx2.AsyncClient, name: str) -> None:
    """Send one tool call, as an agent does."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": {"n": 1}}}
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-06-18"}
    assert (await http.post(f"/envs/counter/episodes/{name}/mcp", json=body, headers=headers)).status_code == 200
