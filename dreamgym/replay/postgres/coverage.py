"""Coverage of an environment: which states and actions are recorded.

It is read from the keys that retrieval compares, each a pair of state and action. For a recorded key, a dream need not
guess. Keys that were only dreamed are counted separately.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from dreamgym.replay.buffer import GROUNDED
from dreamgym.replay.keys import source_mask
from dreamgym.replay.postgres.database import Database
from dreamgym.types import Frozen

STATES = 24
ACTIONS = 16
"""Most states and actions in a map; those with the most recorded keys come first."""
FEW_TOOLS = 2
"""If there are no more tools than this, a map shows whole actions, because tools alone would show little."""

TOTALS = """
SELECT tool, sum(keys)::int, sum(recorded)::int, count(*)::int FROM (
  SELECT split_part(action, '{{', 1) AS tool, count(*) AS keys,
    count(*) FILTER (WHERE sources & %(mask)s <> 0) AS recorded
  FROM vectors_{encoder} WHERE env_id = %(env)s GROUP BY tool, hashtextextended(state, 0)
) AS by_state GROUP BY tool ORDER BY sum(keys) DESC, tool
"""
STATES_IN_ALL = """
SELECT count(*) FROM (
  SELECT FROM vectors_{encoder} WHERE env_id = %(env)s GROUP BY hashtextextended(state, 0)
) AS states
"""
TOP_STATES = """
SELECT state, count(*) FROM vectors_{encoder} WHERE env_id = %(env)s AND sources & %(mask)s <> 0
GROUP BY state ORDER BY count(*) DESC, state COLLATE "C" LIMIT %(limit)s
"""
TOP_ACTIONS = """
SELECT {column} AS told, count(*) FROM vectors_{encoder} WHERE env_id = %(env)s AND sources & %(mask)s <> 0
GROUP BY told ORDER BY count(*) DESC, told LIMIT %(limit)s
"""
CELLS = """
SELECT state, {column} AS told, count(*), count(*) FILTER (WHERE sources & %(mask)s <> 0)
FROM vectors_{encoder} WHERE env_id = %(env)s AND state = ANY (%(states)s) AND {column} = ANY (%(actions)s)
GROUP BY state, told
"""
STAMP = """
WITH env AS (SELECT id FROM environments WHERE name = %(env)s)
SELECT count(*), max(position),
  (SELECT position FROM watermarks WHERE env_id = (SELECT id FROM env) AND name = '')  -- of the last change (retire.py)
FROM trajectories WHERE env_id = (SELECT id FROM env)
"""


class ToolCoverage(Frozen):
    """How much is known of one tool."""

    tool: str
    keys: int
    """Number of different pairs of state and action."""
    recorded: int
    """Number of those that were recorded or imported; the others were only dreamed."""
    states: int
    """Number of different states in which the tool was called."""


class CoverageMap(Frozen):
    """Which actions are recorded in which states."""

    tools: tuple[ToolCoverage, ...]
    states: tuple[str, ...]
    """The states with most recorded actions."""
    states_in_all: int
    actions: tuple[str, ...]
    """Tools, or whole actions as text if there are few tools."""
    recorded: tuple[tuple[int, ...], ...]
    """Number of recorded keys, by state and action."""
    dreamed: tuple[tuple[int, ...], ...]
    """Number of keys that were only dreamed, by state and action."""


@dataclass(frozen=True)
class StoredTransitions:
    """Read-only access to the transitions of a store."""

    database: Database

    async def coverage(self, env: str) -> CoverageMap | None:
        """The map of an environment; None if nothing is stored for it."""
        known = await self._tables(env)
        if known is None:
            return None
        encoder, env_id = known
        names = {"env": env_id, "mask": source_mask(GROUNDED)}
        rows, top, ((in_all,),) = await asyncio.gather(
            self.database.fetch(TOTALS.format(encoder=encoder), names),
            self.database.fetch(TOP_STATES.format(encoder=encoder), {**names, "limit": STATES}),
            self.database.fetch(STATES_IN_ALL.format(encoder=encoder), names),
        )
        tools = [ToolCoverage(tool=tool, keys=keys, recorded=some, states=states) for tool, keys, some, states in rows]
        column = "action" if len(tools) <= FEW_TOOLS else "split_part(action, '{', 1)"
        best = await self.database.fetch(
            TOP_ACTIONS.format(encoder=encoder, column=column), {**names, "limit": ACTIONS}
        )
        states, actions = [row[0] for row in top], [row[0] for row in best]
        cells = await self.database.fetch(
            CELLS.format(encoder=encoder, column=column), {**names, "states": states, "actions": actions}
        )
        counts = {(state, action): (keys, recorded) for state, action, keys, recorded in cells}
        nothing = (0, 0)
        return CoverageMap(
            tools=tuple(tools),
            states=tuple(states),
            states_in_all=in_all,
            actions=tuple(actions),
            recorded=tuple(tuple(counts.get((state, one), nothing)[1] for one in actions) for state in states),
            dreamed=tuple(
                tuple(keys - some for keys, some in (counts.get((state, one), nothing) for one in actions))
                for state in states
            ),
        )

    async def stamp(self, env: str) -> tuple[object, ...]:
        """A value that changes when an episode of the environment is stored or deleted, or a recording replaced."""
        return tuple((await self.database.fetch(STAMP, {"env": env}))[0])

    async def _tables(self, env: str) -> tuple[int, int] | None:
        rows = await self.database.fetch(
            "SELECT encoders.id, environments.id FROM encoders, environments "
            "WHERE ready AND environments.name = %(env)s",
            {"env": env},
        )
        return (int(rows[0][0]), int(rows[0][1])) if rows else None
