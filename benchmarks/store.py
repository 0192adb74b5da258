"""Measure a store of many transitions: loading, exact search and approximate search, compared with faiss.

    python benchmarks/store.py [--steps 10000 --steps 100000 --steps 1000000] [--questions 100] [--environments 20]

Every size has its own embedded PostgreSQL in a temporary folder (7 GB for a million) that is deleted afterwards. All
states differ, so there are as many keys as steps. If there are several environments, the second has half the steps of
the first, the third a third, and so on; the queries are divided in the same way. faiss is measured if it is installed
(pip install faiss-cpu). CPU is that of PostgreSQL's processes and of this one; recall@5 is over the nearest keys by
cosine.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from dreamgym.embedding import TrigramEncoder
from dreamgym.replay.buffer import GROUNDED, Retrieval
from dreamgym.replay.embedded import EmbeddedServer
from dreamgym.replay.keys import KeyEncoder, source_mask
from dreamgym.replay.postgres import Store, binary, open_store
from dreamgym.replay.postgres.vector_index import APPROXIMATE, EVERYTHING, EXACT, INDEXED_KEYS, INDEXED_RESULTS
from dreamgym.replay.ranking import SIMILAR_KEYS
from dreamgym.testing.replay import sample_trajectory
from dreamgym.types import Source, StepResult, ToolCall, Trajectory, Transition

ROOMS = ("kitchen", "pantry", "hall", "backyard", "laundry", "bedroom", "study", "corridor", "cellar", "attic")
THINGS = (
    "coin",
    "lamp",
    "knife",
    "apple",
    "book",
    "key",
    "chair",
    "table",
    "rope",
    "bottle",
    "candle",
    "mirror",
    "clock",
)
DOORS = ("north", "south", "east", "west", "up", "down")
STEPS = 10
LOADED = 20_000
"""Steps that are stored in one transaction."""
NEIGHBOURS = 5
WARM_UP = 20
"""Questions that are asked before those that are measured, since an index that nothing has read is read from disk."""
TABLES = ("transitions", "trajectory_steps", "vectors_1", "sightings", "world_states", "trajectories")
FILTERS = ("none", "the tool of the call", "one tool, whatever the call", "as of the middle")
"""A dream uses no filter, or the tool of the call. A filter for another tool searches the far end of the space."""


def env_of(house: int, environments: int) -> str:
    """The environment of a house."""
    shares = [1 / rank for rank in range(1, environments + 1)]
    return f"benchmark {random.Random(f'house {house}').choices(range(environments), shares)[0]}"


def play(number: int, environments: int) -> Trajectory:
    """An episode in one of many houses; ten episodes share a house."""
    draw, house = random.Random(number), number // 10
    states = [
        f"House {house}, {draw.choice(ROOMS)}. You see {', '.join(draw.sample(THINGS, 4))}. Doors lead "
        f"{' and '.join(draw.sample(DOORS, 2))}. You carry {draw.choice(THINGS)} and {draw.choice(THINGS)}."
        for _ in range(STEPS + 1)
    ]
    steps = []
    for state, following in pairwise(states):
        tool = draw.choice(("go", "take", "open", "drop"))
        action = ToolCall(name=tool, arguments={"to": draw.choice(DOORS if tool == "go" else THINGS)})
        result = StepResult(observation=following)
        steps.append(Transition.of(state, action, result).model_copy(update={"next_state": following}))
    return sample_trajectory(f"episode {number}", *steps, world=f"house {house}", env=env_of(house, environments))


SIZES = "SELECT name, env_id, count(*) FROM vectors_1 JOIN environments ON env_id = id GROUP BY name, env_id"
BUILT = "SELECT count(*) FROM vector_indexes WHERE error IS NULL"
INDEXES = """
SELECT env_id, ef_search, recall, pg_relation_size(format('vectors_1_%%s_recorded', env_id)) FROM vector_indexes
ORDER BY keys DESC
"""


class Clock:
    """Wall time, and CPU of this process and of one PostgreSQL with all its processes, in seconds."""

    def __init__(self, postmaster: int) -> None:
        self._postmaster = postmaster
        self._begin(self._database())

    def _begin(self, database: float) -> None:
        # reading the database's CPU takes milliseconds of our own, which are not counted
        self._start = time.perf_counter(), time.process_time(), database

    def _database(self) -> float:
        cpu = 0.0
        for process in Path("/proc").glob("[0-9]*"):
            try:
                fields = (process / "stat").read_text().rpartition(") ")[2].split()
                if self._postmaster in {int(process.name), int(fields[1])}:
                    cpu += int((process / "schedstat").read_text().split()[0]) / 1e9
                if int(process.name) == self._postmaster:  # its children that have ended
                    cpu += sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")
            except OSError:  # the process has ended
                continue
        return cpu

    def read(self) -> tuple[float, float, float]:
        """Seconds since the last reading: wall, this process, PostgreSQL."""
        wall, own, before = self._start
        wall, own = time.perf_counter() - wall, time.process_time() - own
        now = self._database()
        self._begin(now)
        return wall, own, now - before


@asynccontextmanager
async def opened(dim: int) -> AsyncIterator[tuple[Store, Clock]]:
    """An empty store in a temporary folder, and its clock."""
    home = Path(tempfile.mkdtemp(prefix="dreamgym-store-"))
    home.chmod(0o711)
    server = EmbeddedServer.start(home / "postgres")
    try:
        store = await open_store(server.dsn, TrigramEncoder(dim // 2))
        try:
            yield store, Clock(int((home / "postgres" / "data" / "postmaster.pid").read_text().split()[0]))
        finally:
            await store.close()
    finally:
        server.release()
        shutil.rmtree(home, ignore_errors=True)


def show(*cells: object) -> None:
    """Print a row of the table."""
    print(f"| {' | '.join(str(cell) for cell in cells)} |", flush=True)


async def load(store: Store, clock: Clock, steps: int, dim: int, environments: int) -> None:
    """Measure storing the episodes, and then storing packed vectors alone."""
    seconds = client = server = 0.0
    size = min(LOADED, steps // 4)
    for first in range(0, steps, 2 * size):
        batches = [
            [play(number, environments) for number in range(begin // STEPS, min(begin + size, steps) // STEPS)]
            for begin in (first, first + size)
        ]
        clock.read()
        await asyncio.gather(*map(store.buffer.add, batches))
        wall, ours, theirs = clock.read()
        seconds, client, server = seconds + wall, client + ours, server + theirs
        say(f"{min(first + 2 * size, steps):,} of {steps:,} steps stored")
    counts = [(await store.database.fetch(f"SELECT count(*) FROM {table}", {}))[0][0] for table in TABLES]
    rows, us = sum(counts) / steps, 1e6 / steps
    print(
        f"Loading, two transactions of {size:,} steps at a time: {steps / seconds:,.0f} steps a second, which are "
        f"{steps * rows / seconds:,.0f} rows a second. CPU of a step: client "
        f"{client * us:.0f} us, PostgreSQL {server * us:.0f} us, for {rows:.1f} rows in {len(TABLES)} tables. The two "
        f"work at the same time: with a core for each, that is {rows / max(client, server) * steps:,.0f} rows a second."
        "\n"
    )
    count = LOADED
    vectors = np.random.default_rng(0).random((count, dim), dtype=np.float32).astype(np.float16)
    async with store.database.transaction() as connection:
        await connection.execute("CREATE TEMP TABLE packed (LIKE vectors_1) ON COMMIT DROP")
        clock.read()
        await binary.copy(
            connection,
            "packed (env_id, key, sources, state, action, embedding, first_at)",
            binary.int2([1] * count),
            binary.uuid(number.to_bytes(16) for number in range(count)),
            binary.int2([1] * count),
            binary.text(["a state of some length, as they are"] * count),
            binary.text(["act"] * count),
            binary.halfvec(vectors),
            binary.int8(range(count)),
        )
        wall, ours, theirs = clock.read()
    us = 1e6 / count
    print(
        f"Vectors alone, packed, in a table without an index: {count / wall:,.0f} rows a second; CPU of a row: client "
        f"{ours * us:.1f} us, PostgreSQL {theirs * us:.1f} us.\n"
    )


def asked(steps: int, count: int, environments: int) -> list[Retrieval]:
    """Queries without an identical key: every second one in a stored state, the others in a new state."""
    draw, questions = random.Random(0), []
    for number in range(count):
        stored = draw.randrange(steps // STEPS // 10) * 10
        transition = play(10**9 + number, environments).transitions[number % STEPS]
        state = transition.state.replace(f"House {(10**9 + number) // 10}", f"House {stored // 10}")
        if number % 2:  # a state that is stored, with an action that is not
            state = play(stored, environments).transitions[number % STEPS].state
        env = env_of(stored // 10, environments)
        questions.append(Retrieval(env=env, state=state, action=transition.action, k=NEIGHBOURS))
    return questions


async def search(store: Store, clock: Clock, questions: Sequence[Retrieval]) -> tuple[list[list[str]], str]:
    """Answers, and cells with the ms of one: CPU of PostgreSQL, CPU of this process, median of the wall time."""
    for question in questions[:WARM_UP]:
        await store.buffer.nearest(question)
    walls, answers = [], []
    clock.read()
    for question in questions:
        started = time.perf_counter()
        answers.append([found.id for found in await store.buffer.nearest(question)])
        walls.append(time.perf_counter() - started)
    _, ours, theirs = clock.read()
    ms = 1000 / len(questions)
    return answers, f"{theirs * ms:.2f} | {ours * ms:.2f} | {1000 * statistics.median(walls):.1f}"


@dataclass(frozen=True)
class Partition:
    """An environment's part of the store."""

    id: int
    keys: int
    width: int | None = None
    """Candidates of a search in its index; None: searches are exact."""


async def nearest(
    store: Store,
    query: str,
    questions: Sequence[Retrieval],
    vectors: NDArray[np.float16],
    asks: dict[str, Any],
    partitions: Mapping[str, Partition],
) -> list[list[float]]:
    """Cosines of the nearest keys that `query` finds for each question, by default among those of its tool."""
    found = []
    for question, vector in zip(questions, vectors, strict=True):
        partition = partitions[question.env]
        statement = query.format(encoder=1, env=partition.id, limit=INDEXED_RESULTS)
        asks = {**asks, "ef_search": str(partition.width)}
        asked = {"tool": f"{question.action.name}{{", **asks, "state": question.state, "vector": HalfVector(vector)}
        rows = await store.database.fetch(statement, asked)
        found.append(sorted((row[3] for row in rows), reverse=True)[:NEIGHBOURS])
    return found


def recall(found: Sequence[Sequence[float]], truth: Sequence[Sequence[float]]) -> float:
    """Share of the nearest keys that were found; a different key that is equally near counts too."""
    hits = sum(sum(one >= best[-1] - 1e-6 for one in near) for near, best in zip(found, truth, strict=True))
    return hits / sum(len(best) for best in truth)


async def indexed(store: Store, clock: Clock) -> dict[str, Partition]:
    """Wait until the store has built all indexes; return every environment's part."""
    partitions = {name: Partition(env, keys) for name, env, keys in await store.database.fetch(SIZES, {})}
    wanted = sum(one.keys >= INDEXED_KEYS for one in partitions.values())
    clock.read()
    while (await store.database.fetch(BUILT, {}))[0][0] < wanted:  # the store builds them by itself
        for one in partitions.values():
            await store.buffer.indexes.ef_search(one.id)
        await asyncio.sleep(0.5)
    wall, _, cpu = clock.read()
    known = {env: (width, recall, size) for env, width, recall, size in await store.database.fetch(INDEXES, {})}
    recalls = " ".join(f"{recall:.3f}" for _, recall, _ in known.values())
    widths = " ".join(str(width) for width, _, _ in known.values())
    size = sum(size for *_, size in known.values()) / 2**20
    print(
        f"Indexes: {len(known)}, {wall:.0f} s, {cpu:.0f} s of CPU, {size:.0f} MB; recall that each measured: "
        f"{recalls}, with {widths} candidates.\n"
    )
    return {name: replace(one, width=known.get(one.id, (None,))[0]) for name, one in partitions.items()}


async def measure(steps: int, dim: int, count: int, environments: int) -> None:
    """Measure one size, and print the results."""
    print(f"\n## {steps:,} steps of {environments} environment{'s' * (environments > 1)}\n")
    async with opened(dim) as (store, clock):
        ((pages,),) = await store.database.fetch("SHOW huge_pages_status", {})
        print(f"PostgreSQL's huge pages: {pages}.\n")
        named = {env_of(house, environments): house * 10 for house in reversed(range(steps // STEPS // 10))}
        await store.buffer.add([play(number, environments) for number in named.values()])  # gives each a number
        async with store.buffer.indexes.adding([env for _, env, _ in await store.database.fetch(SIZES, {})]):
            await load(store, clock, steps, dim, environments)
            # autovacuum would run at some time during the queries
            for statement in ("VACUUM ANALYZE", "ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()"):
                await store.database.fetch(statement, {})
        partitions = await indexed(store, clock)
        questions = asked(steps, count, environments)
        keys = [(question.state, question.action.canonical()) for question in questions]
        vectors = await KeyEncoder(TrigramEncoder(dim // 2)).encode(keys)
        # only recordings are in the index: a search that may return dreams as well is exact
        exact = [question.model_copy(update={"sources": frozenset(Source)}) for question in questions]
        exactly, exact_cost = await search(store, clock, exact)
        ((middle,),) = await store.database.fetch("SELECT max(first_at) / 2 FROM vectors_1", {})
        asks = {"mask": source_mask(GROUNDED), "keys": SIMILAR_KEYS, "exclude": ""}
        variants: tuple[dict[str, Any], ...] = ({"tool": ""}, {}, {"tool": "take{"}, {"tool": "", "as_of": middle})
        filters = {name: {**asks, "as_of": EVERYTHING, **one} for name, one in zip(FILTERS, variants, strict=True)}
        truth = {name: await nearest(store, EXACT, questions, vectors, filters[name], partitions) for name in FILTERS}
        say("exact search measured")
        show("search", "recall@5", "PostgreSQL CPU ms", "client CPU ms", "median ms", "same answer")
        print("|---" * 6 + "|")
        show("exact, whole question", "1.000", exact_cost, "100 %")
        if all(one.width is not None for one in partitions.values()):
            for name in FILTERS:
                some = slice(WARM_UP)
                await nearest(store, APPROXIMATE, questions[some], vectors[some], filters[name], partitions)
                clock.read()
                found = await nearest(store, APPROXIMATE, questions, vectors, filters[name], partitions)
                _, ours, theirs = clock.read()
                ms = 1000 / len(vectors)
                show(
                    f"index alone, filter: {name}",
                    f"{recall(found, truth[name]):.3f}",
                    f"{theirs * ms:.2f} | {ours * ms:.2f} | | ",
                )
            answers, cost = await search(store, clock, questions)
            same = sum(a == b for a, b in zip(answers, exactly, strict=True)) / len(questions)
            show("index, whole question", "", cost, f"{100 * same:.0f} %")
        if environments > 1:  # numpy and faiss have no partitions
            return
        stored = np.empty((0, dim), dtype=np.float16)
        for part in range(16):  # reading a million at once would double the memory
            rows = await store.database.fetch(
                "SELECT embedding FROM vectors_1 WHERE get_byte(uuid_send(key), 0) %% 16 = %(part)s", {"part": part}
            )
            stored = np.concatenate([stored, [row[0].to_numpy() for row in rows]], dtype=np.float16)
            del rows
    others(stored.astype(np.float32), vectors.astype(np.float32), truth[FILTERS[0]])


def others(stored: NDArray[np.float32], vectors: NDArray[np.float32], truth: Sequence[Sequence[float]]) -> None:
    """Measure numpy, and faiss if it is installed, on these vectors; neither stores, filters or shares anything."""
    stored /= np.linalg.norm(stored, axis=1, keepdims=True)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    before = time.process_time()
    found = [np.sort(stored @ vector)[-NEIGHBOURS:].tolist() for vector in vectors[:50]]
    cpu = 1000 * (time.process_time() - before) / 50
    show("numpy, exact", f"{recall(found, truth[:50]):.3f}", "", f"{cpu:.2f}", "", "")
    try:
        faiss = importlib.import_module("faiss")
    except ImportError:
        say("faiss is not installed, and not measured")
        return
    faiss.omp_set_num_threads(1)
    index = faiss.IndexHNSWFlat(stored.shape[1], 16, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = 64, 100
    before = time.process_time()
    index.add(stored)
    built = time.process_time() - before
    before = time.process_time()
    found = [index.search(vector[None], NEIGHBOURS)[0][0].tolist() for vector in vectors]
    cpu = 1000 * (time.process_time() - before) / len(vectors)
    show(f"faiss HNSW, built in {built:.0f} s of CPU", f"{recall(found, truth):.3f}", "", f"{cpu:.2f}", "", "")


def say(line: str) -> None:
    """Print progress to stderr, apart from the results."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Measure every size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, action="append", help="stored steps; repeat the option for more sizes")
    parser.add_argument("--dim", type=int, default=384, help="dimensions of a key's vector")
    parser.add_argument("--questions", type=int, default=100, help="number of questions at each size")
    parser.add_argument("--environments", type=int, default=1)
    given = parser.parse_args()
    print(
        f"{given.questions} questions at each size; vectors of {given.dim} dimensions of hashed trigrams, which are "
        "embedded in 5 us a text; a model takes a hundred times as long."
    )
    for steps in given.steps or [10_000, 100_000, 1_000_000]:
        asyncio.run(measure(steps, given.dim, given.questions, given.environments))


if __name__ == "__main__":
    main()
