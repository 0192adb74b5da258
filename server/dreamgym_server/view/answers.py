"""The answers behind the page: one method a question, from the parameters of its address to JSON.

The door serves them, and an exported page is made of the same ones.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress

from pydantic import JsonValue, ValidationError

from dreamgym import __version__
from dreamgym.environment import first_reason
from dreamgym.errors import DreamGymError, InvalidInput, StoreError, UnknownEpisode
from dreamgym.evaluation.parting import paired_calls
from dreamgym.replay.buffer import Retrieval
from dreamgym.replay.listing import EpisodeFilter, EpisodeSummary
from dreamgym.replay.postgres.coverage import StoredTransitions
from dreamgym.replay.postgres.listing import PLACE
from dreamgym.types import JsonObject, Source, ToolCall
from dreamgym_server.view.folders import RunFolder
from dreamgym_server.view.hand import Hand
from dreamgym_server.view.library import Library
from dreamgym_server.view.runs import report_page, reports, training_run, training_runs
from dreamgym_server.view.shown import cut, shown_pair, shown_recorded, shown_step, shown_strip, shown_summary

PAGE = 50
"""Episodes of one page of a list."""
NEAR = 12
"""Recorded steps that are shown as most like a call."""
PAIRS = 12
"""Tasks that were played in a dream and in reality, of one answer."""
STEPS = 100
"""Steps of one page of an episode."""
MOST = 200
"""Episodes or steps that one answer holds at most."""
WATCH_INTERVAL_S = 0.5

Parameters = Mapping[str, str]
Answer = Callable[[Parameters], Awaitable[JsonObject]]


class Answers:
    """What the page asks.

    Args:
        library: what can be looked at.
        hand: forks episodes and plays on by hand; None: the page only reads.
    """

    def __init__(self, library: Library, hand: Hand | None = None) -> None:
        self._library = library
        self.hand = hand
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End what is being watched: the server ends when nobody waits for an answer any more."""
        self._closing.set()

    def by_name(self) -> dict[str, Answer]:
        """The questions, by the last part of their address."""
        return {
            "about": self.about,
            "pairs": self.pairs,
            "episodes": self.episodes,
            "episode": self.episode,
            "steps": self.steps,
            "step": self.step,
            "compare": self.compare,
            "recorded": self.recorded,
            "coverage": self.coverage,
            "search": self.search,
            "near": self.near,
            "tasks": self.tasks,
            "runs": self.runs,
            "run": self.run,
            "reports": self.reports,
            "report": self.report,
            **({} if self.hand is None else {"tools": self.tools}),
        }

    async def about(self, given: Parameters) -> JsonObject:
        """What there is to look at."""
        library = self._library
        absent, stored = library.absent, []
        try:
            stored = await library.environments()
        except StoreError as error:
            absent = str(error)
        folder = library.folder
        files: list[JsonValue] = []
        if folder is not None:
            found = await asyncio.to_thread(folder.episode_files)
            files = [{"place": one.place, "episodes": len(one.episodes), "broken": one.broken} for one in found]
        return {
            "version": __version__,
            "writes": self.hand is not None,
            "store": None
            if library.store is None
            else {"environments": [one.model_dump(mode="json") for one in stored]},
            "absent": absent,
            "folder": None if folder is None else {"name": folder.folder.resolve().name, "files": files},
        }

    async def pairs(self, given: Parameters) -> JsonObject:
        """Tasks that were played in a dream and in reality, with the first step at which the newest two part."""
        found = await self._library.pairs(given.get("env", ""))
        shown: list[JsonObject] = []
        for pair in found[:PAIRS]:
            try:
                one, other = [await self._library.summary(*some[0]) for some in (pair.dreams, pair.real)]
                parts_at = await self._library.parting(one, other)
            except UnknownEpisode:  # it was deleted meanwhile
                continue
            shown.append(
                {
                    "dream": shown_summary(one),
                    "real": shown_summary(other),
                    "parts_at": parts_at,
                    "dreams": len(pair.dreams),
                    "reals": len(pair.real),
                }
            )
        shown.sort(key=lambda pair: pair["parts_at"] is None)
        return {"pairs": [*shown], "total": len(found)}

    async def episodes(self, given: Parameters) -> JsonObject:
        """A page of the list of episodes."""
        place = given.get("place") or (PLACE if self._library.store is not None else "folder")
        names = {name: value for name, value in given.items() if value and name in EpisodeFilter.model_fields}
        try:
            chosen = EpisodeFilter.model_validate(names)
        except ValidationError as error:
            raise InvalidInput(f"the filter of the list: {first_reason(error)}") from error
        limit = whole(given, "limit", PAGE, most=MOST)
        page = await self._library.page(chosen, place, after=given.get("after") or None, limit=limit)
        return {
            "episodes": [shown_summary(one) for one in page.episodes],
            "matching": page.matching,
            "looked": page.looked,
            "next": page.next,
        }

    async def episode(self, given: Parameters) -> JsonObject:
        """An episode with all its steps in short, and the episodes of its task on the other side."""
        one = await self._library.summary(*_named(given))
        twins, count = await self._twins(one)
        start = one.task.initial_state
        if start is None and one.place == PLACE and self._library.store is not None:
            start = await self._library.store.initial(one.id)
        is_on_a_server = one.place == PLACE and await self._library.stored().is_on_a_server(one.id)
        return {
            **shown_summary(one),
            "instruction": one.task.instruction,
            "start": None if start is None else cut(start),
            **shown_strip(await self._library.strip(one)),
            "twins": [shown_summary(twin) for twin in twins],
            "twins_in_all": count,
            "on_a_server": is_on_a_server,
        }

    async def steps(self, given: Parameters) -> JsonObject:
        """Some steps of an episode."""
        first, count = whole(given, "first", 1), whole(given, "count", STEPS, most=MOST)
        found = await self._library.steps(*_named(given), first, count)
        return {"first": first, "steps": [shown_step(number, step) for number, step in enumerate(found, start=first)]}

    async def step(self, given: Parameters) -> JsonObject:
        """One step with the whole of its texts and both states."""
        number = whole(given, "step", 1)
        found = await self._library.steps(*_named(given), number, 1)
        if not found:
            raise InvalidInput(f"the episode has no step {number}")
        whole_states: JsonObject = {"before": found[0].state, "after": found[0].next_state}
        return {**shown_step(number, found[0], most=None), "states": whole_states}

    async def compare(self, given: Parameters) -> JsonObject:
        """Two episodes, call by call, and the first call at which they part."""
        names = [_named(given), _named({"place": given.get("other_place", ""), "id": given.get("other", "")})]
        one, other = [await self._library.summary(*name) for name in names]
        parts_at = await self._library.parting(one, other)
        count = whole(given, "count", STEPS, most=MOST)
        # without a wish, the page on which they part
        first = whole(given, "first", ((parts_at or 1) - 1) // count * count + 1)
        sides = [await self._library.steps(*name, first, count) for name in names]
        return {
            "one": shown_summary(one),
            "other": shown_summary(other),
            "parts_at": parts_at,
            "total": max(one.outcome.steps, other.outcome.steps),
            "first": first,
            "pairs": [shown_pair(number, pair) for number, pair in enumerate(paired_calls(*sides), start=first)],
        }

    async def recorded(self, given: Parameters) -> JsonObject:
        """Where transitions were recorded, in the order in which they were asked for."""
        ids = [one for one in given.get("ids", "").split(",") if one][:MOST]
        found = {one.id: one for one in await self._library.recorded(given.get("env", ""), ids)}
        return {"recorded": [shown_recorded(found[one]) if one in found else {"id": one} for one in ids]}

    async def coverage(self, given: Parameters) -> JsonObject:
        """Which actions are recorded in which states of an environment."""
        env = _env(given)
        found = await StoredTransitions(self._library.stored().database).coverage(env)
        if found is None:
            return {"env": env, "map": None}
        shown = found.model_dump(mode="json")
        return {"env": env, "map": {**shown, "states": [cut(state, 300) for state in found.states]}}

    async def search(self, given: Parameters) -> JsonObject:
        """Recorded steps that hold a text."""
        env, text = _env(given), given.get("text", "")
        if not text:
            raise InvalidInput("expected a text to search for")
        database = self._library.stored().database
        found = await StoredTransitions(database).holding(env, text, given.get("after") or None)
        recorded = await self._library.recorded(env, list(found.ids))
        return {
            "recorded": [shown_recorded(one) for one in recorded],
            "looked": found.looked,
            "next": found.next,
        }

    async def near(self, given: Parameters) -> JsonObject:
        """Recorded steps that are most like a call in a state: what a dream would be made from."""
        buffer = self._library.buffer
        if buffer is None:
            raise InvalidInput(
                "this process has not the encoder that the store was filled with: set DREAMGYM_ENCODER to its name"
            )
        try:
            arguments = json.loads(given.get("arguments") or "{}")
            action = ToolCall(name=given.get("tool", ""), arguments=arguments)
        except ValueError as error:
            raise InvalidInput(f"expected a tool, and its arguments as a JSON object: {first_reason(error)}") from error
        env = _env(given)
        asked = Retrieval(env=env, state=given.get("state", ""), action=action, k=NEAR, history=None)
        found = await buffer.nearest(asked)
        where = {one.id: one for one in await self._library.recorded(env, [one.id for one in found])}
        return {
            "recorded": [
                {**shown_recorded(where[one.id]), "score": one.score, "exact": one.exact}
                for one in found
                if one.id in where
            ]
        }

    async def tasks(self, given: Parameters) -> JsonObject:
        """Tasks of an environment by their value, and what each was varied from."""
        env, buffer = _env(given), self._library.buffer
        if buffer is None:
            self._library.stored()
            return {"env": env, "tasks": [], "total": 0}
        values = {one.task_id: one for one in await buffer.task_values(env)}
        tasks = await buffer.tasks(env)
        ordered = sorted(tasks, key=lambda task: -values[task.id].variance if task.id in values else 1.0)
        first = whole(given, "first", 1)
        shown: list[JsonValue] = []
        for task in ordered[first - 1 : first - 1 + MOST]:
            value = values.get(task.id)
            shown.append(
                {
                    "id": task.id,
                    "instruction": cut(task.instruction, 300),
                    "origin": task.origin.value,
                    "parent": task.parent_id,
                    "value": None if value is None else value.model_dump(mode="json", exclude={"task_id"}),
                }
            )
        return {"env": env, "tasks": shown, "total": len(tasks), "first": first, "attempted": len(values)}

    async def runs(self, given: Parameters) -> JsonObject:
        """The training runs of the run folder."""
        folder = self._library.folder
        return {"runs": [] if folder is None else [*await asyncio.to_thread(training_runs, folder)]}

    async def run(self, given: Parameters) -> JsonObject:
        """One training run of the run folder."""
        return await asyncio.to_thread(training_run, self._of_folder(), given.get("name", ""))

    async def reports(self, given: Parameters) -> JsonObject:
        """The reports of the run folder."""
        folder = self._library.folder
        return {"reports": [] if folder is None else [*await asyncio.to_thread(reports, folder)]}

    async def report(self, given: Parameters) -> JsonObject:
        """One report of the run folder, with the place of each wrong step that is stored here."""
        page = await asyncio.to_thread(report_page, self._of_folder(), given.get("name", ""))
        names = {str(wrong["trajectory"]) for one in objects(page["settings"]) for wrong in objects(one["worst"])}
        return {**page, "places": {**await self._library.places(names)}}

    async def tools(self, given: Parameters) -> JsonObject:
        """The tools of an episode that was forked here."""
        assert self.hand is not None, "the question is not asked without it"
        return await self.hand.tools(given.get("id", ""))

    def _of_folder(self) -> RunFolder:
        if self._library.folder is None:
            raise InvalidInput("no run folder is shown here: name it, `dreamgym view RUNFOLDER`")
        return self._library.folder

    async def events(self, episode: str) -> AsyncIterator[JsonObject]:
        """How far an episode of the store is: now, and each time when that has changed, until it is over or gone."""
        store, last = self._library.stored(), None
        while not self._closing.is_set():
            try:
                state = await store.watch(episode)
            except UnknownEpisode:
                yield {"gone": True}
                return
            except DreamGymError as error:
                yield {"away": str(error)}
                state = None
            if state is not None and state != last:
                last = state
                yield {"steps": state[0], "stop_reason": state[1]}
                if state[1] is not None:
                    return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), WATCH_INTERVAL_S)

    async def _twins(self, one: EpisodeSummary) -> tuple[list[EpisodeSummary], int]:
        """Episodes of the same task on the other side: dreams of a real one, real ones of a dream; and how many."""
        is_dream = one.source is Source.SYNTHETIC
        sources = (Source.REAL, Source.IMPORTED) if is_dream else (Source.SYNTHETIC,)
        places = [PLACE] * (self._library.store is not None) + ["folder"] * (self._library.folder is not None)
        found: list[EpisodeSummary] = []
        count = 0
        for source in sources:
            chosen = EpisodeFilter(env=one.task.env, task=one.task.id, source=source)
            for place in places:
                try:
                    page = await self._library.page(chosen, place, after=None, limit=20)
                except StoreError:  # the episode itself is in the run folder
                    continue
                found += page.episodes
                count += page.matching or 0
        return sorted(found, key=lambda twin: twin.place != one.place), count


def whole(given: Parameters, name: str, default: int, *, most: int = 2**31 - 1) -> int:
    """A positive whole number among the parameters. Raises InvalidInput."""
    text = given.get(name, "")
    if not text:
        return default
    if not (text.isdigit() and text.isascii() and len(text) < 10 and int(text) > 0):
        raise InvalidInput(f"{name}={text[:40]!r}: expected a whole number from 1")
    return min(int(text), most)


def _env(given: Parameters) -> str:
    env = given.get("env", "")
    if not env or "\x00" in env:
        raise InvalidInput("expected the name of an environment")
    return env


def objects(value: JsonValue) -> list[JsonObject]:
    """The objects of a JSON list; none if it is no list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _named(given: Parameters) -> tuple[str, str]:
    place, episode = given.get("place") or PLACE, given.get("id", "")
    if not episode:
        raise InvalidInput("expected the id of an episode")
    return place, episode
