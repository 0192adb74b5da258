"""A dream of pages: an environment that shows one page after another, played on the pages that were recorded.

It is for an environment whose reader knows which page is open (`dreamgym.reading.PageReader`), such as a shop or a
site. Once per newest recording it learns from all recordings:

- what each page shows, and on which parts of its address that depends: a product is the same product, whichever query
  found it;
- where each kind of link leads from each kind of page, and which links are refused;
- whether an end of an episode was a success, for each goal.

A page that no recording shows is guessed: from its preview on a recorded page, or else from the recorded page of its
kind whose address shares the most words with its own. The tier of a guess is `model`. An end is worth what the same end
was worth in a recording for the same goal; if recordings contradict each other, its worth is open. Without such a
recording, it is a failure if a success is recorded for the goal; if none is, its worth is open. A step that none of
this covers is not answered. A page that recordings show in several versions is logged and left out.

After a step whose answer the reader cannot read, the open page is not known: no link from it is learned or played until
a page is read again, and the worth of an end of this episode is neither learned nor told.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from math import log
from typing import ClassVar

from pydantic import JsonValue

from dreamgym.dream.model import Prediction
from dreamgym.goals import PageGoals
from dreamgym.reading import PageReader, read_as
from dreamgym.schema import Schema, schema_of
from dreamgym.state import as_object, as_text
from dreamgym.types import JsonObject, Provenance, StepResult, Task, Tier, ToolCall, Trajectory, Transition

logger = logging.getLogger(__name__)

ALIKE = 0.5
"""Least share of common words, weighted by their rarity, at which the page of one address stands for another's."""
SURE = 0.95
"""Least share of the recorded calls or visits of a kind that must agree for a rule to be learned from them."""
LONGEST = 1_000
"""Most characters of an address text that are compared with others; an agent may send more."""
MOST_GUESSED = 10_000
"""Most guessed pages that are kept in memory."""
_WORD = re.compile(r"\w+")

Form = tuple[str, str, str]
"""A kind of call: the kind of the page, the tool, and the kind of the entity that an argument names ("" if none)."""
Key = tuple[str, str]
"""A page: its kind, and the parts of its address that it depends on, as JSON."""


@dataclass(frozen=True)
class AddressPart:
    """How one part of the next address follows from a call."""

    source: str
    """Source of the value: `before` (the address before), `argument` (of the call), `constant`, or else the kind of a
    page (the last address of that kind)."""
    name: str = ""
    """Name of the part of that address, or of the argument."""
    value: str = "null"
    """The number to add, or the constant; as JSON."""

    def of(self, before: JsonObject, last: Mapping[str, JsonObject], call: ToolCall) -> JsonValue:
        """The value of the part after a call."""
        value: JsonValue = json.loads(self.value)
        if self.source == "constant":
            return value
        sources = {**last, "before": before, "argument": call.arguments}
        found = sources.get(self.source, {}).get(self.name)
        return found + value if isinstance(found, int) and isinstance(value, int) else found


@dataclass
class _Calls:
    """The recorded calls of one form."""

    refused: int = 0
    accepted: list[tuple[JsonObject, Mapping[str, JsonObject], ToolCall, JsonObject]] = field(default_factory=list)
    """For each accepted call: address before it, last address of each kind, the call, and address after it."""

    def leads_to(self) -> dict[str, AddressPart] | None:
        """The rule for each part of the next address; None if the calls do not show one for every part."""
        if not self.accepted:
            return None
        names = {name for *_, after in self.accepted for name in after}
        found = {name: self._part(name) for name in sorted(names)}
        return {name: part for name, part in found.items() if part} if all(found.values()) else None

    def _part(self, name: str) -> AddressPart | None:
        before, last, call, after = self.accepted[0]
        first = after.get(name)
        sources = {"before": before, "argument": call.arguments, **last}
        tried = [AddressPart(source, one) for source, parts in sources.items() for one in parts if parts[one] == first]
        tried.sort(key=lambda part: (part.name != name, part.source != "argument"))
        number = before.get(name)
        if isinstance(first, int) and isinstance(number, int):
            tried.append(AddressPart("before", name, json.dumps(first - number)))
        tried.append(AddressPart("constant", value=json.dumps(first)))
        return next((part for part in tried if self._fits(name, part)), None)

    def _fits(self, name: str, part: AddressPart) -> bool:
        wrong = sum(part.of(before, last, call) != after.get(name) for before, last, call, after in self.accepted)
        return wrong <= (1 - SURE) * len(self.accepted)


@dataclass
class _Recordings:
    """Collects the contents of an environment's recordings while they are read."""

    reader: PageReader
    forms: defaultdict[Form, _Calls] = field(default_factory=lambda: defaultdict(_Calls))
    shown: defaultdict[str, list[tuple[JsonObject, JsonObject]]] = field(default_factory=lambda: defaultdict(list))
    """Address and content of each page that was seen, by kind of page."""
    over: defaultdict[str, set[bool]] = field(default_factory=lambda: defaultdict(set))
    """True if an episode was over at a page, False if not, by kind of page."""
    worth: defaultdict[str, dict[str, bool | None]] = field(default_factory=lambda: defaultdict(dict))
    successes: dict[str, tuple[ToolCall, ...]] = field(default_factory=dict)

    def see(self, trajectory: Trajectory) -> None:
        """Read an episode."""
        reader, goal = self.reader, trajectory.task.goal
        is_known = all_read = True  # the open page is known; the answers of all steps could be read
        state = reader.start(trajectory.task, StepResult(observation=trajectory.task.initial_state or ""))
        last: dict[str, JsonObject] = {}
        calls: list[ToolCall] = []
        for step in trajectory.transitions:
            call = reader.call(step.action)
            calls.append(call)
            result = reader.result(call, step.result)
            before = as_object(state[reader.address])
            last = {**last, str(before["kind"]): before}
            form = form_of(state, call, reader)
            if result.is_error or result.structured is None:
                self.forms[form].refused += is_known and result.is_error
                is_known &= result.is_error
                all_read &= result.is_error
                continue
            state = reader.after(state, call, result)
            address = as_object(state[reader.address])
            kind = str(address["kind"])
            self.over[kind].add(result.terminated)
            if is_known:
                self.forms[form].accepted.append((before, last, call, address))
                self.shown[kind].append((address, result.structured))
            is_known = True
            if result.terminated and all_read:
                won = result.reward > 0
                known, end = self.worth[goal], end_of(state, reader)
                known[end] = won if known.get(end, won) is won else None
                if won and len(calls) < len(self.successes.get(goal, (*calls, call))):
                    self.successes[goal] = tuple(calls)


@dataclass(frozen=True)
class PageWorlds:
    """The pages, links and ends that the recordings of an environment show."""

    reader: PageReader
    goals: PageGoals | None
    moves: Mapping[Form, Mapping[str, AddressPart] | None]
    """The page that a call of each form leads to; None: the call is refused."""
    contents: Mapping[Key, JsonObject]
    """Content of each recorded page."""
    told: Mapping[str, JsonObject]
    """Content of pages that recorded pages preview, by their address as JSON, which may lack some parts."""
    depends: Mapping[str, tuple[str, ...]]
    """Parts of the address that the content of a page depends on, by kind of page."""
    ends: frozenset[str]
    """Kinds of pages that end an episode."""
    worth: Mapping[str, Mapping[str, bool | None]]
    """True for each recorded end that was a success, by goal; None if it was a success in some recordings only."""
    successes: Mapping[str, tuple[ToolCall, ...]]
    """Calls of the shortest recorded success, by goal."""
    left_out: frozenset[Key]
    """Pages that recordings show in several versions."""
    _guessed: dict[Key, JsonObject | None] = field(default_factory=dict)
    """Guessed content of pages that are not in `contents`; None: there is no guess."""

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory], reader: PageReader, goals: PageGoals | None = None) -> PageWorlds:
        """Learn from these recordings."""
        read = _Recordings(reader)
        for trajectory in trajectories:
            read.see(trajectory)
        depends = {kind: _depends(visits) for kind, visits in read.shown.items()}
        contents, left_out = _contents(read.shown, depends)
        previews = chain(*(reader.previews(content) for content in contents.values()))
        return cls(
            reader=reader,
            goals=goals,
            moves=dict(_moves(read.forms)),
            contents=contents,
            told={as_text(page.address): page.content for page in previews},
            depends=depends,
            ends=frozenset(kind for kind, ended in read.over.items() if ended == {True}),
            worth=read.worth,
            successes=read.successes,
            left_out=left_out,
        )

    def episode(self, task: Task) -> PageEpisode:
        """A new episode of a task."""
        check = task.metadata.get("success")
        return PageEpisode(self, task, None if check is None else schema_of(check))

    def content(self, address: JsonObject) -> tuple[JsonObject, bool] | None:
        """The content of a page, and True if it was recorded, False if it is guessed; None if there is neither."""
        key = _key(address, self.depends)
        if key in self.contents:
            return self.contents[key], True
        if key in self.left_out:
            return None
        if key not in self._guessed:
            if len(self._guessed) >= MOST_GUESSED:
                self._guessed.clear()
            self._guessed[key] = self._previewed(address) or self._most_alike(address)
        guessed = self._guessed[key]
        return None if guessed is None else (guessed, False)

    def _previewed(self, address: JsonObject) -> JsonObject | None:
        """The content that a recorded page shows of the page at this address; None if none does."""
        named = (as_text({name: address.get(name) for name in names}) for names in self._previewed_parts)
        return next((self.told[name] for name in named if name in self.told), None)

    @cached_property
    def _previewed_parts(self) -> Sequence[tuple[str, ...]]:
        """The parts of an address that previews have, each combination once."""
        return sorted({tuple(json.loads(address)) for address in self.told})

    def _most_alike(self, address: JsonObject) -> JsonObject | None:
        """The most similar recorded page of this kind whose address differs in one text only; None if none is alike."""
        wanted = {name: address.get(name) for name in self.depends.get(str(address["kind"]), ())}
        best: tuple[float, JsonObject] | None = None
        for name, value in wanted.items():
            if not isinstance(value, str):
                continue
            rest = as_text({other: part for other, part in wanted.items() if other != name})
            ours = set(_WORD.findall(value[:LONGEST]))
            for theirs, content in self._texts.get((str(address["kind"]), name, rest), ()):
                share = self._weight(ours & theirs) / (self._weight(ours | theirs) or 1.0)
                if share >= ALIKE and (best is None or share > best[0]):
                    best = share, content
        return None if best is None else best[1]

    def _weight(self, words: Set[str]) -> float:
        return sum(self._rarity.get(word, 1.0) for word in words)

    @cached_property
    def _texts(self) -> Mapping[tuple[str, str, str], Sequence[tuple[frozenset[str], JsonObject]]]:
        """Words of a text of the address, and the page's content, by kind, name of the text and the other parts."""
        found: defaultdict[tuple[str, str, str], list[tuple[frozenset[str], JsonObject]]] = defaultdict(list)
        for (kind, parts), content in self.contents.items():
            known = json.loads(parts)
            for name, value in known.items():
                if isinstance(value, str):
                    rest = as_text({other: part for other, part in known.items() if other != name})
                    found[kind, name, rest].append((frozenset(_WORD.findall(value)), content))
        return found

    @cached_property
    def _rarity(self) -> Mapping[str, float]:
        """How rare each word of a recorded address is, from 0 to 1."""
        words = [set(_WORD.findall(parts)) for _, parts in self.contents]
        return {word: log(len(words) / count) / log(len(words) + 1) for word, count in Counter(chain(*words)).items()}


class PageEpisode:
    """One episode of a dream of pages.

    Args:
        known: what the recordings show.
        task: the task that is played.
        check: decides whether the task is accomplished; None: the recorded ends of its goal decide.
    """

    changed: ClassVar[JsonObject] = {}
    """Empty: the open page follows from the steps, so nothing has to be kept with them."""
    is_all_recorded = True
    """True: a model that only repeats recordings cannot answer what this episode does not answer."""
    decides_ends = False
    """False: if another tier answers, its end is decided as in any other dream."""

    def __init__(self, known: PageWorlds, task: Task, check: Schema | None) -> None:
        self._known, self._task, self._check = known, task, check
        self.state = known.reader.start(task, StepResult(observation=task.initial_state or ""))
        """The current state, as the reader knows it."""
        self._last: dict[str, JsonObject] = {}
        """The last address of each kind of page."""
        self._shown = task.initial_state or ""
        """Text of the open page."""
        self._rests_on_model = False
        """True if a language model's answer led here. It can be talked into pages, so the worth of the end is open."""
        self._is_known = self._all_read = True
        """True if the open page is known, and if all answers could be read. If not, the worth of the end is open."""

    def resume(self, transitions: Sequence[Transition]) -> bool:
        """Continue after some steps; this is always possible."""
        for step in transitions:
            self._follow(self._known.reader.call(step.action), step.result)
            self._rests_on_model |= _is_of_a_model(step.provenance)
        return True

    def answer(self, action: ToolCall, words: str = "", *, seed: int = 0) -> Prediction | None:
        """The answer of the recorded pages; None if they do not show it, and then nothing changes.

        Args:
            action: the agent's action.
            words: the state before it as a text; a refusal leaves it as it is.
            seed: seed of the episode, for provenance.
        """
        known, reader = self._known, self._known.reader
        call = reader.call(action)
        form = form_of(self.state, call, reader)
        if form not in known.moves or not self._is_known:
            return None
        leads_to, before = known.moves[form], as_object(self.state[reader.address])
        if leads_to is None:
            origin = Provenance(tier=Tier.EFFECTS, seed=seed)
            return Prediction(observation=self._shown, next_state=words, is_error=True, provenance=origin)
        last = {**self._last, str(before["kind"]): before}
        address: JsonObject = {name: origin.of(before, last, call) for name, origin in leads_to.items()}
        found = known.content(address)
        if found is None:
            return None
        content, is_recorded = found
        observation = reader.observation(call, content, self._task.instruction)
        if observation is None:
            return None
        state = reader.after(self.state, call, read_as(StepResult(observation=observation), content))
        is_over = str(address["kind"]) in known.ends
        won = self._is_won(state) if is_over else False
        if (won and self._rests_on_model) or (is_over and not self._all_read):
            won = None
        self.state, self._last, self._shown = state, last, observation
        return Prediction(
            observation=observation,
            next_state=reader.words(observation, state),
            success=won is True,
            terminated=is_over,
            provenance=Provenance(
                tier=Tier.EFFECTS if is_recorded else Tier.MODEL,
                seed=seed,
                checked=won if is_over else None,
                open_end=won is None,
            ),
        )

    @property
    def is_accomplished(self) -> bool:
        """True if the state is a success, by the task's check or by the recorded ends of its goal."""
        return self._is_won(self.state) is True

    def read(self, action: ToolCall, prediction: Prediction) -> Prediction:
        """Read the answer of another tier into the state; the prediction is returned unchanged, with its end."""
        result = StepResult(observation=prediction.observation, is_error=prediction.is_error)
        self._follow(self._known.reader.call(action), result)
        self._rests_on_model |= _is_of_a_model(prediction.provenance)
        return prediction

    def _follow(self, call: ToolCall, result: StepResult) -> None:
        before = as_object(self.state[self._known.reader.address])
        self._last = {**self._last, str(before["kind"]): before}
        read = self._known.reader.result(call, result)
        is_read = read.structured is not None
        self.state = self._known.reader.after(self.state, call, read)
        self._is_known = is_read or (self._is_known and read.is_error)
        self._all_read &= is_read or read.is_error
        self._shown = result.observation

    def _is_won(self, state: JsonObject) -> bool | None:
        """True if an end is a success, False if it is a failure; None if that is not known."""
        if self._check is not None:
            return self._check.allows(state)
        recorded = self._known.worth.get(self._task.goal, {})
        unknown = False if self._task.goal in self._known.successes else None
        return recorded.get(end_of(state, self._known.reader), unknown)


def _is_of_a_model(told: Provenance) -> bool:
    """True if a model gave the answer. A page guessed from recordings has the tier `model` too, but names no model."""
    return told.tier in {Tier.MODEL, Tier.CACHE} and told.model is not None


def form_of(state: JsonObject, call: ToolCall, reader: PageReader) -> Form:
    """The form of a call in a state."""
    named = ""
    for name in reader.schema.collections:
        for value in call.arguments.values():
            entity = as_object(state.get(name)).get(value) if isinstance(value, str) else None
            if isinstance(entity, dict) and not named:
                named = str(entity.get("kind", name))
    return str(as_object(state[reader.address])["kind"]), call.name, named


def end_of(state: JsonObject, reader: PageReader) -> str:
    """The parts of the state that the worth of an end depends on, as JSON."""
    return as_text({name: state.get(name) for name in reader.counts})


def _moves(forms: Mapping[Form, _Calls]) -> Iterator[tuple[Form, Mapping[str, AddressPart] | None]]:
    """Yield where the calls of each form lead; forms that are sometimes refused and sometimes not are left out."""
    for form, calls in forms.items():
        share = calls.refused / (calls.refused + len(calls.accepted) or 1)
        if share >= SURE:
            yield form, None
        elif share <= 1 - SURE and (leads_to := calls.leads_to()) is not None:
            yield form, leads_to


def _contents(
    shown: Mapping[str, Sequence[tuple[JsonObject, JsonObject]]], depends: Mapping[str, Sequence[str]]
) -> tuple[dict[Key, JsonObject], frozenset[Key]]:
    """The content of each page, and the pages with several recorded versions, which are logged and left out."""
    contents: dict[Key, JsonObject] = {}
    versions: set[Key] = set()
    for address, content in chain(*shown.values()):
        key = _key(address, depends)
        if contents.setdefault(key, content) != content:
            versions.add(key)
    if versions:
        kind, parts = min(versions)
        logger.warning(
            "%d of %d pages are left out of the dream: recordings show each in several versions, such as %s %s",
            len(versions),
            len(contents),
            kind,
            parts,
        )
    return {key: content for key, content in contents.items() if key not in versions}, frozenset(versions)


def _depends(visits: Sequence[tuple[JsonObject, JsonObject]]) -> tuple[str, ...]:
    """The parts of an address that the content of one kind of page depends on: those that leave the fewest pages.

    A part is left out only if recordings show the same content at addresses that differ in it. With too few recordings,
    a page would otherwise stand for all of its kind.
    """
    parts = {name for address, _ in visits for name in address} - {"kind"}
    while True:
        all_pages = _pages(visits, parts)
        fewer = [(n, name) for name in sorted(parts) if 0 < (n := _pages(visits, parts - {name})) < all_pages]
        if not fewer:
            return tuple(sorted(parts))
        parts = parts - {min(fewer)[1]}


def _pages(visits: Sequence[tuple[JsonObject, JsonObject]], parts: Set[str]) -> int:
    """Number of pages that these parts of the addresses tell apart; 0 if too many visits to one page differ."""
    shown: dict[str, JsonObject] = {}
    differing = 0
    for address, content in visits:
        differing += shown.setdefault(as_text({part: address.get(part) for part in parts}), content) != content
    return len(shown) if differing <= (1 - SURE) * len(visits) else 0


def _key(address: JsonObject, depends: Mapping[str, Sequence[str]]) -> Key:
    kind = str(address["kind"])
    return kind, as_text({name: address.get(name) for name in depends.get(kind, sorted(address))})
