"""Values that buffers compute from trajectories before they store them."""

from dreamgym.replay.keys import check_trajectories
from dreamgym.testing.replay import sample_trajectory, sample_transition


def test_a_trajectory_serialised_in_parts_equals_the_whole() -> None:
    words = '"transitions":[],"'
    plain = sample_trajectory(words, sample_transition(words, "north", "hall"), sample_transition("hall", "go", words))
    task = plain.task.model_copy(update={"metadata": {"transitions": [], "world": words}, "instruction": words})
    odd = plain.model_copy(update={"id": "odd", "task": task, "answer": words, "error": f",{words}", "world": words})
    empty = odd.model_copy(update={"id": "empty", "transitions": ()})
    found = check_trajectories([plain, odd, empty])
    for trajectory in (plain, odd, empty):
        parts = found[trajectory.id]
        assert parts.body == trajectory.model_dump_json(exclude={"transitions"})
        assert parts.transitions == tuple(step.model_dump_json() for step in trajectory.transitions)
        assert parts.digest == trajectory.digest()
