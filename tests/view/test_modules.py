"""The page's modules: no two define the same name, so that an exported copy can join them into one script."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from dreamgym_server.doors.view import files
from dreamgym_server.view.answers import Answers
from dreamgym_server.view.export import VENDORED, export, one_script, page_files
from dreamgym_server.view.folders import RunFolder
from dreamgym_server.view.library import Library

from dreamgym.replay.keys import transition_id
from dreamgym.types import JsonObject, Trajectory

NAMED = re.compile(r"^(?:export )?(?:async )?(?:const|let|class|function\*?) (\w+)", re.MULTILINE)
MODULES = {
    name: content.decode() for name, content in files().items() if name.endswith(".js") and not name.endswith(VENDORED)
}
NEEDS_NODE = pytest.mark.skipif(shutil.which("node") is None, reason="no node: install your system's package nodejs")


@NEEDS_NODE
def test_an_exported_copy_has_arguments_whose_names_mean_something_to_javascript(tmp_path: Path) -> None:
    named = {"__proto__": 1, "constructor": 2, 'a"__proto__': 3}
    step = {"action": {"name": "go", "arguments": named}, "result": {"observation": "ok"}}
    task = {"id": "t", "env": "crm", "instruction": 'Say "__proto__": x.'}
    row = {"id": "one", "task": task, "source": "real", "stop_reason": "closed"}
    whole = Trajectory.model_validate(
        {
            **row,
            "transitions": [{**step, "state": "", "next_state": "", "provenance": {"tier": "real"}}],
        }
    )
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "episodes.jsonl").write_text(whole.model_dump_json() + "\n")
    answers = Answers(Library(folder=RunFolder(tmp_path / "run")))
    asyncio.run(export(answers, tmp_path / "site", lambda text: None))
    script = "".join((tmp_path / "site" / "data" / name).read_text() for name in ("site.js", "e0.js"))
    shown = "Object.values(dreamgymExport.answers).find((one) => one.steps?.[0]?.arguments).steps[0].arguments"
    told = f"{script}; console.log(JSON.stringify([Object.entries({shown}), dreamgymExport.episodes[0].instruction]))"
    ran = subprocess.run(["node", "-"], input=told, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == [
        [["__proto__", "1"], ["constructor", "2"], ['a"__proto__', "3"]],
        task["instruction"],
    ]


def test_no_name_is_defined_in_two_modules() -> None:
    names = Counter(name for text in MODULES.values() for name in NAMED.findall(text))
    assert [name for name, count in names.items() if count > 1] == []


def test_an_exported_copy_has_every_module_once_and_imports_nothing() -> None:
    script = one_script(files())
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)
    for text in MODULES.values():
        for name in NAMED.findall(text):
            assert len(re.findall(rf"^(?:async )?(?:const|let|class|function\*?) {name}\b", script, re.MULTILINE)) == 1


def test_an_exported_page_has_a_security_policy_and_loads_only_its_own_files() -> None:
    index = page_files()["index.html"].decode()
    assert "default-src 'none'" in index
    assert "unsafe" not in index
    assert re.findall(r'(?:src|href)="([^"#]+)"', index) == [
        "icon.svg",
        "uplot.min.css",
        "style.css",
        "uplot.min.js",
        "data/site.js",
        "app.js",
    ]


@NEEDS_NODE
@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        ('{"id":1234567890123456789,"price":10.0}', '{\n  "id": 1234567890123456789,\n  "price": 10.0\n}'),
        (
            '{"b": [1, {}],\n"2": [], "1": "\\u00e9 {,:\\""}',
            '{\n  "b": [\n    1,\n    {}\n  ],\n  "2": [],\n  "1": "é {,:\\""\n}',
        ),
        ("[1, 2", "[1, 2"),
    ],
)
def test_recorded_json_is_indented_with_its_numbers_as_they_were_recorded(
    tmp_path: Path, recorded: str, shown: str
) -> None:
    assert (
        in_node(tmp_path, f'const {{ readable }} = await import("./dom.js"); told(readable({json.dumps(recorded)}))')
        == shown
    )


@NEEDS_NODE
def test_a_text_that_could_not_be_loaded_can_be_asked_for_again(tmp_path: Path) -> None:
    script = """
        const { recordedText } = await import("./dom.js");
        const answers = [() => Promise.reject(new Error("The server does not answer.")), async () => "all of it"];
        const box = recordedText({ text: "all", characters: 9 }, () => answers.shift()(), "answer");
        const [button] = all(box, "button");
        await button.listeners.click();
        const first = box.textContent;
        const isOff = button.disabled;
        await button.listeners.click();
        told([first, isOff, box.textContent]);
    """
    first, is_off, second = in_node(tmp_path, script)
    assert "The server does not answer." in first
    assert (is_off, second) == (False, "all of it")


@NEEDS_NODE
def test_each_button_that_promises_all_of_a_text_shows_all_of_it(tmp_path: Path) -> None:
    start, answer, recorded = ("x" * 5000, "y" * 5000, "z" * 5000)
    step: JsonObject = {
        "action": {"name": "look"},
        "state": start,
        "next_state": start,
        "result": {"observation": recorded},
    }
    real = played("real", [step])
    (step_of_real,) = real.transitions
    origin: JsonObject = {"tier": "model", "retrieved": [str(transition_id(step_of_real))]}
    dream = played(
        "dream", [{**step, "result": {"observation": "?"}, "provenance": origin}], start=start, answer=answer
    )
    exported(tmp_path, real, dream)
    script = """
        run("data/site.js");
        const { episodeView } = await import("./episode.js");
        const view = await episodeView({ place: "episodes.jsonl", id: "dream" }, CONTEXT);
        await text(view);
        const buttons = all(view, "button").filter((one) => one.textContent.startsWith("Show all"));
        for (const button of buttons) await button.listeners.click();
        told(await text(view));
    """
    shown = in_node(tmp_path, script)
    assert [text in shown for text in (start, answer, recorded)] == [True] * 3
    assert "Show all" not in shown


@NEEDS_NODE
def test_a_link_to_a_step_that_an_episode_does_not_have_leads_to_its_last_steps(tmp_path: Path) -> None:
    exported(tmp_path, played("one", [{"action": {"name": "look"}, "result": {"observation": "a lamp"}}]))
    script = """
        run("data/site.js");
        const { episodeView } = await import("./episode.js");
        told(await text(await episodeView({ place: "episodes.jsonl", id: "one", step: "150" }, CONTEXT)));
    """
    shown = in_node(tmp_path, script)
    assert "a lamp" in shown
    assert "No call was made" not in shown


@NEEDS_NODE
def test_an_exported_copy_has_the_whole_state_after_each_step(tmp_path: Path) -> None:
    step: JsonObject = {"action": {"name": "add"}, "result": {"observation": "ok"}}
    exported(tmp_path, played("one", [{**step, "state": '{"n": 1, "same": 5}', "next_state": '{"n": 2, "same": 5}'}]))
    script = """
        run("data/site.js");
        const { episodeView } = await import("./episode.js");
        told(await text(await episodeView({ place: "episodes.jsonl", id: "one" }, CONTEXT)));
    """
    shown = in_node(tmp_path, script)
    assert '"n": 2,\n  "same": 5' in shown
    assert "This is not in the exported copy" not in shown


@NEEDS_NODE
def test_a_probe_without_an_interval_is_shown_without_one(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 0, "real_success": 0.25}\n')
    exported(tmp_path)
    script = """
        run("data/site.js");
        const { trainingView } = await import("./training.js");
        const view = await trainingView({}, CONTEXT);
        for (const one of all(view, "details")) one.listeners.toggle();
        told(await text(view));
    """
    shown = in_node(tmp_path, script)
    assert shown.count("25 %") == 2
    assert "[" not in shown


@NEEDS_NODE
def test_a_step_says_why_it_was_the_last_one(tmp_path: Path) -> None:
    ends: dict[str, JsonObject] = {
        "limit": {"observation": "x", "truncated": True},
        "unsure": {"observation": "x", "truncated": True, "is_error": True, "info": {"stop": "out_of_support"}},
        "open": {"observation": "x", "truncated": True, "info": {"open_end": True}, "reward": -1},
    }
    origins: dict[str, JsonObject] = {name: {"tier": "model", "open_end": name == "open"} for name in ends}
    exported(
        tmp_path,
        *[
            played(name, [{"action": {"name": "go"}, "result": result, "provenance": origins[name]}])
            for name, result in ends.items()
        ],
    )
    script = """
        run("data/site.js");
        const { episodeView } = await import("./episode.js");
        const badges = [];
        for (const id of ["limit", "unsure", "open"]) {
          const view = await episodeView({ place: "episodes.jsonl", id }, CONTEXT);
          await text(view);
          const found = all(view, "span").filter((one) => (one.className ?? "").startsWith("badge"));
          badges.push(found.map((one) => one.textContent).join(", "));
        }
        told(badges.join("; "));
    """
    assert (
        in_node(tmp_path, script).strip() == "limit reached; the dream was not sure enough; reward -1, over, open end"
    )


@NEEDS_NODE
def test_a_reward_of_four_digits_keeps_them(tmp_path: Path) -> None:
    exported(tmp_path)
    script = """
        const { number } = await import("./dom.js");
        told([1234.5, 100.5, 12345.678, 0.12345, -250.25, 3].map(number).join(" "));
    """
    assert in_node(tmp_path, script).strip() == "1,234.5 100.5 12,345.68 0.123 -250.25 3"


@NEEDS_NODE
def test_an_instruction_that_was_cut_ends_with_a_mark(tmp_path: Path) -> None:
    exported(tmp_path, played("long", [], instruction="w" * 400), played("short", [], instruction="v" * 300))
    script = """
        run("data/site.js");
        const { episodeList } = await import("./episodes.js");
        told(await text(await episodeList({}, CONTEXT)));
    """
    shown = in_node(tmp_path, script)
    assert f"{'w' * 300} …" in shown
    assert f"{'v' * 300} …" not in shown


@NEEDS_NODE
def test_the_page_before_the_last_page_of_steps_behind_a_number_is_a_whole_one(tmp_path: Path) -> None:
    step = {"setting": "s", "values": {"c": 1}, "trajectory": "t", "action": "", "recorded": "", "got": ""}
    steps = [{**step, "recorded_changes": [], "got_changes": []}] * 120
    (tmp_path / "site" / "data").mkdir(parents=True)
    behind = {"steps": steps, "not_means": [], "places": {}}
    (tmp_path / "site" / "data" / "b0.js").write_text(f"dreamgymExport.steps.r = {json.dumps(behind)};")
    script = """
        globalThis.dreamgymExport = { behind: { r: "b0" }, steps: {} };
        const { behindView } = await import("./reports.js");
        const view = await behindView({ name: "r", setting: "s", cell: "c", first: "101" }, CONTEXT);
        told(all(view, "a").find((one) => one.textContent === "Steps before").attributes.href);
    """
    assert in_node(tmp_path, script).endswith("&first=51")


@NEEDS_NODE
def test_an_answer_of_the_server_that_broke_off_is_reported_as_such(tmp_path: Path) -> None:
    script = """
        const { createServer } = await import("node:http");
        const { ask } = await import("./data.js");
        const server = createServer((_, answer) => {
          answer.writeHead(200, { "Content-Length": 100 });
          answer.write("{", () => answer.destroy());
        });
        await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
        const request = fetch;
        globalThis.fetch = (path, given) => request(`http://127.0.0.1:${server.address().port}/${path}`, given);
        told(await ask("about").then(JSON.stringify, (error) => `${error.constructor.name}: ${error.message}`));
        server.close();
    """
    assert in_node(tmp_path, script) == "Refused: The server's answer broke off."


def played(name: str, steps: list[JsonObject], **more: str) -> Trajectory:
    """An episode with these steps."""
    start, instruction = more.get("start"), more.get("instruction", "Look.")
    known: JsonObject = {"state": "", "next_state": "", "provenance": {"tier": "real"}}
    return Trajectory.model_validate(
        {
            "id": name,
            "task": {"id": "t", "env": "house", "instruction": instruction, "initial_state": start},
            "transitions": [{**known, **step} for step in steps],
            "source": "real" if start is None else "synthetic",
            "stop_reason": "closed",
            "answer": more.get("answer"),
        }
    )


def exported(folder: Path, *episodes: Trajectory) -> None:
    """Export a run folder with these episodes to `site`."""
    run = folder / "run"
    run.mkdir(exist_ok=True)
    (run / "episodes.jsonl").write_text("".join(one.model_dump_json() + "\n" for one in episodes))
    asyncio.run(export(Answers(Library(folder=RunFolder(run))), folder / "site", lambda text: None))


def in_node(folder: Path, script: str) -> Any:
    """Run a script beside the page's modules; return what it passes to `told`."""
    for name, text in MODULES.items():
        (folder / name).write_text(text)
    shutil.copy(Path(__file__).with_name("page.js"), folder)
    (folder / "package.json").write_text('{"type": "module"}')
    begin = (
        'import { CONTEXT, all, run, text } from "./page.js"; const told = (one) => console.log(JSON.stringify(one));'
    )
    ran = subprocess.run(
        ["node", "--input-type=module", "-"],
        input=begin + script,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)
