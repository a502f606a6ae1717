"""Test ids that documents name: found in the text, looked up in the source."""

from __future__ import annotations

import ast
import functools
import re

from tests.paths import REPO

ID = re.compile(r"tests/[\w/]+\.py::\w+(?:::\w+)?")


@functools.cache
def defined_tests(file: str) -> frozenset[str]:
    """The test functions and methods that a file below the repository defines; empty for a file that is not there."""
    path = REPO / file
    if not path.is_file():
        return frozenset()
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found.update(
                f"{node.name}::{item.name}"
                for item in node.body
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
            )
    return frozenset(name for name in found if name.split("::")[-1].startswith("test_"))


def missing_tests(text: str) -> list[str]:
    """The test ids in *text* that name no test."""
    return sorted(
        {found for found in ID.findall(text) if found.partition("::")[2] not in defined_tests(found.partition("::")[0])}
    )
