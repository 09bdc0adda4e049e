"""Optional dependencies, imported where they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mmdiff.formats.errors import MissingExtra


def import_extra(module: str, name: str) -> Any:
    """A module of the extra `files`, which reading the file `name` needs."""
    package = module.partition(".")[0]
    try:
        import_module(package)
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(package, "files", f"reading {name}") from error
