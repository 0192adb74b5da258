"""The tables that the scripts of examples/experiments make of published results."""

import shlex
import subprocess
import sys
from pathlib import Path

from dreamgym.environment import from_place

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "examples" / "experiments"
RESULTS = ROOT / "docs" / "results"


def test_the_page_of_graded_dreams_is_what_its_measurements_give() -> None:
    page = from_place("function", f"{EXPERIMENTS / 'dose.py'}:page")
    one_dream = sys.modules[page.__module__].Dose.model_validate_json
    found = [one_dream(line) for line in (RESULTS / "dose.jsonl").read_text(encoding="utf-8").splitlines()]
    assert (RESULTS / "dose.md").read_text(encoding="utf-8") == page(found)


def test_games_stand_side_by_side_by_the_command_that_the_script_names() -> None:
    script = EXPERIMENTS / "headline.py"
    (line,) = [line for line in script.read_text(encoding="utf-8").splitlines() if line.startswith("python ")]
    _, *words = shlex.split(line.partition(">")[0])
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    row = "| SFT, dream − SFT |"
    pages = [(RESULTS / name).read_text(encoding="utf-8") for name in ("coin.md", "mapreader-baselines.md")]
    gains = [line.split(" | ")[1] for page in pages for line in page.splitlines() if line.startswith(row)]
    assert f"{row} {' | '.join(gains)} |" in done.stdout
