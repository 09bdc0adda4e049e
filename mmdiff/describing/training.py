"""`mmdiff train-describer`: a small ResNet learns the base classes, and describes images of any class without its last layer.

The paper trains its describer on base classes only ("Learning the image descriptors", section 4.1), so that novel classes are
new to everything. A tenth of each class is held out; the accuracy on it says how well the network has learned, nothing about
novel classes.

Every batch and its distortions are drawn by its number, so that a run which continues another makes the same weights.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.describing.decoding import Preprocessing, decoding
from mmdiff.describing.listing import Images, list_images
from mmdiff.describing.models import METADATA
from mmdiff.describing.resnet import STAGES, Shape, build
from mmdiff.describing.running import pixels_of, torch_threads
from mmdiff.export.target import check_place, remove_file, whole_file
from mmdiff.formats.errors import BadLabels, BadOption, Parameter, one_of
from mmdiff.formats.extras import load
from mmdiff.formats.store.manifest import Json
from mmdiff.labels.classes import UNLABELLED
from mmdiff.logreg.training import DEVICES, Device, Samples, choose_device
from mmdiff.runtime.parameters import number, random_seed, whole
from mmdiff.runtime.progress import Advance, Progress, silent
from mmdiff.runtime.threads import cores, in_threads

HELD_OUT = 0.1
_MOST_EPOCHS, _MOST_WIDTH = 10_000, 256
MOST_SIDE = 512

# Up to this size an image is small, and the network keeps its resolution at the input.
_SMALL_SIDE = 48
# Decoded images are a little larger than what the network takes, so that it sees another part each time.
_MARGIN = 8
_RESIDENT_BYTES = 2 << 30
_MOMENTUM, _WEIGHT_DECAY, _WARM_UP = 0.9, 5e-4, 0.05
_SECONDS_BETWEEN_CHECKPOINTS = 20.0
_PIECE = 64


@dataclass(frozen=True)
class Request:
    """Parameters of `train_describer`."""

    images: str
    out: str
    size: int = 64
    width: int = 32
    depth: int = 10
    epochs: int = 20
    batch_size: int = 32
    lr: float = 0.02
    seed: int = 0
    device: Device = "auto"

    @property
    def shape(self) -> Shape:
        return Shape((self.depth // STAGES // 2,) * STAGES, False, self.width, 3 if self.size <= _SMALL_SIDE else 7)

    @property
    def preprocessing(self) -> Preprocessing:
        return Preprocessing(resize=self.size + self.size // _MARGIN, crop=self.size)


def train_describer(request: Request, progress: Progress = silent) -> Json:
    """Trains the network and writes its weights; returns what it has learned, as plain values."""
    request, start = _checked(request), time.perf_counter()
    out = Path(request.out)
    check_place(out)
    with decoding():
        torch = load("torch", "training a describer", "images")
        load("safetensors.torch", "training a describer", "images")
        device = choose_device(torch, request.device)
        images = list_images(request.images)
        names, labels = _classes(images)
        kept, held_out = Samples.of(labels).held_out(HELD_OUT, request.seed)
        if not len(held_out):
            raise BadLabels(f"{images.name}: no class has two images, so none can be held out. Give more images of each class.")
        pixels = _Pixels(images, request.preprocessing, progress)
        training = _Training(torch, request, device, names, _identity(request, images, device))
        with torch_threads(torch):
            continued = training.restore()
            training.run(pixels, kept, progress)
            accuracy = training.accuracy(pixels, held_out, progress)
            training.save(names, accuracy)
    return {
        "file": str(out),
        "network": request.shape.name,
        "values": request.shape.features,
        "classes": len(names),
        "images": len(kept),
        "held_out": len(held_out),
        "accuracy": round(accuracy, 6),
        "chance": round(1 / len(names), 6),
        "unreadable": len(pixels.unreadable),
        "batches": training.batches,
        "continued": continued,
        "seconds": round(time.perf_counter() - start, 3),
    }


def _classes(images: Images) -> tuple[list[str], NDArray[np.int32]]:
    """The names of the classes, and the class of each image."""
    of_images = list(images.classes)
    names = sorted(set(of_images) - {""})
    if len(names) < 2:
        raise BadLabels(
            f"{images.name}: {'1 class' if names else 'no classes'}, expected at least 2. Give the folder that holds a "
            "folder of images for each base class."
        )
    number = {name: place for place, name in enumerate(names)} | {"": UNLABELLED}
    return names, np.array([number[name] for name in of_images], np.int32)


def _identity(request: Request, images: Images, device: str) -> str:
    """Identifies the training that a checkpoint belongs to: only the same one continues it."""
    settings = {key: value for key, value in vars(request).items() if key not in ("images", "out", "device")}
    return json.dumps([settings, images.fingerprint["digest"], device, cores()], sort_keys=True)


class _Pixels:
    """Images by number, a little larger than the network takes them; in memory once they were decoded, if they all fit."""

    def __init__(self, images: Images, preprocessing: Preprocessing, progress: Progress) -> None:
        self.images = images
        self.side = preprocessing.resize
        self.preprocessing = replace(preprocessing, crop=preprocessing.resize)
        self.unreadable: set[int] = set()
        self._resident: NDArray[np.uint8] | None = None
        if len(images) * self.side**2 * 3 <= _RESIDENT_BYTES:
            self._resident = np.empty((len(images), self.side, self.side, 3), np.uint8)
            pieces = [range(start, min(start + _PIECE, len(images))) for start in range(0, len(images), _PIECE)]
            with progress("reading images", len(images), "images") as advance:
                for piece, found in zip(pieces, in_threads(self._decode, pieces), strict=True):
                    self._resident[piece.start : piece.stop] = found
                    advance(len(piece))

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        if self._resident is not None:
            return self._resident[rows]
        return np.concatenate(list(in_threads(self._decode, (range(row, row + 1) for row in rows.tolist()))))

    def _decode(self, rows: range) -> NDArray[np.uint8]:
        pixels, unreadable = pixels_of(self.images, rows, self.preprocessing)
        self.unreadable |= set(unreadable)
        return np.stack(pixels)


class _Training:
    """The network with its last layer, the optimiser, and the number of batches that are done."""

    def __init__(self, torch: Any, request: Request, device: str, names: list[str], identity: str) -> None:
        self.torch, self.request, self.device, self.identity = torch, request, device, identity
        torch.manual_seed(request.seed)
        self.network = build(request.shape).to(device).to(memory_format=torch.channels_last)
        self.last = torch.nn.Linear(request.shape.features, len(names)).to(device)
        last = ((f"fc.{name}", parameter) for name, parameter in self.last.named_parameters())
        self.parameters = [*self.network.named_parameters(), *last]
        self.sgd = torch.optim.SGD(
            [parameter for _, parameter in self.parameters], request.lr, _MOMENTUM, weight_decay=_WEIGHT_DECAY, nesterov=True
        )
        self.done = self.batches = 0
        self.out = Path(request.out)
        self.checkpoint = self.out.with_name(f"{self.out.name}.checkpoint")
        self._saved = time.monotonic()
        preprocessing = request.preprocessing
        self._mean = torch.tensor(preprocessing.mean, device=device).mul_(255)[:, None, None]
        self._std = torch.tensor(preprocessing.std, device=device).mul_(255)[:, None, None]

    def run(self, pixels: _Pixels, kept: Samples, progress: Progress) -> None:
        """Trains to the end. What is done when it is interrupted is kept."""
        each = max(1, len(kept) // self.request.batch_size)
        self.batches = each * self.request.epochs
        stopped = Event()

        def work(advance: Advance) -> None:
            while self.done < self.batches and not stopped.is_set():
                self._step(pixels, kept, each)
                self.done += 1
                if time.monotonic() - self._saved > _SECONDS_BETWEEN_CHECKPOINTS:
                    self._write_checkpoint()
                advance(1)

        # Ctrl-C reaches the main thread only, so that no step is cut in two.
        with progress("training", self.batches, "batches") as advance, ThreadPoolExecutor(1) as pool:
            advance(self.done)
            working = pool.submit(work, advance)
            try:
                working.result()
            except KeyboardInterrupt:
                stopped.set()
                wait([working])
                self._write_checkpoint()
                raise

    def _step(self, pixels: _Pixels, kept: Samples, each: int) -> None:
        torch, request = self.torch, self.request
        epoch, place = divmod(self.done, each)
        order = np.random.default_rng([request.seed, epoch]).permutation(len(kept))
        chosen = order[place * request.batch_size : (place + 1) * request.batch_size]
        draw = np.random.default_rng([request.seed, epoch, place])
        labels = torch.from_numpy(kept.classes[chosen]).to(self.device)
        for group in self.sgd.param_groups:
            group["lr"] = self._rate()
        self.network.train()
        images = self._batch(_distorted(pixels.take(kept.rows[chosen]), request.size, draw))
        loss = torch.nn.functional.cross_entropy(self.last(self.network(images)), labels)
        self.sgd.zero_grad()
        loss.backward()
        self.sgd.step()
        if not bool(torch.isfinite(loss)):
            smaller = Parameter("lr", request.lr / 10)
            raise BadOption(Parameter("lr", request.lr), ": the training diverged. Use a smaller one, such as ", smaller, ".")

    def _rate(self) -> float:
        """The learning rate rises at first, then falls to 0 along a cosine."""
        share = self.done / self.batches
        rise = min(1.0, (share + 1 / self.batches) / _WARM_UP)
        return float(self.request.lr * rise * 0.5 * (1 + np.cos(np.pi * share)))

    def _batch(self, pixels: NDArray[np.uint8]) -> Any:
        images = self.torch.from_numpy(pixels).to(self.device).permute(0, 3, 1, 2).float()
        return (images - self._mean) / self._std

    def accuracy(self, pixels: _Pixels, held_out: Samples, progress: Progress) -> float:
        """The share of held-out images that the network classifies rightly."""
        margin, right = (pixels.side - self.request.size) // 2, 0
        inner = slice(margin, margin + self.request.size)
        self.network.eval()
        with self.torch.inference_mode(), progress("testing", len(held_out), "images") as advance:
            for start in range(0, len(held_out), self.request.batch_size):
                rows = held_out.rows[start : start + self.request.batch_size]
                images = self._batch(np.ascontiguousarray(pixels.take(rows)[:, inner, inner]))
                found = self.last(self.network(images)).argmax(1).cpu().numpy()
                right += int((found == held_out.classes[start : start + len(rows)]).sum())
                advance(len(rows))
        return right / len(held_out)

    def save(self, names: list[str], accuracy: float) -> None:
        """Writes the weights; the checkpoint has served."""
        about = {"preprocessing": self.request.preprocessing.to_json(), "classes": names, "accuracy": round(accuracy, 6)}
        _save(self.out, self._weights(), {METADATA: json.dumps(about)})
        remove_file(self.checkpoint)

    def _weights(self) -> dict[str, Any]:
        last = {f"fc.{name}": value for name, value in self.last.state_dict().items()}
        return {name: value.contiguous().cpu() for name, value in {**self.network.state_dict(), **last}.items()}

    def _tensors(self) -> dict[str, Any]:
        """All that a checkpoint holds: weights and momentum."""
        zeros = self.torch.zeros_like
        buffers = {name: self.sgd.state[parameter].get("momentum_buffer") for name, parameter in self.parameters}
        momentum = {
            f"momentum.{name}": (zeros(parameter) if buffers[name] is None else buffers[name]).detach().contiguous().cpu()
            for name, parameter in self.parameters
        }
        return self._weights() | momentum

    def _write_checkpoint(self) -> None:
        _save(self.checkpoint, self._tensors(), {"identity": self.identity, "done": str(self.done)})
        self._saved = time.monotonic()

    def restore(self) -> int:
        """Continues from the checkpoint of an interrupted run with the same parameters and images; returns the batches done."""
        if not self.checkpoint.is_file():
            return 0
        library, found = load("safetensors", "training a describer", "images"), {}
        # A checkpoint that is damaged, or of another version, is none.
        with suppress(OSError, ValueError, KeyError, RuntimeError, library.SafetensorError):
            with library.safe_open(self.checkpoint, "pt", device=self.device) as file:
                metadata: Mapping[str, str] = file.metadata() or {}
                if metadata.get("identity") != self.identity:
                    return 0
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                done = int(metadata["done"])
            if all(name in found for name in self._tensors()):
                self._load(found)
                self.done = done
        return self.done

    def _load(self, tensors: Mapping[str, Any]) -> None:
        momentum = {name: tensors[f"momentum.{name}"] for name, _ in self.parameters}
        self.last.load_state_dict({name: tensors[f"fc.{name}"] for name in self.last.state_dict()})
        self.network.load_state_dict({name: tensors[name] for name in self.network.state_dict()})
        for name, parameter in self.parameters:
            self.sgd.state[parameter]["momentum_buffer"] = momentum[name].clone()


def _distorted(pixels: NDArray[np.uint8], side: int, draw: np.random.Generator) -> NDArray[np.uint8]:
    """Each image cut at a random place, and mirrored with probability 1/2."""
    found = np.empty((len(pixels), side, side, 3), np.uint8)
    margin = pixels.shape[1] - side
    for i, image in enumerate(pixels):
        top, left = draw.integers(0, margin + 1, 2)
        part = image[top : top + side, left : left + side]
        found[i] = part[:, ::-1] if draw.random() < 0.5 else part
    return found


def _save(file: Path, tensors: Mapping[str, Any], metadata: dict[str, str]) -> None:
    content = load("safetensors.torch", "training a describer", "images").save(dict(tensors), metadata)
    with whole_file(file) as stream:
        stream.write(content)


def _checked(request: Request) -> Request:
    one_of("device", request.device, DEVICES)
    if not request.out.lower().endswith(".safetensors"):
        raise BadOption(Parameter("out", request.out), ": weights are written as .safetensors. Give the file that ending.")
    depth = whole("depth", request.depth, 10, 18, "10 or 18.")
    if depth not in (10, 18):
        raise BadOption(Parameter("depth", depth), ": expected 10 or 18.")
    return replace(
        request,
        depth=depth,
        size=whole("size", request.size, 16, MOST_SIDE, "For example 64."),
        width=whole("width", request.width, 4, _MOST_WIDTH, "For example 32."),
        epochs=whole("epochs", request.epochs, 1, _MOST_EPOCHS, "For example 20."),
        batch_size=whole("batch_size", request.batch_size, 2, 1 << 14, "For example 64."),
        lr=number("lr", request.lr, 1e-9, 1e9, "For example 0.02."),
        seed=random_seed(request.seed),
    )
