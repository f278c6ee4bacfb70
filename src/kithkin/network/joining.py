"""`kithkin site`: a site's own commands."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from kithkin.data import deal, load
from kithkin.data.own import read_unlabelled
from kithkin.disk import disk_errors
from kithkin.errors import KithkinError
from kithkin.network import programs
from kithkin.network.keys import check_authority, check_site_key, make_site_key
from kithkin.network.papers import Papers, host_and_port, read_papers, write_papers
from kithkin.network.programs import alone, private, say, until_stopped
from kithkin.own import expanded

REFUSED = b"Exit Code: 305"  # what a SuperNode says that the server does not let in; as a process it ends with 1, as ever
DISTRUSTED = re.compile(rb"CERTIFICATE_VERIFY_FAILED\] certificate verify failed: (.*?)\.? \(_ssl")  # and why
PATIENCE = 90  # seconds that a server may still take a killed site for alive


@private()
def site_init(
    folder: Path,
    data: str = "",
    name: str = "",
    unlabelled: str = "",
    label_ratio: float = 1.0,
    seed: int = 0,
    device: str = "auto",
    number: int | None = None,
) -> None:
    """Make a site: check its data, make its key, print the public key for the federation's file.

    Args:
        folder: The site's new folder: key, settings and, later, its models.
        data: The site's labelled pictures: an npz file, or a folder with one sub-folder of pictures per class.
        name: What the federation calls the site; left out, the folder's name.
        unlabelled: More pictures, without labels: a folder of files, or an npz file with `images`.
        label_ratio: Share of the labelled training pictures whose labels are used; below 1 only for trying things out.
        seed: Of the site's own split into training (70%), validation (10%) and test pictures (20%).
        device: auto, cpu, cuda or cuda:N.
        number: The site's number, only for a server without keys (--insecure).
    """
    if not data:
        raise KithkinError("No data is named.", "Give --data PATH: an npz file, or a folder with a sub-folder per class.")
    from kithkin.record.assembling import pick_device  # here, because torch is slow to import, and joining needs none

    pick_device(device)
    dataset = load(data)
    deal(dataset.labels, 1, 1.0, seed, label_ratio, dataset.name)  # or too few pictures are told when it joins, at the server
    folder = expanded(folder).resolve()
    paths = {"data": data, "unlabelled": unlabelled}
    paths = {k: str(expanded(v).resolve()) if v and expanded(v).exists() else v for k, v in paths.items()}
    if unlabelled:
        read_unlabelled(Path(paths["unlabelled"]), tuple(dataset.images.shape[1:]))
    papers = Papers(name or folder.name, label_ratio=label_ratio, seed=seed, device=device, number=number, **paths)
    if (folder / "site.key").exists():
        raise KithkinError(f"{folder} is a site already.", "Give another folder, or go on with `kithkin site join`.")
    with disk_errors(folder, "Give another folder."):
        folder.mkdir(parents=True, exist_ok=True)
        write_papers(folder, papers)
        key = make_site_key(folder)  # last of all: whoever has one is a site
    shape = "x".join(map(str, dataset.images.shape[1:]))
    say(f"{papers.name}: {len(dataset.images)} pictures of {shape}, classes {', '.join(dataset.classes)}")
    say("Its public key, for the federation's file:")
    say(key)


@private()
def site_join(folder: Path, server: str = "", ca: str = "", insecure: bool = False) -> None:
    """Take part in a federation until stopped (Ctrl-C).

    Args:
        folder: The site's folder, as made by `kithkin site init`.
        server: The server's HOST:PORT; remembered.
        ca: The federation's CA certificate (ca.crt); remembered.
        insecure: No TLS and no key: only for a server on this machine.
    """
    folder = expanded(folder).resolve()
    papers = written = read_papers(folder)
    if server:
        papers = replace(papers, server=server)
    if ca:
        papers = replace(papers, ca=str(expanded(ca).resolve()))
    if not papers.server:
        raise KithkinError("No server is named.", "Give --server HOST:PORT.")
    host_and_port(papers.server)
    programs.check_secure(insecure, papers.server)
    if not insecure:
        if not Path(papers.ca).is_file():
            raise KithkinError(
                f"There is no CA certificate '{papers.ca}'.", "Give --ca, which the federation's operator sends."
            )
        if not (folder / "site.key").is_file():
            raise KithkinError(f"{folder} has no site.key.", "Bring it back, or make the site anew: its public key changes.")
        check_authority(Path(papers.ca))
    with alone(folder / ".joined", f"{folder} takes part already", "Stop that one first."):
        if papers != written:
            write_papers(folder, papers)
        (folder / "flower").mkdir(exist_ok=True)
        until_stopped(lambda: _join(folder, papers, insecure))


def _join(folder: Path, papers: Papers, insecure: bool) -> None:
    refused, again = time.monotonic() + PATIENCE, False
    while True:
        if not insecure:
            check_site_key(folder / "site.key")  # Flower would end with code 302, for ever
        runtime = programs.free_address()
        programs.fresh_secret(folder / "flower" / "secret")
        env = programs.environment(folder / "flower")
        with (folder / "site.log").open("ab", buffering=0) as log, ExitStack() as stack:
            began, before = time.monotonic(), log.tell()
            node = stack.enter_context(programs.running(programs.supernode(folder, papers, insecure, runtime), env, log))
            hands = stack.enter_context(programs.running(programs.executor(folder, runtime), env, log))
            say(f"{papers.name} joins {papers.server}; what happens is in {folder / 'site.log'}")
            while node.poll() is None and hands.poll() is None:
                time.sleep(0.2)
            unsigned = node.poll() == 0  # as it ends by itself where the server finds a signature too old, or of the future
        with (folder / "site.log").open("rb") as log:
            log.seek(before)
            told = log.read()
        known = (folder / "state").exists()  # let in before: the server may still take one that was killed for alive
        distrust = DISTRUSTED.search(told)
        patient = again if distrust else known  # of a server that was trusted: its certificate may be being renewed
        if REFUSED in told and (time.monotonic() > refused or not patient):
            if distrust:
                problem = f"{papers.ca} does not vouch for {papers.server} ({distrust[1].decode(errors='replace')})."
                remedy = "Are --server and --ca what the federation's operator sent, and is this machine's clock right?"
                raise KithkinError(problem, remedy)
            remedy = "Is the public key in its file, and used by no other site?"
            raise KithkinError(f"{papers.server} does not let {papers.name} in.", remedy)
        again = True
        clock = "; is this machine's clock right?" if unsigned else ""
        say(f"{papers.name} lost its programs (codes {node.returncode}, {hands.returncode}){clock}; once more in 5 s")
        if time.monotonic() - began > PATIENCE:
            refused = time.monotonic() + PATIENCE
        time.sleep(5)
