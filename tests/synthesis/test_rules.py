"""Rules about several entities at once: derived fields, choices, lists and tables, and recordings that break them."""

import json
import random

import pytest
from growth import grows_linearly
from presses import SCHEMA, TOOLS, call, play, recordings, start

from dreamgym.state import as_text, parsed
from dreamgym.synthesis import LearnedPrograms
from dreamgym.types import JsonObject, Transition

ENOUGH = 80
"""Number of recorded calls of each tool that is enough to learn its rules."""


@pytest.fixture(scope="module")
def programs() -> LearnedPrograms:
    return LearnedPrograms(recordings(ENOUGH, 1), SCHEMA)


def state_of(text: str) -> JsonObject:
    state = parsed(text)
    assert state is not None
    return state


def outcomes(programs: LearnedPrograms, steps: list[Transition]) -> list[bool | None]:
    """For each call, whether state and answer are right; None for a call without an answer."""
    found: list[bool | None] = []
    for step in steps:
        program = programs.of(step.action.name)
        result = None if program is None else program.run(state_of(step.state), step.action.arguments)
        if result is None:
            found.append(None)
            continue
        is_state = as_text(result.after) == step.next_state
        is_answer = (result.observation, result.is_error) == (step.result.observation, step.result.is_error)
        found.append(is_state and is_answer)
    return found


@pytest.mark.parametrize("tool", TOOLS)
def test_unseen_calls_have_the_state_and_the_answer_of_the_real_system(programs: LearnedPrograms, tool: str) -> None:
    found = outcomes(programs, recordings(60, 2, (tool,)))
    assert found.count(False) <= 1
    assert found.count(True) >= 57


def test_fields_that_follow_from_the_rest_of_the_state_are_found_for_all_tools(programs: LearnedPrograms) -> None:
    assert sorted(map(str, programs.derived)) == [
        'jobs[].late = in jobs where by below state.clock and stage is not "done"',
        'presses[].load = sum(item.pages for item in jobs where press is item.press and stage is "runs")',
        "state.line = [item.job for item in jobs where press is null by pages descending]",
    ]


def test_one_recorded_state_that_breaks_a_rule_removes_the_rule() -> None:
    *rest, last = recordings(ENOUGH, 1)
    state = state_of(last.state)
    presses = state["presses"]
    assert isinstance(presses, dict)
    broken = as_text({**state, "presses": {**presses, "west": {"press": "west", "can": [], "load": 999}}})
    derived = LearnedPrograms([*rest, last.model_copy(update={"state": broken})], SCHEMA).derived
    assert [one.field for one in derived if one.collection == "presses"] == []
    assert len(derived) == 2


def test_a_call_in_a_state_with_a_wrong_derived_field_has_no_answer(programs: LearnedPrograms) -> None:
    state = start(random.Random(5))
    step = next(one for one in recordings(20, 3, ("wait",)) if not one.result.is_error)
    program = programs.of("wait")
    assert program is not None
    assert program.run(json.loads(as_text(state)), step.action.arguments) is not None
    state["presses"]["north"]["load"] += 1
    assert program.run(json.loads(as_text(state)), step.action.arguments) is None


def test_a_choice_a_table_and_a_list_are_printed(programs: LearnedPrograms) -> None:
    printed = {tool: str(programs.of(tool)) for tool in TOOLS}
    assert "first(presses where can shares jobs[job].needs by load, or of all)" in printed["place"]
    assert '{"plain": "quick", "slow": "plain"}[jobs[job].grade]' in printed["hurry"]
    assert "smaller of jobs[job].grade and jobs[other].grade by grades[item].days" in printed["join"]
    assert "sorted(add | jobs[job].needs without drop) already" in printed["relabel"]
    assert 'join([\\"{item} ({jobs[item].pages} pages)\\" for item in state.line])' in printed["line"]
    assert "[item for item in changed(jobs.late)]" in printed["wait"]


def test_an_outcome_that_a_recording_contradicts_has_no_answer() -> None:
    recorded = recordings(ENOUGH, 1, ("hurry",))
    steps = recordings(30, 2, ("hurry",))
    accepted = [step for step in steps if not step.result.is_error]
    refused = [step for step in steps if step.result.is_error]
    one = next(step for step in recorded if not step.result.is_error)
    other = one.result.model_copy(update={"observation": one.result.observation.replace("now", "then")})
    contradicted = LearnedPrograms([*recorded, one.model_copy(update={"result": other})], SCHEMA)
    assert set(outcomes(contradicted, accepted)) == {None}
    assert outcomes(contradicted, refused) == outcomes(LearnedPrograms(recorded, SCHEMA), refused)


def test_a_call_with_two_reasons_for_refusal_has_no_answer_until_a_recording_shows_which_comes_first() -> None:
    # A job that does not exist cannot join itself either. Both reasons hold, and the shop gives the first.
    recorded = recordings(ENOUGH, 1, ("join",))
    both = [step for step in recorded if step.action.arguments["job"] == step.action.arguments["other"]]
    state = start(random.Random(1))
    action = call("join", random.Random(1), state).model_copy(update={"arguments": {"job": "J77", "other": "J77"}})
    step = play(state, action)
    assert step.result.observation == "There is no job J77"
    assert both
    assert outcomes(LearnedPrograms(recorded, SCHEMA), [step]) == [None]
    others = [play(start(random.Random(n)), action) for n in range(3)]
    assert outcomes(LearnedPrograms([*recorded, *others], SCHEMA), [step]) == [True]


def test_a_call_whose_number_has_a_sign_that_no_recorded_call_had_has_no_answer(programs: LearnedPrograms) -> None:
    program = programs.of("wait")
    assert program is not None
    state = json.loads(as_text(start(random.Random(5))))
    assert program.run(state, {"days": 3}) is not None
    assert program.run(state, {"days": -3}) is None


def test_a_call_takes_time_in_proportion_to_the_state(programs: LearnedPrograms) -> None:
    program = programs.of("place")
    assert program is not None

    def shop(size: int) -> str:
        """Text of a shop of about this number of characters, with as many presses as jobs."""
        state = start(random.Random(1))
        jobs, presses = state["jobs"], state["presses"]
        some = next(iter(jobs.values()))
        for number in range(size // 250):
            press = f"press-{number}"
            presses[press] = {"press": press, "can": ["colour"], "load": 7}
            jobs[f"J{100 + number}"] = {
                **some,
                "job": f"J{100 + number}",
                "press": press,
                "stage": "runs",
                "pages": 7,
                "late": False,
                "by": 99,
            }
        jobs["J1"].update(stage="waits", press=None)
        return as_text(state)

    assert grows_linearly(lambda text: program.run(json.loads(text), {"job": "J1"}), shop)
