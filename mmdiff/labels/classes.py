"""Tables of classes, and labels as indices into them. The columns of L are the classes of the seeds.

A class has a number, a name, or both. Each artifact with labels has a table of its own. Labels of other roles are mapped to the
seeds' classes by number where both have numbers, else by name. A label that no seed has is kept; its point always counts as an
error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadLabels
from mmdiff.formats.sources.base import Column
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.publish import Draft
from mmdiff.formats.store.store import Artifact

UNLABELLED = -1


@dataclass(frozen=True)
class Classes:
    """A table of classes, in the order of their columns in L. `numbers` or `names` is None where classes have none."""

    numbers: NDArray[np.int64] | None
    names: tuple[str, ...] | None

    @classmethod
    def of(cls, artifact: Artifact) -> Classes:
        """The table of an artifact's labels."""
        numbers = artifact.array("class_numbers") if "class_numbers" in artifact else None
        names = tuple(artifact.strings("class_names")) if "class_names_offsets" in artifact else None
        return cls(numbers, names)

    def __len__(self) -> int:
        if self.names is not None:
            return len(self.names)
        return 0 if self.numbers is None else len(self.numbers)

    def title(self, index: int) -> str:
        """The name of a class, or its number where it has no name."""
        if self.names is not None:
            return self.names[index]
        return "" if self.numbers is None else str(self.numbers[index])

    def find(self, title: str) -> int | None:
        """The column of the class with this name or number; None if there is none."""
        if self.names is not None and title in self.names:
            return self.names.index(title)
        numbers = [] if self.numbers is None else [str(number) for number in self.numbers]
        return numbers.index(title) if title in numbers else None

    def take(self, columns: NDArray[np.int64]) -> Classes:
        """The table of the given columns."""
        names = None if self.names is None else tuple(self.names[column] for column in columns)
        return Classes(None if self.numbers is None else self.numbers[columns], names)

    def same_as(self, other: Classes) -> bool:
        """Whether both hold the same classes in the same order, judged by the numbers and names that both have."""
        numbers = self.numbers is None or other.numbers is None or np.array_equal(self.numbers, other.numbers)
        names = self.names is None or other.names is None or self.names == other.names
        return len(self) == len(other) and numbers and names

    def numbered(self) -> Classes:
        """The same classes, numbered from 0 in their order where they have only names."""
        return Classes(np.arange(len(self)), self.names) if self.numbers is None else self

    def write(self, draft: Draft) -> None:
        """Writes the table into an artifact."""
        if self.numbers is not None:
            draft.values("class_numbers", self.numbers)
        if self.names is not None:
            draft.strings("class_names", Strings.of(self.names))

    def columns_in(self, seeds: Classes, whose: str = "the seeds") -> NDArray[np.int64]:
        """The column of each class in the seeds' table, UNLABELLED where no seed has it; `whose` table, for messages."""
        if self.numbers is not None and seeds.numbers is not None:
            place = {int(number): column for column, number in enumerate(seeds.numbers)}
            columns = [place.get(int(number), UNLABELLED) for number in self.numbers]
            self._refuse_other_names(seeds, columns, whose)
        elif self.names is not None and seeds.names is not None:
            named = {name: column for column, name in enumerate(seeds.names)}
            columns = [named.get(name, UNLABELLED) for name in self.names]
        else:
            raise BadLabels(
                f"the labels are names, but the classes of {whose} have numbers only. Import {whose} with class names, or "
                "use numbers here too."
            )
        return np.array(columns, np.int64)

    def extended_by(self, other: Classes) -> tuple[Classes, NDArray[np.int64]]:
        """This table followed by the classes that only `other` has, and the column of each class of `other` in it.

        New classes keep their numbers; where `other` has only names, they get the next numbers that are free. A class with a
        number only is called by it where others have names.
        """
        columns = other.columns_in(self)
        new = np.flatnonzero(columns == UNLABELLED)
        columns[new] = len(self) + np.arange(len(new))
        if not len(new):
            return self, columns
        numbers, names = self.numbers, self.names
        if numbers is not None:
            following = int(numbers.max(initial=-1)) + 1 + np.arange(len(new))
            numbers = np.append(numbers, following if other.numbers is None else other.numbers[new])
        if names is not None:
            names += tuple(other.title(index) for index in new.tolist())
        return Classes(numbers, names), columns

    def _refuse_other_names(self, seeds: Classes, columns: list[int], whose: str) -> None:
        if self.names is None or seeds.names is None:
            return
        for index, column in enumerate(columns):
            if column != UNLABELLED and self.names[index] != seeds.names[column]:
                raise BadLabels(
                    f"class {seeds.title(column)!r} of {whose} is called {self.names[index]!r} here. "
                    "Use the same class names for all roles."
                )


def labels_of(artifact: Artifact, classes: Classes, array: str = "labels") -> NDArray[np.int32]:
    """The stored labels of an artifact, each checked to be one of its classes or UNLABELLED."""
    return artifact.index_array(array, below=len(classes), none=UNLABELLED)


def encode(labels: Column, names: Mapping[int, str] | None, numbered: bool, where: str) -> tuple[NDArray[np.int32], Classes]:
    """Labels as indices into a table of their classes, UNLABELLED where there is none; a row may have several.

    `names`, by class number, fixes the table; without it the table holds the classes that occur, in order. With `numbered`,
    classes that have only names get numbers, as the seeds' do, which define the numbers for all roles. `where` names the
    labels in messages.
    """
    if isinstance(labels.values, Strings):
        indices, classes = _encode_names(labels.values, names, where, labels.per_row)
    else:
        indices, classes = _encode_numbers(labels.values, names, where, labels.per_row)
    classes = classes.numbered() if numbered else classes
    return (indices if labels.per_row == 1 else indices.reshape(-1, labels.per_row)), classes


def _encode_numbers(
    values: NDArray[np.int64], names: Mapping[int, str] | None, where: str, per_row: int
) -> tuple[NDArray[np.int32], Classes]:
    if len(values) and values.min() < UNLABELLED:
        row = int((values < UNLABELLED).argmax())
        raise BadLabels(
            f"{where}, row {row // per_row}: label {values[row]}. Classes are numbered from 0; unlabelled rows are -1."
        )
    numbers = np.unique(values[values != UNLABELLED]) if names is None else np.array(sorted(names), np.int64)
    places = np.searchsorted(numbers, values)
    known = values == numbers[np.minimum(places, len(numbers) - 1)] if len(numbers) else np.zeros(len(values), bool)
    nameless = ~known & (values != UNLABELLED)
    if nameless.any():
        row = int(nameless.argmax())
        raise BadLabels(
            f"{where}, row {row // per_row}: class {values[row]}, which has no class name. Add it to the class names."
        )
    table = None if names is None else tuple(names[int(number)] for number in numbers)
    return np.where(known, places, UNLABELLED).astype(np.int32), Classes(numbers, table)


def _encode_names(
    values: Strings, names: Mapping[int, str] | None, where: str, per_row: int
) -> tuple[NDArray[np.int32], Classes]:
    labels = list(values)
    numbers = None
    if names is None:
        table = tuple(sorted(set(labels) - {""}))
    else:
        numbers = np.array(sorted(names), np.int64)
        table = tuple(names[int(number)] for number in numbers)
    place = {name: index for index, name in enumerate(table)} | {"": UNLABELLED}
    for row, label in enumerate(labels):
        if label not in place:
            raise BadLabels(f"{where}, row {row // per_row}: class {label!r} is not among the class names. Add it to them.")
    return np.array([place[label] for label in labels], np.int32), Classes(numbers, table)
