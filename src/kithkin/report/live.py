"""While a run goes on: a display that also keeps its page fresh, and writes TensorBoard's event files."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from kithkin.config import RunConfig
from kithkin.errors import KithkinError
from kithkin.record import Display
from kithkin.report.page import write_page

RELOAD = 10  # seconds after which an open page of a running run reads itself again


def event_writer() -> Any:
    """TensorBoard's writer, asked for before a run begins: hours later would be late to learn that it is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        remedy = "`pip install 'kithkin[tensorboard]'`, or leave --tensorboard out."
        raise KithkinError("TensorBoard is not installed.", remedy) from None
    return SummaryWriter


class Showing:
    """Passes everything on to another display. The page is made after evaluated rounds, in a twentieth of the time at most."""

    def __init__(self, inner: Display, folder: Path, report: bool, tensorboard: bool) -> None:
        self.inner, self.folder, self.report = inner, folder, report
        self.writer = event_writer() if tensorboard else None
        self.events: Any = None
        self.rest = 0.0  # no page before this moment

    def start(self, config: RunConfig, already: int, machine: str) -> None:
        self.inner.start(config, already, machine)
        if self.writer:
            self.events = self.writer(str(self.folder / "tensorboard"), purge_step=max(0, already) + 1)

    def tick(self, done: int, jobs: int) -> None:
        self.inner.tick(done, jobs)

    def round(self, line: dict[str, Any], moved: int) -> None:
        self.inner.round(line, moved)
        if self.events:
            for name, value in flat(line).items():
                self.events.add_scalar(name, value, line["round"])
        if self.report and line["test_mean"] is not None and time.monotonic() >= self.rest:
            began = time.monotonic()
            self.write(reload=RELOAD)
            self.rest = time.monotonic() + 20 * (time.monotonic() - began)

    def write(self, reload: int = 0) -> None:
        """The page; one that cannot be written is told, and costs no run."""
        try:
            write_page([self.folder], self.page, models=False if reload else None, reload=reload)
        except (KithkinError, OSError) as e:
            self.report = False
            self.inner.say(f"No page is written: {e}")

    @property
    def page(self) -> Path:
        return self.folder / "report.html"

    def say(self, text: str) -> None:
        self.inner.say(text)

    def stop(self) -> None:
        self.inner.stop()
        if self.events:
            self.events.close()
        if self.report and sys.exception() and self.page.exists():  # broken off: no news will come
            self.write()

    def finish(self) -> None:
        """The page of the finished run."""
        if self.report:
            self.write()


def flat(line: dict[str, Any]) -> dict[str, Any]:
    """A round's numbers by name; bytes by cause apart.

    >>> flat({"round": 3, "test_mean": None, "seconds": 1.5, "bytes_by_cause": {"upload": 8}})
    {'seconds': 1.5, 'bytes/upload': 8}
    """
    plain = {k: v for k, v in line.items() if k != "round" and isinstance(v, int | float)}
    return plain | {f"bytes/{cause}": size for cause, size in line.get("bytes_by_cause", {}).items()}
