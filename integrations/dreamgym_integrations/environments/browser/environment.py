"""One browser as an environment, through BrowserGym: the page as its accessibility tree, actions by the elements' ids.

An impossible action is answered with BrowserGym's own error and the page as it is, and the episode goes on. A browser
that dies, or a page that cannot be read, ends only that episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dreamgym.errors import DreamGymError, EnvironmentUnavailable, EpisodeFinished, InvalidInput
from dreamgym.types import JsonObject, StepResult, Task, ToolCall
from dreamgym_integrations.environments.browser import BrowserOptions
from dreamgym_integrations.environments.browser.actions import Refusal, admissible, code_of
from dreamgym_integrations.environments.browser.chromium import Browser, browsers
from dreamgym_integrations.environments.browser.state import state_of
from dreamgym_integrations.environments.browser.tree import page_of, without_layout

HIDDEN_PROPERTIES = ("editable", "readonly", "level", "settable", "multiline", "invalid", "focusable", "describedby")
HIDDEN_ROLES = ("LineBreak", "InlineTextBox")


@dataclass(frozen=True)
class TaskSetup:
    """How BrowserGym plays one task."""

    task: Callable[..., object]
    """BrowserGym's task, called with the seed and the arguments."""
    arguments: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0
    goal: str | None = None
    """The instruction that the task must have; a different one means that another version is installed."""


class BrowserEnvironment:
    """Plays one page at a time, in a browser that nobody else uses. The task fixes the world; `seed` is ignored.

    Args:
        options: options of the environment folder.
        world_of: returns how BrowserGym plays a task.
        settle_s: how long to wait after an action before the page is read, unless the options set it.
        shows_addresses: True if the agent reads the addresses of links.
    """

    def __init__(
        self,
        options: BrowserOptions,
        world_of: Callable[[Task], TaskSetup],
        *,
        settle_s: float,
        shows_addresses: bool = False,
    ) -> None:
        self.tools = options.tools
        self.options, self._world_of, self._shows_addresses = options, world_of, shows_addresses
        self._settle_s = settle_s if options.settle_s is None else options.settle_s
        self._browser: Browser | None = None
        self._task: Task | None = None

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        """Open the task's page.

        Raises:
            InvalidInput: the installed task differs from its description.
            EnvironmentUnavailable: the page or the browser does not open.
        """
        world = self._world_of(task)
        self._task = None
        browser = self._browser = self._browser or browsers.take()
        played = await self._call(lambda: _open(browser, world, self._settle_s))
        self._task = task if task.instruction else task.model_copy(update={"instruction": str(played.seen["goal"])})
        start = self._result(played)
        # as in a dream, whose first observation is the state: players that read only observations find the goal there
        return start.model_copy(update={"observation": f"goal: {self._task.instruction!r}\n{start.observation}"})

    async def step(self, action: ToolCall) -> StepResult:
        browser = self._browser
        if self._task is None or browser is None:
            raise EpisodeFinished("the episode is over or was never started: reset starts one")
        refused = ""
        try:
            code = code_of(action, self.tools, self.options.uploads)
        except Refusal as refusal:
            code, refused = "noop(wait_ms=0)", str(refusal)
        result = self._result(await self._call(lambda: _act(browser, code)), refused)
        if result.done:
            self._task = None
        return result

    async def close(self) -> None:
        """Close the page and hand the browser back."""
        browser, self._browser, self._task = self._browser, None, None
        if browser is not None:
            try:
                await browser.call(lambda: _shut(browser), self.options.timeout_s)
            except DreamGymError:  # it hangs, or has never started
                browser.stop()
            except BaseException:  # nobody waits for it any more
                browser.stop()
                raise
            else:
                browsers.give_back(browser)

    async def _call(self, work: Callable[[], _Played]) -> _Played:
        assert self._browser is not None
        try:
            return await self._browser.call(work, self.options.timeout_s)
        except InvalidInput:
            self._task = None
            raise
        except EnvironmentUnavailable:
            self._discard()
            raise
        except Exception as error:  # whatever BrowserGym and Playwright raise, this episode cannot go on
            self._discard()
            raise EnvironmentUnavailable(
                f"the browser failed: {_first_line(error)}; reset opens another one"
            ) from error

    def _discard(self) -> None:
        """Stop using the browser, without waiting for it: it may hang."""
        browser, self._browser, self._task = self._browser, None, None
        if browser is not None:
            browser.stop()

    def _result(self, played: _Played, refusal: str = "") -> StepResult:
        assert self._task is not None
        tree = _tree(played.seen, self._shows_addresses)
        fault = refusal or _first_line(played.seen["last_action_error"])
        info: JsonObject = {
            "state": state_of(tree, self._task.instruction),
            "admissible": list(admissible(page_of(tree))),
        }
        reward = played.reward
        if isinstance(raw := played.info.get("RAW_REWARD_GLOBAL"), int | float):
            # MiniWoB's own binary reward; BrowserGym's counts a partly right page as a success
            reward = float(raw == 1)
            info["raw_reward"] = float(raw)
        is_open = played.terminated and bool(played.info.get("unjudged"))  # it is over, but its worth is unknown
        if is_open:
            info["open_end"] = True
        return StepResult(
            observation=f"{fault}\n{tree}" if fault else tree,
            reward=reward if played.terminated else 0.0,
            terminated=played.terminated and not is_open,
            truncated=is_open,
            is_error=bool(fault),
            info=info,
        )


@dataclass(frozen=True)
class _Played:
    """BrowserGym's answer to a reset or a step."""

    seen: Mapping[str, Any]
    reward: float = 0.0
    terminated: bool = False
    info: Mapping[str, object] = field(default_factory=dict)


def _open(browser: Browser, world: TaskSetup, settle_s: float) -> _Played:
    """Open the task's page. Runs in the browser's thread, like `_act` and `_shut`."""
    from browsergym.core.env import BrowserEnv

    _shut(browser)
    browser.page = BrowserEnv(
        world.task,
        task_kwargs=dict(world.arguments),
        pre_observation_delay=settle_s,
        action_mapping=lambda code: f"{_functions()}\n{code}",
    )
    seen, _ = browser.page.reset(seed=world.seed)
    if world.goal is not None and seen["goal"] != world.goal:
        raise InvalidInput(f"the installed task has the goal {seen['goal']!r}, but its description has {world.goal!r}")
    return _Played(seen)


def _act(browser: Browser, code: str) -> _Played:
    seen, reward, terminated, _, info = browser.page.step(code)
    return _Played(seen, float(reward), bool(terminated), info.get("task_info") or {})


def _shut(browser: Browser) -> None:
    page, browser.page = browser.page, None
    if page is not None:
        try:
            page.close()
        except Exception as error:  # noqa: BLE001 a browser that died is closed; the next page gets another
            del error


@cache
def _functions() -> str:
    """Source of BrowserGym's own functions, which the code of an action calls."""
    from browsergym.core.action.highlevel import HighLevelActionSet

    functions: str = HighLevelActionSet(subsets=["chat", "bid", "nav", "tab"], demo_mode="off").python_includes
    return functions


def _tree(seen: Mapping[str, Any], shows_addresses: bool) -> str:
    from browsergym.utils.obs import flatten_axtree_to_str

    hidden = HIDDEN_PROPERTIES if shows_addresses else (*HIDDEN_PROPERTIES, "url")
    tree = flatten_axtree_to_str(
        seen["axtree_object"],
        extra_properties=seen["extra_element_properties"],
        with_clickable=True,
        skip_generic=False,
        ignored_roles=HIDDEN_ROLES,
        ignored_properties=hidden,
    )
    tabs = [
        f"tab {place}: {title!r}{', open' if place == seen['active_page_index'][0] else ''}"
        for place, title in enumerate(seen["open_pages_titles"])
    ]
    return "\n".join([*(tabs if len(tabs) > 1 else ()), without_layout(tree)])


def _first_line(error: Exception | str) -> str:
    """The reason without the log of the attempts, which differs from run to run."""
    text = str(error).strip().split("\n", 1)[0]
    return text if isinstance(error, str) else f"{type(error).__name__}: {text}"
