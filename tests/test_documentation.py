"""Every code block of the README and of docs/ is run, or is marked with the reason why it is not.

A page is played from top to bottom in a folder that contains only `examples` and `benchmarks`:

- `bash`: the commands are run. In a marked block, the real command line parses them, except on pages of results.
- `python`: the program is run. After a line that is only "`path`:", the block is written to that file instead.
- `toml`, `json`: parsed; settings are read by the code that reads them for a user. Files as above.
- `text`: exactly what the block before it prints; `…` stands for anything.

The mark is the line `<!-- not run: REASON -->` before a block. An entry point in a block for `pyproject.toml` works as
if the page's package had been installed.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from dreamgym.cli.app import app
from dreamgym.cli.serve import app as serve
from dreamgym.environment import EnvironmentSpec, load_real
from dreamgym.errors import InvalidInput
from dreamgym.runs.experiment.plan import read_plan
from dreamgym.runs.settings import settings_of
from dreamgym.runs.train.config import TrainConfig

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RESULTS = ROOT / "docs" / "results"
MARK = re.compile(r"<!-- not run: (\S.*) -->")
FILE = re.compile(r"`([\w./-]+)`:")
PROGRAMS = {"dreamgym": app, "dreamgym-serve": serve}
LIMIT_S = 120
"""Blocks that take longer must be marked."""
LONG = {"agent", "environment"}
"""Pages whose commands only `make test-all` runs: they take as long as all others together."""
TOOLS_LIST = {"tools": [{"name": "act", "inputSchema": {"type": "object"}}]}


@dataclass(frozen=True)
class Block:
    """A fenced block and what stands before it."""

    page: Path
    line: int
    language: str
    text: str
    reason: str | None
    """Why it is not run; None if it is run."""
    file: str | None
    """The file that it shows."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    begun = None
    for number, line in enumerate(lines):
        if not line.lstrip().startswith("```"):
            continue
        if begun is None:
            begun = number
            continue
        before = [above for above in lines[max(0, begun - 4) : begun] if above][-2:]
        mark = MARK.fullmatch(before[-1]) if before else None
        named = FILE.fullmatch(before[-2 if mark and len(before) > 1 else -1]) if before else None
        text = "\n".join(lines[begun + 1 : number]) + "\n"
        reason, file = mark and mark[1], named and named[1]
        yield Block(page, begun + 1, lines[begun].lstrip().removeprefix("```"), text, reason, file)
        begun = None
    assert begun is None, f"{page}:{begun}: the block has no end"


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def commands_of(text: str) -> Iterator[list[str]]:
    """The words of each command, without comments and leading variables; `;`, `&` and `|` separate commands."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word in {";", "&", "&&", "|", "||"}:
                if words:
                    yield words
                words = []
            elif words or not re.match(r"\w+=", word):
                words.append(word)


def parse(program: str, arguments: Sequence[str]) -> None:
    """Parse arguments; raise an error of the command line, or InvalidInput, if it would refuse them."""
    command: Any = typer.main.get_command(PROGRAMS[program])
    context = command.make_context(program, list(arguments), resilient_parsing="--help" in arguments)
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context, resilient_parsing="--help" in rest)
    if command.name == "train":
        settings_of(TrainConfig, None, context.args)


def check_command(block: Block, words: Sequence[str]) -> None:
    """Check that everything in a command exists: verbs, options, values, make targets, extras, files."""
    known = {other.file for other in BLOCKS if other.page == block.page}
    program, *rest = words
    if "-m" in rest[:3] and "dreamgym" in rest:
        program, *rest = rest[rest.index("dreamgym") :]
    if program in PROGRAMS:
        rest = rest[: next((i for i, word in enumerate(rest) if set(word) <= {"<", ">"}), len(rest))]
        parse(program, rest)
    elif program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M)
        assert {word for word in rest if "=" not in word} <= set(targets), words
    elif program in {"python", "bash"} and rest[0] not in {"-c", "-m"}:
        assert rest[0] in known or (ROOT / rest[0]).is_file(), words
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "optional-dependencies"
        ]
        named = re.findall(r"(?:dreamgym|[.])\[([\w,-]+)\]", " ".join(rest))
        assert {extra for part in named for extra in part.split(",")} <= set(extras), words


def check_settings(block: Block, folder: Path) -> None:
    """Check that a TOML block is an experiment, an environment, a package, or settings of `dreamgym train`."""
    table = tomllib.loads(block.text)
    if "project" in table:
        return
    file = folder / "block.toml"
    file.write_text(block.text, encoding="utf-8")
    if "arm" in table:
        read_plan(file)
    elif table.keys() & {"name", "real", "limits", "redact", "state"}:
        part = folder / "part"
        part.mkdir(exist_ok=True)
        (part / "env.toml").write_text(("" if "name" in table else 'name = "crm"\n') + block.text, encoding="utf-8")
        (part / "tools.json").write_text(json.dumps(TOOLS_LIST), encoding="utf-8")
        spec = EnvironmentSpec.load(part)
        if spec.adapter is not None and ":" not in spec.adapter:
            load_real(spec.adapter, spec.options)
    else:
        settings_of(TrainConfig, file, [])


def check(block: Block, scratch: Path) -> None:
    """Check a block without running it."""
    if block.language == "bash":
        # a page of results contains the command of its own commit, which today's program may refuse
        for words in [] if block.reason and block.page.parent == RESULTS else commands_of(block.text):
            check_command(block, words)
    elif block.language == "python":
        compile(block.text, str(block), "exec")
    elif block.language == "toml":
        check_settings(block, scratch)
    elif block.language == "json":
        json.loads(block.text)
    else:
        assert block.language == "text", (
            f"{block}: unknown language {block.language!r}: expected bash, python, toml, json or text"
        )


class Player:
    """Plays the blocks of one page in one folder."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self._folder = folder
        for name in ("examples", "benchmarks"):
            (folder / name).symlink_to(ROOT / name)
        scripts = str(Path(sys.executable).parent)
        self._environment = os.environ | {
            "PATH": f"{scripts}:{os.environ['PATH']}",
            "DREAMGYM_DSN": dsn,
            "COLUMNS": "120",
        }
        del self._environment["DREAMGYM_ENCODER"]  # a reader has the default encoder
        self._printed: str | None = None

    def play(self, block: Block) -> None:
        """Run a block, or compare it with what the one before it printed."""
        if block.reason is None and block.language == "text":
            assert self._printed is not None, f"{block}: expected a command block before it, or a mark"
            expected = re.escape(block.text.strip()).replace("…", ".*?")
            assert re.fullmatch(expected, self._printed.strip(), flags=re.S), f"{block}:\n{self._printed}"
        self._printed = None
        if block.reason is None:
            self._carry_out(block)

    def _carry_out(self, block: Block) -> None:
        if block.file:
            file = self._folder / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, encoding="utf-8")
            if file.name == "pyproject.toml":
                self._install(file.parent, tomllib.loads(block.text)["project"])
        elif block.language == "bash":
            self._printed = self._run(block, ["bash", "-euo", "pipefail", "-c", block.text])
        elif block.language == "python":
            self._printed = self._run(block, [sys.executable, "-c", block.text])

    def _run(self, block: Block, command: Sequence[str]) -> str:
        """Return what the command prints. All processes that it started are killed."""
        process = subprocess.Popen(
            command,
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            printed, said = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{block}: runs longer than {LIMIT_S} s: mark it")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        assert process.returncode == 0, f"{block}:\n{printed}{said}"
        return printed

    def _install(self, folder: Path, project: dict[str, Any]) -> None:
        """Install as `pip install --editable` would, but without asking a package index for the build backend."""
        described = folder / f"{project['name']}-0.dist-info"
        described.mkdir()
        (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
        points = project["entry-points"].items()
        lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in points]
        (described / "entry_points.txt").write_text("\n".join(lines))
        path = os.environ.get("PYTHONPATH")
        self._environment["PYTHONPATH"] = f"{folder}:{path}" if path else str(folder)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_everything_that_the_code_blocks_of_a_page_name_exists(page: Path, tmp_path: Path) -> None:
    for block in blocks_of(page):
        check(block, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.long if page.stem in LONG else ())
        for page in PAGES
        if any(not block.reason for block in blocks_of(page))
    ],
    ids=lambda page: page.stem,
)
def test_the_code_blocks_of_a_page_run_or_say_why_not(page: Path, tmp_path: Path, dsn: str) -> None:
    player = Player(tmp_path, dsn)
    for block in blocks_of(page):
        player.play(block)


@pytest.mark.parametrize(
    "command",
    [
        "dreamgym dance coin",
        "dreamgym play coin --agent random --backwards",
        "dreamgym play coin --agent random --against both",
        "dreamgym train coin --polocy tiny",
        "dreamgym db sell",
    ],
)
def test_a_command_that_the_command_line_refuses_is_found(command: str) -> None:
    program, *arguments = command.split()
    with pytest.raises(Exception, match=r"No such|not one of|unknown|Missing|polocy|sell"):
        parse(program, arguments)


def test_the_first_commands_of_the_readme_are_targets_of_the_makefile() -> None:
    block = next(block for block in BLOCKS if block.page.name == "README.md" and "make " in block.text)
    assert [words[1] for words in commands_of(block.text) if words[0] == "make"] == ["demo", "test"]


def test_the_help_of_every_verb_has_an_example() -> None:
    commands = typer.main.get_command(app)
    assert isinstance(commands, typer.core.TyperGroup)
    verbs = {name: verb for name, verb in commands.commands.items() if not hasattr(verb, "commands")}
    assert not [name for name, verb in verbs.items() if f"Example: dreamgym {name}" not in (verb.help or "")]


def test_invalid_settings_are_found(tmp_path: Path) -> None:
    for text in ("polocy = 1\n", 'name = "a b"\n', 'arm = 1\nname = "x"\n'):
        with pytest.raises(InvalidInput):
            check_settings(Block(ROOT / "README.md", 1, "toml", text, None, None), tmp_path)
