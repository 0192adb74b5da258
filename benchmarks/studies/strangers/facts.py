"""Measure what a language model could have known: the facts of the real answer that are in its prompt.

A fact is a word of the real answer that is not in the call and does not depend on the clock. The prompt is the one that
the dream makes for a language model of the form `data`, after the real answers so far. A short word can be there by
chance.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

from judged import varying
from pydantic import JsonValue

from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.language_model import LanguageModel
from dreamgym.embedding import Encoder
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import EnvironmentUnavailable
from dreamgym.evaluation.rates import Rate, wilson
from dreamgym.llm import ScriptedLLM
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.state import shown_in
from dreamgym.tools import Tools
from dreamgym.types import Frozen, StepResult, ToolCall, Trajectory

_WORD = re.compile(r"\w+(?:[.:@/-]\w+)*")
_ESCAPE = re.compile(r"\\[nrt]")


class Told(Frozen):
    """One call whose answer has facts, and those of them that its prompt lacks."""

    session: str
    step: int
    """Counted from 1."""
    facts: tuple[str, ...]
    missing: tuple[str, ...]


class Recall(Frozen):
    """How much of the real answers is in the prompts."""

    facts: Rate
    """Share of the facts."""
    calls: Rate
    """Share of the calls with facts whose facts are all in the prompt."""


def recall(told: Sequence[Told]) -> Recall:
    there = sum(len(one.facts) - len(one.missing) for one in told)
    return Recall(
        facts=wilson(there, sum(len(one.facts) for one in told)),
        calls=wilson(sum(not one.missing for one in told), len(told)),
    )


async def told(
    spec: EnvironmentSpec,
    known: Sequence[Trajectory],
    asked: Sequence[Trajectory],
    again: Mapping[tuple[str, int], StepResult],
    encoder: Encoder,
) -> list[Told]:
    """The calls of `asked` that need a language model and have facts in their real answers."""
    buffer, tools, found = MemoryBuffer(encoder), Tools(spec), []
    await buffer.add(known)
    for trajectory in asked:
        for number, step in enumerate(trajectory.transitions, start=1):
            if tools.refusal(step.action, step.action.canonical()):
                continue
            llm = ScriptedLLM(lambda messages: "no answer")
            dream = DreamEnvironment(spec, LanguageModel(llm), buffer)
            dream.resume(trajectory.task, seed=0, transitions=trajectory.transitions[: number - 1])
            with suppress(EnvironmentUnavailable):  # this fake model gives no valid answer
                await dream.step(step.action)
            facts = facts_of(step.action, step.result, again.get((trajectory.id, number)))
            if not llm.asked or not facts:
                continue
            prompt = _words(" ".join(message.content for message in llm.asked[0]))
            missing = tuple(fact for fact in facts if fact not in prompt)
            found.append(Told(session=trajectory.id, step=number, facts=facts, missing=missing))
    return found


def facts_of(action: ToolCall, real: StepResult, again: StepResult | None) -> tuple[str, ...]:
    """Words of the answer's values that are not in the call and do not change in a second play."""
    shown = shown_in(real)
    words = _words(real.observation) if shown is None else {word for text in _leaves(shown) for word in _words(text)}
    given = {word for text in _leaves(action.arguments) for word in _words(text)}
    told_by_chance = varying(real, again) if again is not None else set()
    return tuple(sorted(words - given - told_by_chance))


def _leaves(value: JsonValue) -> list[str]:
    if isinstance(value, dict):
        return [text for inner in value.values() for text in _leaves(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in _leaves(inner)]
    return [value] if isinstance(value, str) else [str(value)]


def _words(text: str) -> set[str]:
    return set(_WORD.findall(_ESCAPE.sub(" ", text)))
