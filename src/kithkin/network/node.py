"""Flower's SuperNode, which ends where a thread of it does: without its heartbeat it would stay, and be gone for the server."""

from __future__ import annotations

import os
import sys
import threading

from flwr.supernode.cli import flower_supernode


def end(died: threading.ExceptHookArgs) -> None:
    threading.__excepthook__(died)
    sys.stderr.flush()
    os._exit(1)


def main() -> None:
    threading.excepthook = end
    flower_supernode()


if __name__ == "__main__":
    main()
