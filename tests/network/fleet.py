"""Real federations on this machine: `kithkin serve` and `kithkin site join` as processes, waited for by what they wrote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kithkin.data import deal, load
from kithkin.network.programs import free_address

TESTS = Path(__file__).parent
SRC = TESTS.parents[1] / "src"
PATIENCE = 600  # seconds for anything at all, on a machine that does much else

FILE = """
name = "digits"
classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
shape = [1, 8, 8]
server = "{server}"
places = {places}
least = {least}
deadline = {deadline}

[run]
method = "um"
rounds = {rounds}
sample_rate = 1.0
width = 2
epochs = 1
batch_size = 64
helpers = 2
candidates = 1
warmup_epochs = 1
mc_samples = 2
"""


class Fleet:
    """One federation; everything that it starts is ended with it."""

    def __init__(self, home: Path, places: int, secure: bool = False, **terms: Any) -> None:
        self.home, self.secure = home, secure
        self.server = free_address()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.file = home / "federation" / "FEDERATION.toml"
        if secure:
            self.call("federation", "init", str(self.file.parent), "--server", self.server)
        else:
            self.file.parent.mkdir()
        terms = {"least": places, "rounds": 3, "deadline": 60} | terms
        self.file.write_text(FILE.format(server=self.server, places=places, **terms))
        self.split = deal(load("digits").labels, max(2, places), 5.0, 0)

    def call(self, *words: str, code: int = 0) -> str:
        """A command that ends by itself."""
        done = subprocess.run([sys.executable, "-m", "kithkin", *words], env=environment(), capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr

    def spawn(self, name: str, *words: str, odd: str = "") -> subprocess.Popen[bytes]:
        with (self.home / f"{name}.out").open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "kithkin", *words], env=environment(odd), stdout=out, stderr=out, start_new_session=True
            )
        self.processes.append(process)
        return process

    def init_site(self, number: int, name: str = "") -> str:
        """A site's folder; its public key."""
        data, share = load("digits"), self.split.shares[number]
        rows = np.concatenate([share.train, share.val, share.test])
        path = self.home / f"data-{name or number}.npz"
        np.savez(path, images=data.images[rows], labels=np.array(data.classes)[data.labels[rows]])
        words = ["site", "init", str(self.site(name or number)), "--data", str(path), "--label-ratio", "0.5", "--device", "cpu"]
        return self.call(*words, *([] if self.secure else ["--number", str(number)])).splitlines()[-1]

    def seat(self, number: int, key: str) -> None:
        with self.file.open("a") as f:
            f.write(f'\n[[sites]]\nnumber = {number}\nname = "{number}"\nkey = "{key}"\n')

    def unseat(self, number: int) -> None:
        """As an editor would: the old file or the new one, never half."""
        head, *seats = self.file.read_text().split("\n[[sites]]\n")
        draft = self.file.with_suffix(".draft")
        draft.write_text("\n[[sites]]\n".join([head, *(seat for seat in seats if f"number = {number}\n" not in seat)]))
        draft.replace(self.file)

    def site(self, name: str | int) -> Path:
        return self.home / f"site-{name}"

    def serve(self, odd: str = "") -> subprocess.Popen[bytes]:
        flags = [] if self.secure else ["--insecure"]
        return self.spawn("serve", "serve", str(self.file), *flags, odd=odd)

    def join(self, name: str | int, odd: str = "", *more: str) -> subprocess.Popen[bytes]:
        flags = ["--ca", str(self.file.parent / "ca.crt")] if self.secure else ["--insecure"]
        if self.secure:
            self.wait((self.file.parent / "server" / "serving.json").exists, "keys that are registered")
        return self.spawn(f"join-{name}", "site", "join", str(self.site(name)), "--server", self.server, *flags, *more, odd=odd)

    def start(self) -> None:
        serving = self.file.parent / "server" / "serving.json"
        self.wait(serving.exists, "a server")
        self.call("federation", "start", str(self.file))

    @property
    def run(self) -> Path:
        return self.file.parent / "server" / "run"

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self.run / name
        texts = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(text) for text in texts if text.endswith("\n")]

    def said(self) -> list[str]:
        return [f"{line['site']} {line['what']}" for line in self.lines("events.jsonl")]

    def wait_said(self, part: str) -> None:
        self.wait(lambda: any(part in what for what in self.said()), part)

    def wait_round(self, t: int) -> None:
        self.wait(lambda: len(self.lines("metrics.jsonl")) >= t, f"round {t}")

    def wait_end(self) -> dict[str, Any]:
        self.wait((self.run / "summary.json").exists, "the end")
        return json.loads((self.run / "summary.json").read_text())

    def wait(self, happened: Callable[[], Any], what: str) -> None:
        until = time.monotonic() + PATIENCE
        while not happened():
            assert time.monotonic() < until, f"waited in vain for {what}\n{self.told()}"
            time.sleep(0.1)

    def told(self) -> str:
        """All that is known, for whoever reads a failure."""
        logs = [*self.home.glob("*.out"), *self.home.glob("*/site.log"), *self.home.glob("*/server/server.log")]
        tails = [f"--- {path}\n{path.read_text(errors='replace')[-1500:]}" for path in logs]
        return "\n".join([*self.said(), *tails])

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """As a power cut would: no warning, and what it had started dies with it."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def environment(odd: str = "") -> dict[str, str]:
    path = [str(SRC), *([str(TESTS / "odd")] if odd else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "KITHKIN_ODD": odd, "OMP_NUM_THREADS": "1"}
