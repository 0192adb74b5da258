"""Recorded transitions as training rows: asked as in a dream, answered as recorded.

The question is the one that DreamEnvironment asks its model, without the episode itself among the recordings. So a
row's prompt has exactly the tokens that the fitted model is asked with. If a dream would not ask its model, there is no
row.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

from dreamgym.dream.answer_form import answer_text
from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.model import Part, Prediction, Query
from dreamgym.dream.prompt import step_messages
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import PredictionError
from dreamgym.llm import Message
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.tools import Tools
from dreamgym.training.rollout import draw_seed
from dreamgym.types import Frozen, Trajectory
from dreamgym_integrations.models.checkpoint import prompt_ids
from dreamgym_integrations.models.plain_text import PlainText

IGNORED = -100
"""The label of a token that is not learned."""


class Example(Frozen):
    """One recorded transition as a question and its answer."""

    messages: tuple[Message, ...]
    answer: str


class TokenRow(Frozen):
    """An example as token ids."""

    input_ids: list[int]
    labels: list[int]

    @property
    def tokens(self) -> int:
        """Number of tokens of question and answer."""
        return len(self.input_ids)


class _Asked(PredictionError):
    """Ends a step once its question is known: the answer is already recorded."""


class _Questions:
    """An experience model that keeps the question and does not answer it."""

    name = "recorded"
    learns_from_dreams = False

    def __init__(self, demonstrations: int) -> None:
        self.demonstrations = demonstrations
        self.query: Query | None = None

    async def predict(self, query: Query) -> Prediction:
        self.query = query
        raise _Asked("the answer is recorded")

    async def close(self) -> None:
        pass


async def examples(
    spec: EnvironmentSpec,
    buffer: ReplayBuffer,
    trajectories: Sequence[Trajectory],
    *,
    demonstrations: int,
    without: frozenset[Part],
    seed: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> AsyncIterator[Example]:
    """Yield an example for every recorded call that a dream would ask its model about.

    Args:
        spec: the environment.
        buffer: recordings to retrieve from, except those of the trajectory itself.
        trajectories: the trajectories to learn or to hold out.
        demonstrations: number of transitions that are shown.
        without: parts that are left out of the question and the answer.
        seed: fixes the random draws of retrieval, differently for each trajectory.
        on_progress: called with the number of calls done, and of all calls.
    """
    tools = Tools(spec)
    total, done = sum(len(one.transitions) for one in trajectories), 0
    for trajectory in trajectories:
        for step, transition in enumerate(trajectory.transitions):
            done += 1
            on_progress(done, total)
            if "asks" in transition.result.info or tools.refusal(transition.action, transition.action.canonical()):
                continue
            asked = _Questions(demonstrations)
            left_out = without | {Part.RECORDED, Part.EFFECTS, Part.VIEWS, Part.CACHE, Part.CHECKS}
            dream = DreamEnvironment(spec, asked, buffer, episode_id=trajectory.id, without=left_out)
            own_seed = draw_seed(seed, trajectory.id)
            dream.resume(trajectory.task, seed=own_seed, transitions=trajectory.transitions[:step])
            with suppress(_Asked):
                await dream.step(transition.action)
            if asked.query is None:  # a tier of another package answers
                continue
            query = asked.query.model_copy(update={"without": without})
            yield Example(
                messages=tuple(step_messages(query, form="fitted")),
                answer=answer_text(query, transition),
            )


def row(tokenizer: Any, example: Example, *, whole: bool = False) -> TokenRow:
    """The tokens of an example. Only the answer and its end are learned, or everything if `whole`."""
    prompt = prompt_ids(tokenizer, example.messages)
    said = answer_ids(tokenizer, example)
    return TokenRow(input_ids=[*prompt, *said], labels=[*(prompt if whole else [IGNORED] * len(prompt)), *said])


def answer_ids(tokenizer: Any, example: Example) -> list[int]:
    """The tokens of an example's answer, with its end."""
    plain = PlainText(tokenizer)
    return [*plain.ids(plain.broken(example.answer)), tokenizer.eos_token_id]
