"""`kithkin federation demo`: a CA, a server and four sites on this machine, each a process of its own, with TLS and keys."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from kithkin.data import deal, load
from kithkin.errors import KithkinError
from kithkin.network import programs
from kithkin.network.commands import init, start, status
from kithkin.network.joining import site_init
from kithkin.network.programs import say
from kithkin.network.terms import read_federation
from kithkin.own import expanded
from kithkin.record import Folder

SITES = ("north", "east", "south", "west")
TERMS = """name = "digits of four sites"
server = "{server}"
classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
shape = [1, 8, 8]
least = 4
deadline = 120
wire = "{wire}"

[run]
method = "{method}"
rounds = {rounds}
sample_rate = 1.0
width = 8
lr = 0.01
batch_size = 32
eval_every = 2
{own}"""
OF_LISTS = "helpers = 3\ncandidates = 1\nwarmup_epochs = 10\n"


def demo(method: str = "um-plus", rounds: int = 6, wire: str = "fp32", out: Path | None = None) -> None:
    """Train the embedded digits on a server and four sites on this machine, with TLS and keys.

    Args:
        method: Which method; `kithkin methods` lists them.
        rounds: Rounds of training.
        wire: How a number travels: fp32, fp16 or bf16.
        out: Keep everything in this folder, with a report.
    """
    with tempfile.TemporaryDirectory() as folder:
        home = expanded(out or folder).resolve()
        if home.exists() and (not home.is_dir() or any(home.iterdir())):
            raise KithkinError(f"{home} is no empty folder.", "Give another --out.")
        run = _demo(home, method, rounds, wire)
        if out:
            subprocess.run([sys.executable, "-m", "kithkin", "report", str(run.path)], check=True)


def _demo(home: Path, method: str, rounds: int, wire: str) -> Folder:
    began = time.monotonic()
    server = programs.free_address()
    federation = home / "federation"
    init(federation, server)
    file = federation / "FEDERATION.toml"
    text = TERMS.format(
        server=server, method=method, rounds=rounds, wire=wire, own=OF_LISTS if method in ("um", "um-plus") else ""
    )
    data = load("digits")
    split = deal(data.labels, len(SITES), 0.5, 0)
    for k, (name, share) in enumerate(zip(SITES, split.shares, strict=True)):
        rows = np.concatenate([share.train, share.val, share.test])
        path = home / f"{name}.npz"
        np.savez(path, images=data.images[rows], labels=np.array(data.classes)[data.labels[rows]])
        site_init(home / name, str(path), name, label_ratio=0.2, device="cpu")
        text += f'\n[[sites]]\nnumber = {k}\nname = "{name}"\nkey = "{(home / name / "site.pub").read_text().strip()}"\n'
    file.write_text(text)
    read_federation(file)  # a mistake in the flags is told now, not by a server's log
    env = programs.environment(home)
    with (home / "demo.log").open("ab", buffering=0) as log, ExitStack() as stack:

        def run(*words: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "kithkin", *words]
            return stack.enter_context(programs.running(command, env, log))

        serving = run("serve", str(file))
        while not (federation / "server" / "serving.json").exists():
            if serving.poll() is not None:
                told = (home / "demo.log").read_text(errors="replace").strip().splitlines() or ["it said nothing"]
                raise KithkinError(f"The server did not start ({told[-1]}).", "Give --out to keep its log.")
            time.sleep(0.2)
        for name in SITES:
            run("site", "join", str(home / name), "--server", server, "--ca", str(federation / "ca.crt"))
        start(file, follow=True)
    status(file)
    folder = Folder(federation / "server" / "run")
    table = Table("site", "labelled", "unlabelled", "test", "helpers (relation)")
    for line in folder.read_lines(folder.clients):
        helpers = ", ".join(f"{SITES[h['client']]} {h['relation']:.2f}" for h in line["helpers"])
        test = "-" if line["test_accuracy"] is None else f"{line['test_accuracy']:.3f}"
        table.add_row(SITES[line["client"]], str(line["labelled"]), str(line["unlabelled"]), test, helpers or "-")
    Console().print(table)
    say(f"{time.monotonic() - began:.0f} s in all")
    return folder
