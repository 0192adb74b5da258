"""Learns the rules of a server that reports no state from recorded sessions.

The answer to a read is a view of the session's world. A view is known from an earlier answer of this session, or from
a recording with the same writes before it. Each write since then may have changed it. How a write changes a view is
learned from recordings of the two tools, separately for each relation of their arguments, such as a note that is
written and the note of that id that is read. A call that no recording explains is not answered.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from dreamgym.state import same
from dreamgym.types import JsonObject, ToolCall, Transition
from dreamgym.views.answers import View
from dreamgym.views.cells import KnownCells, cells_of
from dreamgym.views.edits import Edit, edits_between
from dreamgym.views.expressions import Bindings, leaves_of
from dreamgym.views.forms import Answered, CallForm, FormKey, forms_of
from dreamgym.views.listings import items_of
from dreamgym.views.patterns import pattern_of
from dreamgym.views.reads import reading_tools
from dreamgym.views.replaced import replacements
from dreamgym.views.rules import Moment, Rules, ViewChange
from dreamgym.views.session import Call, Relation, bindings_of, blamed_in, calls_of, mentions, relation_of
from dreamgym.views.sql import QUERIES, KnownDatabase, database_of, rows_in
from dreamgym.views.together import told_apart

FOLDS = 12
"""Most parts into which recordings are divided for cross-validation."""
MOST_LISTINGS = 16
"""Most recorded listings in which items are looked up."""
MOST_EDITS = 3
"""A single example with this many changes does not show which of them belong together."""
Example = tuple[View | None, View, Bindings]
"""A view before a write, the view after it, and the values of the two calls."""


@dataclass(frozen=True)
class Session:
    """A recorded session, as calls."""

    calls: list[Call]
    world: str
    """The world in which it began: the same for sessions that began alike."""


def learn(sessions: Iterable[tuple[str, Sequence[Transition]]], tools: Mapping[str, JsonObject]) -> Rules:
    """The rules that recorded sessions show.

    The rules are cross-validated: each part of the recordings is answered by the rules of the other parts. A way of
    answering that is wrong there more than once in four times is not used for that tool.

    Args:
        sessions: the world of each session, which is the same for those that began alike, and its steps from the start.
        tools: tool definitions by name.
    """
    recorded = [(world, list(steps)) for world, steps in sessions if steps]
    reads = reading_tools([steps for _, steps in recorded], tools)
    episodes = [Session(calls_of(steps, reads), world) for world, steps in recorded]
    rules = _learned(episodes, reads)
    right: Counter[tuple[str, str]] = Counter()
    wrong: Counter[tuple[str, str]] = Counter()
    folds = min(FOLDS, len(episodes))
    for fold in range(folds if folds > 1 else 0):
        others = _learned([one for i, one in enumerate(episodes) if i % folds != fold], reads)
        for episode in episodes[fold::folds]:
            for number, call in enumerate(episode.calls):
                for known in others.ways(episode.calls[:number], call.action, episode.world):
                    if call.view is not None:
                        if known.view.key() == call.view.key():
                            right[call.action.name, known.way] += 1
                        elif known.way != "form" or not call.view.is_refusal:  # forms are learned from accepted calls
                            wrong[call.action.name, known.way] += 1
                        break
    rules.doubted = frozenset(way for way, count in wrong.items() if 3 * count > right[way])
    return rules


def _learned(episodes: Sequence[Session], reads: frozenset[str]) -> Rules:
    rules = Rules(reads)
    rules.unstable = _unstable(episodes)
    for episode in episodes:
        for call in episode.calls:
            rules.arguments.setdefault(call.action.name, set()).update(call.action.arguments)
    for _ in range(2):  # effects learned in the first pass explain views after several writes in the second
        rules.known = _recorded(episodes, rules)
        rules.replaces = replacements(
            [episode.calls for episode in episodes],
            [view.value for (_, written, _), view in rules.known.items() if not written],
        )
        rules.database = _database(episodes, rules)
        rules.cells = _cells(episodes, rules)
        for pair, effects in _effects(episodes, rules).items():
            rules.effects[pair] = {**rules.effects.get(pair, {}), **effects}
    reads_at_start = {canonical: view for (_, written, canonical), view in rules.known.items() if not written}
    for episode in episodes:
        for call in episode.calls:
            view = reads_at_start.get(call.canonical)
            is_listing = view is not None and not call.is_write and len(items_of(view.value)) > 1
            if is_listing and len(rules.listings) < MOST_LISTINGS:
                rules.listings[call.canonical] = call.action
    rules.forms = _forms(episodes, rules)
    rules.refusals = _refusals(episodes)
    return rules


def _refusals(episodes: Sequence[Session]) -> dict[tuple[str, str], list[Call]]:
    """The refused calls whose refused values no write of the session made, and no other call has that was accepted."""
    found: dict[tuple[str, str], list[Call]] = defaultdict(list)
    accepted: dict[tuple[str, str], list[tuple[Bindings, Sequence[Call]]]] = defaultdict(list)
    for episode in episodes:
        for number, call in enumerate(episode.calls):
            if call.view is not None and not call.view.is_refusal:
                said = dict(leaves_of("call", call.action.arguments))
                accepted[episode.world, call.action.name].append((said, episode.calls[:number]))
    for episode in episodes:
        for number, call in enumerate(episode.calls):
            if call.view is not None and call.view.is_refusal and not call.view.blocks:
                blamed, place = blamed_in(call), (episode.world, call.action.name)
                if not _are_made(episode.calls[:number], blamed) and not _is_accepted(call, blamed, accepted[place]):
                    found[place].append(call)
    return dict(found)


def _are_made(before: Sequence[Call], values: Bindings) -> bool:
    """True if an earlier write of the session mentions one of these values."""
    return any(one.changes and mentions(one, values.values()) for one in before)


def _is_accepted(refused: Call, blamed: Bindings, accepted: Iterable[tuple[Bindings, Sequence[Call]]]) -> bool:
    """True if another call with the blamed values was not refused: then these values are not the reason."""
    own = dict(leaves_of("call", refused.action.arguments))
    return any(
        said != own
        and all(same(said.get(name), value) for name, value in blamed.items())
        and not _are_made(before, blamed)
        for said, before in accepted
    )


def _database(episodes: Sequence[Session], rules: Rules) -> KnownDatabase | None:
    if len({episode.world for episode in episodes}) > 1:
        return None  # each world has tables of its own
    start: list[tuple[ToolCall, JsonValue]] = []
    for episode in episodes:
        for call in episode.calls:
            if call.changes:
                break
            if (
                call.view is not None
                and (episode.world, (), call.canonical) in rules.known
                and not call.view.is_refusal
            ):
                start.append((call.action, call.view.value))
    calls = [call for episode in episodes for call in episode.calls]
    refusals = (call.view.observation for call in calls if call.view is not None and call.view.is_refusal)
    database = database_of([call.action for call in calls], start, refusals)
    return database and replace(database, harmless=_harmless(episodes, database))


def _harmless(episodes: Sequence[Session], database: KnownDatabase) -> dict[str, frozenset[str]]:
    """Tools that write without SQL, and the tables that recorded queries after them show as if nothing had changed."""
    beside = {call.action.name for one in episodes for call in one.calls if call.changes} - database.arguments.keys()
    trusting = replace(database, harmless=dict.fromkeys(beside, database.tables))
    right: dict[str, set[str]] = defaultdict(set)
    wrong: dict[str, set[str]] = defaultdict(set)
    for episode in episodes if beside else ():
        written: list[ToolCall] = []
        for call in episode.calls:
            others = {one.name for one in written} & beside
            if others and call.view is not None and not call.view.is_refusal and database.kind(call.action) in QUERIES:
                rows = trusting.bindings(written, call.action)[1].get(("sql", "rows"))
                for tool in others if rows is not None else ():
                    is_right = rows == rows_in(call.view.value)
                    (right if is_right else wrong)[tool] |= database.tables_read(call.action)
            if call.changes:
                written.append(call.action)
    return {tool: frozenset(tables - wrong[tool]) for tool, tables in right.items()}


def _cells(episodes: Sequence[Session], rules: Rules) -> KnownCells | None:
    if rules.database is not None or len({episode.world for episode in episodes}) > 1:
        return None
    sessions = [
        [
            (call.action, call.view.value, call.changes)
            for call in episode.calls
            if call.view and not call.view.is_refusal
        ]
        for episode in episodes
    ]
    return cells_of(sessions, rules.reads, rules.replaces)


def _unstable(episodes: Sequence[Session]) -> frozenset[str]:
    """Tools that answered the same call differently, with no write in between."""
    found: set[str] = set()
    for episode in episodes:
        said: dict[str, str] = {}
        for call in episode.calls:
            if call.changes:
                said.clear()
            elif call.view is not None and said.setdefault(call.canonical, call.view.key()) != call.view.key():
                found.add(call.action.name)
    return frozenset(found)


def _recorded(episodes: Sequence[Session], rules: Rules) -> dict[Moment, View]:
    """The answers at each moment, if the recordings agree on it.

    An answer after writes that are known not to change it also counts for the moment without any write.
    """
    found: dict[Moment, View] = {}
    disputed: set[Moment] = set()
    for episode in episodes:
        written: list[Call] = []
        for call in episode.calls:
            if call.view is not None and call.action.name not in rules.unstable:
                effects = [rules.effect(write.action, call.action) for write in written]
                moments: list[Moment] = [(episode.world, tuple(write.canonical for write in written), call.canonical)]
                if all(effect is not None and not effect.changes for effect in effects):
                    moments.append((episode.world, (), call.canonical))
                for moment in moments:
                    if found.setdefault(moment, call.view).key() != call.view.key():
                        disputed.add(moment)
            if call.changes:
                written.append(call)
    return {moment: view for moment, view in found.items() if moment not in disputed}


def _effects(episodes: Sequence[Session], rules: Rules) -> dict[tuple[str, str], dict[Relation, ViewChange | None]]:
    examples: dict[tuple[str, str], dict[Relation, list[Example]]] = defaultdict(lambda: defaultdict(list))
    for episode in episodes:
        for number, call in enumerate(episode.calls):
            if call.view is None or call.action.name in rules.unstable:
                continue
            if rules.database is not None and call.action.name in rules.database.arguments:
                continue  # the database knows better
            if rules.cells is not None and call.action.name in rules.cells.ranges:
                continue
            for write, base, new in _examples(episode.calls, number, rules, episode.world):
                bindings = bindings_of(write, call.action)
                relation = relation_of(write.action, call.action)
                if base is not None and base.key() == new.key() and _held_before(write, base):
                    continue
                examples[write.action.name, call.action.name][relation].append((base, new, bindings))
    found_effects: dict[tuple[str, str], dict[Relation, ViewChange | None]] = {}
    for pair, by_relation in examples.items():
        for relation, shown in by_relation.items():
            effect = _effect(shown, pair[1] in rules.reads, is_related=bool(relation))
            if effect is not None or all(base is not None for base, _, _ in shown):
                found_effects.setdefault(pair, {})[relation] = effect
    return found_effects


def _held_before(write: Call, view: View) -> bool:
    """True if a view shows all values of a write already before it, so that an unchanged view proves nothing."""
    held = [value for _, value in leaves_of("view", view.value)]
    values = [value for _, value in leaves_of("write", write.action.arguments) if not isinstance(value, dict | list)]
    return bool(values) and all(any(same(value, one) for one in held) for value in values)


def _examples(episode: Sequence[Call], number: int, rules: Rules, world: str) -> list[tuple[Call, View | None, View]]:
    """The writes that changed what a call answers, each with the view before and after it."""
    call = episode[number]
    canonical = call.canonical
    is_read = call.action.name in rules.reads
    last = max((i for i in range(number) if episode[i].canonical == canonical), default=-1)
    base = episode[last].view if last >= 0 and is_read else rules.known.get((world, (), canonical))
    writes = [one for one in episode[last + 1 if is_read else 0 : number] if one.changes]
    assert call.view is not None
    if not is_read:
        related = [one for one in writes if relation_of(one.action, call.action)]
        return [(related[-1], None, call.view)] if related else []
    effects = [rules.effect(write.action, call.action) for write in writes] if len(writes) > 1 else [None] * len(writes)
    unknown = [i for i, effect in enumerate(effects) if effect is None]
    if len(unknown) == len(writes) > 1 and base is not None:
        return list(told_apart(writes, call.action, base, call.view))
    if len(unknown) != 1:
        return []
    for write, effect in zip(writes[: unknown[0]], effects, strict=False):
        if effect is not None:
            base = effect.apply(base, bindings_of(write, call.action))
    if any(effect is not None and effect.changes for effect in effects[unknown[0] + 1 :]):
        return []
    return [(writes[unknown[0]], base, call.view)]


def _effect(examples: Sequence[Example], is_read: bool, *, is_related: bool) -> ViewChange | None:
    """The effect that all examples show; None if they disagree, or show too little."""
    same_as_before = [base is not None and base.key() == new.key() for base, new, _ in examples]
    if all(same_as_before):
        return ViewChange(changes=False)
    if any(same_as_before) or any(new.blocks for _, new, _ in examples):
        return None
    count = len({repr(bindings) for _, _, bindings in examples})
    like = examples[0][1]
    alike = all(type(new.style) is type(like.style) and new.is_error == like.is_error for _, new, _ in examples)
    pattern = pattern_of([(new.said, bindings) for _, new, bindings in examples]) if alike else None
    if pattern is not None:
        is_of_write = any(name[0] in {"write", "said"} for name in pattern.names)
        pattern = pattern if is_of_write or (is_related and like.is_refusal) else None
    whole = ViewChange(True, pattern=pattern, like=like) if pattern is not None else None
    if whole is not None and pattern is not None and (is_read or not like.is_refusal):
        whole = None if count == 1 and pattern.is_guess else whole
    is_based = all(base is not None and type(base.style) is type(new.style) for base, new, _ in examples)
    edits = None
    if is_based:
        edits = _unified_edits([(base.value, new.value, bindings) for base, new, bindings in examples if base])
    if any(edit.may_add for edit in edits or ()):
        whole = None
    if whole is not None and pattern is not None and not pattern.constants:
        return whole
    if is_based:
        is_shown = count > 1 or not any(_is_guess(edit) for edit in edits or ())
        if edits and is_shown and (count > 1 or len(edits) < MOST_EDITS):
            return ViewChange(True, edits=edits)
    return whole


def _is_guess(edit: Edit) -> bool:
    return edit.is_guess or any(pattern.is_guess for pattern in edit.patterns)


def _unified_edits(examples: Sequence[tuple[JsonValue, JsonValue, Bindings]]) -> tuple[Edit, ...] | None:
    found: tuple[Edit, ...] | None = None
    for base, new, bindings in examples:
        edits = edits_between(base, new, bindings)
        if edits is None:
            return None
        if found is None:
            found = edits
            continue
        if len(edits) != len(found):
            return None
        both = [one.unified(two) for one, two in zip(found, edits, strict=True)]
        if any(edit is None for edit in both):
            return None
        found = tuple(edit for edit in both if edit is not None)
    return found


def _forms(episodes: Sequence[Session], rules: Rules) -> dict[FormKey, CallForm]:
    examples: dict[FormKey, list[Answered]] = defaultdict(list)
    calls = (call for episode in episodes for call in episode.calls)
    with_blocks = {call.action.name for call in calls if call.view is not None and call.view.blocks}
    for episode in episodes:
        for number, call in enumerate(episode.calls):
            if call.view is not None and call.action.name not in with_blocks:
                kind, bindings = rules.own_bindings(episode.calls[:number], call.action, episode.world)
                if kind or not call.view.is_refusal:
                    examples[call.action.name, frozenset(call.action.arguments), kind].append(
                        Answered(call.view, bindings, call.canonical, episode.world)
                    )
    return forms_of(examples, rules.reads)
