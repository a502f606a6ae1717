"""``python -m sessionstore.cli``."""

from __future__ import annotations

import sys

from sessionstore.cli import main

__all__: list[str] = []

sys.exit(main())
