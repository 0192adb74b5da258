"""`mcp-server-git`: a small repository with a branch, a change that is not staged and files that are not tracked.

New commits are dated by the clock, so their hashes differ with every play.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from public_server import Kind, Plan, Server, Session, call, world

from dreamgym.types import ToolCall

NAME = "git"
REPOSITORY = "harbour"
PATH = str(world(NAME) / REPOSITORY)
AUTHOR = ("Ada Byron", "ada@harbour.example")
COMMITS = (  # branch, message, files
    ("main", "Tide tables for small harbours", {"README.md": "# Harbour\n\nTide tables for small harbours.\n"}),
    ("main", "Add the price list", {"data/prices.csv": "item,price\nrope,12\nbuoy,45\nlamp,80\n"}),
    ("feature/lamp", "Describe the pier lamp", {"docs/lamp.md": "# Pier lamp\n\n40 watts, white.\n"}),
    (
        "main",
        "Name the owner",
        {"README.md": "# Harbour\n\nTide tables for small harbours.\n\nOwner: the pier committee\n"},
    ),
)
LEFT = {
    "data/prices.csv": "item,price\nrope,12\nbuoy,49\nlamp,80\n",
    "notes.txt": "Decision: ship on 14 March.\n",
    "crew.txt": "Ada\nBoris\n",
}
"""Files that are changed or new, and not staged."""


def prepare(place: Path, installed: Path) -> None:
    """Make the repository, always with the same commits and the same dates."""
    folder = place / REPOSITORY
    folder.mkdir()
    _git(folder, 0, "init", "-q", "-b", "main")
    for key, value in zip(("user.name", "user.email"), AUTHOR, strict=True):
        _git(folder, 0, "config", key, value)
    made = {"main"}
    for number, (branch, message, files) in enumerate(COMMITS):
        if number:
            _git(folder, 0, "checkout", "-q", *([] if branch in made else ["-b"]), branch)
        made.add(branch)
        _write(folder, files)
        _git(folder, number, "add", "-A")
        _git(folder, number, "commit", "-q", "-m", message)
    _write(folder, LEFT)


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def _git(folder: Path, day: int, *arguments: str) -> None:
    date = f"2026-03-{day + 1:02}T09:00:00+00:00"
    environment = {**os.environ, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date, "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["git", *arguments], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)


def git(tool: str, **arguments: str | int | list[str]) -> ToolCall:
    return call(f"git_{tool}", repo_path=PATH, **arguments)  # type: ignore[arg-type]


STATUS = git("status")
UNSTAGED = git("diff_unstaged")
STAGED = git("diff_staged")
BRANCHES = git("branch", branch_type="local")

PLANS = (
    Plan("which-branch", "Which branch am I on?", (STATUS, BRANCHES), r"On branch (\S+)", "main"),
    Plan(
        "last-commit",
        "What is the last commit's message?",
        (git("log", max_count=1), git("show", revision="HEAD")),
        r"Message: '?([^'\n]+)",
        "Name the owner",
    ),
    Plan(
        "stage-notes",
        "Stage notes.txt.",
        (STATUS, git("add", files=["notes.txt"]), STATUS),
        r"new file:\s+(\S+)",
        "notes.txt",
    ),
    Plan(
        "commit-notes",
        "Commit notes.txt with the message 'Note the decision'.",
        (
            git("commit", message="Note the decision"),
            git("add", files=["notes.txt"]),
            git("commit", message="Note the decision"),
            git("log", max_count=2),
        ),
        r"(Note the decision)",
        "Note the decision",
    ),
    Plan(
        "price-change",
        "What did somebody change in the price list?",
        (STATUS, UNSTAGED, git("diff", target="HEAD")),
        r"\n\+(buoy,\d+)",
        "buoy,49",
    ),
    Plan(
        "branch-for-tides",
        "Make a branch named tides and switch to it.",
        (
            git("create_branch", branch_name="tides"),
            git("checkout", branch_name="tides"),
            BRANCHES,
        ),
        r"\* (\S+)",
        "tides",
    ),
    Plan(
        "look-at-lamp",
        "Switch to the lamp branch and tell me its last commit.",
        (
            git("checkout", branch_name="lamp"),
            BRANCHES,
            git("checkout", branch_name="feature/lamp"),
            git("log", max_count=1),
        ),
        r"Message: '?([^'\n]+)",
        "Describe the pier lamp",
    ),
    Plan(
        "unstage",
        "I staged the price list by mistake. Stage it, look, and take it back.",
        (git("add", files=["data/prices.csv"]), STAGED, git("reset"), STATUS),
        r"modified:\s+(\S+)",
        "data/prices.csv",
    ),
    Plan(
        "missing-file",
        "Stage plan.txt, if it is there.",
        (git("add", files=["plan.txt"]), STATUS),
        r"(crew\.txt)",
        "crew.txt",
    ),
    Plan(
        "compare-lamp",
        "What is on the lamp branch that main lacks?",
        (git("diff", target="lamp"), git("diff", target="feature/lamp")),
        r"(docs/lamp\.md)",
        "docs/lamp.md",
    ),
)

SESSIONS = (
    Session("checkout-lamp", Kind.READ_AFTER_WRITE, (git("checkout", branch_name="feature/lamp"), BRANCHES, STATUS)),
    Session(
        "branch-storm",
        Kind.READ_AFTER_WRITE,
        (git("create_branch", branch_name="storm"), BRANCHES, git("checkout", branch_name="storm"), STATUS),
    ),
    Session(
        "commit-crew",
        Kind.READ_AFTER_WRITE,
        (
            git("add", files=["crew.txt"]),
            STATUS,
            git("commit", message="Storm warning"),
            git("log", max_count=1),
            STATUS,
        ),
    ),
    Session("stage-prices", Kind.READ_AFTER_WRITE, (git("add", files=["data/prices.csv"]), STATUS, STAGED, UNSTAGED)),
    Session(
        "stage-two-and-take-back",
        Kind.READ_AFTER_WRITE,
        (git("add", files=["crew.txt", "notes.txt"]), STATUS, git("reset"), STATUS),
    ),
    Session(
        "branch-from-lamp",
        Kind.READ_AFTER_WRITE,
        (
            git("create_branch", branch_name="lamp-2", base_branch="feature/lamp"),
            git("checkout", branch_name="lamp-2"),
            git("log", max_count=1),
            BRANCHES,
        ),
    ),
    Session(
        "commit-on-branch",
        Kind.READ_AFTER_WRITE,
        (
            git("create_branch", branch_name="gale"),
            git("checkout", branch_name="gale"),
            git("add", files=["data/prices.csv"]),
            git("commit", message="Buoys cost more"),
            git("checkout", branch_name="main"),
            git("log", max_count=1),
            BRANCHES,
        ),
    ),
    Session(
        "stage-crew-diff",
        Kind.READ_AFTER_WRITE,
        (git("add", files=["crew.txt"]), STAGED),
    ),
    Session(
        "there-and-back",
        Kind.READ_AFTER_WRITE,
        (git("checkout", branch_name="feature/lamp"), git("checkout", branch_name="main"), BRANCHES, STATUS),
    ),
    Session(
        "two-branches",
        Kind.READ_AFTER_WRITE,
        (git("create_branch", branch_name="north"), git("create_branch", branch_name="south"), BRANCHES),
    ),
    Session("status-three-times", Kind.REPEATED_READS, (STATUS, STATUS, STATUS)),
    Session(
        "reads-around-a-branch",
        Kind.REPEATED_READS,
        (
            git("log", max_count=3),
            STATUS,
            git("create_branch", branch_name="rescue"),
            STATUS,
            git("log", max_count=3),
            git("show", revision="HEAD"),
            git("show", revision="HEAD"),
        ),
    ),
    Session(
        "diff-around-add",
        Kind.REPEATED_READS,
        (UNSTAGED, git("add", files=["crew.txt"]), UNSTAGED, BRANCHES, git("reset"), BRANCHES),
    ),
    Session(
        "other-arguments",
        Kind.NEW_ARGUMENTS,
        (
            git("log", max_count=2),
            git("show", revision="HEAD~1"),
            git("show", revision="feature/lamp"),
            git("diff", target="HEAD~1"),
            git("branch", branch_type="all"),
            git("diff_unstaged", context_lines=0),
        ),
    ),
    Session(
        "other-writes",
        Kind.NEW_ARGUMENTS,
        (
            git("add", files=["crew.txt", "data/prices.csv"]),
            git("create_branch", branch_name="winter"),
            git("commit", message="Crew and prices"),
            git("checkout", branch_name="winter"),
        ),
    ),
    Session(
        "refused",
        Kind.REFUSALS,
        (
            git("checkout", branch_name="nowhere"),
            git("add", files=["missing.csv"]),
            git("diff", target="nowhere"),
            git("show", revision="deadbeef"),
            git("create_branch", branch_name="feature/lamp"),
            git("commit", message="Nothing is staged"),
            call("git_log", max_count=1),
        ),
    ),
)

SERVER = Server(
    name=NAME,
    package="PyPI mcp-server-git 2026.10.19",
    command=lambda there: (str(there / "python/bin/mcp-server-git"), "--repository", PATH),
    prepare=prepare,
    plans=PLANS,
    sessions=SESSIONS,
    environment={"GIT_CONFIG_GLOBAL": os.devnull},
    reads=frozenset(
        f"git_{name}" for name in ("status", "diff_unstaged", "diff_staged", "diff", "log", "show", "branch")
    ),
)
