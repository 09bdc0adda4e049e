"""The paper's protocol (section 4.1): the seeds, background and test points of a group, for n and a draw.

Seeds are all training images of the base classes and n images of each novel class. Each class and draw has its own random
generator, and the seeds for a smaller n are the first of those for a larger one. Test points are the test images of the
group's classes. Columns are base and novel classes together, sorted by number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdiff.experiment.config import Background, Config, Group, Split
from mmdiff.formats.errors import BadLabels, BadOption, CountMismatch, WidthMismatch
from mmdiff.formats.sources.base import Source
from mmdiff.formats.sources.columns.reading import read_column
from mmdiff.formats.sources.opening import open_source
from mmdiff.formats.sources.spec import split_spec
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.fingerprint import fingerprint, source_fingerprint
from mmdiff.formats.store.manifest import Json
from mmdiff.importing.rows import as_float32, examine, refuse_bad

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Data:
    """Training and test images in memory: raw descriptors and the class number of each."""

    train: NDArray[Any]
    train_labels: Ids
    test: NDArray[Any]
    test_labels: Ids
    prints: Json
    source_fingerprints: Json

    @classmethod
    def read(cls, config: Config) -> Data:
        train, test = (open_source([config.files[role]]) for role in ("train", "test"))
        if train.width != test.width:
            raise WidthMismatch(
                f"{test.name}: rows of {test.width} values, but {train.name} has {train.width}. Use descriptors of one network."
            )
        labels = [_labels(config.files[f"{role}_labels"], source) for role, source in (("train", train), ("test", test))]
        files = {"train": train.files, "test": test.files}
        files |= {key: (split_spec(config.files[key])[0],) for key in config.files if key not in files}
        prints = {key: fingerprint(Path(config.files[key]).name, paths) for key, paths in files.items()}
        seen = {key: source_fingerprint(paths) for key, paths in files.items()}
        return cls(
            train=_rows(train),
            train_labels=labels[0],
            test=_rows(test),
            test_labels=labels[1],
            prints=prints,
            source_fingerprints=seen,
        )

    def of_classes(self, classes: tuple[int, ...]) -> Ids:
        """The rows of the training images of some classes, ascending."""
        return np.flatnonzero(np.isin(self.train_labels, classes))


@dataclass(frozen=True)
class Protocol:
    """The protocol for the data and classes of one group."""

    data: Data
    group: Group
    split: Split
    out_of_domain: tuple[int, ...]
    seed: int

    @classmethod
    def of(cls, data: Data, config: Config, group: Group) -> Protocol:
        found = cls(data, group, config.groups[group], config.out_of_domain, config.seed)
        found.check(max(config.ns), config.backgrounds, config.dims)
        return found

    @cached_property
    def classes(self) -> Ids:
        """The class number of each column."""
        return np.array(sorted({*self.split.base, *self.split.novel}), np.int64)

    @cached_property
    def base(self) -> Ids:
        return self.data.of_classes(self.split.base)

    @cached_property
    def novel(self) -> Ids:
        """The rows of all training images of novel classes, drawn or not."""
        return self.data.of_classes(self.split.novel)

    @cached_property
    def tests(self) -> Ids:
        return np.flatnonzero(np.isin(self.data.test_labels, self.classes))

    @cached_property
    def truth(self) -> Ids:
        """The column of each test point."""
        return np.searchsorted(self.classes, self.data.test_labels[self.tests])

    @cached_property
    def tests_are_novel(self) -> NDArray[np.bool_]:
        return np.isin(self.data.test_labels[self.tests], self.split.novel)

    def columns(self, rows: Ids) -> Ids:
        """The class columns of training images of the group."""
        return np.searchsorted(self.classes, self.data.train_labels[rows])

    def drawn(self, n: int, draw: int) -> Ids:
        """The rows of the seeds of novel classes: n of each class."""
        parts = []
        for label in self.split.novel:
            rows = self.data.of_classes((label,))
            parts.append(np.random.default_rng([self.seed, draw, label]).permutation(rows)[:n])
        return np.concatenate(parts)

    def background(self, background: Background) -> Ids:
        """The rows of a background. In-domain this includes the images that a draw makes seeds.

        Smaller out-of-domain backgrounds are subsets of larger ones.
        """
        if background.kind == "none":
            return np.empty(0, np.int64)
        if background.kind == "in-domain":
            return self.novel
        pool = self.data.of_classes(self.out_of_domain)
        return np.sort(np.random.default_rng(self.seed).permutation(pool)[: background.size])

    def sample(self, background: Background) -> Ids:
        """The rows that the PCA is fitted to: the background, or the base seeds without one."""
        unlabelled = self.background(background)
        return unlabelled if len(unlabelled) else self.base

    def check(self, most: int, backgrounds: tuple[Background, ...], dims: int) -> None:
        """Refuses classes with too few images, backgrounds that are too large, and a PCA of too few rows."""
        for kind, classes in (("base", self.split.base), ("novel", self.split.novel)):
            for label in classes:
                found = int((self.data.train_labels == label).sum())
                least = 1 if kind == "base" else most
                if found < least:
                    images = f"{found} training image{'' if found == 1 else 's'}"
                    raise BadLabels(
                        f"[groups.{self.group}] {kind}: class {label} has {images}, but needs at least {least}. "
                        "Leave the class out" + (", or use a smaller n." if kind == "novel" else ".")
                    )
        for label in self.classes:
            if label not in self.data.test_labels:
                raise BadLabels(f"[groups.{self.group}]: class {label} has no test points. Leave the class out.")
        pool = len(self.data.of_classes(self.out_of_domain))
        for background in backgrounds:
            if background.kind == "out-of-domain" and (background.size or 1) > pool:
                raise BadOption(f"backgrounds = '{background}': only {pool:,} images are out of domain. Use fewer.")
            rows = len(self.sample(background))
            if rows < dims < self.data.train.shape[1]:
                raise BadOption(
                    f"dims = {dims}: a PCA needs at least as many rows, but with the background {background} the {self.group} "
                    f"group has {rows:,}. Use at most dims = {rows}."
                )


def _labels(spec: str, source: Source) -> Ids:
    column = read_column(spec, source.rows)
    name = Path(spec).name
    if isinstance(column.values, Strings) or column.per_row != 1:
        raise BadLabels(f"{name}: an experiment needs one class number per row, from 0 on. Convert the labels.")
    if len(column) != source.rows:
        raise CountMismatch(f"{name}: {len(column)} labels for the {source.rows} rows of {source.name}. Give one per row.")
    return column.values


def _rows(source: Source) -> NDArray[Any]:
    rows = source.read(0, source.rows)
    values = as_float32(rows)
    refuse_bad(values, examine(values, False), source.locate)
    return rows
