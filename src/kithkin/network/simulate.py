"""A run on one machine whose clients are Flower's, in its simulation on Ray: the same messages, the same numbers."""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from kithkin.compute import cores
from kithkin.config import RunConfig
from kithkin.disk import disk_errors, write_json
from kithkin.errors import KithkinError
from kithkin.network.client import app_for
from kithkin.network.programs import QUIET
from kithkin.network.server import serve
from kithkin.network.site import Site, share_of_one_machine
from kithkin.network.terms import Numbers, Terms, terms_from
from kithkin.record import Display, Folder, Result
from kithkin.record.assembling import assemble
from kithkin.record.run import read_result

NEVER = 1e6  # seconds: nobody is left out of a simulated round


def simulate(config: RunConfig, settings: Any, out: Path, display: Display, wire: Numbers = "fp32") -> Result:
    """Do a run in a new folder, as `kithkin run` does, with Flower between server and clients."""
    federation = assemble(replace(config, checkpoint_every=1), settings)  # sites keep no round but their last
    terms = Terms(
        federation.config,
        settings,
        federation.names,
        federation.picture,
        run=secrets.token_hex(4),
        flip=federation.flip,
        wire=wire,
        deadline=NEVER,
        least=len(federation.clients),
        aliases=False,  # a name is part of the address of every draw: with aliases the run would be another
        details=True,
    ).checked()
    folder = Folder(out)
    folder.create()
    with disk_errors(folder.path, "Give another --out."):
        write_json(folder.path / "server.json", {"run": terms.run, "secret": "", "sites": {}})
    split = federation.digest()
    del federation  # the sites' processes have pictures of their own
    return _play(terms, folder, display, split)


def resume(path: Path, display: Display, where: Mapping[str, str | None]) -> Result:
    """Go on with a simulated run, from its last checkpoint and what its sites kept; a finished one is only read."""
    folder = Folder(path)
    if folder.summary.exists():
        display.say(f"{path} is finished.")
        return read_result(folder)
    if any(where.values()):
        raise KithkinError("A simulated run goes on as it began.", "Leave --device, --compute and --pool out.")
    manifest = folder.read_manifest()
    try:
        terms, split = terms_from(json.dumps(manifest["terms"])), manifest["split_hash"]
    except (KeyError, TypeError, AttributeError) as e:
        raise KithkinError(f"{folder.manifest} is not of this version of kithkin ({e}).", "Start the run anew.") from None
    assemble(terms.config, terms.settings).split.must_be(split)
    return _play(terms, folder, display, split)


def _play(terms: Terms, folder: Folder, display: Display, split: str) -> Result:
    os.environ.update(QUIET)
    try:
        import ray  # noqa: F401
        from flwr.simulation import run_simulation
    except ImportError:
        raise KithkinError("Ray is not installed.", "Install it with `pip install 'kithkin[simulation]'`.") from None
    results: list[Result] = []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        results.append(serve(grid, terms, folder, None, display, split))

    logging.getLogger("flwr").setLevel(logging.ERROR)
    sites = partial(_simulated, terms.as_text(), str(folder.path.resolve() / "sites"))
    K = terms.places
    init = {"num_cpus": min(cores(), K), "include_dashboard": False, "logging_level": "error", "log_to_driver": False}
    backend: Any = {"init_args": init, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(app, app_for(sites), K, backend_config=backend)
    if not results:
        raise KithkinError("The simulation broke off.", f"{folder.path} has what there is.")
    return results[0]


def _simulated(text: str, home: str, context: Context) -> Site:
    return _site(text, home, int(context.node_config["partition-id"]))


@lru_cache(maxsize=1024)
def _site(text: str, home: str, number: int) -> Site:
    terms = terms_from(text)
    data = partial(share_of_one_machine, terms, number)
    return Site(terms, Path(home) / str(number), data, f"site-{number}", number=number)
