"""A check that the packages of every trainer are installed, so that their modules need not guard these imports."""

from __future__ import annotations

from importlib.util import find_spec

from dreamgym.errors import MissingPackage

PACKAGES = ("accelerate", "datasets", "torch", "transformers", "trl")


def check_installed(what: str) -> None:
    """Raise MissingPackage for the extra `train` if one of PACKAGES is not installed."""
    if any(find_spec(package) is None for package in PACKAGES):
        raise MissingPackage(what, "train")
