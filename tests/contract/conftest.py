"""The fixture that runs every test of the contract on every backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.kits import kit_names, make_kit

if TYPE_CHECKING:
    from pathlib import Path

    from tests.contract.kits import Kit


@pytest.fixture(params=kit_names())
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Kit:
    """A place of one backend, empty."""
    return make_kit(request.param, tmp_path)
