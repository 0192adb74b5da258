"""Tasks with similar texts share a cluster, whose outcomes in one update count as one group."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym import Task
from dreamgym.curriculum.clusters import cluster_of
from dreamgym.curriculum.sampler import Curriculum
from dreamgym.embedding import TrigramEncoder

BOOKINGS = [f"Book a table for {n} at the harbour restaurant" for n in range(2, 8)]
BALANCES = [f"What is the balance of account 77{n}?" for n in range(6)]


def task(instruction: str, start: str | None = None) -> Task:
    return Task(id=f"{instruction}/{start}", env="desk", instruction=instruction, initial_state=start)


@pytest.mark.parametrize("seed", [-1, *range(4)])
def test_tasks_with_similar_texts_share_a_cluster_and_a_new_one_joins_it(seed: int) -> None:
    tasks = [task(text) for text in BOOKINGS + BALANCES]
    cluster = cluster_of(tasks, TrigramEncoder(), 2, seed=seed)
    bookings, balances = {cluster(task(t)) for t in BOOKINGS}, {cluster(task(t)) for t in BALANCES}
    assert len(bookings) == len(balances) == 1
    assert bookings != balances
    assert {cluster(task("Book a table for 20 at the harbour restaurant"))} == bookings


def test_the_start_distinguishes_tasks_with_the_same_instruction() -> None:
    tasks = [task("find the coin", start) for start in ("kitchen, exit north", "cellar with a ladder")]
    cluster = cluster_of(tasks, TrigramEncoder(), 2, seed=0)
    assert cluster(tasks[0]) != cluster(tasks[1])


@given(texts=st.lists(st.sampled_from(BOOKINGS + BALANCES), min_size=1), clusters=st.integers(1, 20))
def test_there_are_as_many_clusters_as_requested_or_as_different_texts(texts: list[str], clusters: int) -> None:
    tasks = [task(text) for text in texts]
    first, again = (cluster_of(order, TrigramEncoder(), clusters, seed=3) for order in (tasks, tasks[::-1]))
    names = {text: first(task(text)) for text in texts}
    assert names == {text: again(task(text)) for text in texts}, "clusters depend only on the tasks and the seed"
    assert len(set(names.values())) == min(clusters, len(set(texts)))


def test_the_curriculum_draws_from_the_cluster_whose_rollouts_differ() -> None:
    tasks = [task(text) for text in BOOKINGS + BALANCES]
    curriculum = Curriculum(tasks, share=0, seed=0, groups=cluster_of(tasks, TrigramEncoder(), 2, seed=0))
    for update in range(3):
        curriculum.sample(12, update)
        for number, played in enumerate(tasks):
            curriculum.record(played, [float(number % 2) if played.instruction in BALANCES else 0.0])
    drawn = [played.instruction in BALANCES for update in range(3, 23) for played in curriculum.sample(3, update)]
    assert sum(drawn) > 0.7 * len(drawn)
    assert {parent.instruction in BALANCES for parent in curriculum.most_valuable(12)} == {True}


@pytest.mark.parametrize(("texts", "dim"), [(BOOKINGS + BALANCES, 64), (BOOKINGS, 256)])
def test_a_restored_curriculum_does_not_take_outcomes_of_one_cluster_for_those_of_another(
    texts: list[str], dim: int
) -> None:
    def curriculum(texts: list[str], dim: int) -> Curriculum:
        tasks = [task(text) for text in texts]
        return Curriculum(tasks, share=0, seed=0, groups=cluster_of(tasks, TrigramEncoder(dim), 2, seed=0))

    saved = curriculum(BOOKINGS + BALANCES, 256)
    for text in BOOKINGS + BALANCES:
        saved.record(task(text), [1.0, 0.0])
    same, other = curriculum(BOOKINGS + BALANCES, 256), curriculum(texts, dim)
    for restored in (same, other):
        restored.restore(saved.state())
    assert same.most_valuable(12) == saved.most_valuable(12) != []
    assert other.most_valuable(12) == []
