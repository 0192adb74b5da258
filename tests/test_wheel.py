"""The wheel that is published contains the four packages with their data, and nothing else that can be imported."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "dreamgym": ROOT / "dreamgym",
    "dreamgym_server": ROOT / "server" / "dreamgym_server",
    "dreamgym_client": ROOT / "client" / "dreamgym_client",
    "dreamgym_integrations": ROOT / "integrations" / "dreamgym_integrations",
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel was installed, without its dependencies."""
    built, folder = tmp_path_factory.mktemp("built"), tmp_path_factory.mktemp("installed")
    run([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(built)], ROOT)
    (wheel,) = built.glob("dreamgym-*.whl")
    quiet = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-compile"]
    run([sys.executable, "-m", "pip", "install", *quiet, "--target", str(folder), str(wheel)], built)
    return folder


def run(command: Sequence[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def python(installed: Path, *arguments: str) -> str:
    """Run Python with the wheel and its dependencies, but without the checkout, to which a `.pth` file points."""
    needed = [entry for entry in sys.path if Path(entry).name == "site-packages"]
    path = os.pathsep.join([str(installed), *needed])
    return run([sys.executable, "-S", *arguments], installed, PYTHONPATH=path, COLUMNS="120").stdout


def test_the_four_packages_import_from_the_wheel(installed: Path) -> None:
    imports = "; ".join(f"import {name}; print({name}.__file__)" for name in PACKAGES)
    files = python(installed, "-c", imports).split()
    assert files == [str(installed / name / "__init__.py") for name in PACKAGES]


@pytest.mark.parametrize("name", ["server", "client", "integrations", "tests", "examples", "benchmarks", "docs"])
def test_no_folder_of_the_repository_is_a_package(installed: Path, name: str) -> None:
    found = python(installed, "-c", f"import importlib.util; print(importlib.util.find_spec({name!r}))")
    assert found.strip() == "None"


def test_the_command_line_runs_from_the_wheel(installed: Path) -> None:
    shown = python(installed, "-m", "dreamgym", "--help")
    assert "Usage:" in shown
    assert "experiment" in shown


def test_every_file_of_the_packages_is_in_the_wheel(installed: Path) -> None:
    for name, source in PACKAGES.items():
        files = {file.relative_to(source) for file in source.rglob("*") if file.is_file() and file.suffix != ".pyc"}
        assert files == {file.relative_to(installed / name) for file in (installed / name).rglob("*") if file.is_file()}
    assert list((installed / "dreamgym").rglob("*.sql"))
    assert list((installed / "dreamgym").rglob("*.txt"))
