"""Save the output of a command as a published result, with the command and the commit that it was made at.

    python benchmarks/publish.py docs/results/call-overhead.md python benchmarks/call_overhead.py

The documentation quotes such files, and a test compares every quotation with its file. Nothing is written if the
command fails or the checkout has uncommitted changes.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from dreamgym.runs.versions import commit


def main() -> None:
    """Run the command and write the file."""
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    out, command = Path(sys.argv[1]), sys.argv[2:]
    made_at = commit()
    if made_at.endswith("+"):
        sys.exit("the checkout has uncommitted changes: commit them, because a result names the commit that made it")
    words = [sys.executable if command[0] == "python" else command[0], *command[1:]]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    sys.stdout.write(done.stdout)
    if done.returncode:
        sys.exit(done.returncode)
    said = done.stdout.strip()
    text = said if "|---" in said else f"<!-- not run: printed by the command above -->\n```text\n{said}\n```"
    # absolute paths are shortened to their last part: the folder means nothing to a reader
    named = shlex.join(Path(word).name if Path(word).is_absolute() else word for word in command)
    title = out.stem.replace("-", " ").capitalize()
    how = f"Made by `{named}` at commit {made_at}, on {os.cpu_count()} cores."
    out.write_text(f"# {title}\n\n{how}\n\n{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
