"""The thirteen browser actions as tools, the code that they become, and the scripts that play a page."""

import ast
import sys
import threading
from pathlib import Path
from random import Random

import pytest
from dreamgym_integrations.environments.browser import BrowserOptions
from dreamgym_integrations.environments.browser.actions import NAVIGATION_TOOLS, TOOLS, Refusal, code_of
from dreamgym_integrations.environments.browser.environment import BrowserEnvironment, TaskSetup
from dreamgym_integrations.environments.browser.miniwob import PAGES, miniwob_worlds
from dreamgym_integrations.environments.browser.players import drawn, spoiled
from dreamgym_integrations.environments.browser.scripts import script
from dreamgym_integrations.environments.browser.state import state_of
from dreamgym_integrations.environments.browser.tree import page_of
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.errors import InvalidInput, MissingPackage, UnknownName
from dreamgym.testing.environment import check_tools
from dreamgym.types import JsonObject, Task, ToolCall

THIRTEEN = (
    "noop send_msg_to_user scroll fill select_option click dblclick hover press focus clear drag_and_drop upload_file"
)


def test_the_tools_are_the_thirteen_of_the_paper_and_six_more_for_navigation() -> None:
    assert [tool["name"] for tool in TOOLS] == THIRTEEN.split()
    check_tools([*TOOLS, *NAVIGATION_TOOLS])
    assert len(NAVIGATION_TOOLS) == 6


@given(st.text(), st.text())
def test_a_call_is_one_call_whose_arguments_are_literals(bid: str, value: str) -> None:
    code = code_of(ToolCall(name="fill", arguments={"bid": bid, "value": value}), TOOLS)
    tree = ast.parse(code, mode="eval").body
    assert isinstance(tree, ast.Call)
    assert ast.unparse(tree.func) == "fill"
    assert {keyword.arg: ast.literal_eval(keyword.value) for keyword in tree.keywords} == {"bid": bid, "value": value}


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (ToolCall(name="click", arguments={}), "click: .*'bid' is a required property"),
        (ToolCall(name="click", arguments={"bid": 13}), "click: bid: 13 is not of type 'string'"),
        (ToolCall(name="click", arguments={"bid": "13", "button": "any"}), "click: button: 'any' is not one of"),
        (ToolCall(name="noop", arguments={"wait_ms": 1e9}), "noop: wait_ms: .* greater than the maximum"),
        (ToolCall(name="goto", arguments={"url": "file:///etc/passwd"}), "goto: url: .* does not match"),
        (ToolCall(name="fill", arguments={"bid": "1", "value": "", "force": True}), "'force' was unexpected"),
    ],
)
def test_arguments_that_do_not_fit_are_named(action: ToolCall, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        code_of(action, [*TOOLS, *NAVIGATION_TOOLS])


def test_a_tool_that_is_not_offered_is_unknown() -> None:
    with pytest.raises(UnknownName, match="unknown tool 'goto'"):
        code_of(ToolCall(name="goto", arguments={"url": "http://localhost/"}), TOOLS)


def test_only_files_of_the_folder_for_uploads_may_be_uploaded(tmp_path: Path) -> None:
    def upload(name: str) -> str:
        arguments: JsonObject = {"bid": "3", "file": name}
        return code_of(ToolCall(name="upload_file", arguments=arguments), TOOLS, tmp_path / "uploads")

    (tmp_path / "uploads").mkdir()
    (tmp_path / "uploads" / "a.txt").write_text("a")
    (tmp_path / "secret").write_text("s")
    assert upload("a.txt").endswith(f"file=[{str(tmp_path / 'uploads' / 'a.txt')!r}])")
    for name in ("../secret", "/etc/hostname", "b.txt", str(tmp_path / "secret")):
        with pytest.raises(Refusal, match="there is no file"):
            upload(name)


@pytest.mark.parametrize("page", PAGES)
def test_every_recorded_world_has_a_right_and_a_wrong_plan_that_name_ids_of_the_page(page: str) -> None:
    found = [world for world in miniwob_worlds() if world.page == page]
    differ = 0
    for world in found:
        shown = page_of(world.observation)._replace(goal=world.instruction)
        ids = {element.bid for element in shown.elements}
        right = script(shown)
        assert right, world.instruction
        wrong = spoiled(right, shown)
        assert {str(call.arguments["bid"]) for call in (*right, *wrong)} <= ids
        differ += wrong != right
    assert differ >= len(found) - (page == "click-link")  # one page has a single link


def test_the_same_plan_is_found_in_the_state_as_on_the_page() -> None:
    same = 0
    for world in miniwob_worlds():
        page = page_of(world.observation)._replace(goal=world.instruction)
        same += script(page_of(state_of(world.observation, world.instruction))) == script(page)
    assert same / len(miniwob_worlds()) > 0.9


def test_random_play_uses_ids_of_the_page_except_for_a_few_missing_ones() -> None:
    draw = Random(0)
    world = next(world for world in miniwob_worlds() if world.page == "choose-list")
    page = page_of(world.observation)._replace(goal=world.instruction)
    calls = [drawn(page, draw) for _ in range(300)]
    off = [call for call in calls if call.arguments["bid"] not in {element.bid for element in page.elements}]
    assert 10 <= len(off) <= 60
    assert {call.name for call in calls} == {"click", "select_option"}


@pytest.mark.anyio
async def test_a_browser_that_could_not_start_is_stopped_when_its_environment_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "browsergym", None)
    before = threading.enumerate()
    environment = BrowserEnvironment(BrowserOptions(), lambda task: TaskSetup(object), settle_s=0)
    with pytest.raises(MissingPackage):
        await environment.reset(Task(id="a", env="miniwob", instruction="Click."))
    (browser,) = set(threading.enumerate()) - set(before)
    await environment.close()
    browser.join(20)
    assert not browser.is_alive()
