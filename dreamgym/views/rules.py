"""The learned rules of a server, and the answers that they give to the next call of a session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from dreamgym.state import same
from dreamgym.types import ToolCall
from dreamgym.views.answers import View
from dreamgym.views.cells import KnownCells
from dreamgym.views.edits import Edit
from dreamgym.views.expressions import WORLDS, Bindings, ValueName, is_int, leaves_of
from dreamgym.views.forms import ABSENT, THERE, CallForm, FormKey
from dreamgym.views.listings import bindings_from, identified, is_of
from dreamgym.views.patterns import Pattern
from dreamgym.views.replaced import Replacement, count_in
from dreamgym.views.session import Call, Relation, arguments_of, bindings_of, blamed_in, mentions, relation_of
from dreamgym.views.sql import KnownDatabase

Moment = tuple[str, tuple[str, ...], str]
"""A world, the calls of a session that may have changed it, in their order, and the call that is answered then."""

COUNTED = frozenset({"known", "seen"})
"""Sources of values that count the tool's earlier calls."""


@dataclass(frozen=True)
class ViewChange:
    """The effect of a write on the view of a read."""

    changes: bool
    pattern: Pattern | None = None
    """The pattern of the whole answer, which follows from the two calls."""
    edits: tuple[Edit, ...] | None = None
    like: View | None = None
    """An answer of the kind that `pattern` makes."""
    replaced: tuple[Replacement, ToolCall] | None = None
    """A write that replaces a text wherever it occurs."""

    def apply(self, view: View | None, bindings: Bindings) -> View | None:
        """The view after the write; None if it is not known."""
        if not self.changes:
            return view
        try:
            if self.replaced is not None and view is not None and not view.blocks:
                replacement, write = self.replaced
                return view.with_value(replacement.within(view.value, write))
            if self.pattern is not None and self.like is not None:
                return self.like.saying(self.pattern.evaluate(bindings))
            if self.edits is None or view is None or view.blocks:
                return None
            value = view.value
            for edit in self.edits:
                value = edit.apply(value, bindings)
            return view.with_value(value)
        except ValueError:
            return None


@dataclass(frozen=True)
class KnownAnswer:
    """An answer, and how it came about."""

    view: View
    way: str
    """`repeated`: from earlier in this session. `recorded`: from a recording with the same writes before it. `effect`:
    a view that writes change. `refusal`: from a refused call with the same refused arguments. `form`: from the call."""


@dataclass
class Rules:
    """The rules that were learned for one server."""

    reads: frozenset[str]
    known: dict[Moment, View] = field(default_factory=dict)
    """Recorded answers, by the writes before them."""
    unstable: frozenset[str] = frozenset()
    """Tools that answer the same call differently with no write in between."""
    effects: dict[tuple[str, str], dict[Relation, ViewChange | None]] = field(default_factory=dict)
    """Effects by the tool that writes, the tool whose answer changes, and the relation of their arguments. None: the
    recordings disagree."""
    forms: dict[FormKey, CallForm] = field(default_factory=dict)
    """How the answers of a tool follow from the call alone."""
    database: KnownDatabase | None = None
    """The tables of a server that takes SQL."""
    cells: KnownCells | None = None
    """The sheets of a server whose tools name cells."""
    replaces: Mapping[str, Replacement] = field(default_factory=dict)
    """Tools that replace one text by another."""
    listings: dict[str, ToolCall] = field(default_factory=dict)
    """Recorded reads that list items, by their canonical text."""
    arguments: dict[str, set[str]] = field(default_factory=dict)
    """The names of all arguments that recorded calls of a tool have."""
    refusals: dict[tuple[str, str], list[Call]] = field(default_factory=dict)
    """Refused calls, by their world and tool."""
    doubted: frozenset[tuple[str, str]] = frozenset()
    """Tools and ways of answering that were wrong too often on recordings that they were not learned from."""

    def answer(self, history: Sequence[Call], action: ToolCall, world: str = "") -> KnownAnswer | None:
        """The answer to a session's next call; None if the recordings do not show it.

        Args:
            history: the session's calls, with their answers.
            action: the next call.
            world: the world in which the session began. Only recordings that began there show what it contains.
        """
        known = (one for one in self.ways(history, action, world) if (action.name, one.way) not in self.doubted)
        return next(known, None)

    def ways(self, history: Sequence[Call], action: ToolCall, world: str) -> Iterator[KnownAnswer]:
        """Every possible answer, the most certain first."""
        return (known for known in self._tried(history, action, world) if known is not None)

    def _tried(self, history: Sequence[Call], action: ToolCall, world: str) -> Iterator[KnownAnswer | None]:
        form = self._form_of(history, action, world)[0]
        sources = {name[0] for name in form.pattern.names} if form is not None else set()
        if action.name in self.unstable or sources & COUNTED:
            yield self._form(history, action, world)
            return
        canonical = action.canonical()
        is_read = action.name in self.reads
        last = max((i for i, call in enumerate(history) if call.canonical == canonical), default=-1)
        earlier = history[last].view if last >= 0 else None
        if earlier is not None and (is_read or earlier.is_refusal) and not any(c.changes for c in history[last + 1 :]):
            yield KnownAnswer(earlier, "repeated")
            return
        if self.database is not None:
            known = self._form(history, action, world, only_sql=True)
            yield known
            if known is None and action.name in self.database.arguments:
                return
        elif sources & WORLDS:
            yield self._refusal(history, action, world)
            yield self._form(history, action, world)
            return
        written = [number for number, call in enumerate(history) if call.changes]
        if is_read:
            yield self._changed(history, written, last, action, world)
        else:
            recorded = self.known.get((world, _texts(history, written), canonical))
            if recorded is not None:
                yield KnownAnswer(recorded, "recorded")
            if action.name not in self.replaces:  # its answer depends on the current content
                yield self._after(history, action)
        yield self._refusal(history, action, world)
        if is_read and form is not None and sources <= {"call"}:  # the rest of the form is content
            writes = [history[number].action for number in written]
            if any(self.effect(write, action) is None and relation_of(write, action) for write in writes):
                return
            if len(form.worlds) == 1 and world not in form.worlds:
                return
        yield self._form(history, action, world)

    def _changed(
        self, history: Sequence[Call], written: Sequence[int], last: int, action: ToolCall, world: str
    ) -> KnownAnswer | None:
        """A read's view: known from an earlier moment of this session or a recording, and changed by the writes since.

        Args:
            history: the session's calls.
            written: positions of those that may have changed the world.
            last: position of the last call equal to this one; -1 if there is none.
            action: the read.
            world: the world in which the session began.
        """
        canonical = action.canonical()
        view, way, left = None, "recorded", list(written)
        if last >= 0:
            view, way, left = history[last].view, "repeated", [number for number in written if number > last]
        texts = _texts(history, written)
        for count in range(len(written), len(written) - len(left), -1):
            recorded = self.known.get((world, texts[:count], canonical))
            if recorded is not None:
                view, way, left = recorded, "recorded", list(written[count:])
                break
        if view is None and last < 0:
            view = self.known.get((world, (), canonical))
        for number in left:
            write = history[number]
            effect = self.effect(write.action, action)
            if effect is None or (view is not None and view.is_refusal and _tells(write, action)):
                return None
            view = effect.apply(view, bindings_of(write, action))
            if effect.changes:
                way = "effect"
        return None if view is None else KnownAnswer(view, way)

    def _after(self, history: Sequence[Call], action: ToolCall) -> KnownAnswer | None:
        """The answer of a write that an earlier write of the session decides: an item that exists is not made again."""
        for number in range(len(history) - 1, -1, -1):
            write = history[number]
            if not write.changes:
                continue
            effect = self.effect(write.action, action)
            if effect is None and (relation_of(write.action, action) or not write.action.arguments):
                return None  # it may have undone what an earlier write did
            if effect is not None and effect.changes:
                view = effect.apply(None, bindings_of(write, action))
                return None if view is None else KnownAnswer(view, "effect")
        return None

    def _refusal(self, history: Sequence[Call], action: ToolCall, world: str) -> KnownAnswer | None:
        """A refusal, recorded in the same world, of a call with the same values in the refused arguments."""
        said = dict(leaves_of("call", action.arguments))
        for refused in self.refusals.get((world, action.name), ()):
            assert refused.view is not None
            blamed = blamed_in(refused)
            if not blamed or any(not same(said.get(name), value) for name, value in blamed.items()):
                continue
            if any(call.changes and mentions(call, blamed.values()) for call in history):
                continue
            pattern = Pattern.of(refused.view.said, dict(leaves_of("call", refused.action.arguments)))
            try:
                return KnownAnswer(refused.view.saying(pattern.evaluate(said)), "refusal")
            except ValueError:
                continue
        return None

    def _form(
        self, history: Sequence[Call], action: ToolCall, world: str, *, only_sql: bool = False
    ) -> KnownAnswer | None:
        form, kind, bindings = self._form_of(history, action, world)
        if form is None or (self.cells is not None and self.cells.lacks(_changing(history), action)):
            return None
        if only_sql and not kind and not any(name[0] == "sql" for name in form.pattern.names):
            return None
        try:
            return KnownAnswer(form.view(bindings), "form")
        except ValueError:
            return None

    def _form_of(self, history: Sequence[Call], action: ToolCall, world: str) -> tuple[CallForm | None, str, Bindings]:
        """The form of a call's answer, and the kind and the bindings of the call.

        The form is that of all calls of the tool, or that of calls with the same arguments if it has fewer constants.
        """
        kind, bindings = self.own_bindings(history, action, world)
        kinds = (kind, kind + repr(bindings.get(THERE)))
        keys: list[FormKey] = [(action.name, of, one) for one in kinds for of in (None, frozenset(action.arguments))]
        found = [self.forms[key] for key in keys if key in self.forms]
        if not set(action.arguments) <= self.arguments.get(action.name, set()):
            found = []  # no recording shows what this argument does
        return min(found, key=lambda form: form.pattern.constants, default=None), kind, bindings

    def effect(self, write: ToolCall, read: ToolCall) -> ViewChange | None:
        """The effect of a write on a read's view; None if it is not known."""
        known = self.effects.get((write.name, read.name))
        if known is None:
            return self._replaced(write, read)
        relation = relation_of(write, read)
        if relation in known:
            return known[relation]
        changing = [one for one, effect in known.items() if effect is None or effect.changes]
        within = [one for one in changing if one <= relation]
        if within:
            return known[max(within, key=len)]
        if any((alike := _by_name(one)) and alike <= relation for one in changing):
            return None  # the other values may have been equal by chance
        if (changing and not relation) or any(relation <= one for one in known):
            return ViewChange(changes=False)
        return None

    def _replaced(self, write: ToolCall, read: ToolCall) -> ViewChange | None:
        """The effect of a tool that replaces texts on a view: the same as on views for which recordings show it."""
        replacement = self.replaces.get(write.name)
        if replacement is None or read.name not in self.reads:
            return None
        texts = replacement.values(write)
        asked = [
            value for name, value in read.arguments.items() if isinstance(value, str) and name not in write.arguments
        ]
        if any(value in text or text in value for value in asked for text in texts):
            return None  # a search for a replaced text is another question
        shared = [name for name in read.arguments if name in write.arguments]
        if any(not same(read.arguments[name], write.arguments[name]) for name in shared):
            return ViewChange(changes=False)
        return ViewChange(changes=True, replaced=(replacement, write))

    def own_bindings(self, history: Sequence[Call], action: ToolCall, world: str) -> tuple[str, Bindings]:
        """The kind of a call, and the bindings that its answer may be made of.

        The kind is that of its SQL, or `ABSENT`. The bindings come from its arguments, the tool's earlier calls, the
        database or the sheets, and the items of listings that it names or searches for.
        """
        bindings = {**dict(arguments_of("call", action)), **self._counted(history, action)}
        kind = ""
        if self.database is not None:
            kind, found = self.database.bindings(_changing(history), action)
            bindings.update(found)
        elif self.cells is not None:
            bindings.update(self.cells.bindings(_changing(history), action))
        bindings.update(self._listed(history, action, world))
        if action.name in self.replaces:
            counts = [count for name, count in bindings.items() if name[0] == "found" and name[1] in self.listings]
            kind = kind or (ABSENT if counts and not any(counts) else "")
        return kind, bindings

    def _counted(self, history: Sequence[Call], action: ToolCall) -> Bindings:
        """Bindings that count the tool's earlier calls of the session."""
        bindings: dict[ValueName, JsonValue] = {}
        before = [
            call for call in history if call.action.name == action.name and call.view and not call.view.is_refusal
        ]
        bindings["known", "calls"] = len(before)
        said: dict[str, list[JsonValue]] = {}
        for call in (*before, Call(action, None, is_write=False)):
            for name, value in call.action.arguments.items():
                if value is not None and value not in said.setdefault(name, []):
                    said[name].append(value)
        for name in self.arguments.get(action.name, set()) | set(action.arguments):
            bindings["seen", name] = said.get(name, [])
        if before and before[-1].view is not None:
            for path, number in leaves_of("known", before[-1].view.value):
                if is_int(number):
                    bindings[("known", "last", *path[1:])] = number
        return bindings

    def _listed(self, history: Sequence[Call], action: ToolCall, world: str) -> Bindings:
        """Bindings from the current values of the listings that a call may be about."""
        written = [number for number, call in enumerate(history) if call.changes]
        found: dict[ValueName, JsonValue] = {}
        named: set[str] = set()
        about = {canonical: one for canonical, one in self.listings.items() if is_of(one, action)}
        is_known = bool(about)
        for canonical, listing in about.items():
            earlier = (i for i, call in enumerate(history) if call.canonical == canonical)
            known = self._changed(history, written, max(earlier, default=-1), listing, world)
            if known is None:
                is_known = False
                continue
            value = known.view.value
            found.update(bindings_from(listing, value, action))
            named.update(identified(listing, value, action))
            if action.name in self.replaces:
                found["found", canonical, "count"] = count_in(value, self.replaces[action.name].values(action)[0])
        if is_known and action.name not in self.reads:
            found[THERE] = {"there": [*sorted(named)]}
        return found


def _by_name(relation: Relation) -> Relation:
    """The pairs of a relation whose arguments have the same name."""
    return frozenset(pair for pair in relation if pair[0][1:] == pair[1][1:])


def _tells(write: Call, action: ToolCall) -> bool:
    """True if the answer of a write contains what a refused call asked for: it may exist now."""
    asked = [value for value in action.arguments.values() if isinstance(value, str | int) and value != ""]
    told = [] if write.view is None else [value for _, value in leaves_of("said", write.view.value)]
    return any(same(one, two) for one in asked for two in told)


def _changing(history: Sequence[Call]) -> list[ToolCall]:
    return [call.action for call in history if call.changes]


def _texts(history: Sequence[Call], written: Sequence[int]) -> tuple[str, ...]:
    return tuple(history[number].canonical for number in written)
