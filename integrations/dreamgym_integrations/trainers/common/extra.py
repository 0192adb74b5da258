"""A check that what every trainer needs is installed, so that their modules need not guard these imports."""

from __future__ import annotations

from importlib.util import find_spec

from dreamgym.errors import MissingPackage

PACKAGES = ("accelerate", "datasets", "torch", "transformers", "trl")


def check_installed(what: str) -> None:
    """Raises MissingPackage, which names the extra `train`, if one of PACKAGES is not there."""
    if any(find_spec(package) is None for package in PACKAGES):
        raise MissingPackage(what, "train")
