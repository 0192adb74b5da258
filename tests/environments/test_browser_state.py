"""The state of a web page: a pure function of text and instruction, the same for real and for simulated pages."""

import re

import pytest
from dreamgym_integrations.environments.browser.actions import admissible
from dreamgym_integrations.environments.browser.miniwob import PAGES, SEEDS, miniwob_worlds
from dreamgym_integrations.environments.browser.state import MOST, state_of
from dreamgym_integrations.environments.browser.tree import page_of, without_layout
from growth import grows_linearly
from hypothesis import given
from hypothesis import strategies as st

LOGIN = """RootWebArea 'Login', focused
	[14] paragraph ''
		[15] LabelText ''
			StaticText 'Username'
		[16] textbox '' value='ada', clickable
			StaticText 'ada'
	[17] paragraph ''
		[18] LabelText ''
			StaticText 'Password'
		[19] textbox '', clickable, focused
	[20] button 'Log in', clickable
	[21] checkbox 'Stay', clickable, checked='false'"""
ROLES = (
    "button",
    "textbox",
    "link",
    "checkbox",
    "paragraph",
    "LabelText",
    "generic",
    "option",
    "cell",
    "row",
    "heading",
)
WORDS = st.text(st.sampled_from("abAB 'é\"\\|\n\t[]1,:=…"), max_size=12)


@st.composite
def nodes(draw: st.DrawFn, number: int) -> str:
    name, value = draw(WORDS), draw(WORDS)
    indent = "\t" * draw(st.integers(1, 4))
    if draw(st.integers(0, 3)) == 0:
        return f"{indent}StaticText {name!r}"
    role = draw(st.sampled_from(ROLES))
    shown = f" value={value!r}" if role == "textbox" and value else ""
    marks = draw(st.lists(st.sampled_from(["clickable", "focused", "checked='true'", "selected=False", "url='a, b'"])))
    return f"{indent}[a{number}] {role} {name!r}{shown}{''.join(f', {mark}' for mark in marks)}"


@st.composite
def trees(draw: st.DrawFn) -> str:
    lines = [draw(nodes(number)) for number in range(draw(st.integers(0, 25)))]
    return "\n".join([f"RootWebArea {draw(WORDS)!r}, focused", *lines])


def ids(text: str) -> list[str]:
    return re.findall(r"^\t*\[(\w+)\]", text, flags=re.MULTILINE)


def test_a_field_is_named_by_the_text_before_it_and_keeps_its_value() -> None:
    assert state_of(LOGIN, 'Log in as "ada"') == "\n".join(
        [
            "goal: 'Log in as \"ada\"'",
            "page: 'Login'",
            "[16] textbox: 'Username' value='ada'",
            "[19] textbox: 'Password', focused",
            "[20] button: 'Log in'",
            "[21] checkbox: 'Stay', checked=false",
        ]
    )


def test_an_element_without_a_name_of_its_own_is_named_by_the_text_within() -> None:
    tree = "RootWebArea 'Links'\n\t[13] generic, clickable\n\t\tStaticText 'sed'\n\tStaticText 'amet'"
    assert state_of(tree, "Click sed").endswith("[13] generic: 'sed', clickable\ntext: 'amet'")


def test_a_table_is_kept_whole() -> None:
    rows = "".join(f"\t[{n}] row ''\n\t\t[{n}a] cell 'key {n}'\n\t\t[{n}b] cell 'value {n}'\n" for n in range(9))
    state = state_of(f"RootWebArea 'Table'\n{rows}\t[99] button 'Submit'", "What is key 3?")
    assert f"text: {' | '.join(f'key {n} | value {n}' for n in range(9))!r}" in state


def test_elements_that_share_words_with_the_instruction_are_kept_first_and_in_the_order_of_the_page() -> None:
    links = "\n".join(f"\t[{n}] link 'entry {n}'" for n in range(40))
    kept = ids(state_of(f"RootWebArea 'Index'\n{links}", "Open entry 31, then 17."))
    assert len(kept) == MOST
    assert {"17", "31"} <= set(kept)
    assert kept == sorted(kept, key=int)


@given(trees(), WORDS)
def test_a_state_keeps_three_to_ten_ids_of_the_page_if_it_has_as_many(tree: str, instruction: str) -> None:
    there, kept = ids(tree), ids(state_of(tree, instruction))
    assert set(kept) <= set(there)
    assert len(set(kept)) == len(kept)
    assert min(3, len(set(there))) <= len(kept) <= MOST


@given(trees(), WORDS)
def test_the_state_of_a_state_is_that_state(tree: str, instruction: str) -> None:
    state = state_of(tree, instruction)
    assert state_of(state, instruction) == state


@given(st.text(st.sampled_from("ab[]13 \n\t'\":,=\\|button goal page text"), max_size=200), WORDS)
def test_a_text_that_is_not_a_page_does_not_fail_and_its_state_is_stable(text: str, instruction: str) -> None:
    state = state_of(text, instruction)
    assert state_of(state, instruction) == state


@given(trees(), WORDS)
def test_a_page_cannot_add_a_line_of_its_own_to_the_state(tree: str, instruction: str) -> None:
    state = state_of(tree, instruction)
    assert len(state.split("\n")) == 2 + len(ids(state)) + state.count("\ntext: ")


def test_layout_elements_are_left_out_and_their_children_move_up() -> None:
    tree = (
        "Root 'a'\n\t[1] generic\n\t\t[2] generic\n\t\t\t[3] button 'x'\n\t[4] generic, clickable\n\t\tStaticText 'y'"
    )
    assert without_layout(tree) == "Root 'a'\n\t[3] button 'x'\n\t[4] generic, clickable\n\t\tStaticText 'y'"


def test_several_tabs_are_part_of_the_state() -> None:
    tabs = "tab 0: 'Shop'\ntab 1: 'Forum', open"
    assert state_of(f"{tabs}\n{LOGIN}", "x").split("\n")[2:4] == tabs.split("\n")


def test_the_possible_actions_name_every_usable_element_and_no_other() -> None:
    more = "\t[22] button 'Later', disabled=True\n\t[23] combobox ''\n\t\t[24] option 'red'\n\t\t[25] option 'blue'"
    tree = f"{LOGIN}\n{more}"
    assert admissible(page_of(tree)) == [
        "click('16')",
        "fill('16', TEXT)",
        "click('19')",
        "fill('19', TEXT)",
        "click('20')",
        "click('21')",
        "select_option('23', 'red')",
        "select_option('23', 'blue')",
    ]


def test_a_line_that_does_not_fit_at_its_end_is_skipped_in_linear_time() -> None:
    mark = ", checked='x'"
    assert len(page_of(f"[1] button 'x'{mark * 40}").elements) == 1
    assert page_of(f"[1] button 'x'{mark * 40},,").elements == ()
    assert grows_linearly(page_of, lambda size: f"[1] button 'x'{mark * (size // len(mark))},,")


def test_the_recorded_pages_are_all_there_and_each_world_is_in_one_split() -> None:
    assert {world.page for world in miniwob_worlds()} == set(PAGES)
    seen = {(world.instruction, world.observation) for world in miniwob_worlds()}
    assert len(seen) == len(miniwob_worlds())
    assert all(world.seed in SEEDS[world.split] for world in miniwob_worlds())


@pytest.mark.parametrize("page", PAGES)
def test_the_state_of_a_recorded_page_is_stable_and_has_its_ids(page: str) -> None:
    for world in miniwob_worlds():
        if world.page == page:
            state = state_of(world.observation, world.instruction)
            assert state_of(state, world.instruction) == state
            assert set(ids(state)) <= set(ids(world.observation))
