"""Episodes and steps as JSON for the page. Texts are as recorded; a long one is cut, and its length is added."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

from pydantic import JsonValue

from dreamgym.errors import InvalidInput
from dreamgym.evaluation.parting import CallPair
from dreamgym.prices import Price, price_of
from dreamgym.replay.listing import EpisodeSummary
from dreamgym.replay.postgres.listing import EpisodeStep, Recorded
from dreamgym.state import changed_fields, fields, parsed
from dreamgym.types import JsonObject, Transition

CHARACTERS = 4_000
"""Maximum number of characters of one text in a list of steps."""
CHANGES = 100
"""Maximum number of changed fields of one step in a list of steps."""


def shown_summary(one: EpisodeSummary) -> JsonObject:
    """An episode as one line of a list."""
    return {
        "place": one.place,
        "id": one.id,
        "env": one.task.env,
        "task": one.task.id,
        "instruction": cut(one.task.instruction, 300),
        "source": one.source.value,
        "state": one.state,
        "stop_reason": one.stop_reason,
        "reward": one.reward,
        "success": one.success,
        "steps": one.outcome.steps,
        "tiers": {**one.outcome.tiers},
        "errors": one.outcome.errors,
        "prompt_tokens": one.outcome.prompt_tokens,
        "completion_tokens": one.outcome.completion_tokens,
        "policy_version": one.policy_version,
        "group": one.group,
        "world": one.world,
        "parent": one.task.parent_id,
        "origin": one.task.origin.value,
        "answer": None if one.answer is None else cut(one.answer),
        "error": None if one.error is None else cut(one.error),
        "at": None if one.at is None else one.at.isoformat(),
    }


def shown_strip(steps: Sequence[EpisodeStep]) -> JsonObject:
    """All steps in short: the kinds of steps that there are, and for each step the number of its kind."""
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(steps))}
    return {
        "kinds": [{"tier": kind.tier.value, "error": kind.is_error, "reward": kind.reward} for kind in kinds],
        "strip": [kinds[one] for one in steps],
    }


def shown_step(number: int, step: Transition, *, most: int | None = CHARACTERS) -> JsonObject:
    """One step; `number` counts from 1.

    Args:
        number: number of the step.
        step: the transition.
        most: characters of one text that are kept; None keeps all.
    """
    origin, result = step.provenance, step.result
    price = _price(origin.model or "") if origin.is_told else None
    return {
        "step": number,
        "tool": step.action.name,
        "arguments": {name: _json(value, most) for name, value in step.action.arguments.items()},
        "answers": step.action.answers or None,
        "observation": cut(result.observation, most),
        "blocks": [str(block.get("type")) for block in result.content if block.get("type") != "text"],
        "asks": result.info.get("asks"),
        "is_error": result.is_error,
        "reward": result.reward,
        "terminated": result.terminated,
        "truncated": result.truncated,
        "stop": result.info.get("stop"),
        "reasoning": cut(step.reasoning, most) if step.reasoning else None,
        "state": _shown_state(step, most),
        "tier": origin.tier.value,
        "model": origin.model,
        "exact": origin.exact,
        "confidence": origin.confidence,
        "judged": origin.judged,
        "checked": origin.checked,
        "open_end": origin.open_end,
        "unbounded": origin.unbounded,
        "seed": origin.seed,
        "retrieved": list(origin.retrieved),
        "prompt_tokens": origin.prompt_tokens,
        "cached_tokens": origin.cached_tokens,
        "completion_tokens": origin.completion_tokens,
        "dollars": None if price is None else price.of(origin),
        "seconds": origin.seconds,
    }


def shown_pair(number: int, pair: CallPair) -> JsonObject:
    """Two calls of the same number, one of each episode."""
    return {
        "step": number,
        "one": None if pair.one is None else _brief(pair.one),
        "other": None if pair.other is None else _brief(pair.other),
        "same_call": pair.same_call,
        "same_answer": pair.same_answer,
    }


def shown_recorded(one: Recorded) -> JsonObject:
    """A transition that an answer was made from, and where it was recorded."""
    return {
        "id": one.id,
        "place": one.place,
        "episode": one.episode,
        "step": one.step,
        "source": one.source.value,
        "instruction": cut(one.instruction, 300),
        "state": cut(one.transition.state, 600),
        **_brief(one.transition, 600),
        "observation": cut(one.transition.result.observation),
    }


def cut(text: str, most: int | None = CHARACTERS) -> JsonValue:
    """The text; if it is longer than `most`, an object with its beginning and its length."""
    return text if most is None or len(text) <= most else {"text": text[:most], "characters": len(text)}


def _brief(step: Transition, most: int = CHARACTERS) -> JsonObject:
    return {
        "tool": step.action.name,
        "arguments": {name: _json(value, most) for name, value in step.action.arguments.items()},
        "observation": cut(step.result.observation, most),
        "is_error": step.result.is_error,
        "reward": step.result.reward,
        "terminated": step.result.terminated,
        "tier": step.provenance.tier.value,
        "confidence": step.provenance.confidence,
    }


def _json(value: JsonValue, most: int | None) -> JsonValue:
    """The value as JSON text, since a browser would round large numbers."""
    return cut(json.dumps(value, ensure_ascii=False), most)


def _shown_state(step: Transition, most: int | None) -> JsonObject:
    """The change of the state by the step: changed fields if the state is JSON, else both texts."""
    before, after = parsed(step.state), parsed(step.next_state)
    if step.state == step.next_state:
        return {"kind": "same"}
    if before is None or after is None:
        if step.next_state == step.result.observation:
            return {"kind": "answer"}
        return {"kind": "text", "before": cut(step.state, most), "after": cut(step.next_state, most)}
    ours, theirs = dict(fields(before)), dict(fields(after))
    paths = sorted(changed_fields(before, after))
    shown = paths if most is None else paths[:CHANGES]
    changes: list[JsonValue] = [
        {
            "path": path,
            **({"before": _json(ours[path], most)} if path in ours else {}),
            **({"after": _json(theirs[path], most)} if path in theirs else {}),
        }
        for path in shown
    ]
    return {"kind": "fields", "changes": changes, "changed": len(paths)}


@lru_cache
def _price(model: str) -> Price | None:
    try:
        return price_of(model)
    except InvalidInput:  # the variable with the prices cannot be read: money is not shown
        return None
