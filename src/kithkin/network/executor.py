"""Does a site's work: takes Flower's tasks from the SuperNode on this machine and runs the client app of *this installation*.

Flower would run whatever code the server sends with a run, in a new Python for every message. A site must not run code that
others send, so here the app that came with the run is never unpacked; and a fork of a process that has everything imported
already starts in a moment, where a new one takes seconds. Only client apps are taken: no agents, no models, no connectors.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from pathlib import Path
from typing import Any

from flwr.supercore.constant import TaskType
from flwr.supercore.superexec import run_superexec as superexec
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult

PRELOADED = ("kithkin.network.mortal", "flwr.supernode.runtime.run_clientapp", "kithkin.network.client", "sklearn.datasets")


class Forks:
    """Flower's executor protocol: every task in a fork of one process that has imported all there is to import."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(list(PRELOADED))

    def get_eligible_capacity(self, supported_task_types: set[TaskType], **_: Any) -> tuple[set[TaskType], set[str]]:
        return {TaskType.CLIENT_APP}, set()

    def wait_for_capacity(self, *_: Any, **__: Any) -> None: ...

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        if spec.task_type != TaskType.CLIENT_APP:
            return LaunchResult.failed(f"A site does not run tasks of type {spec.task_type}.")
        self.context.Process(target=do, args=(spec.runtime_api_address, spec.token, os.getpid()), daemon=True).start()
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        multiprocessing.active_children()  # buries those that are done

    def close(self) -> None: ...


def do(address: str, token: str, parent: int) -> None:
    """One message, in a process of its own."""
    from flwr.supernode.runtime import run_clientapp as runtime

    from kithkin.network.client import app
    from kithkin.network.programs import die_with_parent

    die_with_parent()  # a site that is killed must not hold its state any longer
    runtime.install_from_fab = lambda *_, **__: None  # pyright: ignore[reportPrivateImportUsage]
    runtime.get_load_client_app_fn = lambda **_: lambda *__: app  # pyright: ignore[reportPrivateImportUsage]
    runtime.run_clientapp(address, token, insecure=True, parent_pid=parent)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--secret", type=Path, required=True)
    args = parser.parse_args()
    superexec.get_executor = lambda *_, **__: Forks()  # pyright: ignore[reportPrivateImportUsage]
    superexec.run_superexec(
        args.address, insecure=True, superexec_auth_secret=args.secret.read_bytes(), parent_pid=os.getppid()
    )


if __name__ == "__main__":
    main()
