"""Views of a complete run folder in a real Chromium: their contents and their links."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dreamgym_server.view.answers import Answers
from dreamgym_server.view.export import export
from dreamgym_server.view.folders import RunFolder
from dreamgym_server.view.library import Library
from screen import Screen, episode, run_folder, served
from whole_run import RUN, whole_run, write_run

from dreamgym.replay.postgres import Store
from dreamgym.replay.postgres.listing import StoredEpisodes
from dreamgym.types import Task

pytestmark = pytest.mark.anyio
AXE = Path(__file__).parents[2] / "tests" / "node" / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The complete run folder. It is made only once, because its report is measured."""
    folder = tmp_path_factory.mktemp("window") / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DREAMGYM_ENCODER", "trigram")
        whole_run(folder)
    yield folder
    shutil.rmtree(folder)


async def test_a_number_of_a_report_leads_to_the_steps_behind_it_and_on_to_the_recording(
    screen: Screen, everything: Path
) -> None:
    async with served(Library(folder=RunFolder(everything))) as address:
        await screen.open(address, "#/reports")
        row = screen.page.get_by_role("region", name="answers").get_by_role("row").filter(has_text="observation exact")
        of, share = row.get_by_role("cell").nth(0), row.get_by_role("cell").nth(1)
        count, told = int(await of.inner_text()), await share.inner_text()
        await share.get_by_role("link").click()
        await screen.sees(f"The mean over {count} steps is")
        values = await screen.page.locator(".neighbours .badge").all_inner_texts()
        assert len(values) == count
        assert round(100 * sum(map(float, values)) / count, 1) == float(told.split(" %")[0])
        assert values == sorted(values), "the wrong ones come first"
        await screen.page.locator(".neighbours a").first.click()
        await screen.page.locator(".step.wanted").wait_for()


async def test_a_number_in_a_sentence_of_a_report_leads_to_its_steps(screen: Screen, everything: Path) -> None:
    async with served(Library(folder=RunFolder(everything))) as address:
        await screen.open(address, "#/reports?name=report")
        sentence = screen.page.locator("p").filter(has_text="averages over the recorded steps")
        told = await sentence.get_by_role("link").nth(1).inner_text()
        await sentence.get_by_role("link").nth(1).click()
        await screen.sees("eps_P")
        values = await screen.page.locator(".neighbours .badge").all_inner_texts()
        assert f"{sum(map(float, values)) / len(values):.4f}" == told.split(" [")[0]


async def test_a_number_of_a_check_leads_to_its_steps_and_on_to_the_recording(screen: Screen, everything: Path) -> None:
    async with served(Library(folder=RunFolder(everything))) as address:
        await screen.open(address, "#/reports?name=report%2Fcheck.json")
        table = screen.page.get_by_role("region", name="answers by tool")
        row = table.get_by_role("row").filter(has=screen.page.get_by_role("rowheader", name="all", exact=True))
        calls, exact = int(await row.get_by_role("cell").nth(0).inner_text()), row.get_by_role("cell").nth(4)
        share = float((await exact.inner_text()).split(" %")[0])
        await exact.get_by_role("link").click()
        await screen.sees(f"The mean over {calls} steps is")
        values = await screen.page.locator(".neighbours .badge").all_inner_texts()
        assert round(100 * sum(map(float, values)) / calls) == share
        await screen.page.locator(".neighbours a").first.click()
        await screen.page.locator(".step.wanted").wait_for()


async def test_a_row_of_a_report_leads_to_the_episodes_that_were_played_for_it(
    screen: Screen, everything: Path
) -> None:
    async with served(Library(folder=RunFolder(everything))) as address:
        await screen.open(address, "#/reports")
        attacks = screen.page.get_by_role("region", name="reward attacks")
        row = attacks.get_by_role("row").filter(has=screen.page.get_by_role("rowheader", name="claim", exact=True))
        await row.get_by_role("link").first.click()
        await screen.sees("2 episodes match")
        await screen.page.locator(".episodes a.task").first.click()
        await screen.sees("nearest/reward attacks/claim/")


async def test_an_update_shows_a_few_whole_rollouts_of_it(screen: Screen, everything: Path) -> None:
    async with served(Library(folder=RunFolder(everything))) as address:
        await screen.open(address, "#/training?runs=.&update=3")
        rollouts = screen.page.locator(".played li")
        await rollouts.first.get_by_role("link").click()
        await screen.sees("room 2")
        assert await screen.page.get_by_text(f"{RUN}-2-0").count()


async def test_several_runs_are_drawn_over_one_another_and_a_message_lists_the_four_that_are_drawn(
    screen: Screen, tmp_path: Path
) -> None:
    for number in range(6):
        write_run(tmp_path / f"seed-{number}")
    async with served(Library(folder=RunFolder(tmp_path))) as address:
        await screen.open(address, "#/training?runs=seed-0|seed-1")
        chart = screen.page.get_by_role("figure").filter(has_text="Success over updates")
        await chart.get_by_text("seed-1: in reality, with its 95 % interval").first.wait_for()
        assert await drawn(chart) > 1000, "a canvas with nothing on it has no such pixels"
        await screen.go(f"#/training?runs={'|'.join(f'seed-{number}' for number in range(6))}")
        await screen.sees("4 runs are drawn at once: seed-0, seed-1, seed-2, seed-3.")


async def drawn(chart: Any) -> int:
    """Number of pixels of a chart that are not transparent."""
    return int(
        await chart.locator("canvas").evaluate(
            """canvas => {
              const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
              let count = 0;
              for (let at = 3; at < data.length; at += 4) count += data[at] > 0;
              return count;
            }"""
        )
    )


async def test_a_task_shows_what_it_was_varied_from_and_its_own_variations(screen: Screen, everything: Path) -> None:
    async with served(Library(folder=RunFolder(everything))) as address:
        await screen.open(address, "#/curriculum")
        rows = screen.page.locator(".tasks tbody tr")
        await rows.first.wait_for()
        assert [(await row.inner_text()).split("\n")[1].strip() for row in await rows.all()][:2] == ["t1", "t1-varied"]
        parent, child = rows.nth(0), rows.nth(1)
        assert "0.250" in await parent.inner_text()
        await child.get_by_text("What was varied").click()
        assert await child.locator("del").all_inner_texts() == ["start"]
        assert await child.locator("ins").all_inner_texts() == ["cellar"]
        await parent.get_by_text("1 variation of it").click()
        await parent.get_by_role("link", name="t1-varied").click()
        await screen.page.locator("#task-t1-varied.wanted").wait_for()


async def test_the_tasks_of_a_store_are_shown_with_their_value(screen: Screen, store: Store) -> None:
    tasks = [Task(id=name, env="crm", instruction=f"Do {name}.") for name in ("never", "sometimes")]
    await store.buffer.add_tasks(tasks)
    await store.buffer.record_outcomes("crm", "sometimes", 1, [1.0, 0.0])
    async with served(Library(store=StoredEpisodes(store.database), buffer=store.buffer)) as address:
        await screen.open(address, "#/curriculum")
        await screen.sees("2 tasks, 1 of them attempted.")
        first = screen.page.locator(".tasks tbody tr").first
        assert "Do sometimes." in await first.inner_text()
        assert "0.250" in await first.inner_text()


@pytest.mark.parametrize("place", ["store", "folder"])
async def test_a_search_of_the_buffer_respects_its_filters(
    screen: Screen, store: Store, tmp_path: Path, place: str
) -> None:
    some = [
        episode("real-1", ["the hall", "the attic"]),
        episode("dream-1", ["the hall", "the yard"], dreamed=True),
        episode("dream-2", ["the hall", "the pond"], dreamed=True),
    ]
    some[2] = some[2].model_copy(update={"policy_version": 7})
    await store.buffer.add(some)
    stored = Library(store=StoredEpisodes(store.database), buffer=store.buffer)
    async with served(stored if place == "store" else run_folder(tmp_path, *some)) as address:
        await screen.open(address, "#/buffer")
        form = screen.page.get_by_role("form", name="Search by text")
        await form.get_by_label("Text of a step").fill("the")
        await form.get_by_label("Played in").select_option("synthetic")
        await form.get_by_role("button", name="Search").click()
        await screen.sees("the pond")
        found = screen.page.get_by_role("region", name="Found")
        assert await found.get_by_text("the attic").count() == 0
        await form.get_by_label("Policy version").fill("7")
        await form.get_by_role("button", name="Search").click()
        await screen.page.get_by_text("the yard").wait_for(state="detached")
        assert await found.get_by_text("the pond").count() == 1


async def test_a_step_shows_its_seconds_the_change_of_a_text_and_its_link(screen: Screen, tmp_path: Path) -> None:
    dream = episode("dream-1", ["kitchen"], dreamed=True)
    (step,) = dream.transitions
    origin = step.provenance.model_copy(update={"seconds": 1.26})
    changed = {"state": "A lamp.\nIt is off.", "next_state": "A lamp.\nIt is on.", "provenance": origin}
    dream = dream.model_copy(update={"transitions": (step.model_copy(update=changed),)})
    async with served(run_folder(tmp_path, dream)) as address:
        await screen.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await screen.open(address, "#/episode?place=episodes.jsonl&id=dream-1")
        shown = screen.page.locator("#step-1")
        await shown.filter(has_text="1.3 s").wait_for()
        await shown.get_by_text("State: what changed").click()
        assert await shown.locator("del").all_inner_texts() == ["It is off.\n"]
        assert await shown.locator("ins").all_inner_texts() == ["It is on.\n"]
        await shown.get_by_role("button", name="Copy the link to step 1").click()
        await shown.get_by_text("copied").wait_for()
        link = await screen.page.evaluate("() => navigator.clipboard.readText()")
        assert "token" not in link
        await screen.go("#/")
        await screen.page.goto(link)
        await screen.page.locator("#step-1.wanted").wait_for()


async def test_a_half_written_run_folder_is_reported_and_shown_whole_once_it_is_complete(
    screen: Screen, tmp_path: Path
) -> None:
    lines = [one.model_dump_json() + "\n" for one in (episode("a", ["one"]), episode("b", ["one"]))]
    (tmp_path / "episodes.jsonl").write_text(lines[0] + lines[1][:200])
    (tmp_path / "report.json").write_text('{"env": "house", "see')
    async with served(Library(folder=RunFolder(tmp_path))) as address:
        await screen.open(address)
        await screen.sees("1 line could not be read, perhaps still being written")
        await screen.go("#/training")
        await screen.sees("The curves appear after the first update.")
        await screen.go("#/reports")
        await screen.sees("it cannot be read, perhaps because another version wrote it")
        await screen.go("#/curriculum")
        await screen.sees("No tasks are stored here.")
        await screen.go("#/episodes")
        await screen.sees("1 episode")
        (tmp_path / "episodes.jsonl").write_text("".join(lines))
        await screen.sees("2 episodes")
        await screen.go("#/training")
        await screen.sees("The curves appear after the first update.")
        (tmp_path / "metrics.jsonl").write_text(
            json.dumps({"step": 0, "where": "dream", "inside_success": 0.5, "rollout_s": 1.0}) + '\n{"step": 1, "whe'
        )
        await screen.sees("Success over updates")


@pytest.mark.parametrize("view", ["episode?place=episodes.jsonl&id=dream-1", "reports", "training"])
async def test_a_view_that_is_opened_while_the_server_is_away_appears_when_it_comes_back(
    screen: Screen, everything: Path, view: str
) -> None:
    library = Library(folder=RunFolder(everything))
    async with served(library) as address:
        port = int(address.split(":")[2].split("/")[0])
        await screen.open(address)
    await screen.go(f"#/{view}")
    await screen.sees("The server does not answer.")
    await screen.sees("This page asks again by itself.")
    async with served(library, port):
        await screen.page.locator(".sorry").wait_for(state="detached")
        assert await screen.page.locator("main h1").count() == 1


async def test_an_exported_copy_has_the_reports_with_their_steps_the_tasks_and_the_coverage(
    screen: Screen, everything: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    await export(Answers(Library(folder=RunFolder(everything))), site, lambda text: None)
    await screen.page.goto((site / "index.html").as_uri())
    for view, text in (
        ("reports", "A number leads to the steps"),
        ("curriculum", "2 tasks, 2 of them attempted."),
        ("buffer", "What is recorded, and where the dream would have to guess"),
        ("training", "Success over updates"),
    ):
        await screen.go(f"#/{view}")
        await screen.sees(text)
    await screen.page.locator(".played a").first.click()
    await screen.page.locator("#step-1").wait_for()
    await screen.go("#/reports")
    row = screen.page.get_by_role("region", name="answers").get_by_role("row").filter(has_text="errors agree")
    await row.get_by_role("link").first.click()
    await screen.sees("The mean over")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
async def test_axe_finds_no_violation_and_nothing_is_wider_than_the_screen(
    chromium: Any, everything: Path, scheme: str, width: int
) -> None:
    if not AXE.is_file():
        pytest.skip("no axe-core: npm ci in tests/node")
    context = await chromium.new_context(
        viewport={"width": width, "height": 844}, color_scheme=scheme, bypass_csp=True, reduced_motion="reduce"
    )
    screen = Screen(await context.new_page())
    async with served(Library(folder=RunFolder(everything))) as address:
        await screen.open(address)
        for view in VIEWS:
            await screen.go(view)
            await screen.page.locator(".waiting").wait_for(state="detached")
            await screen.page.evaluate("() => document.querySelectorAll('details').forEach((one) => (one.open = true))")
            await screen.page.wait_for_load_state("networkidle")
            await screen.page.evaluate(AXE.read_text(encoding="utf-8"))
            found = await screen.page.evaluate("() => axe.run()")
            assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found["violations"]] == [], view
            assert await screen.page.evaluate("() => document.documentElement.scrollWidth") <= width, view
    await context.close()


VIEWS = [
    "#/",
    "#/episodes",
    "#/training",
    "#/curriculum",
    "#/buffer?place=folder&env=house&text=room",
    "#/reports",
    "#/behind?name=report&setting=nearest&cell=answers+%7C+observation+exact+%7C+share",
    "#/episode?place=episodes.jsonl&id=dream-1",
    "#/compare?place=episodes.jsonl&id=dream-1&other_place=episodes.jsonl&other=real-1",
]
