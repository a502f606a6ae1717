"""Three top-level folders, one import name: what pyproject.toml, the links and the folders must agree on."""

from __future__ import annotations

import importlib.metadata
from typing import Any, cast

import pytest

from tests.packages import package_folders, pyproject
from tests.paths import REPO


def setuptools_table() -> dict[str, Any]:
    """The ``[tool.setuptools]`` table."""
    return cast("dict[str, dict[str, Any]]", pyproject()["tool"])["setuptools"]


def test_every_package_folder_is_listed_and_nothing_else() -> None:
    """A new subpackage that pyproject.toml does not name would be missing from the wheel."""
    folders = package_folders()
    table = setuptools_table()
    assert sorted(table["packages"]) == sorted(folders)
    assert table["package-dir"] == {name: folder for name, folder in folders.items() if name in table["package-dir"]}


def test_every_package_maps_to_its_folder() -> None:
    """A package is found where package-dir says, directly or through the entry of its parent."""
    mapping = setuptools_table()["package-dir"]
    for name, folder in package_folders().items():
        assert mapping.get(name) == folder, f"package-dir lacks {name!r} = {folder!r}"


@pytest.mark.parametrize("name", ["backends", "recovery"])
def test_the_links_are_committed_and_relative(name: str) -> None:
    """Type checkers and `python -m pytest` in the checkout find the folders through two relative links."""
    link = REPO / "sessionstore" / name
    assert link.is_symlink()
    assert link.readlink().as_posix() == f"../{name}"
    assert (link / "__init__.py").is_file()


def test_the_package_is_typed_and_says_its_version() -> None:
    """py.typed ships, and what is installed is what pyproject.toml describes."""
    assert (REPO / "sessionstore" / "py.typed").is_file()
    assert importlib.metadata.version("sessionstore") == cast("dict[str, Any]", pyproject()["project"])["version"]


def test_runtime_dependencies_are_the_three_of_the_decision_note() -> None:
    """A fourth dependency needs a reason in docs/decisions/0002-dependencies.md first."""
    names = sorted(entry.split(">")[0] for entry in cast("dict[str, Any]", pyproject()["project"])["dependencies"])
    assert names == ["aiofiles", "filelock", "msgspec"]
