"""What the distribution consists of, read from the files: for the tests that look at all of it."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

from tests.paths import REPO

if TYPE_CHECKING:
    from pathlib import Path

# Folder below the repository -> import name.
ROOTS = {"sessionstore": "sessionstore", "backends": "sessionstore.backends", "recovery": "sessionstore.recovery"}


def source_files() -> dict[str, Path]:
    """Every module of the library: import name -> file, each file once (links are not followed)."""
    found: dict[str, Path] = {}
    for folder, package in ROOTS.items():
        root = REPO / folder
        for path in sorted(root.rglob("*.py")):
            inner = path.relative_to(root)
            if any((root / parent).is_symlink() for parent in inner.parents if str(parent) != "."):
                continue
            parts = inner.with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found[".".join((package, *parts))] = path
    return found


def package_folders() -> dict[str, str]:
    """Every folder with an ``__init__.py``: import name -> folder relative to the repository."""
    return {
        name: path.parent.relative_to(REPO).as_posix()
        for name, path in source_files().items()
        if path.name == "__init__.py"
    }


def pyproject() -> dict[str, object]:
    """The parsed pyproject.toml."""
    return tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))
