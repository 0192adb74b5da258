"""Every environment has a README that lists its extra, its entry points and its options."""

import tomllib
from pathlib import Path

import pytest
from dreamgym_integrations.environments.alfworld import AlfworldOptions
from dreamgym_integrations.environments.bfcl import BfclOptions
from dreamgym_integrations.environments.browser import BrowserOptions
from dreamgym_integrations.environments.mcp import McpOptions
from dreamgym_integrations.environments.scienceworld import ScienceWorldOptions
from dreamgym_integrations.environments.textworld_express import GameOptions
from dreamgym_integrations.environments.webshop import WebShopOptions

from dreamgym.types import Frozen

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / "integrations" / "dreamgym_integrations" / "environments"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OPTIONS: dict[str, tuple[type[Frozen], str]] = {
    "alfworld": (AlfworldOptions, "alfworld"),
    "bfcl": (BfclOptions, "bfcl"),
    "browser": (BrowserOptions, "browser"),
    "mcp": (McpOptions, "client"),
    "scienceworld": (ScienceWorldOptions, "scienceworld"),
    "textworld_express": (GameOptions, "textworld-express"),
    "webshop": (WebShopOptions, "webshop"),
}


def test_every_environment_has_a_readme() -> None:
    assert {folder.parent.name for folder in ENVIRONMENTS.glob("*/__init__.py")} == set(OPTIONS)
    assert {readme.parent.name for readme in ENVIRONMENTS.glob("*/README.md")} == set(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_readme_names_each_option_the_extra_and_each_entry_point(name: str) -> None:
    text = (ENVIRONMENTS / name / "README.md").read_text(encoding="utf-8")
    options, extra = OPTIONS[name]
    for option in options.model_fields:
        assert f"| `{option}` |" in text
    assert f"pip install -c constraints.txt '.[server,{extra}]'" in text
    assert extra in PROJECT["optional-dependencies"]
    for point, place in PROJECT["entry-points"]["dreamgym.environments"].items():
        if f".{name}" in place.partition(":")[0]:
            assert point in text.lower().replace("-", "_")


@pytest.mark.parametrize("name", OPTIONS)
def test_the_local_links_of_a_readme_have_targets(name: str) -> None:
    folder = ENVIRONMENTS / name
    for link in (folder / "README.md").read_text(encoding="utf-8").split("](")[1:]:
        target, _, heading = link.partition(")")[0].partition("#")
        if not target.startswith("https://"):
            page = (folder / target).read_text(encoding="utf-8")
            assert heading in page.lower().replace(" ", "-")
