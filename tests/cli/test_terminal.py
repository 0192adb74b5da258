"""What a stranger wrote into a recording or a task is printed as text: it cannot control the terminal."""

import json
from pathlib import Path

import pytest
from command_line import Command

from dreamgym.runs.console import say
from dreamgym.types import JsonObject

TITLE = "go\x1b]0;title\x07\x9b2J"
"""Sets the title of a terminal, and clears it."""
GET: JsonObject = {"name": "get", "inputSchema": {"type": "object", "properties": {"id": {"type": "string"}}}}


@pytest.mark.parametrize(
    "verb",
    [
        ("tasks", "crm"),
        ("db", "show", "crm"),
        ("db", "show", "crm", TITLE),
        ("check", "crm", "--against", "dream", "--model", "nearest"),
    ],
    ids=["tasks", "db", "db-one", "check"],
)
def test_no_verb_prints_control_characters_of_a_folder(
    dreamgym: Command, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DREAMGYM_ENCODER", "trigram")
    folder = tmp_path / "crm"
    folder.mkdir()
    (folder / "env.toml").write_text('name = "crm"\n')
    (folder / "tools.json").write_text(json.dumps({"tools": [GET]}))
    rows = [
        {
            "id": TITLE if number == 0 else f"{TITLE}{number}",
            "task": {"id": TITLE, "env": "crm", "instruction": TITLE},
            "source": "real",
            "stop_reason": "closed",
            "transitions": [
                {
                    "state": "",
                    "action": {"name": "get", "arguments": {"id": TITLE}},
                    "result": {"observation": f"{number}{TITLE}"},
                    "next_state": "",
                    "provenance": {"tier": "real"},
                }
            ],
        }
        for number in range(3)
    ]
    (folder / "trajectories.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert dreamgym("seed", "crm", "crm")[0] == 0
    _, out, err = dreamgym(*verb)
    assert "title" in out + err
    assert [letter for letter in out + err if letter != "\n" and not letter.isprintable()] == []


def test_line_ends_of_windows_are_printed_and_a_line_cannot_be_written_over(capsys: pytest.CaptureFixture[str]) -> None:
    say("one\r\ntwo\tthree\rfour \N{ROCKET}")
    assert capsys.readouterr().err.replace("\r\n", "\n") == "one\ntwo\tthree\N{REPLACEMENT CHARACTER}four \N{ROCKET}\n"
