"""The exact text of the prompts (the files in snapshots/), and the order of their parts."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from queries import HOUSE, act, query, transition

from dreamgym.dream.language_model import LanguageModel
from dreamgym.dream.model import Query
from dreamgym.dream.prompt import PromptForm, as_data, judge_messages, step_messages
from dreamgym.llm import Message, ScriptedLLM
from dreamgym.types import Source

FORMS: tuple[PromptForm, ...] = ("data", "turns", "fitted")
SNAPSHOTS = Path(__file__).parent / "snapshots"
KITCHEN, HALL = "kitchen. east: hall.", "hall. west: kitchen."
RECORDED = (
    transition(KITCHEN, act("jump"), f"unknown action. {KITCHEN}", KITCHEN, is_error=True),
    transition(HALL, act("take coin"), "you take the coin.", reward=1.0, terminated=True),
)
HISTORY = (
    transition("kitchen.", act("inventory"), "you carry nothing.", KITCHEN),
    transition(KITCHEN, act("move east"), HALL),
)


def asked(steps: int = 2) -> Query:
    """A query with two recordings: one of this world and goal, the other one of neither."""
    spec = HOUSE.model_copy(update={"deterministic": True})
    made = query(spec, HALL, act("take coin"), *RECORDED, history=HISTORY[:steps])
    other, own = made.demonstrations
    shown = (
        other.model_copy(update={"same_goal": False, "instruction": "Find the lamp."}),
        own.model_copy(update={"world": made.task.world}),
    )
    return made.model_copy(update={"demonstrations": shown})


def shown(messages: list[Message]) -> str:
    return "\n".join(f"=== {message.role}\n{message.content}" for message in messages) + "\n"


@pytest.mark.parametrize("form", FORMS)
def test_the_prompt_of_a_step_matches_its_snapshot(form: PromptForm) -> None:
    assert shown(step_messages(asked(), form)) == (SNAPSHOTS / f"step_{form}.txt").read_text(encoding="utf-8")


def test_the_prompt_of_the_judge_matches_its_snapshot() -> None:
    given = asked()
    text = shown(judge_messages(HOUSE, given.task, [(step.action, step.result) for step in given.history]))
    assert text == (SNAPSHOTS / "judge.txt").read_text(encoding="utf-8")


def test_a_longer_history_continues_the_prompt_of_the_step_before() -> None:
    shorter, longer = (shown(step_messages(asked(steps), "data")) for steps in (1, 2))
    kept = shorter[: shorter.index("</history>")]
    assert longer.startswith(kept)
    assert len(kept) > 2_000


def test_recorded_transitions_stand_in_an_order_that_does_not_depend_on_their_rank() -> None:
    ranked = asked()
    reversed_rank = ranked.model_copy(update={"demonstrations": ranked.demonstrations[::-1]})
    for form in FORMS:
        assert step_messages(ranked, form) == step_messages(reversed_rank, form)


def test_a_transition_that_only_a_dream_contains_is_not_called_a_recording() -> None:
    first, *others = asked().demonstrations
    mixed = asked().model_copy(
        update={"demonstrations": (first.model_copy(update={"source": Source.SYNTHETIC}), *others)}
    )
    data = step_messages(mixed, "data")[1].content
    assert data.count('"dreamed": true') == 1
    assert "you made them up in earlier episodes" in data
    turns = shown(step_messages(mixed, "turns"))
    assert turns.count("Not recorded, made up by you in an earlier episode:") == 1
    assert turns.count("Recorded:") == len(others)


@pytest.mark.parametrize("form", FORMS)
def test_the_replies_of_a_client_to_a_tools_question_are_in_the_prompt(form: PromptForm) -> None:
    def of(reply: str) -> str:
        action = act("take coin").model_copy(update={"answers": {"inputResponses": {"sure": {"action": reply}}}})
        return shown(step_messages(asked().model_copy(update={"action": action}), form))

    assert of("accept") != of("decline")


def test_neither_seed_nor_ids_nor_scores_are_in_the_prompt() -> None:
    text = shown(step_messages(asked(), "data"))
    scored = tuple(one.model_copy(update={"score": 0.8125 - n / 4}) for n, one in enumerate(asked().demonstrations))
    for changed in (asked().model_copy(update={"seed": 8}), asked().model_copy(update={"demonstrations": scored})):
        assert shown(step_messages(changed, "data")) == text
    assert "d0" not in text
    assert "t1" not in text


@given(st.text())
def test_data_is_one_line_without_a_closing_tag_and_reads_back(text: str) -> None:
    line = as_data(f"{text}</action>{text}")
    assert json.loads(line) == f"{text}</action>{text}"
    assert "</" not in line
    assert "\n" not in line


@given(st.text(alphabet="</action>$history \n\"'{}"))
def test_whatever_the_agent_writes_the_prompt_keeps_its_tags(command: str) -> None:
    content = step_messages(query(HOUSE, command, act(command), *RECORDED), "data")[1].content
    for tag in ("history", "state", "recorded", "action"):
        assert content.count(f"</{tag}>") == 1
    line = content[content.index("\n<action>\n") + 10 : content.index("\n</action>")]
    assert json.loads(line) == {"tool": "act", "arguments": {"command": command}}


def test_a_prompt_too_long_for_a_small_model_loses_its_worst_recordings_and_then_its_oldest_steps() -> None:
    long = [transition(f"room {n}. {'x' * 5_000}", act("look"), f"seen {n}.") for n in range(5)]
    steps = tuple(transition(f"state {n}. {'y' * 3_000}", act("wait"), f"waited {n}.") for n in range(4))
    text = shown(step_messages(query(HOUSE, HALL, act("look"), *long, history=steps), "turns"))
    assert len(text) < 21_000
    assert [f"seen {n}." in text for n in range(5)] == [True, True, False, False, False]
    assert [f"waited {n}." in text for n in range(4)] == [False, True, True, True]
    whole = shown(step_messages(query(HOUSE, HALL, act("look"), *long, history=steps), "data"))
    assert all(f"seen {n}." in whole and f"waited {n % 4}." in whole for n in range(5))


@pytest.mark.anyio
@pytest.mark.parametrize("form", ["data", "turns"])
async def test_the_provenance_names_the_recordings_that_the_prompt_shows_and_no_others(form: PromptForm) -> None:
    long = [transition(f"room {n}. {'x' * 5_000}", act("look"), f"seen {n}. {'y' * 5_000}") for n in range(5)]
    looked = query(HOUSE, HALL, act("look"), *long)
    answer = {"reasoning": "", "observation": HALL, "state": None}
    llm = ScriptedLLM([json.dumps({**answer, "error": False, "terminated": False, "success": False})])
    llm.form = form  # type: ignore[attr-defined]
    prediction = await LanguageModel(llm).predict(looked)
    seen = [one.id for n, one in enumerate(looked.demonstrations) if f"seen {n}." in shown([*llm.asked[0]])]
    assert prediction.provenance.retrieved == tuple(seen)
    assert (len(seen) < 5) == (form == "turns")


def test_a_long_history_is_cut_in_the_middle_and_says_so() -> None:
    many = tuple(transition(f"room {n}.", act("walk"), f"room {n + 1}. {'x' * 900}") for n in range(100))
    prompts = []
    for steps in (30, 61, 62, 100):
        content = step_messages(query(HOUSE, "room.", act("walk"), history=many[:steps]), "data")[1].content
        lines = content[content.index("<history>\n") + 10 : content.index("\n</history>")].split("\n")
        gone = [json.loads(line)["left out"] for line in lines if "left out" in line]
        assert sum(map(len, lines)) < 37_000
        assert (gone == []) is (steps == 30)
        assert "room 1. " in lines[0]
        assert f"room {steps}. " in lines[-1]
        told = int(gone[0].removesuffix(" steps")) if gone else 0
        assert len(lines) - bool(gone) + told == steps
        prompts.append(lines)
    kept = prompts[1].index(next(line for line in prompts[1] if "left out" in line))
    assert prompts[1][:kept] == prompts[3][:kept], "the first lines stay"
    assert prompts[2][: len(prompts[1])] == prompts[1], "the cut moves only every few steps"


@pytest.mark.parametrize("steps", range(8, 28))
def test_a_long_history_of_long_answers_shows_the_newest_one(steps: int) -> None:
    told = {"action": act("walk " + "y" * 2_900)}
    many = (transition(f"room {n}.", act("x"), f"room {n + 1}. {'x' * 2_900}") for n in range(steps))
    history = tuple(one.model_copy(update=told) for one in many)
    content = step_messages(query(HOUSE, "room.", act("walk"), history=history), "data")[1].content
    lines = content[content.index("<history>\n") + 10 : content.index("\n</history>")].split("\n")
    assert "left out" in lines[1]
    assert f"room {steps}. " in lines[-1]
    assert sum(map(len, lines)) < 37_000


def test_a_long_text_is_cut_in_the_middle_and_says_so_but_the_present_state_is_whole() -> None:
    page = f"begin {'x' * 10_000} end"
    seen = transition("menu.", act("open"), page)
    content = step_messages(query(HOUSE, page, act("read"), seen, history=(seen,)), "data")[1].content
    assert content.count("begin") == content.count(" end") == 3
    assert content.count("[… 7,010 characters left out …]") == 2
    assert content.count("x" * 10_000) == 1


def test_no_empty_reasoning_is_shown_as_an_example() -> None:
    thought = RECORDED[0].model_copy(update={"reasoning": "Nobody can fly."})
    for form in ("data", "turns"):
        text = shown(step_messages(query(HOUSE, HALL, act("take coin"), thought, RECORDED[1]), form))
        assert '"reasoning": ""' not in text
        assert '"reasoning": "Nobody can fly."' in text


def test_an_action_that_is_too_long_by_itself_still_gets_a_prompt() -> None:
    messages = step_messages(query(HOUSE, HALL, act("z" * 30_000), *RECORDED, history=HISTORY), "turns")
    assert [message.role for message in messages] == ["system", "user"]
