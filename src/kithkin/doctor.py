"""What this machine has for kithkin, what it lacks, and how to get that."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape

NEEDED = (
    *("torch", "numpy", "scikit-learn", "scipy", "pillow", "tyro", "rich", "safetensors", "pooch", "platformdirs"),
    *("matplotlib", "markdown-it-py"),
)
EXTRAS = {
    "tensorboard": ("tensorboard", "--tensorboard"),
    "parquet": ("pyarrow", "kithkin export-metrics --format parquet"),
    "export": ("onnxruntime", "kithkin export --format onnx"),
    "deploy": ("flwr", "kithkin site, serve and federation"),
    "simulation": ("ray", "kithkin federation run"),
}
ROOM = 2e9  # bytes: a run of the paper's size with its checkpoints
MARKS = {"ok": "[green]ok[/]     ", "missing": "[yellow]missing[/]", "broken": "[red]broken[/] "}


@dataclass(frozen=True)
class Finding:
    """Something looked at. What is missing can be done without; what is broken cannot."""

    state: Literal["ok", "missing", "broken"]
    what: str
    found: str
    remedy: str = ""


def doctor() -> None:
    """Look at this machine: versions, device, data, what is missing and how to get it.

    The exit code is 2 where something is broken: where kithkin could not work.
    """
    console = Console(soft_wrap=True, highlight=False)
    states: list[str] = []
    for look in (software, device, disk, trial, data_sets, extras):
        for finding in looked(look):
            console.print(f"{MARKS[finding.state]} {finding.what:14} {escape(finding.found)}")
            if finding.remedy:
                console.print(f"                       -> {escape(finding.remedy)}", style="dim")
            states.append(finding.state)
    broken, missing = states.count("broken"), states.count("missing")
    console.print(f"\n{broken} broken, {missing} missing that you may do without." if broken or missing else "\nAll is well.")
    if broken:
        sys.exit(2)


def looked(look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """A look that fails is a finding too."""
    try:
        yield from look()
    except Exception as e:
        yield Finding("broken", look.__name__, f"{type(e).__name__}: {e}".partition("\n")[0], "Report it with this output.")


def software() -> Iterator[Finding]:
    import kithkin

    supported = (3, 11) <= sys.version_info[:2] <= (3, 13)
    remedy = "" if supported else "Use Python 3.11, 3.12 or 3.13."
    yield Finding("ok", "kithkin", kithkin.__version__)
    yield Finding("ok" if supported else "broken", "python", f"{platform.python_version()} on {platform.platform()}", remedy)
    for package in NEEDED:
        try:
            yield Finding("ok", package, version(package))
        except PackageNotFoundError:
            yield Finding("broken", package, "not installed", f"pip install {package}")


def device() -> Iterator[Finding]:
    import torch

    from kithkin.compute import cores
    from kithkin.nets.fast import why_not

    threads = os.environ.get("OMP_NUM_THREADS")
    told = f"{cores()} cores" + (f", OMP_NUM_THREADS={threads}" if threads else "")
    yield Finding("ok", "CPU", told)
    if torch.cuda.is_available():
        facts = torch.cuda.get_device_properties(0)
        yield Finding("ok", "GPU", f"{facts.name}, {facts.total_memory / 1e9:.0f} GB, CUDA {torch.version.cuda}")
        reason = why_not()
        remedy = "Everything works without, slower: pip install triton, and a C compiler." if reason else ""
        yield Finding("missing" if reason else "ok", "Triton", reason or "its kernels run", remedy)
    elif Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi"):
        remedy = "Install a CUDA build of torch (pytorch.org), and see that `nvidia-smi` works."
        yield Finding("missing", "GPU", f"there is one, but torch {torch.__version__} cannot use it", remedy)
    else:
        yield Finding("ok", "GPU", "none: runs use the CPU")


def disk() -> Iterator[Finding]:
    here = Path.cwd()
    if not os.access(here, os.W_OK):
        yield Finding("missing", "this folder", f"{here} may not be written", "Start kithkin elsewhere, or give --out.")
        return
    free = shutil.disk_usage(here).free
    remedy = "" if free > ROOM else "Free some room, or give --out on another disk: large runs with checkpoints take gigabytes."
    yield Finding("missing" if remedy else "ok", "this folder", f"{here}, {free / 1e9:,.1f} GB free", remedy)


def trial() -> Iterator[Finding]:
    """A whole run, small: what fails here would fail in any run."""
    import kithkin

    with tempfile.TemporaryDirectory() as folder:
        flags: dict[str, Any] = {"clients": 6, "width": 2, "rounds": 1, "epochs": 1, "warmup_epochs": 1, "helpers": 3}
        result = kithkin.run(Path(folder) / "run", method="um", data="digits", **flags)
    yield Finding("ok", "a small run", f"um on digits, one round, {result.summary['seconds']:.1f} s")


def data_sets() -> Iterator[Finding]:
    from kithkin.data.official import SOURCES, find, home

    for source in SOURCES.values():
        found, missing = find(source)
        if missing:
            lacks = f"lacks {', '.join(file.name for file in missing)}" if found else "not in"
            yield Finding("missing", source.name, f"{lacks} {home(source)}", f"kithkin data get {source.name}")
        else:
            places = ", ".join(dict.fromkeys(str(path.parent) for path in found.values()))
            yield Finding("ok", source.name, f"{places} (`kithkin data check {source.name}` reads every byte)")


def extras() -> Iterator[Finding]:
    for extra, (package, use) in EXTRAS.items():
        try:
            yield Finding("ok", package, f"{version(package)}, for {use}")
        except PackageNotFoundError:
            yield Finding("missing", package, f"only needed for {use}", f"pip install 'kithkin[{extra}]'")
