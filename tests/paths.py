"""Where tests find data that lies outside the package."""

from __future__ import annotations

import os
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
FIXTURES = REPO / "fixtures"
SHARED = Path(os.environ.get("SESSIONSTORE_SHARED", REPO.parent / "shared"))
REAL_LOGS = SHARED / "logs"
NO_REAL_LOGS = f"the real logs of the reference implementation are not at {REAL_LOGS}"
