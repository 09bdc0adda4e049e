"""Cells of a grid as units of work, for this process or for others, each of which reads the data once.

What several cells need is made once by each process: lists of neighbours, graphs, models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from threadpoolctl import threadpool_info, threadpool_limits

from mmdiff.classify.logreg import load_torch
from mmdiff.experiment.cells import DATA, Cell, Result
from mmdiff.experiment.computing import Computing
from mmdiff.experiment.config import Config, Group
from mmdiff.experiment.protocol import Data, Protocol
from mmdiff.formats.errors import MissingExtra, Stale
from mmdiff.formats.manifest import Json
from mmdiff.progress import Advance

Keyed = tuple[str, Cell]
"""A cell, and the digest that it is known by."""


@dataclass
class Groups:
    """Computes cells, in whatever order; those of one group are best asked for one after the other."""

    config: Config
    protocols: dict[Group, Protocol]
    _computing: dict[Group, Computing] = field(default_factory=dict)

    def result(self, unit: Keyed) -> Result:
        return self._of(unit[1].group).result(unit[1])

    def _of(self, group: Group) -> Computing:
        """What computes the cells of a group; that of the group before is let go with all that it made."""
        if group not in self._computing:
            self._computing.clear()
            self._computing[group] = Computing(self.protocols[group], self.config.dims, self.config.most_neighbors)
        return self._computing[group]


@dataclass(frozen=True)
class Cells:
    """An experiment that can be sent. `threads` are those that products of matrices have where it comes from: how they are
    rounded depends on it.
    """

    config: Config
    prints: Json
    threads: int

    @classmethod
    def of(cls, config: Config, prints: Json) -> Cells:
        files = {role: str(Path(file).absolute()) for role, file in config.files.items()}
        threads = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
        return cls(replace(config, files=files), prints, max(threads, default=1))

    @contextmanager
    def opened(self) -> Iterator[Callable[[Keyed, Advance], Result]]:
        data = Data.read(self.config)
        for role in DATA:
            if data.prints[role] != self.prints[role]:
                raise Stale(
                    f"{self.config.files[role]}: a worker finds another file there. All need the same at the same path."
                )
        groups = Groups(self.config, {group: Protocol.of(data, self.config, group) for group in self.config.groups})
        # The threads of a library can only be chosen once it is loaded.
        if any(method.kind == "logreg" for method in self.config.methods):
            with suppress(MissingExtra):
                load_torch()

        def compute(unit: Keyed, _: Advance) -> Result:
            with threadpool_limits(self.threads):
                return groups.result(unit)

        yield compute
