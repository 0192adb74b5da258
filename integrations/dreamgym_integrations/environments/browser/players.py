"""Ways to play the pages of MiniWoB without a language model: right, deliberately wrong, and anything in between.

They read only what an agent reads, so they play in a simulation as well as in the real browser: the instruction is the
first line of what they see at the start. On the sites of WebArena there is no script; there they act at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random

from dreamgym.environment import Behaviour, Environment
from dreamgym.types import StepResult, ToolCall
from dreamgym_integrations.environments.base import graded
from dreamgym_integrations.environments.browser.scripts import click, fill, script
from dreamgym_integrations.environments.browser.tree import FIELDS, Element, Page, page_of

WORDS = ("hello", "12", "test")
BAD_ID_SHARE = 0.1
"""Share of random actions with an id that is not on the page."""


def spoiled(plan: Sequence[ToolCall], page: Page) -> list[ToolCall]:
    """The plan with one thing done wrong, as early as possible."""
    used = {str(call.arguments["bid"]) for call in plan}
    by_id = {element.bid: element for element in page.elements}
    for place, call in enumerate(plan):
        wrong: ToolCall | None = None
        if call.name == "fill":
            wrong = fill(str(call.arguments["bid"]), _other_text(str(call.arguments["value"])))
        elif call.name == "select_option":
            wrong = _other_option(call, page)
        elif element := by_id.get(str(call.arguments["bid"])):
            wrong = _other_click(element, page, used)
        if wrong is not None:
            return [*plan[:place], wrong, *plan[place + 1 :]]
    if len(plan) > 1:
        return [plan[-1], *plan[:-1]] if len(plan) == 2 else list(plan[1:])
    others = [element for element in page.elements if element.bid not in used]
    others.sort(key=lambda element: (not element.is_interactive, element.role in FIELDS))
    return [*(click(element.bid) for element in others[:1]), *plan]


def _other_text(value: str) -> str:
    """Another text of the same form: a date stays a date."""
    digit = next((place for place in reversed(range(len(value))) if value[place].isdigit()), None)
    if digit is None:
        return f"{value[::-1]}x"
    return f"{value[:digit]}{'1' if value[digit] != '1' else '2'}{value[digit + 1 :]}"


def _other_option(call: ToolCall, page: Page) -> ToolCall | None:
    names = [element.name for element in page.elements if element.role == "option"]
    other = next((name for name in names if name != call.arguments["options"]), None)
    return None if other is None else call.model_copy(update={"arguments": {**call.arguments, "options": other}})


def _other_click(element: Element, page: Page, used: set[str]) -> ToolCall | None:
    """A click on another element of the same role; None if there is none, or if this one only submits the form."""
    if element.name.lower() in {"submit", "login"}:
        return None
    alike = [
        other
        for other in page.elements
        if other.role == element.role and other.bid not in used and other.is_interactive
    ]
    alike = [other for other in alike if other.name != element.name] or alike
    alike = [other for other in alike if other.name.lower() != "submit"] or alike
    return click(alike[0].bid) if alike else None


def drawn(page: Page, random: Random) -> ToolCall:
    """A random action on the page."""
    usable = [element for element in page.elements if element.is_interactive]
    if not usable or random.random() < BAD_ID_SHARE:
        return click(str(random.randrange(900, 1000)))
    element = random.choice(usable)
    options = [option.name for option in page.elements if option.role == "option" and option.name]
    if element.role == "combobox" and options:
        return ToolCall(name="select_option", arguments={"bid": element.bid, "options": random.choice(options)})
    if element.role in FIELDS and random.random() < 0.7:
        return fill(element.bid, random.choice([*WORDS, *page.goal.replace('"', " ").replace(".", " ").split()]))
    return click(element.bid)


async def play(start: StepResult, environment: Environment, random: Random, right: float, slips: float) -> None:
    """Play to the end.

    Args:
        start: result of `reset`.
        environment: where to play.
        random: source of all draws.
        right: the probability that the plan is the right one; else it is a wrong one.
        slips: the probability that a step is a random action instead of the plan's.
    """
    page = page_of(start.observation)
    plan = script(page)
    if random.random() >= right:
        plan = spoiled(plan, page) if plan else plan
    steps: Iterator[ToolCall] = iter(plan)
    result = start
    while not result.done:
        planned = None if random.random() < slips else next(steps, None)
        result = await environment.step(planned or drawn(page_of(result.observation)._replace(goal=page.goal), random))


async def mixed(start: StepResult, environment: Environment, seed: int) -> None:
    """Play between bad and good. A simulator should be built from recordings of it."""
    random = Random(seed)
    await play(start, environment, random, right=0.6, slips=random.choice((0.0, 0.2, 0.4, 1.0)))


BEHAVIOURS: Mapping[str, Behaviour] = {
    "expert": graded(play, 1.0),
    "wrong": graded(play, 0.0),  # nearly what the page asks for: another button, another text
    "random": graded(play, 0.0, 1.0),
    "mixed": mixed,
}
