"""Measure how true the dream is: predict held-out recorded calls and compare them with the recorded answers.

python examples/04_how_far_to_trust.py
"""

from pathlib import Path

import dreamgym
from dreamgym.evaluation.report.text import check_as_text

RECORDED = Path(__file__).parent / "coin"

if __name__ == "__main__":
    for model in ("nearest", "nearest without history"):
        report = dreamgym.check(str(RECORDED), "dream", model, held_out=0.3, seed=0)
        print(f"{check_as_text(report)}\n")
