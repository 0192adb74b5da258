"""Which tasks to play next: seed tasks, and at most a share of generated ones.

The curriculum is plain data plus a seed: `state()` goes into the checkpoint, `restore()` continues as if nothing had
happened.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from dreamgym.curriculum.value import group_variance
from dreamgym.errors import InvalidInput
from dreamgym.types import JsonObject, Task


class Curriculum:
    """Samples tasks and remembers what each was worth.

    Args:
        seeds: the tasks that were given; they keep the original distribution covered.
        share: lambda of the paper: at most this share of the tasks of one iteration is generated, in [0, 1].
        seed: fixes every draw, together with the iteration.
    """

    def __init__(self, seeds: Sequence[Task], *, share: float, seed: int) -> None:
        if not seeds:
            raise InvalidInput("a curriculum needs at least one task: run `dreamgym collect` or `dreamgym seed` first")
        if not 0 <= share <= 1:
            raise InvalidInput(f"the share of generated tasks must be between 0 and 1, got {share}")
        self._seeds = list(seeds)
        self._share = share
        self._seed = seed
        self._generated: dict[str, Task] = {}
        self._value: dict[str, float] = {}
        self._parents = {task.id: task for task in seeds}

    def sample(self, n: int, iteration: int) -> list[Task]:
        """Draw n tasks for an iteration; the same iteration of the same curriculum draws the same.

        Generated tasks that were not tried yet come first, then those of the highest value.
        """
        draw = random.Random(f"{self._seed}:{iteration}")
        ranked = sorted(self._generated.values(), key=lambda task: (-self._value.get(task.id, 1.0), task.id))
        generated = ranked[: int(self._share * n)]
        wanted = n - len(generated)
        seeds = draw.sample(self._seeds, wanted) if wanted <= len(self._seeds) else draw.choices(self._seeds, k=wanted)
        return [*seeds, *generated]

    def record(self, task: Task, rewards_G: Sequence[float | None]) -> float | None:
        """Note a group's outcome; returns its V_tau. A generated task that taught nothing is dropped."""
        value = group_variance(rewards_G)
        if value is None:
            return None
        self._value[task.id] = value
        if value == 0:
            self._generated.pop(task.id, None)
        return value

    def most_valuable(self, m: int) -> list[Task]:
        """The m tasks with the highest V_tau above zero, as parents of new ones (paper, eq. 6)."""
        known = {**self._parents, **self._generated}
        ranked = sorted(
            (task for task in known.values() if self._value.get(task.id, 0) > 0),
            key=lambda task: (-self._value[task.id], task.id),
        )
        return ranked[:m]

    def add(self, tasks: Iterable[Task]) -> None:
        """Take in generated tasks."""
        self._generated.update((task.id, task) for task in tasks)

    @property
    def generated(self) -> tuple[Task, ...]:
        """The generated tasks in play."""
        return tuple(self._generated.values())

    def state(self) -> JsonObject:
        """Everything that changes while training, as JSON."""
        return {
            "generated": [task.model_dump(mode="json") for task in self._generated.values()],
            "value": dict(sorted(self._value.items())),
        }

    def restore(self, state: JsonObject) -> None:
        """Continue from a saved state. Raises InvalidInput where it is none."""
        generated, value = state.get("generated"), state.get("value")
        if not isinstance(generated, list) or not isinstance(value, dict):
            raise InvalidInput("not a saved curriculum: expected 'generated' and 'value'")
        tasks = [Task.model_validate(task) for task in generated]
        self._generated = {task.id: task for task in tasks}
        self._value = {task_id: float(str(v)) for task_id, v in value.items()}
