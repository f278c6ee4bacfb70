"""A client's model as one file that needs no kithkin: bytes of pictures in, class probabilities out.

safetensors    the tensors by name, with a description of network and preprocessing
torch-export   a program for `torch.export.load`, of any number of pictures; the preprocessing is in its graph
onnx           the same for onnxruntime and others

Each has inside, as JSON, the names of the classes, the shape of a picture and where it comes from. Dropout is off: entropy over
dropout passes is `kithkin predict`'s.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

import kithkin
from kithkin.compute.loss import centred, scaled
from kithkin.disk import disk_errors, write_whole
from kithkin.errors import KithkinError
from kithkin.nets import Build, builder, write
from kithkin.nets.build import RESNET9
from kithkin.own import short
from kithkin.record.folder import write_tensors
from kithkin.use.loading import LoadedClient
from kithkin.use.predicting import ask

Format = Literal["safetensors", "torch-export", "onnx"]
ABOUT = "kithkin"  # the name under which the description lies in a file
TRIED = 9  # random pictures of the check
TOLERANCE = 1e-4  # of a probability


class Answering(nn.Module):
    """Pictures, uint8 [N, C, H, W], to class probabilities [N, classes]: preprocessing, and the mean of the client's models."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, pictures: Tensor) -> Tensor:
        x = centred(scaled(pictures))
        return torch.stack([model(x).softmax(1) for model in self.models]).mean(0)


def export(client: LoadedClient, format: Format, out: Path) -> float:
    """Write the file, unless its answers on random pictures are not the client's; the largest difference of a probability."""
    writers: dict[Format, Callable[[Answering, dict[str, Any], Path], Callable[[Tensor], Tensor]]] = {
        "safetensors": partial(_safetensors, client.run.build),
        "torch-export": _torch_export,
        "onnx": _onnx,
    }
    draw = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (TRIED, *client.run.picture), generator=draw, dtype=torch.uint8)
    network = client.run.network
    answers = [ask(network, w, pictures.to(network.device), 1, 0)[0].cpu() for w in client.weights]
    expected, far = torch.stack(answers).mean(0), 0.0

    def write_and_check(draft: Path) -> None:
        nonlocal far
        again = writers[format](answering(client), describe(client), draft)
        far = float((again(pictures) - expected).abs().max())
        if not far <= TOLERANCE:
            raise KithkinError(
                f"The {format} file answers otherwise than the model (by {far:g}), and was not kept.", "Take another --format."
            )

    with disk_errors(out, "Give another --out."):
        write_whole(out, write_and_check)
    return far


def answering(client: LoadedClient) -> Answering:
    models: list[nn.Module] = []
    for w in client.weights:
        models.append(client.run.build())
        write(models[-1], w.cpu())
    return Answering(models).eval().requires_grad_(False)


def describe(client: LoadedClient) -> dict[str, Any]:
    run = client.run
    channels, height, width = run.picture
    return {
        "kithkin": kithkin.__version__,
        "classes": list(run.classes),
        "input": {"name": "pictures", "type": "uint8", "shape": ["N", channels, height, width]},
        "output": {"name": "probabilities", "type": "float32", "shape": ["N", len(run.classes)]},
        "preprocessing": "pictures / 255 * 2 - 1",
        "network": {"name": short(run.config.model), "width": run.config.width},
        "models": len(client.weights),  # the mean of whose softmax is the answer
        "trained": {"method": short(run.config.method), "data": Path(run.config.data).name, "seed": run.config.seed},
        "client": client.number,
    }


def _safetensors(build: Build, model: Answering, about: dict[str, Any], draft: Path) -> Callable[[Tensor], Tensor]:
    tensors = {k: v for k, v in model.state_dict().items() if v.is_floating_point()}  # batch counters are of no use any more
    write_tensors(draft, tensors, {ABOUT: json.dumps(about)})
    return read_exported(draft, build)


def read_exported(path: Path, build: Build | None = None) -> Answering:
    """An exported safetensors file as a module: `read_exported(PATH)(pictures)` gives probabilities.

    `build` makes the network, where it is not ResNet-9: a file is not believed what code to run.
    """
    try:
        with safe_open(str(path), "pt") as file:
            about = json.loads(file.metadata()[ABOUT])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        network, (_, *shape) = about["network"], about["input"]["shape"]
        if build is None and network["name"] != RESNET9:
            raise KithkinError(f"{path} holds the network {network['name']}.", "Give `build`, which makes an empty one.")
        build = build or builder(RESNET9, tuple(shape), len(about["classes"]), network["width"])
        model = Answering([build() for _ in range(about["models"])])
        missing, unexpected = model.load_state_dict(tensors, strict=False)
        if unexpected or any("num_batches" not in name for name in missing):
            raise KeyError(*unexpected, *missing)
    except KithkinError:
        raise
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as e:
        raise KithkinError(f"{path} is no exported model ({e}).", "Give one of --format safetensors.") from None
    return model.eval().requires_grad_(False)


def _torch_export(model: Answering, about: dict[str, Any], draft: Path) -> Callable[[Tensor], Tensor]:
    archive = io.BytesIO()
    with _hushed():
        torch.export.save(_program(model, about), archive, extra_files={f"{ABOUT}.json": json.dumps(about)})
        draft.write_bytes(archive.getvalue())
        return torch.export.load(io.BytesIO(draft.read_bytes())).module()


def _onnx(model: Answering, about: dict[str, Any], draft: Path) -> Callable[[Tensor], Tensor]:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if not find_spec(name)]
    if missing:
        raise KithkinError(f"For onnx {' and '.join(missing)} must be installed.", "`pip install 'kithkin[export]'` does it.")
    import onnxruntime

    with _hushed():
        program = torch.onnx.export(_program(model, about), output_names=["probabilities"], dynamo=True, verbose=False)
        assert program is not None
        program.model.metadata_props[ABOUT] = json.dumps(about)
        program.save(draft, external_data=False)
    session = onnxruntime.InferenceSession(draft.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda pictures: torch.from_numpy(session.run(None, {"pictures": pictures.numpy()})[0])


def _program(model: Answering, about: dict[str, Any]) -> torch.export.ExportedProgram:
    """The network as a graph that takes any number of pictures."""
    example = torch.zeros(2, *about["input"]["shape"][1:], dtype=torch.uint8)
    try:
        return torch.export.export(model, (example,), dynamic_shapes={"pictures": {0: torch.export.Dim("N", min=1)}})
    except Exception as e:  # torch's tracer raises nearly anything on a network that it does not understand
        raise KithkinError(
            f"The network cannot be traced ({str(e).splitlines()[0]}).", "Take --format safetensors, or change the network."
        ) from e


@contextmanager
def _hushed() -> Generator[None, None, None]:
    """Without what torch's exporters say of themselves."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
