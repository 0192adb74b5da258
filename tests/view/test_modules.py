"""The page's modules: no two define the same name, so that an exported copy can join them into one script."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from dreamgym_server.doors.view import files
from dreamgym_server.view.answers import Answers
from dreamgym_server.view.export import VENDORED, export, one_script, page_files
from dreamgym_server.view.folders import RunFolder
from dreamgym_server.view.library import Library

from dreamgym.types import Trajectory

NAMED = re.compile(r"^(?:export )?(?:async )?(?:const|let|class|function\*?) (\w+)", re.MULTILINE)
MODULES = {
    name: content.decode() for name, content in files().items() if name.endswith(".js") and not name.endswith(VENDORED)
}


@pytest.mark.skipif(shutil.which("node") is None, reason="no node: install your system's package nodejs")
def test_an_exported_copy_has_arguments_whose_names_mean_something_to_javascript(tmp_path: Path) -> None:
    step = {"action": {"name": "go", "arguments": {"__proto__": 1, "constructor": 2}}, "result": {"observation": "ok"}}
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
    assert json.loads(ran.stdout) == [[["__proto__", "1"], ["constructor", "2"]], task["instruction"]]


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


@pytest.mark.skipif(shutil.which("node") is None, reason="no node: install your system's package nodejs")
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
    (tmp_path / "dom.mjs").write_text(MODULES["dom.js"])
    script = f'import {{ readable }} from "./dom.mjs"; process.stdout.write(readable({json.dumps(recorded)}))'
    done = subprocess.run(
        ["node", "--input-type=module", "-e", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == shown
