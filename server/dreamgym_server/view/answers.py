"""The answers behind the page: one method per request, from its query parameters to JSON.

`ViewDoor` serves them, and an exported page is made of the same answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

from pydantic import JsonValue

from dreamgym import __version__
from dreamgym.errors import DreamGymError, InvalidInput, StoreError, UnknownEpisode
from dreamgym.evaluation.parting import paired_calls
from dreamgym.evaluation.report.behind import is_mean
from dreamgym.replay.buffer import TaskValue
from dreamgym.replay.listing import EpisodeFilter, EpisodeSummary
from dreamgym.replay.postgres.listing import PLACE, StoredEpisodes
from dreamgym.state import objects
from dreamgym.types import JsonObject, Source
from dreamgym_server.view.buffer import BufferAnswers
from dreamgym_server.view.folders import RunFolder
from dreamgym_server.view.hand import Hand
from dreamgym_server.view.library import Library
from dreamgym_server.view.parameters import Parameters, conditions, environment, episode_named, whole
from dreamgym_server.view.reports import lines_behind, report_page, reports, steps_behind
from dreamgym_server.view.runs import training_run, training_runs
from dreamgym_server.view.shown import shown_pair, shown_recorded, shown_step, shown_strip, shown_summary
from dreamgym_server.view.tasks import curricula, curriculum_of, shown_tasks

PAGE = 50
"""Number of episodes on one page of a list."""
PAIRS = 12
"""Number of tasks that one answer lists as played in a dream and in reality."""
STEPS = 100
"""Number of steps on one page of an episode."""
MOST = 200
"""Maximum number of episodes or steps in one answer."""
WATCH_INTERVAL_S = 0.5
OWN = {"setting", "values"}

Answer = Callable[[Parameters], Awaitable[JsonObject]]


class Answers:
    """Answers the page's requests.

    Args:
        library: the episodes that the page shows.
        hand: forks episodes and plays on by hand; None: the page only reads.
    """

    def __init__(self, library: Library, hand: Hand | None = None) -> None:
        self._library = library
        self._buffer = BufferAnswers(library)
        self.hand = hand

    def by_name(self) -> dict[str, Answer]:
        """The methods, by the last part of the request's path."""
        return {
            "about": self.about,
            "pairs": self.pairs,
            "episodes": self.episodes,
            "episode": self.episode,
            "steps": self.steps,
            "step": self.step,
            "compare": self.compare,
            "recorded": self.recorded,
            "coverage": self._buffer.coverage,
            "search": self._buffer.search,
            "near": self._buffer.near,
            "tasks": self.tasks,
            "runs": self.runs,
            "run": self.run,
            "reports": self.reports,
            "report": self.report,
            "behind": self.behind,
            **({} if self.hand is None else {"tools": self.tools}),
        }

    async def about(self, given: Parameters) -> JsonObject:
        """Overview of the store and the run folder."""
        library = self._library
        absent, stored = library.absent, []
        try:
            stored = await library.environments()
        except StoreError as error:
            absent = str(error)
        folder = library.folder
        played: JsonObject | None = None
        if folder is not None:
            found = await asyncio.to_thread(folder.episode_files)
            played = {
                "name": folder.folder.resolve().name,
                "files": [{"place": one.place, "episodes": len(one.episodes), "broken": one.broken} for one in found],
                "environments": [*await asyncio.to_thread(folder.environments)],
                "curricula": [*await asyncio.to_thread(curricula, folder)],
            }
        return {
            "version": __version__,
            "writes": self.hand is not None,
            "store": None
            if library.store is None
            else {"environments": [one.model_dump(mode="json") for one in stored]},
            "absent": absent,
            "folder": played,
        }

    async def pairs(self, given: Parameters) -> JsonObject:
        """Tasks that were played in a dream and in reality, with the first step at which the newest two differ."""
        found, total = await self._library.pairs(given.get("env", ""), PAIRS)
        parted = await self._library.partings(found)
        parted.sort(key=lambda pair: pair.rank)
        shown: list[JsonValue] = [
            {
                "dream": shown_summary(one.dream),
                "real": shown_summary(one.real),
                "parts_at": one.at,
                "same_call": one.same_call,
                "over": one.over,
                "same_end": one.dream.ends_like(one.real),
            }
            for one in parted
        ]
        return {"pairs": shown, "total": total}

    async def episodes(self, given: Parameters) -> JsonObject:
        """A page of the list of episodes."""
        place = given.get("place") or (PLACE if self._library.store is not None else "folder")
        chosen = conditions(given)
        limit = whole(given, "limit", PAGE, most=MOST)
        page = await self._library.page(chosen, place, after=given.get("after") or None, limit=limit)
        return {
            "episodes": [shown_summary(one) for one in page.episodes],
            "matching": page.matching,
            "looked": page.looked,
            "next": page.next,
        }

    async def episode(self, given: Parameters) -> JsonObject:
        """An episode with all its steps in short form, and the episodes of its task on the other side."""
        one = await self._library.summary(*episode_named(given))
        # at once, because each takes a while for a long episode
        (twins, count), strip, start, is_on_a_server = await asyncio.gather(
            self._twins(one), self._library.strip(one), self._start(one), self._is_on_a_server(one)
        )
        return {
            **shown_summary(one),
            "instruction": one.task.instruction,
            "answer": one.answer,
            "error": one.error,
            "start": start,
            **shown_strip(strip),
            "twins": [shown_summary(twin) for twin in twins],
            "twins_in_all": count,
            "on_a_server": is_on_a_server,
        }

    async def steps(self, given: Parameters) -> JsonObject:
        """Some steps of an episode."""
        first, count = whole(given, "first", 1), whole(given, "count", STEPS, most=MOST)
        found = await self._library.steps(*episode_named(given), first, count)
        return {"first": first, "steps": [shown_step(number, step) for number, step in enumerate(found, start=first)]}

    async def step(self, given: Parameters) -> JsonObject:
        """One step with the whole of its texts and both states."""
        number = whole(given, "step", 1)
        found = await self._library.steps(*episode_named(given), number, 1)
        if not found:
            raise InvalidInput(f"the episode has no step {number}")
        whole_states: JsonObject = {"before": found[0].state, "after": found[0].next_state}
        return {**shown_step(number, found[0], most=None), "states": whole_states}

    async def compare(self, given: Parameters) -> JsonObject:
        """Two episodes, call by call, and the first call at which they differ."""
        names = [
            episode_named(given),
            episode_named({"place": given.get("other_place", ""), "id": given.get("other", "")}),
        ]
        one, other = [await self._library.summary(*name) for name in names]
        parts_at = await self._library.parting(one, other)
        count = whole(given, "count", STEPS, most=MOST)
        # by default, the page on which they differ
        first = whole(given, "first", ((parts_at or 1) - 1) // count * count + 1)
        sides = [await self._library.steps(*name, first, count) for name in names]
        return {
            "one": shown_summary(one),
            "other": shown_summary(other),
            "parts_at": parts_at,
            "same_end": one.ends_like(other),
            "total": max(one.outcome.steps, other.outcome.steps),
            "first": first,
            "pairs": [shown_pair(number, pair) for number, pair in enumerate(paired_calls(*sides), start=first)],
        }

    async def recorded(self, given: Parameters) -> JsonObject:
        """Where transitions were recorded, in the order in which they were asked for."""
        ids = [one for one in given.get("ids", "").split(",") if one][:MOST]
        found = {one.id: one for one in await self._library.recorded(given.get("env", ""), ids)}
        return {"recorded": [shown_recorded(found[one]) if one in found else {"id": one} for one in ids]}

    async def tasks(self, given: Parameters) -> JsonObject:
        """Tasks by their value with parents and children: of a training run, else of an environment of the store."""
        run, env, values = given.get("run", ""), "", dict[str, TaskValue]()
        if run:
            tasks, values = await asyncio.to_thread(curriculum_of, self._of_folder(), run)
        else:
            env, buffer = environment(given), self._library.buffer
            self._library.stored()
            tasks = [] if buffer is None else [*await buffer.tasks(env)]
            values = {} if buffer is None else {one.task_id: one for one in await buffer.task_values(env)}
        first = whole(given, "first", 1)
        shown: list[JsonValue] = [*shown_tasks(tasks, values)[first - 1 : first - 1 + MOST]]
        return {
            "env": env,
            "run": run,
            "tasks": shown,
            "total": len(tasks),
            "first": first,
            "attempted": len(values),
        }

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

    async def behind(self, given: Parameters) -> JsonObject:
        """Some of the steps behind a number of a report, with the place of each that is stored here."""
        name, setting, cell = (given.get(one, "") for one in ("name", "setting", "cell"))
        highest = given.get("order") == "highest"
        found = await asyncio.to_thread(steps_behind, self._of_folder(), name, setting, cell, highest=highest)
        first = whole(given, "first", 1)
        shown = found[first - 1 : first - 1 + PAGE]
        return {
            "setting": setting,
            "cell": cell,
            "total": len(found),
            "mean": sum(one.values[cell] for one in found) / len(found) if found and is_mean(cell) else None,
            "first": first,
            "steps": [{**one.shown.model_dump(mode="json"), "value": one.values[cell]} for one in shown],
            "places": {**await self._library.places({one.shown.trajectory for one in shown})},
        }

    async def all_behind(self, name: str) -> JsonObject:
        """All steps behind the numbers of a report, for an exported page."""
        lines = await asyncio.to_thread(lines_behind, self._of_folder(), name)
        steps: list[JsonValue] = [{**one.shown.model_dump(mode="json"), **one.model_dump(include=OWN)} for one in lines]
        cells = sorted({cell for one in lines for cell in one.values})
        return {
            "steps": steps,
            "not_means": [cell for cell in cells if not is_mean(cell)],
            "places": {**await self._library.places({one.shown.trajectory for one in lines})},
        }

    async def tools(self, given: Parameters) -> JsonObject:
        """The tools of an episode that was forked here."""
        assert self.hand is not None, "this request is only served with a hand"
        return await self.hand.tools(given.get("id", ""))

    def _of_folder(self) -> RunFolder:
        if self._library.folder is None:
            raise InvalidInput("no run folder is open: start with `dreamgym view RUNFOLDER`")
        return self._library.folder

    def events(self, episode: str, stopping: asyncio.Event) -> AsyncIterator[JsonObject]:
        """The progress of an episode of the store, now and at each change.

        Ends when the episode is over or deleted, or when the server stops. Raises StoreError if no store is open.
        """
        return self._changes(self._library.stored(), episode, stopping)

    async def _changes(self, store: StoredEpisodes, episode: str, stopping: asyncio.Event) -> AsyncIterator[JsonObject]:
        last = None
        while not stopping.is_set():
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
                await asyncio.wait_for(stopping.wait(), WATCH_INTERVAL_S)

    async def _start(self, one: EpisodeSummary) -> str | None:
        """The state in which an episode began, if it is known."""
        store = self._library.store
        if one.task.initial_state is None and one.place == PLACE and store is not None:
            return await store.initial(one.id)
        return one.task.initial_state

    async def _is_on_a_server(self, one: EpisodeSummary) -> bool:
        return one.place == PLACE and await self._library.stored().is_on_a_server(one.id)

    async def _twins(self, one: EpisodeSummary) -> tuple[list[EpisodeSummary], int]:
        """Episodes of the task on the other side (dreams of a real one, real ones of a dream), and their number."""
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
