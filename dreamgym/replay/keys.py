"""The ids and the vectors by which transitions are stored and found; shared by all buffers.

A key is the pair (state, action text). All ids are content addresses: two buffers that contain the same trajectories
give the same ids, and therefore the same draws.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Self
from uuid import UUID

from dreamgym.embedding import Encoder
from dreamgym.errors import InvalidInput
from dreamgym.types import Frozen, Source, Trajectory, Transition

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Key = tuple[str, str]
"""A state and the canonical text of an action. A transition is stored and found under this pair."""

STATE_WEIGHT, ACTION_WEIGHT = math.sqrt(0.7), math.sqrt(0.3)
"""Weights of the state vector and the action vector in a key. Chosen on 240 hand-made queries; any share of the state
from 0.5 to 0.8 did as well."""

SOURCE_CODES = {Source.REAL: 0, Source.IMPORTED: 1, Source.SYNTHETIC: 2}
"""The number that the database stores for each source."""
SOURCES = {code: source for source, code in SOURCE_CODES.items()}
"""The source for each number that the database stores."""

CACHED_TEXTS = 20_000


def key_of(transition: Transition) -> Key:
    """The key that a transition is stored and found under."""
    return transition.state, transition.action.canonical()


def digest_bytes(*parts: str) -> bytes:
    """Content address of some texts: 128 bits of sha256."""
    return hashlib.sha256("\x00".join(parts).encode()).digest()[:16]


def digest_id(*parts: str) -> UUID:
    """`digest_bytes` as a UUID."""
    return UUID(bytes=digest_bytes(*parts))


def transition_id(transition: Transition) -> UUID:
    """Content address of a transition: equal in all buffers."""
    return UUID(bytes=transition.digest()[:16])


def outcome_id(transition: Transition) -> UUID:
    """Content address of action, next state and observation. Transitions that share it look the same."""
    return digest_id(transition.action.canonical(), transition.next_state, transition.result.observation)


def goal_id(goal: str) -> UUID:
    """The id under which a goal (`Task.goal`) is stored."""
    return digest_id(goal)


def source_mask(sources: Iterable[Source]) -> int:
    """A set of sources as a bit mask: bit n stands for the source with code n."""
    return sum(1 << SOURCE_CODES[source] for source in set(sources))


def check_storable(row: Frozen, what: str) -> str:
    """Return the row as JSON.

    Raises InvalidInput with `what` in its message if the row contains text that PostgreSQL cannot store.
    """
    try:
        text = row.model_dump_json()
    except ValueError as error:
        raise InvalidInput(f"{what}: contains text that is not valid Unicode (a lone surrogate): {error}") from error
    if "\\u0000" in text and _holds_nul(row.model_dump(mode="json")):
        raise InvalidInput(f"{what}: contains a NUL character (\\x00), which PostgreSQL cannot store; remove it")
    return text


@dataclass(frozen=True, slots=True)
class Serialized:
    """A trajectory as JSON. Serialising takes a quarter of the time of storing, so it is done once."""

    body: str
    """Everything but the transitions."""
    transitions: tuple[str, ...]
    digest: bytes
    """`Trajectory.digest`."""

    @classmethod
    def of(cls, trajectory: Trajectory) -> Serialized:
        """Serialise a trajectory. Raises InvalidInput if PostgreSQL cannot store it."""
        what = f"trajectory {trajectory.id!r}"
        transitions = tuple(check_storable(transition, what) for transition in trajectory.transitions)
        empty = check_storable(trajectory.model_copy(update={"transitions": ()}), what)
        # the last match is the field itself: only texts follow it, and their quotes are escaped
        before, _, after = empty.rpartition(',"transitions":[]')
        whole = f'{before},"transitions":[{",".join(transitions)}]{after}'
        return cls(before + after, transitions, hashlib.sha256(whole.encode()).digest())


def check_trajectories(trajectories: Sequence[Trajectory]) -> dict[str, Serialized]:
    """Trajectories by id, as JSON.

    Raises:
        InvalidInput: a trajectory cannot be stored, or occurs twice with different content.
    """
    found: dict[str, Serialized] = {}
    for trajectory in trajectories:
        serialized = Serialized.of(trajectory)
        if found.setdefault(trajectory.id, serialized).digest != serialized.digest:
            raise InvalidInput(f"trajectory {trajectory.id!r} comes twice in one batch with different content")
    return found


def stored_elsewhere(trajectory: Trajectory, env: str) -> InvalidInput:
    """The error for a trajectory whose id is already stored for another environment."""
    return InvalidInput(
        f"trajectory {trajectory.id!r} of {trajectory.task.env!r} cannot be stored: environment {env!r} already "
        "has a trajectory with this id; use another id"
    )


def check_kept(keep: int) -> None:
    """Raises InvalidInput for `keep` < 1. The newest trajectory must stay, since it gives the buffer's position."""
    if keep < 1:
        raise InvalidInput(f"expected to keep at least 1 dream of each task, got {keep}")


def _holds_nul(value: object) -> bool:
    if isinstance(value, str):
        return "\x00" in value
    if isinstance(value, dict):
        return any(_holds_nul(part) for item in value.items() for part in item)
    return isinstance(value, list) and any(_holds_nul(part) for part in value)


class KeyEncoder:
    """Embeds keys in a thread and caches their vectors: a policy comes back to the same states again and again."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self._cache: OrderedDict[bytes, NDArray[np.float32]] = OrderedDict()
        """Vectors by a digest of their text, since a text has no maximum length."""
        self._lock = asyncio.Lock()

    @property
    def dim(self) -> int:
        """Length of a key's vector."""
        return 2 * self.encoder.dim

    async def encode(self, keys: Sequence[Key]) -> NDArray[np.float16]:
        """Vectors of shape (len(keys), dim): the weighted state vector, then the weighted action vector.

        They have the precision that the database keeps, so their length is 1 only to three decimals.
        """
        import numpy as np

        texts = list(dict.fromkeys(chain.from_iterable(keys)))
        vectors = np.empty((len(texts), self.encoder.dim), dtype=np.float32)
        async with self._lock:  # if two episodes need the same text at once, the second finds it in the cache
            digests = [
                hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts
            ]
            missing = []
            for row, digest in enumerate(digests):
                if (known := self._cache.get(digest)) is None:
                    missing.append(row)
                else:
                    vectors[row] = known
            if missing:
                vectors[missing] = await asyncio.to_thread(self.encoder.encode, [texts[row] for row in missing])
            self._remember(digests[-CACHED_TEXTS:], vectors[-CACHED_TEXTS:].copy())
        rows = {text: row for row, text in enumerate(texts)}
        encoded = np.empty((len(keys), self.dim), dtype=np.float16)
        encoded[:, : self.encoder.dim] = STATE_WEIGHT * vectors[[rows[state] for state, _ in keys]]
        encoded[:, self.encoder.dim :] = ACTION_WEIGHT * vectors[[rows[action] for _, action in keys]]
        return encoded

    def _remember(self, digests: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        for digest, vector in zip(digests, vectors, strict=True):
            self._cache[digest] = vector
            self._cache.move_to_end(digest)
        while len(self._cache) > CACHED_TEXTS:
            self._cache.popitem(last=False)


@dataclass(frozen=True)
class Half:
    """The distinct states, or the distinct actions, of some keys."""

    rows: dict[str, int]
    """Text to its row in `vectors`."""
    vectors: NDArray[np.float32]
    """Shape (texts, dim / 2)."""
    row_of: NDArray[np.intp]
    """The row of each key's text, shape (keys,)."""

    @classmethod
    def of(cls, texts: Sequence[str], vectors: NDArray[np.float16]) -> Self:
        """The texts of some keys, and the vector of each, shape (keys, dim / 2)."""
        import numpy as np

        last = {text: row for row, text in enumerate(texts)}  # a text has the same vector wherever it stands
        rows = {text: row for row, text in enumerate(last)}
        row_of = np.array([rows[text] for text in texts], dtype=np.intp)
        return cls(rows, vectors[[*last.values()]].astype(np.float32), row_of)

    def extended(self, other: Half) -> Half:
        """These texts and, after them, those of further keys."""
        import numpy as np

        fresh = [text for text in other.rows if text not in self.rows]
        rows = self.rows | {text: row for row, text in enumerate(fresh, start=len(self.rows))}
        vectors = np.concatenate([self.vectors, other.vectors[[other.rows[text] for text in fresh]]])
        row_in_these = np.array([rows[text] for text in other.rows], dtype=np.intp)
        return Half(rows, vectors, np.concatenate([self.row_of, row_in_these[other.row_of]]))

    def products(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        """Dot product of each key's part with a vector, shape (keys,)."""
        import numpy as np

        # `@` computes in several threads. If other processes need the cores, each waits for its last thread: with three
        # processes on two cores it took 3.1 ms instead of 0.03, and this takes 0.15 instead of 0.07
        products: NDArray[np.float32] = np.vecdot(self.vectors, vector)[self.row_of]
        return products


@dataclass(frozen=True)
class KeyVectors:
    """Keys with their vectors, for an exact search.

    Many keys share a state or an action, so a search compares each distinct one once and adds the two up for every key.
    In recorded play of ALFWorld it reads a quarter of what a search of whole keys reads.
    """

    keys: list[Key]
    states: Half
    actions: Half
    lengths: NDArray[np.float32]
    """Length of each key's vector, shape (keys,)."""

    @classmethod
    def of(cls, keys: Sequence[Key], vectors: NDArray[np.float16]) -> Self:
        """Some keys with their vectors, shape (keys, dim), as `KeyEncoder` gives them."""
        half = vectors.shape[1] // 2
        states = Half.of([state for state, _ in keys], vectors[:, :half])
        actions = Half.of([action for _, action in keys], vectors[:, half:])
        return cls([*keys], states, actions, lengths(vectors))

    def extended(self, other: KeyVectors) -> KeyVectors:
        """These keys and, after them, further ones."""
        import numpy as np

        return KeyVectors(
            [*self.keys, *other.keys],
            self.states.extended(other.states),
            self.actions.extended(other.actions),
            np.concatenate([self.lengths, other.lengths]),
        )

    def cosines(self, vector: NDArray[np.float16]) -> NDArray[np.float32]:
        """Cosine of each key's vector with one of shape (dim,); result of shape (keys,)."""
        import numpy as np

        exact, half = vector.astype(np.float32), len(vector) // 2
        products = self.states.products(exact[:half]) + self.actions.products(exact[half:])
        cosines: NDArray[np.float32] = products / (self.lengths * lengths(vector))
        return cosines


def lengths(vectors: NDArray[np.float16]) -> NDArray[np.float32]:
    """Lengths of vectors, shape (..., dim), but never 0; result of shape (...)."""
    import numpy as np

    found: NDArray[np.float32] = np.maximum(np.linalg.norm(vectors.astype(np.float32), axis=-1), 1e-12)
    return found
