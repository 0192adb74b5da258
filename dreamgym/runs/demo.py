"""The demonstration: an experiment on a real game, and one episode of an agent in the dream and in the game."""

from __future__ import annotations

from contextlib import suppress
from importlib.resources import as_file, files
from pathlib import Path

from dreamgym.errors import InvalidInput, StoreError, UnknownName
from dreamgym.files import make_folder
from dreamgym.replay import embedded
from dreamgym.runs.console import say
from dreamgym.runs.experiment.compare import compare
from dreamgym.runs.experiment.plan import read_plan
from dreamgym.runs.experiment.prepared import database_folder, prepared_seeds
from dreamgym.runs.opening import tasks_of
from dreamgym.runs.side_by_side import side_by_side

DEMONSTRATED = {"coin": "demo", "alfworld": "demo-alfworld"}


def demo(out: Path, env: str = "coin", *, full: bool = False) -> str:
    """Train a policy in a dream of recorded play and measure it in the real game; then play one episode in both.

    Args:
        out: run folder; an interrupted demonstration in it is continued.
        env: the game, `coin` or `alfworld`.
        full: for `coin` only: three seeds and 100 updates instead of one seed and 25.

    Returns:
        The report and the two episodes, as text.

    Raises:
        UnknownName: there is no demonstration of this game.
        InvalidInput: `full` is given for a game other than `coin`, or the game's data are not here.
    """
    if env not in DEMONSTRATED:
        raise UnknownName("demonstration", env, DEMONSTRATED)
    if full and env != "coin":
        raise InvalidInput(f"--full is for coin; for {env} use examples/experiments/{env}.toml")
    name = "demo-full" if full else DEMONSTRATED[env]
    command = f"dreamgym demo{'' if env == 'coin' else f' {env}'}{' --full' if full else ''}"
    say(f"everything goes to {out}; `{command} --out {out}` continues an interrupted run")
    with as_file(files("dreamgym.runs") / f"{name}.toml") as file:
        return demonstrate(file, out, command)


def demonstrate(file: Path, out: Path, command: str) -> str:
    """Run an experiment file and report it. The first arm must be a policy to compare with."""
    make_folder(out)
    folder = out.resolve()
    report, plan = compare(file, folder, parallel=2, command=command), read_plan(file)
    with prepared_seeds(plan, folder) as (first, *_):
        task = tasks_of(first.spec, "train", first.real)[0]
        dsn = first.database(f"side_by_side_{first.digest}", plan.arm[0])
        episodes = side_by_side(folder / "side_by_side.txt", plan.env, task, dsn)
        # a task that was not recorded, for `dreamgym view`: in it, dream and real game differ
        unknown = tasks_of(first.spec, "dev", first.real)[0]
        side_by_side(folder / "not_recorded.txt", plan.env, unknown, dsn)
    with suppress(StoreError):  # another process uses it
        embedded.remove(database_folder(folder))
    return (
        f"{report}\n## The same agent, the same task, another URL\n\n```\n{episodes}```\n\n"
        f"Picture: {out / file.stem}.png. Trained policies: {out}/seed-*/*/policy, for `dreamgym eval {plan.env}`.\n"
        "Compared with imitation of the same recordings and with practice in the real game: docs/results.md.\n"
        f"See every episode, and the step at which dream and game begin to differ: `dreamgym view {out}`.\n"
        "A dream of your own MCP server: `dreamgym record`, then `dreamgym serve` (docs/quickstart.md).\n"
    )
