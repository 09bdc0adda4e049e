"""Labels that a user gives, as classes of the store: a name matches names, a number matches numbers, new names are new classes.

A journal knows its classes by name where the classes of the store have names, else by number, so that it does not depend on the
order in which names were numbered when they were imported.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mmdiff.formats.errors import BadLabels, Parameter, shortened
from mmdiff.formats.sources.base import Column
from mmdiff.formats.sources.columns.integers import MAX_DIGITS
from mmdiff.formats.sources.columns.label_files import LabelTable
from mmdiff.formats.storage.strings import Strings
from mmdiff.labels.classes import UNLABELLED, Classes
from mmdiff.labels.journal import NAME, Journal


def named_classes(stored: Classes, journal: Journal, table: LabelTable) -> tuple[Journal, NDArray[np.int32], Classes]:
    """The labels of a table, (rows, labels per row), as indices into the classes of the journal and those that are new.

    `stored` are the classes that labels were imported with. The journal is returned with its own classes by name, where it knew
    them by number and the store has got names since.
    """
    known, columns = _known(stored, journal)
    texts, indices = _distinct(table.labels)
    by_number = known.names is None and (known.numbers is not None or not isinstance(table.labels.values, Strings))
    titles = []
    for index, text in enumerate(texts):
        found = known.find(text)
        problem = None if found is not None else _problem(text, known, by_number)
        if problem is not None:
            row = int((indices == index).any(axis=1).argmax())
            raise BadLabels(f"{table.place(row)}: label {shortened(text)}", *problem)
        titles.append(text if found is None else known.title(found))
    own = [known.title(int(column)) for column in columns]
    new = sorted(set(titles) - set(own), key=int if by_number else str)
    place = {title: index for index, title in enumerate([*own, *new])}
    classes = _table([*own, *new], by_number)
    translation = np.array([*(place[title] for title in titles), UNLABELLED], np.int32)
    return replace(journal, classes=classes.take(np.arange(len(own)))), translation[indices], classes


def _known(stored: Classes, journal: Journal) -> tuple[Classes, NDArray[np.int64]]:
    """The classes of the store and of the journal as one table, and the column of each class of the journal."""
    if not len(stored) or not len(journal.classes):
        return (stored if len(stored) else journal.classes), np.arange(len(journal.classes))
    try:
        return stored.extended_by(journal.classes)
    except BadLabels as error:
        raise BadLabels(f"{NAME}: ", *error.parts) from None


def _problem(text: str, known: Classes, by_number: bool) -> tuple[str | Parameter, ...] | None:
    """Why a label that no class has cannot be a new class."""
    numeric = text.isascii() and text.isdigit()
    if text.startswith("-") and text[1:].isdigit():
        return (". Classes are numbered from 0; an empty label, or -1, removes the label of a row.",)
    if by_number and (not numeric or len(text) > MAX_DIGITS):
        advice = (" is a name, but the classes of the store have numbers only. Use numbers, or import the labels again with ",)
        return (*advice, Parameter("class_names"), ".")
    if not by_number and numeric and len(known):
        return (
            f" is a number, but the classes of the store have names, and none has this number. Use a name, such as "
            f"{shortened(known.title(0))}.",
        )
    return None


def _distinct(labels: Column) -> tuple[list[str], NDArray[np.int64]]:
    """The distinct labels as text, and for each row the indices of its labels among them, UNLABELLED for none."""
    values = labels.values
    if isinstance(values, Strings):
        numbers: dict[str, int] = {"": UNLABELLED}
        indices = np.array([numbers.setdefault(text, len(numbers) - 1) for text in values], np.int64)
        texts = list(numbers)[1:]
    else:
        found, indices = np.unique(values, return_inverse=True)
        given = found != UNLABELLED
        indices = np.where(given, np.cumsum(given) - 1, UNLABELLED)[indices]
        texts = [str(number) for number in found[given].tolist()]
    return texts, indices.reshape(-1, labels.per_row)


def _table(titles: list[str], by_number: bool) -> Classes:
    if not titles:
        return Classes(None, None)
    return Classes(np.array([int(title) for title in titles], np.int64), None) if by_number else Classes(None, tuple(titles))
