"""The example of docs/synthesis.md runs and prints what the page shows."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "synthesis.md").read_text(encoding="utf-8")


def test_the_example_of_the_page_prints_what_the_page_shows() -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.S | re.M)
    (printed,) = re.findall(r"^```text\n(.*?)^```$", PAGE, flags=re.S | re.M)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == (printed, "")
