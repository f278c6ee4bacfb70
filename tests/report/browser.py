"""Which browser the tests of the page drive. As a program: find one, or install Debian's package, or playwright's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def system_browser() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def own_browser() -> str | None:
    """The one that playwright has installed for itself."""
    try:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as p:
            path = p.chromium.executable_path
    except Exception as e:  # a machine on which it does not run at all: the tests are skipped, not failed
        print(f"playwright does not run here: {e}")
        return None
    return path if Path(path).exists() else None


def attempt(*command: str) -> bool:
    print("+", *command, flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        return subprocess.run(command, env=quiet, stdout=subprocess.DEVNULL, timeout=900, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def provide() -> None:
    if system_browser() or own_browser():
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        package = ("apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium")
        if attempt(*package) or (attempt("apt-get", "update", "-q") and attempt(*package)):
            return
    if attempt(sys.executable, "-m", "playwright", "install", "chromium"):
        return
    print("There is no Chromium here, and none could be installed: the tests that need one are skipped.")


if __name__ == "__main__":
    provide()
