"""The page of the study: tables per server and for all servers, and every wrong answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from textwrap import shorten

from facts import Told, recall
from judged import Counts, Judged, counts, repeats
from public_server import Kind

from dreamgym.evaluation.calls import Compared
from dreamgym.evaluation.rates import Rate, shares, wilson
from dreamgym.evaluation.steps import StepFidelity
from dreamgym.types import Frozen, StepResult

REAL = "the real server"
ALL = "all"
SHOWN = 160
"""Most characters of a call or an answer."""

SESSION_HEAD = (
    "server | against | calls | answered | errors agree | exact | wrong | similarity | read after write | "
    "sequences with a wrong answer | repeats alike | with no write in between | valid calls refused | "
    "refusals refused | answered by"
)
CHECK_HEAD = "server | against | calls | answered | errors agree | exact | wrong | similarity"
FACTS_HEAD = "server | facts, new sessions | calls with all of them | facts, held-out calls | calls with all of them"
DESK_HEAD = "model | calls | answered | state right | answer exact | wrong state or answer"


class Cell(Frozen):
    """One server under one model."""

    server: str
    model: str
    sessions: tuple[Judged, ...]
    held_out: tuple[Judged, ...]


class Helpdesk(Frozen):
    """Measures of the helpdesk's held-out calls, each predicted after the recorded calls before it."""

    model: str
    calls: int
    answered: Rate
    state: Rate
    """Share of calls after which the whole state is the recorded one; a call without an answer counts as wrong."""
    exact: Rate
    wrong: Rate
    """Share of calls that are answered, but with another state or another answer."""

    @classmethod
    def of(cls, model: str, steps: StepFidelity, calls: Sequence[Compared]) -> Helpdesk:
        wrong = sum(call.got is not None and not (call.exact and call.state_is_exact) for call in calls)
        return cls(
            model=model,
            calls=len(calls),
            answered=steps.answered,
            state=steps.state["all"].exact,
            exact=steps.observation,
            wrong=wilson(wrong, len(calls)),
        )


def page(
    cells: Sequence[Cell],
    desks: Sequence[Helpdesk],
    prompts: Mapping[str, tuple[Sequence[Told], Sequence[Told]]],
    packages: Mapping[str, str],
) -> str:
    """The whole page as Markdown."""
    return "\n".join(_lines(cells, desks, prompts, packages)) + "\n"


def _lines(
    cells: Sequence[Cell],
    desks: Sequence[Helpdesk],
    prompts: Mapping[str, tuple[Sequence[Told], Sequence[Told]]],
    packages: Mapping[str, str],
) -> Iterator[str]:
    yield (
        "Ten recorded episodes ground each dream; how it is measured: "
        "[`measure.py`](../../benchmarks/studies/strangers/measure.py)."
    )
    yield (
        "In brackets 95 % intervals (Wilson). Servers: " + "; ".join(f"`{n}` is {p}" for n, p in packages.items()) + "."
    )
    yield ""
    yield "## New sessions"
    yield ""
    yield (
        "Nothing in them was recorded, and the dream goes on from its own answers. *Wrong*: another answer than the "
        "real one; a call without an answer is not wrong. After a write without one dream and reality are two worlds, "
        "since the agent is told that it had no effect: the calls after it count as not answered. What differs between "
        "two real plays may be anything, but for "
        f"the row of {REAL} in its second play. *Read after write*: sequences in which every read is exact."
    )
    yield ""
    yield from _table(SESSION_HEAD, (_session_row(*row) for row in _pooled(cells, held_out=False)))
    yield ""
    yield "## Held-out recorded calls"
    yield ""
    yield "As `dreamgym check --held-out 0.4` compares them, each after what was recorded before it."
    yield ""
    yield from _table(CHECK_HEAD, (_check_row(*row) for row in _pooled(cells, held_out=True)))
    yield ""
    yield "## Facts in the prompt of a language model"
    yield ""
    yield (
        "A fact is a word of the real answer that is not in the call. It is there if the prompt that a language model "
        "would get holds it anywhere; the real answers so far are in that prompt too. Calls that need no model are "
        "left out."
    )
    yield ""
    told = {**prompts, ALL: tuple([one for pair in prompts.values() for one in pair[part]] for part in (0, 1))}
    yield from _table(FACTS_HEAD, (_facts_row(name, *both) for name, both in told.items()))
    yield ""
    yield "## Helpdesk"
    yield ""
    yield "Measured as [its own page](helpdesk.md) has it: each call after what was recorded before it."
    yield ""
    yield from _table(DESK_HEAD, map(_desk_row, desks))
    yield ""
    yield "## Told by a clock or by chance"
    yield ""
    yield from _varying(cells)
    yield ""
    yield "## Repeats that are not alike"
    yield ""
    yield (
        "Reads that the real server answered as before, and the dream did not. After a write whose effect on the read "
        "no recording shows there is no answer, on purpose: the one from before would often be wrong."
    )
    yield ""
    yield from _not_alike(cells)
    yield ""
    yield "## Wrong answers"
    for cell in cells:
        if cell.model != REAL:
            yield from _wrong(cell)


def _pooled(cells: Sequence[Cell], *, held_out: bool) -> Iterator[tuple[str, str, Counts]]:
    """Counts of each server under each model, and then of all servers under each model."""

    def calls(cell: Cell) -> tuple[Judged, ...]:
        return cell.held_out if held_out else cell.sessions

    for name in dict.fromkeys(cell.server for cell in cells):
        yield from ((name, cell.model, counts(calls(cell))) for cell in cells if cell.server == name)
    for model in dict.fromkeys(cell.model for cell in cells):
        yield ALL, model, counts([call for cell in cells if cell.model == model for call in calls(cell)])


def _session_row(server: str, model: str, got: Counts) -> list[str]:
    return [
        *_check_row(server, model, got),
        *map(_rate, (got.sequences, got.misleading, got.repeats, got.undisturbed, got.false_refusals, got.refusals)),
        shares(got.tiers) if model != REAL else "",
    ]


def _check_row(server: str, model: str, got: Counts) -> list[str]:
    rates = (got.answered, got.errors, got.exact, got.wrong)
    return [server, model, str(got.calls), *map(_rate, rates), f"{got.similarity.mean:.2f}"]


def _facts_row(name: str, sessions: Sequence[Told], held_out: Sequence[Told]) -> list[str]:
    return [name, *(_rate(rate) for part in (recall(sessions), recall(held_out)) for rate in (part.facts, part.calls))]


def _desk_row(desk: Helpdesk) -> list[str]:
    return [desk.model, str(desk.calls), *map(_rate, (desk.answered, desk.state, desk.exact, desk.wrong))]


def _rate(rate: Rate) -> str:
    if not rate.n:
        return ""
    return (
        f"{rate.mean * rate.n:.0f} of {rate.n}, {100 * rate.mean:.0f} % [{100 * rate.low:.0f}, {100 * rate.high:.0f}]"
    )


def _table(head: str, rows: Iterator[list[str]]) -> Iterator[str]:
    yield f"| {head} |"
    yield "|---" * len(head.split(" | ")) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _varying(cells: Sequence[Cell]) -> Iterator[str]:
    """Lines about the calls that a second real play answers differently."""
    found = [
        call for cell in cells if cell.model == REAL for call in (*cell.sessions, *cell.held_out) if not call.exact
    ]
    if not found:
        yield "Nothing: the second real play answered every call as the first."
    for call in found:
        yield f"- {_call(call)}: {_said(call.real)} and then {_said(call.got)}"


def _not_alike(cells: Sequence[Cell]) -> Iterator[str]:
    found = [
        (cell, repeat)
        for cell in cells
        for _, session in groupby(cell.sessions, key=lambda call: call.session)
        for repeat in repeats(list(session))
        if repeat.call.kind is Kind.REPEATED_READS and not repeat.is_alike
    ]
    if not found:
        yield "None."
    for cell, repeat in found:
        between = f" after `{repeat.writes[-1].action.name}`" if repeat.writes else ""
        said = (
            "no answer" if repeat.call.got is None else f"{_said(repeat.call.got)}, before {_said(repeat.before.got)}"
        )
        yield f"- {cell.server}, {cell.model}, {_call(repeat.call)}{between}: {said}"


def _wrong(cell: Cell) -> Iterator[str]:
    wrong = [call for call in (*cell.sessions, *cell.held_out) if call.wrong]
    yield ""
    yield f"### {cell.server}, {cell.model}: {len(wrong)} of {len(cell.sessions) + len(cell.held_out)}"
    yield ""
    for call in wrong:
        yield f"- {_call(call)}"
        yield f"  - real: {_said(call.real)}"
        yield f"  - {call.tier}: {_said(call.got)}"


def _call(call: Judged) -> str:
    place = f"{call.session.removeprefix(f'{call.server}-')} {call.step}"
    return f"{place}: {_code(f'{call.action.name} {json.dumps(call.action.arguments, ensure_ascii=False)}')}"


def _said(result: StepResult | None) -> str:
    if result is None:
        return "nothing"
    return f"{'error ' if result.is_error else ''}{_code(result.observation)}"


def _code(text: str) -> str:
    return f"`{shorten(text.replace('`', ' '), SHOWN, placeholder=' …')}`"
