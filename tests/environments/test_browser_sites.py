"""The tasks of WebArena and WebArena-Lite: read from their authors' files, split, and judged by their own rules."""

import json
import lzma
from collections import Counter
from pathlib import Path

import pytest
from dreamgym_integrations.environments.browser.checks import Checks, is_at, text_verdict
from dreamgym_integrations.environments.browser.miniwob import miniwob
from dreamgym_integrations.environments.browser.sites import addresses, webarena, webarena_lite
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.errors import InvalidInput, UnknownName
from dreamgym.types import JsonObject

PUBLISHED = Path(__file__).parents[3] / "shared/data/webarena_lite"
needs_published = pytest.mark.skipif(not PUBLISHED.is_dir(), reason=f"no task files at {PUBLISHED}")


def row(number: int, template: int = 0) -> JsonObject:
    return {
        "sites": ["shopping"],
        "task_id": number,
        "start_url": "__SHOPPING__",
        "intent": f"Task {number}",
        "intent_template_id": template,
        "eval": {"eval_types": ["string_match"], "reference_answers": {"exact_match": "1"}},
    }


@needs_published
def test_the_165_tasks_of_webarena_lite_are_the_test_and_the_other_647_are_for_training() -> None:
    real = webarena_lite({"data": str(PUBLISHED)})
    train, dev, test = (real.tasks(split) for split in ("train", "dev", "test"))
    assert (len(test), len(train) + len(dev)) == (165, 647)
    assert len({task.id for task in (*train, *dev, *test)}) == 812
    assert all(task.instruction and task.env == "webarena-lite" for task in (*train, *dev, *test))
    kinds = Counter(str(task.metadata["site_task"]["sites"]) for task in test)  # type: ignore[index, call-overload]
    assert (kinds["['shopping']"], kinds["['map']"], kinds["['gitlab']"]) == (45, 26, 30)
    assert real.spec.tasks == tuple(train)
    assert len(real.spec.tools) == 13


@needs_published
def test_the_812_tasks_of_webarena_are_split_by_template() -> None:
    real = webarena({"data": str(PUBLISHED)})
    of_split = {split: real.tasks(split) for split in ("train", "dev", "test")}
    assert sum(map(len, of_split.values())) == 812
    templates = [
        {task.metadata["site_task"]["intent_template_id"] for task in tasks}  # type: ignore[index, call-overload]
        for tasks in of_split.values()
    ]
    assert sum(map(len, templates)) == len(set().union(*templates)) == 190
    assert min(map(len, of_split.values())) > 50


def test_a_single_file_becomes_the_test_split_and_a_packed_file_is_read_too(tmp_path: Path) -> None:
    rows = [{**row(number), "old_task_id": 10 * number} for number in range(3)]
    (tmp_path / "test_webarena_lite.raw.json").write_text(json.dumps(rows))
    assert [task.id for task in webarena_lite({"data": str(tmp_path)}).tasks("test")] == [
        "webarena-lite-0",
        "webarena-lite-10",
        "webarena-lite-20",
    ]
    packed = tmp_path / "webarena_812_test.raw.json.xz"
    packed.write_bytes(lzma.compress(json.dumps([row(number, number) for number in range(10)]).encode()))
    assert len(webarena({"data": str(tmp_path)}).tasks("train")) == 7
    assert len(webarena_lite({"data": str(tmp_path)}).tasks("train")) == 8  # row 0 is in test, one template in dev


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[", "expected the tasks of WebArena as a JSON list"),
        ("{}", "expected the tasks of WebArena as a JSON list, got dict"),
        ("[]", "expected the tasks of WebArena as a JSON list"),
        ("[3]", "row 0: "),
        (json.dumps([{**row(1), "intent": ""}]), "row 0: intent"),
        (
            json.dumps([row(1), {**row(2), "eval": {"eval_types": ["magic"]}}]),
            r"row 1: eval\.eval_types: expected some",
        ),
    ],
)
def test_a_file_with_other_content_is_named_with_its_row(tmp_path: Path, content: str, reason: str) -> None:
    file = tmp_path / "tasks.json"
    file.write_text(content)
    with pytest.raises(InvalidInput, match=f"tasks.json.*{reason}"):
        webarena({"data": str(file)}).tasks("test")


def test_a_truncated_packed_file_is_named(tmp_path: Path) -> None:
    packed = tmp_path / "tasks.json.xz"
    packed.write_bytes(lzma.compress(json.dumps([row(1)] * 50).encode())[:60])
    with pytest.raises(InvalidInput, match=r"tasks\.json\.xz: expected the tasks of WebArena"):
        webarena({"data": str(packed)}).tasks("test")


def test_a_missing_file_is_an_error_that_shows_how_to_set_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DREAMGYM_WEBARENA_LITE", raising=False)
    with pytest.raises(InvalidInput, match=r"set \[real\] data in env\.toml, or the variable DREAMGYM_WEBARENA_LITE"):
        webarena_lite({}).tasks("test")
    with pytest.raises(InvalidInput, match=r"test_webarena_lite\.raw\.json.*No such file"):
        webarena_lite({"data": str(tmp_path)}).tasks("test")


def test_options_and_splits_are_checked_by_name() -> None:
    with pytest.raises(InvalidInput, match="speed"):
        webarena({"speed": 3})
    with pytest.raises(UnknownName, match="unknown page of MiniWoB 'click-nothing'"):
        miniwob({"pages": ["click-nothing"]})
    with pytest.raises(UnknownName, match="unknown split 'all'"):
        miniwob({}).tasks("all")
    assert {task.metadata["page"] for task in miniwob({"pages": ["enter-text"]}).tasks("dev")} == {"enter-text"}


def test_the_address_of_a_site_is_in_the_options_or_else_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WA_REDDIT", "http://forum.test/")
    monkeypatch.setenv("WA_SHOPPING", "http://other.test")
    found = addresses({"shopping": "http://shop.test:7770/"})
    assert (found["shopping"], found["reddit"]) == ("http://shop.test:7770", "http://forum.test")


@pytest.mark.parametrize(
    ("wanted", "text", "succeeded"),
    [
        ({"exact_match": "Yes"}, ' "yes" ', True),
        ({"exact_match": "Yes"}, "yes it is", False),
        ({"must_include": ["Impulse Duffle", "Overnight"]}, "impulse duffle and overnight duffle", True),
        ({"must_include": ["Impulse Duffle", "Overnight"]}, "impulse duffle", False),
        ({"must_include": ["0"]}, "There are 10.", False),
        ({"must_include": ["0"]}, "There are 0.", True),
        ({"must_include": ["0"]}, "$0.00", False),
        ({"must_include": ["5"]}, "There are 10 as of 5/1/2023", False),
        ({"must_include": ["EUR |OR| USD"]}, "5 usd", True),
        ({"fuzzy_match": ["557 m"]}, "557 M.", True),
        ({"fuzzy_match": "N/A"}, "n/a", True),
    ],
)
def test_an_answer_is_judged_by_the_words_of_the_reference(wanted: JsonObject, text: str, succeeded: bool) -> None:
    assert text_verdict(wanted, text) == (succeeded, False)


def test_an_answer_that_only_a_language_model_could_compare_fails_and_is_marked_as_unjudged() -> None:
    assert text_verdict({"fuzzy_match": ["557 m"]}, "half a kilometre") == (False, True)
    assert text_verdict({"fuzzy_match": ["557 m"], "exact_match": "x"}, "y") == (False, False)


@given(st.text(max_size=20).filter(lambda text: text.strip()))
def test_the_reference_itself_is_always_right(text: str) -> None:
    assert text_verdict({"exact_match": text}, text).succeeded
    assert text_verdict({"fuzzy_match": [text]}, text).succeeded


@pytest.mark.parametrize(
    ("url", "reference", "there"),
    [
        ("http://shop/a/b/", "http://shop/a", True),
        ("http://shop/b", "http://shop/a |OR| http://shop/b", True),
        ("http://shop/c", "http://shop/a |OR| http://shop/b", False),
        ("http://shop/a?q=2&p=1", "http://shop/a?q=2", True),
        ("http://shop/a?q=3", "http://shop/a?q=2", False),
        ("http://shop/a", "http://shop/a?q=2", False),
    ],
)
def test_an_address_is_right_if_it_contains_the_reference_and_its_parameters(
    url: str, reference: str, there: bool
) -> None:
    assert is_at(url, reference) == there


@pytest.mark.parametrize(
    "wanted",
    [
        {"must_include": []},
        {"must_include": [""]},
        {"fuzzy_match": []},
        {"exact_match": []},
        {"exact_match": None},
        {"looks_like": "x"},
    ],
)
def test_a_check_that_compares_nothing_is_refused(wanted: JsonObject) -> None:
    with pytest.raises(InvalidInput, match="a check of WebArena: "):
        Checks.of({"eval_types": ["string_match"], "reference_answers": wanted})
    with pytest.raises(InvalidInput, match="a check of WebArena: "):
        Checks.of({"eval_types": ["program_html"], "program_html": [{"url": "last", "required_contents": wanted}]})


def test_the_file_of_the_other_environment_is_refused(tmp_path: Path) -> None:
    lite, full = tmp_path / "lite.json", tmp_path / "full.json"
    lite.write_text(json.dumps([{**row(1), "old_task_id": 7}]))
    full.write_text(json.dumps([row(1)]))
    with pytest.raises(InvalidInput, match=r"full\.json: expected the tasks of WebArena-Lite"):
        webarena_lite({"data": str(full)}).tasks("test")
    with pytest.raises(InvalidInput, match=r"lite\.json: expected all tasks of WebArena"):
        webarena({"data": str(lite)}).tasks("test")


def test_an_unknown_kind_of_check_is_named() -> None:
    with pytest.raises(InvalidInput, match="expected some of string_match, url_match, program_html"):
        Checks.of({"eval_types": ["page_image_query"]})
    with pytest.raises(InvalidInput, match="url_note"):
        Checks.of({"eval_types": ["url_match"], "url_note": "EXACT"})


@pytest.mark.parametrize(
    ("evaluation", "field"),
    [
        ({"eval_types": ["string_match"], "reference_answers": {}}, "reference_answers"),
        ({"eval_types": ["string_match", "url_match"], "reference_answers": {"exact_match": "1"}}, "reference_url"),
        ({"eval_types": ["program_html"], "program_html": []}, "program_html"),
        ({"eval_types": ["program_html"], "program_html": [{"url": "last", "locator": ""}]}, "program_html"),
    ],
)
def test_a_check_that_compares_nothing_is_refused_instead_of_rewarding_every_answer(
    tmp_path: Path, evaluation: JsonObject, field: str
) -> None:
    (tmp_path / "tasks.json").write_text(json.dumps([{**row(1), "eval": evaluation}]))
    with pytest.raises(InvalidInput, match=rf"tasks\.json, row 0: eval\.{field}: expected"):
        webarena({"data": str(tmp_path / "tasks.json")}).tasks("test")
