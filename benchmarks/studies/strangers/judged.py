"""Calls of a session answered in a dream, compared with the real answers, and rates over many such calls.

What differs between two real plays depends on the clock or on chance, and may be anything in the dream's answer. All
else must be equal; JSON is compared as JSON.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher
from itertools import groupby

from public_server import Kind

from dreamgym.evaluation.calls import is_same, similarity
from dreamgym.evaluation.rates import Rate, wilson
from dreamgym.types import Frozen, StepResult, ToolCall

_TOKEN = re.compile(r"[\w:.+-]+|\s+|.")


class Judged(Frozen):
    """One call and its answers."""

    server: str
    session: str
    kind: Kind | None = None
    """Kind of the session; None for a recorded episode that is held out."""
    step: int
    """Counted from 1."""
    action: ToolCall
    is_read: bool
    real: StepResult
    again: StepResult | None = None
    """The real answer of a second play, if it differs."""
    got: StepResult | None = None
    """The dream's answer; None if it has none."""
    failure: str | None = None
    """Why the dream has no answer."""
    tier: str | None = None
    """The tier that answered in the dream."""
    is_accepted: bool
    """True if the real server accepts the call; a refusal in ordinary text counts as a refusal."""
    is_refused: bool
    """True if the dream refuses the call, with the error flag or in the words of the server's refusals."""

    @property
    def exact(self) -> bool:
        return self.got is not None and is_like(self.got, self.real, self.again)

    @property
    def wrong(self) -> bool:
        """True if there is an answer, and it is not the real one."""
        return self.got is not None and not self.exact

    @property
    def falsely_refused(self) -> bool:
        return self.is_accepted and self.is_refused

    @property
    def errors_agree(self) -> bool:
        return self.got is not None and self.got.is_error == self.real.is_error

    @property
    def similarity(self) -> float:
        """Between 0 and 1; 0 without an answer."""
        if self.got is None:
            return 0.0
        return 1.0 if self.exact else similarity(self.real, self.got)


class Counts(Frozen):
    """Rates over the calls of some sessions. Without reads after writes, or repeats, their rates have n = 0."""

    calls: int
    answered: Rate
    errors: Rate
    exact: Rate
    similarity: Rate
    wrong: Rate
    """Share of all calls that are answered, and answered wrongly."""
    sequences: Rate
    """Read-after-write sequences in which every read is exact."""
    misleading: Rate
    """Read-after-write sequences with any wrong answer."""
    repeats: Rate
    """Share of the repeats that the dream answered as before, among those that the real server answered as before. A
    repeat is not counted if the dream had no answer either time."""
    undisturbed: Rate
    """Share as in `repeats`, over the repeats with no accepted write in between."""
    false_refusals: Rate
    """Share of the calls accepted by the real server that the dream refuses."""
    refusals: Rate
    """Share of the calls refused by the real server that the dream refuses."""
    tiers: dict[str, int]


def counts(calls: Sequence[Judged]) -> Counts:
    """Rates over calls. The calls of a session (server and name) must follow one another, in their order."""
    sequences = [list(group) for _, group in groupby(calls, key=lambda call: (call.server, call.session))]
    written = [one for one in sequences if one[0].kind is Kind.READ_AFTER_WRITE]
    repeated = [repeat for one in sequences if one[0].kind is Kind.REPEATED_READS for repeat in repeats(one)]
    undisturbed = [one.is_alike for one in repeated if not one.writes]
    accepted = [call for call in calls if call.is_accepted]
    refused = [call for call in calls if not call.is_accepted]
    return Counts(
        calls=len(calls),
        answered=_share(calls, lambda call: call.got is not None),
        errors=_share(calls, lambda call: call.errors_agree),
        exact=_share(calls, lambda call: call.exact),
        similarity=wilson(sum(call.similarity for call in calls), len(calls)),
        wrong=_share(calls, lambda call: call.wrong),
        sequences=wilson(sum(all(call.exact for call in one if call.is_read) for one in written), len(written)),
        misleading=wilson(sum(any(call.wrong for call in one) for one in written), len(written)),
        repeats=wilson(sum(one.is_alike for one in repeated), len(repeated)),
        undisturbed=wilson(sum(undisturbed), len(undisturbed)),
        false_refusals=_share(accepted, lambda call: call.falsely_refused),
        refusals=_share(refused, lambda call: call.is_refused),
        tiers=dict(Counter(call.tier or "no answer" for call in calls)),
    )


def is_like(got: StepResult, real: StepResult, again: StepResult | None) -> bool:
    """True if an answer is the real one, except for what differs between two real plays."""
    if is_same(got, real):
        return True
    if again is None or got.is_error != real.is_error:
        return False
    return all(
        re.fullmatch(_pattern(one, other), mine, re.DOTALL) is not None
        for one, other, mine in zip(_texts(real), _texts(again), _texts(got), strict=True)
    )


def varying(real: StepResult, again: StepResult) -> set[str]:
    """The words that differ between two real plays."""
    one, other = (set(_TOKEN.findall(" ".join(_texts(result)))) for result in (real, again))
    return one ^ other


def _pattern(one: str, other: str) -> str:
    """A regular expression for what two texts have in common, with anything in the place of what differs."""
    first, second = _TOKEN.findall(one), _TOKEN.findall(other)
    parts = []
    for kind, begin, end, _, _ in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        parts.append(re.escape("".join(first[begin:end])) if kind == "equal" else r"[\w:.+-]*")
    return "".join(parts)


def _texts(result: StepResult) -> tuple[str, str]:
    """The observation and the structured content, with JSON in one fixed form."""
    try:
        observation = json.dumps(json.loads(result.observation), sort_keys=True)
    except ValueError:
        observation = result.observation
    return observation, json.dumps(result.structured, sort_keys=True)


class Repeat(Frozen):
    """A call that the real server answered as it had answered the same call before."""

    call: Judged
    before: Judged
    writes: tuple[Judged, ...]
    """Accepted writes between the two."""

    @property
    def is_alike(self) -> bool:
        """True if the dream answered as before, too."""
        return self.call.got is not None and self.before.got is not None and is_same(self.call.got, self.before.got)


def repeats(session: Sequence[Judged]) -> Iterable[Repeat]:
    """The repeats of a session that the dream answered at least once."""
    for number, call in enumerate(session):
        earlier = [
            place
            for place, one in enumerate(session[:number])
            if one.action == call.action and is_like(call.real, one.real, one.again)
        ]
        if earlier and (call.got is not None or session[earlier[-1]].got is not None):
            between = session[earlier[-1] + 1 : number]
            writes = tuple(one for one in between if not one.is_read and one.is_accepted)
            yield Repeat(call=call, before=session[earlier[-1]], writes=writes)


def _share(calls: Sequence[Judged], holds: Callable[[Judged], bool]) -> Rate:
    return wilson(sum(map(holds, calls)), len(calls))
