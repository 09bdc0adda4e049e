"""Networks that describe images, opened without unpickling: exported programs, TorchScript, and safetensors of a ResNet.

torch reads exported programs with its own loader, which unpickles some of their parts. Archives with such parts are refused
before it sees them.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter
from zipfile import BadZipFile, ZipFile

from mmdiff.describing.decoding import Preprocessing
from mmdiff.describing.named import LIBRARIES, open_named
from mmdiff.describing.resnet import Shape, build, expected_shapes
from mmdiff.formats.errors import BadOption, MmdiffError, Parameter
from mmdiff.formats.extras import load
from mmdiff.formats.sources.limits import reason
from mmdiff.formats.sources.safetensors import read_tensors

# The metadata of a safetensors file of ours, as JSON: how images were prepared for the network.
METADATA = "mmdiff"

_CONVERT = (
    "Open it where you trust it, and export it: torch.export.save(torch.export.export(model.eval(), (torch.zeros(2, 3, 224, "
    "224),), dynamic_shapes=({0: torch.export.Dim.AUTO},)), 'model.pt2'). Weights of torchvision's ResNet-18 or ResNet-50 can "
    "also be saved by safetensors.torch.save_file(weights, 'model.safetensors')."
)


@dataclass(frozen=True)
class Model:
    """A network: `run` takes a batch of standardised images on a device. `digest` identifies its weights.

    `whole_batches` says that every batch must have the same size, which an exported program may ask for.
    """

    name: str
    kind: str
    digest: str
    preprocessing: Preprocessing
    module: Any
    run: Callable[[Any], Any]
    whole_batches: bool = False


def open_model(spec: str, device: str) -> Model:
    """The network of a file, or of a library by its name, such as `timm:resnet50`, on a device of torch."""
    library = spec.partition(":")[0]
    if library in LIBRARIES:
        module, run, preprocessing = open_named(spec, device)
        return Model(spec, library, _digest_of_weights(module), preprocessing, module, run)
    path = Path(spec)
    if not path.is_file():
        raise BadOption(
            Parameter("model", spec),
            f": no such file, nor a name such as timm:resnet50. Give a file (.pt2, .pt, .ts, .safetensors) or one of "
            f"{', '.join(f'{name}:NAME' for name in LIBRARIES)}.",
        )
    try:
        model = _open_file(path, device)
    except MmdiffError:
        raise
    except Exception as error:
        raise BadOption(
            Parameter("model", spec),
            f": cannot be opened by torch ({reason(error)}). Export it again with this version of torch.",
        ) from error
    return replace(model, digest=_digest_of_file(path))


def _open_file(path: Path, device: str) -> Model:
    if path.suffix.lower() == ".safetensors":
        return _open_resnet(path, device)
    names = _names_in(path)
    if names is None:
        with path.open("rb") as stream:
            start = stream.read(2)
        if start[:1] == b"\x80" or path.suffix.lower() in (".pkl", ".pickle", ".joblib", ".pth"):
            raise _pickled(path)
        raise BadOption(
            Parameter("model", str(path)),
            ": neither an exported program (.pt2), nor TorchScript (.pt, .ts), nor .safetensors. " + _CONVERT,
        )
    if any(name.endswith("/archive_format") for name in names):
        return _open_exported(path, names, device)
    if any(name.endswith("/constants.pkl") for name in names) and any("/code/" in name for name in names):
        return _open_script(path, device)
    raise _pickled(path)


def _pickled(path: Path) -> BadOption:
    return BadOption(Parameter("model", str(path)), f": a pickle, which could run any code when it is opened. {_CONVERT}")


def _names_in(path: Path) -> list[str] | None:
    try:
        with ZipFile(path) as archive:
            return archive.namelist()
    except (BadZipFile, OSError, ValueError, NotImplementedError):
        return None


def _open_exported(path: Path, names: list[str], device: str) -> Model:
    torch = load("torch", "describing images", "images")
    content = path.read_bytes()
    unsafe = _unsafe_part(torch, content, names)
    if unsafe is not None:
        raise BadOption(
            Parameter("model", str(path)),
            f": an exported program with {unsafe}, which could run any code when it is opened. {_CONVERT}",
        )
    with catch_warnings():
        simplefilter("ignore")
        module = torch.export.load(io.BytesIO(content)).module().to(device)
    return Model(path.name, "exported program", "", Preprocessing(), module, module, whole_batches=True)


def _unsafe_part(torch: Any, content: bytes, names: list[str]) -> str | None:
    """A part of an exported program that torch would unpickle, or load as machine code; None where there is none."""
    if len(set(names)) < len(names):
        return "two files of one name"
    with ZipFile(io.BytesIO(content)) as archive:
        for name in names:
            _, _, inner = name.partition("/")
            if not inner or inner.startswith(("data/aotinductor/", "serialized_")):
                return "compiled code, or of an old format"
            if inner.startswith(("data/weights/", "data/constants/")):
                if inner.endswith(".pt") or "/custom_obj" in inner or "/opaque_obj" in inner:
                    return f"pickled objects ({inner})"
                if inner.endswith("_config.json"):
                    entries = json.loads(archive.read(name))["config"].values()
                    if any(entry["use_pickle"] or not _is_tensor_file(entry["path_name"]) for entry in entries):
                        return f"pickled tensors ({inner})"
            if inner.startswith("data/sample_inputs/"):
                try:
                    torch.load(io.BytesIO(archive.read(name)), weights_only=True)
                except Exception:
                    return f"pickled example inputs ({inner})"
    return None


def _is_tensor_file(name: str) -> bool:
    return name.startswith(("weight_", "tensor_")) and "/" not in name


def _open_script(path: Path, device: str) -> Model:
    torch = load("torch", "describing images", "images")
    with catch_warnings():
        # Newer versions advise to export instead, which is for the one who saved it to do.
        simplefilter("ignore")
        module = torch.jit.load(str(path), map_location=device).eval()
    return Model(path.name, "TorchScript", "", Preprocessing(), module, module, whole_batches=True)


def _open_resnet(path: Path, device: str) -> Model:
    """A ResNet of our own code with the weights of a file; its last layer, if there is one, is left out."""
    torch, library = load("torch", "describing images", "images"), load("safetensors", "describing images", "images")
    load("safetensors.torch", "describing images", "images")
    read_tensors(path)
    with library.safe_open(path, "pt", device=device) as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata() or {}
        shape = Shape.of(shapes)
        needed = {} if shape is None else expected_shapes(shape)
        wrong = [name for name, size in needed.items() if shapes.get(name, () if "num_batches" in name else None) != size]
        wrong += [name for name in shapes if name not in needed and not name.startswith("fc.")]
        if shape is None or wrong:
            raise BadOption(
                Parameter("model", str(path)),
                ": not the weights of a ResNet with torchvision's names"
                + (f" ({wrong[0]} is missing, too much, or of another shape)" if wrong else "")
                + ". Other networks are given as exported programs. "
                + _CONVERT,
            )
        weights = {name: file.get_tensor(name) for name in needed if name in shapes}
    module = build(shape).to(device)
    module.load_state_dict({name: value.float() for name, value in weights.items()}, strict=False)
    module.eval()
    module.to(memory_format=torch.channels_last)
    return Model(path.name, shape.name, "", _recorded(path, metadata), module, module)


def _recorded(path: Path, metadata: dict[str, str]) -> Preprocessing:
    """The preprocessing that `train-describer` recorded in the file; else that of ImageNet."""
    if METADATA not in metadata:
        return Preprocessing()
    try:
        found = json.loads(metadata[METADATA])["preprocessing"]
        mean, std = (tuple(float(value) for value in found[key]) for key in ("mean", "std"))
        made = Preprocessing(int(found["resize"]), int(found["crop"]), mean, std, found["interpolation"])  # type: ignore[arg-type]
        if len(mean) != 3 or len(std) != 3 or made.interpolation not in ("bilinear", "bicubic"):
            raise ValueError("colours")
        return made
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadOption(Parameter("model", str(path)), ": damaged metadata. Train or copy it again.") from error


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=12)).hexdigest()


def _digest_of_weights(module: Any) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for name, value in module.state_dict().items():
        digest.update(f"{name}\0{tuple(value.shape)}\0{value.dtype}\0".encode())
        digest.update(value.detach().cpu().float().contiguous().numpy().tobytes())
    return digest.hexdigest()
