"""`mmdiff describe`: images become descriptors with a network, and are imported as `mmdiff import` would (paper, section 4.1).

The output of the network is first written to a draft that is never published, with a checkpoint every few seconds. The PCA is
trained on it, the rows are imported from it, and it is removed at the end. A run that is interrupted at any point continues.
An image that cannot be read becomes a uniform white one, as in the paper, and is recorded.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mmdiff.describing.decoding import Preprocessing, decoding
from mmdiff.describing.listing import Images, list_images
from mmdiff.describing.models import open_model
from mmdiff.describing.running import Described, Runner
from mmdiff.formats.errors import BadOption, BadRow, InputError, Parameter, UnreadableSource, one_of
from mmdiff.formats.extras import load
from mmdiff.formats.sources.base import Column, Matrix, Rows
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.fingerprint import fingerprint_of_array, source_fingerprint
from mmdiff.formats.store.growing import Growth
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Publication
from mmdiff.importing.appending import append_descriptors
from mmdiff.importing.columns import ColumnSpec, Given
from mmdiff.importing.rows import examine, refuse_bad
from mmdiff.importing.stage import Outcome, import_descriptors
from mmdiff.importing.stage import Request as ImportRequest
from mmdiff.logreg.training import DEVICES, Device, choose_device
from mmdiff.runtime.parameters import flag, number, text, whole
from mmdiff.runtime.progress import Progress, silent
from mmdiff.runtime.threads import cores

OnBad = Literal["white", "drop", "error"]
ON_BAD: tuple[OnBad, ...] = ("white", "drop", "error")
SCHEMA = 1
MOST_BATCH, MOST_SIDE = 1 << 14, 1 << 12

_SECONDS_BETWEEN_CHECKPOINTS = 5.0
# Unreadable images that the artifact names, with the reason; all are counted.
_NAMED = 1000


@dataclass(frozen=True)
class Request:
    """Parameters of `describe`. Those of `importing` are for the rows; None stands for what the model has recorded."""

    images: str
    model: str
    prefix: str
    importing: ImportRequest
    append: bool = False
    dtype: str | None = None
    labels_from_folders: bool = False
    on_bad: OnBad = "white"
    resize: int | None = None
    crop: int | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    batch_size: int = 64
    device: Device = "auto"


@dataclass(frozen=True)
class DescribeOutcome:
    """The outcome of the import, and what was found on the way."""

    imported: Outcome
    images: int
    unreadable: Json
    model: Json
    continued: int
    described: int

    def summary(self) -> Json:
        summary = self.imported.summary()
        return {
            **summary,
            "images": self.images,
            "described": self.described,
            "continued": self.continued,
            "model": self.model,
            "unreadable": self.unreadable,
        }


@explaining
def describe(path: Path, request: Request, progress: Progress = silent) -> DescribeOutcome:
    """Describes images and imports the rows into the store at `path`. Repeated, it does nothing."""
    request = _checked(request)
    with decoding():
        torch = load("torch", "describing images", "images")
        device = choose_device(torch, request.device)
        images = list_images(request.images, request.prefix)
        model = open_model(request.model, device)
        preprocessing = _preprocessing(request, model.preprocessing)
        size = request.batch_size if model.whole_batches else min(request.batch_size, len(images))
        runner = Runner(model, preprocessing, device, size)
        source = _Source(images, runner, request.on_bad, progress)
        name = f"descriptors/{'appended' if request.append else request.importing.role}-features"
        imported = replace(
            request.importing,
            sources=source,
            source_fingerprint=source.fingerprint,
            labels=_labels(images) if request.labels_from_folders else request.importing.labels,
            on_bad="drop" if request.on_bad == "drop" else "error",
        )
        try:
            with Publication(path, [name], imported.command) as publication:
                source.draft_in(publication, name)
                try:
                    if request.append:
                        outcome: Outcome = append_descriptors(path, imported, request.dtype, progress)
                    else:
                        outcome = import_descriptors(path, imported, progress)
                except UnreadableSource:
                    raise
                except InputError as error:
                    raise _KeptDraft(error) from error
        except _KeptDraft as kept:
            raise kept.error from kept.error.__cause__
    facts: Json = outcome.artifact.facts.get("images", {})
    return DescribeOutcome(
        outcome, len(images), facts.get("unreadable", {}), source.about_model, source.continued, source.described
    )


class _KeptDraft(Exception):
    """Carries an error past the publication, which would remove the draft of bad input: ours serves the next try as well."""

    def __init__(self, error: InputError) -> None:
        super().__init__()
        self.error = error


class _Source(Matrix):
    """The features of images as a source of embeddings, computed when the first row is read."""

    def __init__(self, images: Images, runner: Runner, on_bad: OnBad, progress: Progress) -> None:
        self.images, self.runner, self.on_bad, self.progress = images, runner, on_bad, progress
        super().__init__(images.name, (len(images), runner.width()), np.dtype(np.float32), images.files)
        self.continued = self.described = 0
        self._lock = Lock()
        self._features: NDArray[np.float32] | None = None
        self._bad: dict[int, str] = {}
        self._publication: Publication | None = None
        self._draft_name = ""

    @property
    def about_model(self) -> Json:
        model = self.runner.model
        return {"name": model.name, "kind": model.kind, "values": self.width, "digest": model.digest}

    @property
    def fingerprint(self) -> Json:
        """Identifies the rows: the images, the network, and how it is run."""
        own = self.images.fingerprint
        runner = self.runner
        settings = [own["digest"], runner.model.digest, runner.preprocessing.to_json(), runner.device, self.on_bad, SCHEMA]
        return own | {"digest": hashlib.blake2b(json.dumps(settings).encode(), digest_size=12).hexdigest()}

    def draft_in(self, publication: Publication, name: str) -> None:
        """Where features are kept until they are imported."""
        self._publication, self._draft_name = publication, name

    def ids(self) -> Column:
        return Column(self.images.ids)

    def locate(self, row: int) -> str:
        return self.images.locate(row)

    def unreadable(self) -> NDArray[np.int64]:
        return np.array(sorted(self._bad) if self.on_bad == "drop" else [], np.int64)

    def facts(self) -> Json:
        """The record of the images in the artifact. A run that finds all chunks written has not read any row yet."""
        self.read(0, 0)
        named = {self.images.ids[row]: why for row, why in sorted(self._bad.items())[:_NAMED]}
        unreadable = {"count": len(self._bad), "treatment": self.on_bad, "images": named}
        model = self.about_model | {"device": self.runner.device}
        return {"images": {"model": model, "preprocessing": self.runner.preprocessing.to_json(), "unreadable": unreadable}}

    def _read(self, start: int, stop: int) -> Rows:
        with self._lock:
            if self._features is None:
                self._features = self._described()
        return np.array(self._features[start:stop])

    def _described(self) -> NDArray[np.float32]:
        """The features of all images, mapped from the draft."""
        assert self._publication is not None
        runner = self.runner
        source = self.images.fingerprint
        parameters = {"model": runner.model.digest, "preprocessing": runner.preprocessing.to_json()}
        recipe = Recipe("images", SCHEMA, parameters, {"source": source}, {"source": source_fingerprint(self.images.files)})
        # Another device, size of batches or number of threads rounds differently.
        means = {"device": runner.device, "batch_size": runner.batch_size, "threads": cores(), "torch": version("torch")}
        draft = self._publication.draft(self._draft_name, recipe, means)
        with Growth(draft, {"features": "float32"}, {"features": self.width}) as growth:
            done = self.continued = growth.arrays["features"].place.length
            self._bad = {int(row): why for row, why in growth.note.get("unreadable", [])}
            self._refuse_unreadable()
            written = time.monotonic()
            with self.progress(f"describing {self.name}", len(self.images), "images") as advance:
                advance(done)
                for batch in runner.describe(self.images, done):
                    self._check(batch)
                    growth.append("features", batch.features)
                    done = batch.first + len(batch.features)
                    self.described += len(batch.features)
                    advance(len(batch.features))
                    if done == len(self.images) or time.monotonic() - written > _SECONDS_BETWEEN_CHECKPOINTS:
                        growth.checkpoint({"unreadable": sorted(self._bad.items())})
                        written = time.monotonic()
            growth.close()
        if len(self._bad) == len(self.images):
            row, why = next(iter(self._bad.items()))
            raise UnreadableSource(
                f"{self.images.name}: none of its {len(self.images):,} images can be read ({self.images.ids[row]}: {why}). "
                "Check the path and the files."
            )
        return draft.writers["features"].mapped()

    def _check(self, batch: Described) -> None:
        """Records the unreadable images of a batch. Refuses them, and rows that no import takes, unless they are dropped."""
        self._bad |= batch.unreadable
        self._refuse_unreadable()
        if self.on_bad != "drop":
            condition = examine(batch.features, False)
            refuse_bad(batch.features, condition, lambda row: f"{self.runner.model.name}, {self.locate(batch.first + row)}")

    def _refuse_unreadable(self) -> None:
        if self.on_bad == "error" and self._bad:
            row, why = next(iter(sorted(self._bad.items())))
            raise BadRow(
                f"{self.locate(row)}: cannot be read ({why}). Replace the image, describe a white one in its place with ",
                Parameter("on_bad", "white"),
                ", or leave it out with ",
                Parameter("on_bad", "drop"),
                ".",
            )


def _labels(images: Images) -> ColumnSpec:
    """The classes of images, as labels in memory."""
    classes = images.classes
    if not len(classes.utf8):
        raise BadOption(
            Parameter("labels_from_folders", True),
            f": no image of {images.name} lies in a folder below it. Give the folder that holds the folders of the classes.",
        )
    return Given(Column(classes), fingerprint_of_array("folders", classes.offsets, classes.utf8), f"folders of {images.name}")


def _preprocessing(request: Request, recorded: Preprocessing) -> Preprocessing:
    """The preprocessing that the user asks for, else the one that the model has recorded."""
    crop = recorded.crop if request.crop is None else request.crop
    resize = recorded.resize if request.resize is None else request.resize
    if request.resize is None and request.crop is not None:
        # A crop of another size shows the same part of the image.
        resize = max(crop, round(recorded.resize * crop / recorded.crop))
    if resize < crop:
        raise BadOption(
            Parameter("crop", crop), f": more than the {resize} pixels that the shorter side is resized to. Use at most ",
            Parameter("resize", crop), " for both.",
        )  # fmt: skip
    mean, std = _colours("mean", request.mean, 0.0), _colours("std", request.std, 1e-6)
    return replace(recorded, crop=crop, resize=resize, mean=mean or recorded.mean, std=std or recorded.std)


def _checked(request: Request) -> Request:
    """The request with its values in Python's types."""
    one_of("on_bad", request.on_bad, ON_BAD)
    one_of("device", request.device, DEVICES)
    folders = flag("labels_from_folders", request.labels_from_folders)
    if folders and request.importing.labels is not None:
        raise BadOption(Parameter("labels_from_folders", True), " and ", Parameter("labels"), ": give one or the other.")
    return replace(
        request,
        labels_from_folders=folders,
        prefix=text("prefix", request.prefix),
        append=flag("append", request.append),
        batch_size=whole("batch_size", request.batch_size, 1, MOST_BATCH, "For example 64."),
        resize=None if request.resize is None else whole("resize", request.resize, 1, MOST_SIDE, "For example 256."),
        crop=None if request.crop is None else whole("crop", request.crop, 1, MOST_SIDE, "For example 224."),
    )


def _colours(name: str, values: Any, least: float) -> tuple[float, float, float] | None:
    """Three numbers, for red, green and blue."""
    if values is None:
        return None
    values = values.tolist() if isinstance(values, np.ndarray) else values
    if not isinstance(values, (list, tuple)) or len(values) != 3:
        raise BadOption(Parameter(name, values), ": expected three numbers, for red, green and blue, such as 0.5,0.5,0.5.")
    red, green, blue = (number(name, value, least, 1.0) for value in values)
    return red, green, blue
