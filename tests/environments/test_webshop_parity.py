"""Our engine of WebShop against the authors' own, step by step, on runs recorded with theirs.

We cannot ship their catalogue, which contains texts of public shop pages. DREAMGYM_WEBSHOP names a folder with the
catalogue and the recorded runs.
"""

import json
import lzma
import os
from pathlib import Path

import pytest

pytest.importorskip("rapidfuzz", reason="the shop needs the extra dreamgym[webshop]")
pytest.importorskip("snowballstemmer", reason="the shop needs the extra dreamgym[webshop]")

from dreamgym_integrations.environments.webshop import webshop
from dreamgym_integrations.environments.webshop.reward import nouns

from dreamgym.episode import play
from dreamgym.types import Source, ToolCall

FOLDER = Path(os.environ.get("DREAMGYM_WEBSHOP", ""))
RUNS = FOLDER / "trajectories_oracle_random.jsonl.xz"

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        not RUNS.is_file(), reason="DREAMGYM_WEBSHOP is not a folder with recorded runs of the original"
    ),
]


async def test_every_recorded_step_of_the_original_is_answered_alike() -> None:
    real = webshop({"catalogue": str(FOLDER)})
    tasks = {task.metadata["goal"]: task for split in ("test", "dev", "train") for task in real.tasks(split)}
    environment = real.create()
    steps = 0
    with lzma.open(RUNS, "rt", encoding="utf-8") as lines:
        for run in map(json.loads, lines):
            task = tasks[run["goal_idx"]]
            assert (task.instruction, task.metadata["split"]) == (run["instruction"], run["split"])
            assert (await environment.reset(task)).observation == run["initial_observation"]
            for recorded in run["steps"]:
                name, _, argument = recorded["action"].removesuffix("]").partition("[")
                key = "query" if name == "search" else "element"
                got = await environment.step(ToolCall(name=name, arguments={key: argument}))
                assert got.observation == recorded["observation"]
                assert (got.info.get("score", 0.0), got.terminated) == (recorded["reward"], recorded["done"])
                if available := recorded["available"]:
                    clicks = [f"click[{element}]" for element in available["click"] if element != "search"]
                    assert got.info["admissible"] == [*(["search[…]"] * available["search"]), *clicks]
                steps += 1
    assert steps == 3100


async def test_the_oracle_scores_what_the_original_oracle_does_on_development_goals() -> None:
    real = webshop({"catalogue": str(FOLDER)})
    environment = real.create()
    scores = []
    for task in real.tasks("dev")[:100]:
        episode = await play(environment, task, real.behaviours["expert"], spec=real.spec, seed=0, source=Source.REAL)
        scores.append(float(str(episode.transitions[-1].result.info["score"])))
    assert sum(scores) / len(scores) >= 0.97


def test_the_splits_are_the_usual_ones() -> None:
    real = webshop({"catalogue": str(FOLDER)})
    numbers = {split: [task.metadata["goal"] for task in real.tasks(split)] for split in ("test", "dev", "train")}
    assert numbers == {"test": [*range(500)], "dev": [*range(500, 1500)], "train": [*range(1500, 6910)]}


def test_the_nouns_of_the_original_catalogue_are_those_that_spacy_found() -> None:
    assert nouns("Pointed Toe Pumps Shoes, a Title of No Product")[:2] == ("pointed", "toe")
    with lzma.open(FOLDER / "items_shuffle_1000.json.xz", "rt", encoding="utf-8") as file:
        titles = [row["name"] for row in json.load(file)]
    pumps = next(title for title in titles if title.startswith("Pointed Toe Pumps Shoes"))
    assert nouns(pumps)[:2] == ("toe", "pumps"), "spaCy takes `pointed` for an adjective"
