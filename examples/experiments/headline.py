"""Put the published results of several games side by side: what practice in a dream is worth in each.

python examples/experiments/headline.py docs/results/coin.json docs/results/mapreader-baselines.json > headline.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean

from dreamgym.evaluation.rates import shares
from dreamgym.runs.experiment.table import Published, answered_by, difference, percent, points, success

ARMS = (
    "random",
    "warm start",
    "SFT",
    "SFT, refused commands masked",
    "GRPO real, as many steps",
    "GRPO real, ten times",
    "GRPO dream",
    "PPO dream",
    "SFT, real, as many steps",
    "SFT, real, ten times",
    "SFT, dream",
    "masked SFT, real, as many steps",
    "masked SFT, dream",
    "refusals only: shuffled next states, with guards",
)
PAIRS = (
    ("GRPO dream", "GRPO real, as many steps"),
    ("GRPO dream", "GRPO real, ten times"),
    ("GRPO dream", "SFT"),
    ("SFT, dream", "SFT"),
    ("SFT, dream", "SFT, real, as many steps"),
    ("SFT, dream", "SFT, real, ten times"),
    ("SFT, refused commands masked", "SFT"),
    ("masked SFT, dream", "SFT, refused commands masked"),
    ("masked SFT, dream", "masked SFT, real, as many steps"),
    ("GRPO dream", "refusals only: shuffled next states, with guards"),
    ("refusals only: shuffled next states, with guards", "warm start"),
)


def table(games: Sequence[Published]) -> Iterator[str]:
    """Success of each arm in each game, with its further real steps and the tiers that answered in its dream."""
    names = " | ".join(f"`{game.plan.env}`" for game in games)
    yield f"| policy: success in reality | {names} | further real steps | dream steps answered by |"
    yield "|---" * (len(games) + 3) + "|"
    for arm in ARMS:
        results = [game.by_arm.get(arm, ()) for game in games]
        if not all(results):
            continue
        steps = "; ".join(dict.fromkeys(f"{mean(one.real_steps for one in some):,.0f}" for some in results))
        tiers = "; ".join(dict.fromkeys(filter(None, (shares(answered_by(some)) for some in results))))
        yield f"| {arm} | {' | '.join(percent(success(some)) for some in results)} | {steps} | {tiers} |"


def differences(games: Sequence[Published]) -> Iterator[str]:
    """Differences of success between pairs of arms, in points."""
    yield f"| compared, in points | {' | '.join(f'`{game.plan.env}`' for game in games)} |"
    yield "|---" * (len(games) + 1) + "|"
    for arm, against in PAIRS:
        pairs = [(game.by_arm.get(against, ()), game.by_arm.get(arm, ())) for game in games]
        if all(before and after for before, after in pairs):
            yield f"| {arm} − {against} | {' | '.join(points(difference(*pair)) for pair in pairs)} |"


def page(games: Sequence[Published]) -> str:
    """The page: both tables and how they were made."""
    commits = ", ".join(sorted({one.commit for game in games for one in game.results}))
    seeds = " and ".join(dict.fromkeys(str(len(game.plan.seeds)) for game in games))
    tasks = " and ".join(dict.fromkeys(str(game.plan.test.episodes) for game in games))
    recorded = "; ".join(f"{mean(one.recorded_steps for one in game.results):,.0f}" for game in games)
    lines = [
        "# What practice in a dream is worth",
        "",
        f"From {', '.join(f'{game.file}.json' for game in games)}, which was made at commit {commits}.",
        "",
        f"{seeds} seeds, {tasks} held-out tasks, all from the same {recorded} recorded real steps. Brackets are 95 % "
        "intervals by Student's t over seeds and tasks; **bold** differences leave out 0.",
        "",
        *table(games),
        "",
        *differences(games),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(
        page([Published.model_validate_json(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]])
    )
