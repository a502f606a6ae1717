"""What every test gets: a detector of blocking calls, Hypothesis profiles and printed seeds."""

from __future__ import annotations

import os
import random
import signal
from typing import TYPE_CHECKING

import hypothesis
import pytest
from blockbuster import BlockBusterFunction, blockbuster_ctx

if TYPE_CHECKING:
    from collections.abc import Iterator

# `dev` answers fast and shrinks well; `ci` looks further.  No deadline: a busy machine is no bug.
hypothesis.settings.register_profile("dev", max_examples=50, deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", max_examples=300, deadline=None, print_blob=True)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "dev")
hypothesis.settings.load_profile(PROFILE)

# Calls that block on a disk and that the detector does not know by itself.
MORE_BLOCKING_CALLS = (
    "os.open",
    "os.fsync",
    "os.fdatasync",
    "os.ftruncate",
    "os.truncate",
    "os.writev",
    "os.pwrite",
    "os.pread",
    "os.preadv",
    "os.makedirs",
    "fcntl.flock",
    "fcntl.lockf",
)

# Where the library may call such a function on the event loop, and why.  (file, functions)
ALLOWED: tuple[tuple[str, str, set[str]], ...] = (
    # The root is made absolute once, before anything is read: one getcwd, no disk.
    ("os.getcwd", "sessionstore/store.py", {"__init__"}),
    ("os.path.abspath", "sessionstore/store.py", {"__init__"}),
)


def pytest_configure(config: pytest.Config) -> None:
    """Give Hypothesis a seed that is known beforehand, so that a failing run can be had again."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts background jobs so, and children that are to be interrupted would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(random.SystemRandom().getrandbits(32))


def pytest_report_header(config: pytest.Config) -> str:
    """Print what is needed to run the same examples again."""
    return f"hypothesis: HYPOTHESIS_PROFILE={PROFILE} --hypothesis-seed={config.option.hypothesis_seed}"


@pytest.fixture(autouse=True, scope="session")
def _no_blocking_calls() -> Iterator[None]:
    """Fail a test in which the library blocks the event loop; what tests do themselves is their affair."""
    with blockbuster_ctx("sessionstore") as detector:
        for name in MORE_BLOCKING_CALLS:
            detector.functions[name] = BlockBusterFunction(None, name, scanned_modules="sessionstore").activate()
        for name, filename, functions in ALLOWED:
            detector.functions[name].can_block_in(filename, functions)
        yield
