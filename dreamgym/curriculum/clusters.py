"""Groups of similar tasks, for PPO, whose advantages need no group of rollouts of one task.

The paper clusters the tasks by embedding, and the rewards of a cluster's rollouts in one update give V_tau of all tasks
in it. Here PPO plays each drawn task G times, as GRPO does, and all groups of a cluster in one update count as one.
This variance comes from differences between the tasks as well as from the policy's luck.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dreamgym.embedding import Encoder
from dreamgym.types import Task

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROUNDS = 50
"""Most rounds of k-means. It converges long before."""
SEEDS = 1 << 64
"""Number of seeds of numpy that are used: it takes no negative seed."""


def cluster_of(tasks: Sequence[Task], encoder: Encoder, clusters: int, *, seed: int) -> Callable[[Task], str]:
    """A function that names the cluster of any task: the nearest of the centres found for these tasks. Blocking.

    Clusters of other tasks, of another encoder or another seed have other names: a curriculum that is restored with
    those does not take the outcomes of one cluster for those of another.

    Args:
        tasks: at least one; the text of a task is its instruction and its initial state.
        encoder: embeds them.
        clusters: number of clusters; there are fewer if fewer tasks differ. Choose the number of groups of 8 that an
            update has room for.
        seed: fixes the centres.
    """
    import numpy as np

    texts = sorted({_text(task) for task in tasks})
    centres = _centres(encoder.encode(texts), clusters, np.random.default_rng(seed % SEEDS))
    found_by = hashlib.sha256(repr((encoder.fingerprint, clusters, seed, texts)).encode()).hexdigest()[:8]
    names: dict[str, str] = {}

    def cluster(task: Task) -> str:
        text = _text(task)
        if text not in names:
            names[text] = f"cluster-{found_by}-{_nearest(encoder.encode([text]), centres)[0]}"
        return names[text]

    return cluster


def _text(task: Task) -> str:
    return f"{task.instruction}\n{task.initial_state or ''}"


def _centres(vectors: NDArray[np.float32], clusters: int, draw: np.random.Generator) -> NDArray[np.float32]:
    """k-means on unit vectors (Lloyd), with centres initialised as in k-means++: each far from those before it."""
    import numpy as np

    centres = vectors[draw.integers(len(vectors), size=1)]
    while len(centres) < clusters:
        far = np.min(_distances(vectors, centres), axis=1)
        if far.max() < 1e-6:
            break  # no other text is left
        centres = np.concatenate([centres, vectors[draw.choice(len(vectors), size=1, p=far / far.sum())]])
    for _ in range(ROUNDS):
        members = _nearest(vectors, centres)
        moved = np.array(
            [vectors[members == i].mean(axis=0) if (members == i).any() else centre for i, centre in enumerate(centres)]
        )
        if np.allclose(moved, centres):
            break
        centres = moved
    return centres


def _nearest(vectors: NDArray[np.float32], centres: NDArray[np.float32]) -> NDArray[np.intp]:
    nearest: NDArray[np.intp] = _distances(vectors, centres).argmin(axis=1)
    return nearest


def _distances(vectors: NDArray[np.float32], centres: NDArray[np.float32]) -> NDArray[np.float64]:
    """Squared Euclidean distances, shape (vectors, centres)."""
    import numpy as np

    a, b = vectors.astype(np.float64), centres.astype(np.float64)
    squared: NDArray[np.float64] = (a * a).sum(1)[:, None] - 2 * a @ b.T + (b * b).sum(1)[None, :]
    return np.maximum(squared, 0.0)
