"""A place to store sessions in, once per backend: what the store's conformance tests run over."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.conformance.places import PLACES, Place

if TYPE_CHECKING:
    from pathlib import Path

CHOSEN = os.environ.get("BACKENDS", "memory,jsonl").split(",")


@pytest.fixture(params=sorted(PLACES))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place, for each backend that BACKENDS names."""
    if request.param.split("-")[0] not in CHOSEN:
        pytest.skip(f"BACKENDS is {','.join(CHOSEN)}")
    return PLACES[request.param](tmp_path)
