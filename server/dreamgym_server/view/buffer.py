"""The answers behind the view of the buffer: recorded steps, searched by text or by likeness, and their map."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pydantic_core import from_json

from dreamgym.environment import first_reason
from dreamgym.errors import InvalidInput
from dreamgym.replay.buffer import GROUNDED, Retrieval
from dreamgym.replay.listing import EpisodeFilter
from dreamgym.replay.postgres.coverage import CoverageMap, StoredTransitions
from dreamgym.replay.postgres.listing import Recorded
from dreamgym.replay.postgres.search import StepSearch
from dreamgym.types import JsonObject, ToolCall
from dreamgym_server.view.folder_steps import FolderSteps
from dreamgym_server.view.library import Library
from dreamgym_server.view.parameters import Parameters, conditions, environment
from dreamgym_server.view.shown import cut, shown_recorded

NEAR = 12
"""Number of recorded steps most like a call that are shown."""
CHOSEN_AMONG = 40
"""Number of steps most like a call among which those that meet the conditions are chosen."""


class BufferAnswers:
    """Answers the page's requests for the recorded steps of a store or a run folder."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._maps: dict[str, tuple[object, CoverageMap | None]] = {}
        self._of_folder = None if library.folder is None else FolderSteps(library.folder)

    async def coverage(self, given: Parameters) -> JsonObject:
        """The map of which actions are recorded in which states of an environment."""
        env = environment(given)
        steps = self._folder_steps(given)
        if steps is not None:
            found = await asyncio.to_thread(steps.coverage, env)
        else:
            found = await self._stored_map(env)
        if found is None:
            return {"env": env, "map": None}
        shown = found.model_dump(mode="json")
        return {"env": env, "map": {**shown, "states": [cut(state, 300) for state in found.states]}}

    async def _stored_map(self, env: str) -> CoverageMap | None:
        """The map of the store, which is made again only if something was stored, replaced or deleted."""
        transitions = StoredTransitions(self._library.stored().database)
        stamp = await transitions.stamp(env)
        if env not in self._maps or self._maps[env][0] != stamp:
            self._maps[env] = (stamp, await transitions.coverage(env))
        return self._maps[env][1]

    async def search(self, given: Parameters) -> JsonObject:
        """Recorded steps that contain a text, from the episodes that meet the conditions."""
        chosen = conditions({**given, "env": environment(given), "text": ""})
        text, after = given.get("text", ""), given.get("after") or None
        if not text and chosen == EpisodeFilter(env=chosen.env):
            raise InvalidInput("expected a text or a condition to search by")
        steps = self._folder_steps(given)
        if steps is not None:
            found = await asyncio.to_thread(steps.holding, chosen, text, after)
        else:
            found = await StepSearch(self._library.stored()).holding(chosen, text, after)
        return {
            "recorded": [shown_recorded(one) for one in found.recorded],
            "looked": found.looked,
            "next": found.next,
        }

    async def near(self, given: Parameters) -> JsonObject:
        """Recorded steps that are most like a call in a state, from which a dream would make its answer."""
        self._library.stored()
        buffer = self._library.buffer
        if buffer is None:
            raise InvalidInput(
                "this process does not have the encoder that filled the store: set DREAMGYM_ENCODER to its name"
            )
        try:
            arguments = from_json(given.get("arguments") or "{}")  # unlike `json`, it refuses lone surrogates
            action = ToolCall(name=given.get("tool", ""), arguments=arguments)
        except ValueError as error:
            raise InvalidInput(f"expected a tool, and its arguments as a JSON object: {first_reason(error)}") from error
        env, chosen = environment(given), conditions({**given, "env": "", "text": "", "state": ""})
        is_chosen = chosen != EpisodeFilter()
        asked = Retrieval(
            env=env,
            state=given.get("state", ""),
            action=action,
            k=CHOSEN_AMONG if is_chosen else NEAR,
            history=None,
            sources=GROUNDED if chosen.source is None else frozenset({chosen.source}),
        )
        found = await buffer.nearest(asked)
        where = {one.id: one for one in await self._library.recorded(env, [one.id for one in found])}
        if is_chosen:
            where = await self._passing(where, chosen)
        shown = [one for one in found if one.id in where]
        return {
            "recorded": [
                {**shown_recorded(where[one.id]), "score": one.score, "exact": one.exact} for one in shown[:NEAR]
            ],
            "looked": len(found),
        }

    async def _passing(self, where: Mapping[str, Recorded], chosen: EpisodeFilter) -> dict[str, Recorded]:
        """The transitions that meet the conditions. The condition on the tier is on the transition itself."""
        of_episode = chosen.model_copy(update={"tier": None})
        passing: dict[str, Recorded] = {}
        for identity, one in where.items():
            if chosen.tier not in {None, one.transition.provenance.tier}:
                continue
            if (await self._library.summary(one.place, one.episode)).passes(of_episode):
                passing[identity] = one
        return passing

    def _folder_steps(self, given: Parameters) -> FolderSteps | None:
        """The steps of the run folder if they are asked for; None stands for those of the store."""
        return self._of_folder if given.get("place") == "folder" else None
