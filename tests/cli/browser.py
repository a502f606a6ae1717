"""A headless Chromium for the tests, or the reason why there is none."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--lang=en-US",
)


def find_browser() -> tuple[str, str]:
    """The programs, browser and driver; skips the test where one is missing."""
    pytest.importorskip("selenium", reason="the driver library selenium is not installed")
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        missing = "no Chromium" if browser is None else "no chromedriver"
        pytest.skip(f"{missing} here (Debian: apt-get install chromium chromium-driver)")
    return browser, driver


@contextlib.contextmanager
def open_browser(profile: Path, *, width: int = 1280, height: int = 900, phone: bool = False) -> Generator[Any]:
    """A browser of that size, with an empty profile."""
    browser, driver = find_browser()
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    if phone:
        metrics = {"width": 390, "height": 844, "pixelRatio": 2, "touch": True}
        options.add_experimental_option("mobileEmulation", {"deviceMetrics": metrics})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield chrome
    finally:
        chrome.quit()
