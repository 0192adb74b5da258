"""The tier of learned programs answers what they show, and leaves the rest to other tiers."""

import json
import random

import pytest
from queries import query
from stalls import SCHEMA, SPEC, call, play, recordings, start

from dreamgym.dream.model import Part
from dreamgym.dream.nearest import NearestModel
from dreamgym.dream.synthesized import programs_of, synthesized
from dreamgym.errors import NotRecorded, PredictionError
from dreamgym.state import as_text, parsed
from dreamgym.synthesis import LearnedPrograms
from dreamgym.types import JsonObject

READS_AND_WRITES = ("get_stall", "list_lots", "rename", "reserve", "buy", "cancel", "close_stall")


def state_of(text: str) -> JsonObject:
    state = parsed(text)
    assert state is not None
    return state


def _said(observation: str) -> object:
    return json.loads(observation) if observation.startswith("{") else observation


def _free_running(seed: int, programs: LearnedPrograms) -> tuple[int, int]:
    """(answers of reads that agree with reality, reads) of a session of twenty calls that nothing corrects."""
    draw = random.Random(seed)
    real = dreamed = as_text(start(draw))
    right = reads = 0
    for _ in range(20):
        tool = draw.choice(["get_stall", "list_lots", "reserve", "buy", "cancel", "close_stall", "rename"])
        step = play(state_of(real), call(tool, draw, state_of(real)), draw)
        prediction = synthesized(query(SPEC, dreamed, step.action), programs)
        if prediction is None:
            reads += real == step.next_state
            continue
        real, dreamed = step.next_state, prediction.next_state
        if real == step.state:
            reads += 1
            right += _said(prediction.observation) == _said(step.result.observation)
    return right, reads


def test_reads_after_writes_agree_with_reality_over_sessions_of_twenty_calls() -> None:
    recorded = [step for tool in READS_AND_WRITES for step in recordings(tool, 40, seed=8)]
    programs = programs_of(recorded, SPEC, SCHEMA)
    counts = [_free_running(seed, programs) for seed in range(4)]
    assert sum(reads for _, reads in counts) > 20
    assert sum(right for right, _ in counts) >= 0.95 * sum(reads for _, reads in counts)


@pytest.mark.anyio
async def test_nearest_has_no_answer_to_a_call_whose_effect_nobody_can_tell() -> None:
    *shown, step = recordings("stamp", 12, seed=1)
    with pytest.raises(PredictionError, match="'stamp' do not show what this call does"):
        await NearestModel().predict(query(SPEC, step.state, step.action, *shown))


@pytest.mark.anyio
async def test_without_an_explicit_state_no_words_are_copied() -> None:
    *shown, step = recordings("rename", 6, seed=1)
    asking = query(SPEC, step.state, step.action, *shown).model_copy(update={"without": frozenset({Part.STATE})})
    with pytest.raises(NotRecorded):
        await NearestModel().predict(asking)
