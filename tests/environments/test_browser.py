"""A real Chromium: pages of MiniWoB played right and wrong, a browser that dies, and a site of WebArena's kind."""

import asyncio
import importlib.util
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import psutil
import pytest
from dreamgym_integrations.environments.browser import chromium
from dreamgym_integrations.environments.browser.environment import BrowserEnvironment
from dreamgym_integrations.environments.browser.miniwob import PAGES, miniwob, miniwob_worlds
from dreamgym_integrations.environments.browser.sites import webarena

from dreamgym.environment import Environment
from dreamgym.episode import play
from dreamgym.errors import EnvironmentUnavailable, EpisodeFinished, InvalidInput, UnknownName
from dreamgym.testing.environment import check_environment
from dreamgym.types import JsonObject, Source, StepResult, StopReason, Task, ToolCall, Trajectory

HAS_PACKAGE = all(importlib.util.find_spec(name) for name in ("browsergym", "miniwob", "playwright"))
HAS_BROWSER = any(map(shutil.which, chromium.SYSTEM_BROWSERS))
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not HAS_PACKAGE, reason="no browsergym: pip install 'dreamgym[browser]'"),
    pytest.mark.skipif(not HAS_BROWSER, reason="no chromium: install your system's package chromium"),
]
HARMLESS = {"click-dialog"}
"""Pages on which no action ends the episode with a failure."""
QUICK = ("enter-text-2", "read-table")


def world(page: str, seed: int = 0) -> Task:
    return next(world for world in miniwob_worlds() if world.page == page and world.seed >= seed).task("miniwob")


def click(bid: str) -> ToolCall:
    return ToolCall(name="click", arguments={"bid": bid})


@pytest.fixture
async def browser() -> AsyncIterator[Environment]:
    environment = miniwob({}).create()
    yield environment
    await environment.close()


async def played(environment: Environment, task: Task, behaviour: str, seed: int = 0) -> Trajectory:
    real = miniwob({})
    return await play(environment, task, real.behaviours[behaviour], spec=real.spec, seed=seed, source=Source.REAL)


@pytest.mark.parametrize("page", QUICK)
async def test_a_page_is_done_right_by_the_expert_and_wrong_on_purpose(browser: Environment, page: str) -> None:
    right, wrong = [await played(browser, world(page), name) for name in ("expert", "wrong")]
    assert (right.success, right.stop_reason) == (True, StopReason.TERMINATED)
    assert (wrong.success, wrong.stop_reason) == (False, StopReason.TERMINATED)
    assert not any(step.result.is_error for step in (*right.transitions, *wrong.transitions))


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page not in QUICK])
async def test_every_other_page_is_done_right_and_wrong_too(browser: Environment, page: str) -> None:
    # one of the worlds may have no wrong answer, for example no second link
    tasks = [found.task("miniwob") for found in miniwob_worlds() if found.page == page][:2]
    right = [await played(browser, task, "expert") for task in tasks]
    wrong = [await played(browser, task, "wrong") for task in tasks]
    assert all(trajectory.success for trajectory in right)
    assert all(trajectory.success for trajectory in wrong) == (page in HARMLESS)
    assert {trajectory.stop_reason for trajectory in (*right, *wrong)} == {StopReason.TERMINATED}


@pytest.mark.slow
async def test_the_contract_of_environments_is_kept() -> None:
    submit = click("15")
    await check_environment(miniwob({}).create, [world("enter-text"), world("enter-text-2")], action=submit)


async def test_the_page_begins_as_it_was_recorded(browser: Environment) -> None:
    recorded = next(world for world in miniwob_worlds() if world.page == "read-table")
    task = recorded.task("miniwob")
    start = await browser.reset(task)
    assert start.observation == f"goal: {recorded.instruction!r}\n{recorded.observation}"
    assert start.state == task.initial_state
    assert "click('" in str(start.info["admissible"])


async def test_an_impossible_action_is_refused_in_the_browsers_words_and_the_episode_goes_on(
    browser: Environment,
) -> None:
    start = await browser.reset(world("click-option"))
    page = start.observation.split("\n", 1)[1]
    refused = await browser.step(click("999"))
    assert refused.observation == f'ValueError: Could not find element with bid "999"\n{page}'
    assert (refused.is_error, refused.done, refused.state) == (True, False, start.state)
    file = await browser.step(ToolCall(name="upload_file", arguments={"bid": "18", "file": "/etc/hostname"}))
    assert file.observation.startswith("Error: no files may be uploaded here.\n")
    assert file.is_error
    with pytest.raises(UnknownName, match="goto"):
        await browser.step(ToolCall(name="goto", arguments={"url": "file:///etc/passwd"}))
    assert not (await browser.step(click("18"))).is_error


async def test_a_text_arrives_in_the_page_letter_for_letter(browser: Environment) -> None:
    await browser.reset(world("enter-text"))
    text = "'); page.goto('about:blank') #\\n\"é{}"
    shown = await browser.step(ToolCall(name="fill", arguments={"bid": "14", "value": text}))
    assert not shown.is_error
    assert f"value={text!r}" in shown.state


async def test_a_world_of_another_version_of_the_page_is_refused(browser: Environment) -> None:
    task = world("enter-text").model_copy(update={"instruction": "Enter something else."})
    with pytest.raises(
        InvalidInput, match=r"the installed task has the goal .* but its description has 'Enter something else\.'"
    ):
        await browser.reset(task)


async def test_a_killed_browser_fails_only_its_own_episode_and_the_next_one_gets_another(browser: Environment) -> None:
    other = miniwob({}).create()
    await other.reset(world("click-option"))
    before = set(psutil.Process().children(recursive=True))
    own = miniwob({}).create()
    chromium.browsers.stop()  # closes the idle browsers, so the next environment starts a new one
    await own.reset(world("enter-text"))
    for process in set(psutil.Process().children(recursive=True)) - before:
        if "chrom" in process.name():
            process.kill()
    with pytest.raises(EnvironmentUnavailable, match="the browser failed"):
        await own.step(click("14"))
    with pytest.raises(EpisodeFinished):
        await own.step(click("14"))
    assert not (await other.step(click("18"))).is_error
    assert (await own.reset(world("enter-text"))).state == world("enter-text").initial_state
    await own.close()
    await other.close()


@pytest.mark.slow
async def test_a_browser_that_gives_no_answer_in_time_fails_the_episode_and_is_used_no_more() -> None:
    environment = miniwob({}).create()
    assert isinstance(environment, BrowserEnvironment)
    await environment.reset(world("enter-text"))
    patient = environment.options
    environment.options = patient.model_copy(update={"timeout_s": 0.2})
    with pytest.raises(EnvironmentUnavailable, match=r"the browser gave no answer within 0\.2 s"):
        await environment.step(ToolCall(name="noop", arguments={"wait_ms": 2000}))
    environment.options = patient
    with pytest.raises(EpisodeFinished):
        await environment.step(click("14"))
    assert (await environment.reset(world("enter-text"))).state == world("enter-text").initial_state
    await environment.close()


@pytest.mark.slow
async def test_browsers_play_side_by_side_as_they_do_alone() -> None:
    environments = [miniwob({}).create() for _ in range(2)]
    tasks = [world("click-checkboxes"), world("enter-password")]
    together = await asyncio.gather(
        *(played(environment, task, "expert") for environment, task in zip(environments, tasks, strict=True))
    )
    for environment in environments:
        await environment.close()
    assert all(trajectory.success for trajectory in together)


class Shop(BaseHTTPRequestHandler):
    """A small site of two pages; any other address fails with HTTP 500."""

    def do_GET(self) -> None:
        place = urlparse(self.path)
        query = parse_qs(place.query).get("q", [""])[0]
        pages = {
            "/": "<title>Shop</title><h1>Welcome</h1><a href='/sale'>Sale</a><a href='/broken'>Orders</a>",
            "/sale": f"<title>Sale</title><p id='price'>Lamp 12 EUR {query}</p>",
        }
        self.send_response(200 if place.path in pages else 500)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(pages.get(place.path, "<title>500</title><h1>Internal Server Error</h1>").encode())

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def shop() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Shop)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def site_task(evaluation: JsonObject, start: str = "__SHOPPING__/") -> Task:
    row: JsonObject = {
        "task_id": 1,
        "sites": ["shopping"],
        "start_url": start,
        "intent": "What does the lamp on sale cost?",
        "require_login": False,
        "eval": evaluation,
    }
    return Task(id="webarena-1", env="webarena", instruction=str(row["intent"]), metadata={"site_task": row})


ANSWER: JsonObject = {"eval_types": ["string_match"], "reference_answers": {"must_include": ["12"]}}
PLACE: JsonObject = {"eval_types": ["url_match"], "reference_url": "__SHOPPING__/sale"}
CONTENT: JsonObject = {
    "eval_types": ["program_html"],
    "program_html": [
        {
            "url": "__SHOPPING__/sale?q=now",
            "locator": "document.querySelector('#price').outerText",
            "required_contents": {"must_include": ["EUR now"]},
        }
    ],
}


def say(text: str) -> ToolCall:
    return ToolCall(name="send_msg_to_user", arguments={"text": text})


async def test_an_answer_to_the_user_ends_a_task_of_a_site_and_is_judged(shop: str) -> None:
    environment = webarena({"sites": {"shopping": shop}, "settle_s": 0.05}).create()
    rewards = []
    for text in ("It costs 12 EUR.", "It costs 13 EUR."):
        start = await environment.reset(site_task(ANSWER))
        assert "link 'Sale'" in start.observation
        result = await environment.step(say(text))
        assert result.terminated
        rewards.append(result.reward)
    await environment.close()
    assert rewards == [1.0, 0.0]


async def test_the_reward_is_unknown_if_only_a_language_model_could_judge_the_answer(shop: str) -> None:
    real = webarena({"sites": {"shopping": shop}, "settle_s": 0.05})
    fuzzy: JsonObject = {"eval_types": ["string_match"], "reference_answers": {"fuzzy_match": ["12 EUR"]}}

    async def answers(first: StepResult, environment: Environment, seed: int) -> None:
        await environment.step(say("twelve euros"))

    environment = real.create()
    trajectory = await play(environment, site_task(fuzzy), answers, spec=real.spec, seed=0, source=Source.REAL)
    await environment.close()
    assert (len(trajectory.transitions), trajectory.error, trajectory.reward) == (1, None, None)


@pytest.mark.parametrize("evaluation", [PLACE, CONTENT])
async def test_a_task_ends_with_success_if_its_checks_of_the_page_hold(shop: str, evaluation: JsonObject) -> None:
    environment = webarena({"sites": {"shopping": shop}, "settle_s": 0.05}).create()
    start = await environment.reset(site_task(evaluation))
    link = next(line for line in start.state.split("\n") if "link: 'Sale'" in line)
    result = await environment.step(click(link[1 : link.index("]")]))
    await environment.close()
    assert (result.terminated, result.reward) == (True, 1.0)


async def test_a_failing_page_is_shown_as_it_is_but_is_a_clear_error_at_the_start(shop: str) -> None:
    environment = webarena({"sites": {"shopping": shop}, "settle_s": 0.05, "navigation": True}).create()
    await environment.reset(site_task(PLACE))
    failed = await environment.step(ToolCall(name="goto", arguments={"url": f"{shop}/broken"}))
    assert "heading 'Internal Server Error'" in failed.observation
    assert (failed.is_error, failed.done) == (False, False)
    left = await environment.step(ToolCall(name="goto", arguments={"url": "http://localhost:9/"}))
    assert (left.reward, left.is_error) == (0.0, True)
    with pytest.raises(
        EnvironmentUnavailable, match=r"the site answers HTTP 500 at .*/broken: check that it is running"
    ):
        await environment.reset(site_task(PLACE, "__SHOPPING__/broken"))
    with pytest.raises(EpisodeFinished):
        await environment.step(say("x"))
    await environment.close()


async def test_a_site_without_an_address_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WA_SHOPPING", raising=False)
    environment = webarena({}).create()
    with pytest.raises(InvalidInput, match="plays on shopping: set WA_SHOPPING to the address of your site"):
        await environment.reset(site_task(PLACE))
    await environment.close()


def test_without_chromium_the_error_shows_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidInput, match="needs Chromium: run `playwright install chromium`"):
        chromium.executable(str(tmp_path / "chrome"))
