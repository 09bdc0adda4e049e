"""Multinomial logistic regression, the baseline that the paper compares diffusion with and fuses it with (section 4.1).

Stochastic gradients with momentum and L2, on batches that are balanced over classes: a class is drawn first, then one of its
seeds, so a class of one seed is seen as often as one of a thousand. Draws depend on the random seed alone, not on the machine.

Descriptors are centred and divided by their root mean square length, so that a learning rate means the same for all
descriptors; the model is for descriptors as they are. The learning rate falls linearly to zero, so that the last batches do not
dominate the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadOption, Parameter
from mmdiff.formats.extras import load
from mmdiff.labels.classes import UNLABELLED
from mmdiff.runtime.progress import Advance

# Batches drawn at a time.
_AHEAD = 64

# Seeds in a batch, and batches; more would take gigabytes, and days.
MOST_BATCH, MOST_BATCHES = 1 << 16, 10**8


@dataclass(frozen=True)
class Samples:
    """Seeds sorted by class: row `rows[i]` has class `classes[i]`. A row with two labels is two samples."""

    rows: NDArray[np.int64]
    classes: NDArray[np.int64]

    @classmethod
    def of(cls, labels: NDArray[np.integer]) -> Samples:
        """From labels of shape (n) or (n, m), UNLABELLED for none."""
        table = labels.reshape(len(labels), -1)
        rows, places = np.nonzero(table != UNLABELLED)
        classes = table[rows, places].astype(np.int64)
        order = np.argsort(classes, kind="stable")
        return cls(rows[order], classes[order])

    def __len__(self) -> int:
        return len(self.rows)

    def batches(self, size: int, count: int, seed: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yields `count` batches of rows and their classes."""
        draw = np.random.default_rng(seed)
        _, first, members = np.unique(self.classes, return_index=True, return_counts=True)
        for start in range(0, count, _AHEAD):
            drawn = draw.integers(0, len(first), (_AHEAD, size))
            among = (draw.random((_AHEAD, size)) * members[drawn]).astype(np.int64)
            picked = first[drawn] + among
            for batch in picked[: count - start]:
                yield self.rows[batch], self.classes[batch]

    def held_out(self, share: float, seed: int) -> tuple[Samples, Samples]:
        """Samples to train on, and held-out samples: a share of each class with two or more, at least one and never all."""
        draw = np.random.default_rng(seed)
        out = np.zeros(len(self), bool)
        for label in np.unique(self.classes):
            of_class = np.flatnonzero(self.classes == label)
            if len(of_class) > 1:
                count = min(max(1, round(share * len(of_class))), len(of_class) - 1)
                out[draw.choice(of_class, count, replace=False)] = True
        return Samples(self.rows[~out], self.classes[~out]), Samples(self.rows[out], self.classes[out])


Device = Literal["auto", "cpu", "gpu"]
DEVICES: tuple[Device, ...] = ("auto", "cpu", "gpu")

# Multiply-adds of a batch from which several threads pay. Below, threads mostly wait for each other: on two busy cores, a batch
# of 256 x 320 x 80 took 13 times the processor time of one thread.
_WORTH_THREADS = 1 << 28
# Descriptors up to this size are converted once and stay in memory, or on the GPU.
_RESIDENT_BYTES = 2 << 30
_BLOCK_ROWS = 1 << 14


@dataclass(frozen=True)
class Options:
    """Training parameters. The defaults were chosen on group 1 of Tiny ImageNet, for 1 to 20 seeds per class."""

    lr: float = 1.0
    batch_size: int = 256
    weight_decay: float = 3e-4
    iterations: int = 1000
    momentum: float = 0.9
    seed: int = 0
    device: Device = "auto"


@dataclass(frozen=True)
class Model:
    """A linear classifier of descriptors: the logits of x are `weight @ x + bias`."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]

    def log_probabilities(self, descriptors: NDArray[Any]) -> NDArray[np.float32]:
        """Log-probabilities (rows, classes), in blocks: mapped rows may be many, and widen when converted."""
        found = np.empty((len(descriptors), len(self.bias)), np.float32)
        for start in range(0, len(descriptors), _BLOCK_ROWS):
            logits = descriptors[start : start + _BLOCK_ROWS].astype(np.float32) @ self.weight.T + self.bias
            logits -= logits.max(axis=1, keepdims=True)
            logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
            found[start : start + _BLOCK_ROWS] = logits
        return found


def train(
    descriptors: NDArray[Any],
    samples: Samples,
    classes: int,
    options: Options = Options(),  # noqa: B008
    advance: Advance = lambda _: None,
) -> Model:
    """Trains on the samples. A class without samples gets low scores."""
    torch = load_torch()
    device = choose_device(torch, options.device)
    work = options.batch_size * descriptors.shape[1] * classes
    with _threads(torch, 1 if work < _WORTH_THREADS else None), torch.no_grad():
        mean, length = _centre_and_length(descriptors, samples)
        rows = _Rows(torch, device, descriptors, mean, length)
        weight = torch.zeros((classes, descriptors.shape[1]), device=device)
        bias = torch.zeros(classes, device=device)
        parameters = [weight, bias]
        # L2 on the weights only: biases stand for the frequency of classes.
        groups = [{"params": [weight], "weight_decay": options.weight_decay}, {"params": [bias]}]
        sgd = torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum, weight_decay=0.0)
        ones = torch.full((options.batch_size, 1), -1.0, device=device)
        batches = samples.batches(options.batch_size, options.iterations, options.seed)
        for step, (batch, labels) in enumerate(batches):
            x = rows.take(batch)
            # The gradient of the cross-entropy by the logits: probabilities, less one for the true class.
            error = torch.softmax(torch.addmm(bias, x, weight.T), dim=1)
            error.scatter_add_(1, torch.from_numpy(labels).to(device)[:, None], ones)
            error /= options.batch_size
            weight.grad, bias.grad = error.T @ x, error.sum(dim=0)
            for group in sgd.param_groups:
                group["lr"] = options.lr * (1 - step / options.iterations)
            sgd.step()
            advance(1)
        learned, offset = (parameter.cpu().numpy().astype(np.float64) for parameter in parameters)
    learned /= length
    model = Model(learned.astype(np.float32), (offset - learned @ mean).astype(np.float32))
    if not (np.isfinite(model.weight).all() and np.isfinite(model.bias).all()):
        raise BadOption(
            Parameter("lr", options.lr),
            ": the regression diverged. Use a smaller one, such as ",
            Parameter("lr", float(f"{options.lr / 10:g}")),
            ", or ",
            Parameter("tune", True),
            ".",
        )
    return model


def load_torch() -> Any:
    return load("torch", "logistic regression")


def choose_device(torch: Any, wanted: Device) -> str:
    """The name of the device in torch; a requested GPU must exist."""
    present = bool(torch.cuda.is_available())
    if wanted == "gpu" and not present:
        raise BadOption(
            Parameter("device", "gpu"),
            ": torch finds no GPU. Use ",
            Parameter("device", "cpu"),
            ", or a torch that was built for your GPU.",
        )
    return "cuda" if present and wanted != "cpu" else "cpu"


def _centre_and_length(descriptors: NDArray[Any], samples: Samples) -> tuple[NDArray[np.float64], float]:
    """The mean of the sampled rows, and the root mean square of their distances from it."""
    used = np.unique(samples.rows)
    total, squares = np.zeros(descriptors.shape[1]), 0.0
    for start in range(0, len(used), _BLOCK_ROWS):
        block = descriptors[used[start : start + _BLOCK_ROWS]].astype(np.float64)
        total += block.sum(axis=0)
        squares += float((block**2).sum())
    mean = total / len(used)
    spread = squares / len(used) - float(mean @ mean)
    # A single row, or equal rows, have no spread: any length will do.
    return mean, float(np.sqrt(spread)) if spread > 1e-12 * squares else 1.0


class _Rows:
    """Batches of centred and scaled rows: from a tensor of all rows where they are few, else from the map."""

    def __init__(self, torch: Any, device: str, descriptors: NDArray[Any], mean: NDArray[np.float64], length: float) -> None:
        self.torch, self.device, self.descriptors, self.length = torch, device, descriptors, length
        self.mean = mean.astype(np.float32)
        self.resident = None
        if descriptors.size * 4 <= _RESIDENT_BYTES:
            self.resident = torch.from_numpy(self._scaled(descriptors)).to(device)

    def take(self, rows: NDArray[np.int64]) -> Any:
        if self.resident is not None:
            return self.resident[self.torch.from_numpy(rows).to(self.device)]
        return self.torch.from_numpy(self._scaled(self.descriptors[rows])).to(self.device)

    def _scaled(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        scaled = rows.astype(np.float32)
        scaled -= self.mean
        scaled /= np.float32(self.length)
        return scaled


@contextmanager
def _threads(torch: Any, count: int | None) -> Iterator[None]:
    """Limits torch to a number of threads; None leaves it alone."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
