"""Runs an experiment: the cells of a config -> reports/NAME (paper, section 4).

Each finished cell is a checkpoint. An interrupted run finds its cells again, and any run finds the cells of other experiment
results in the store, so the same data, draw and options are computed once. On disk, experiment results are of kind "report".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmdiff.experiment.cells import DATA, Cell, Result
from mmdiff.experiment.computing import ExperimentWork, GridComputer
from mmdiff.experiment.config import Config, Group, read_config
from mmdiff.experiment.protocol import Data, Protocol
from mmdiff.experiment.results import Grid
from mmdiff.formats.errors import StoreError
from mmdiff.formats.storage.disk_errors import explaining
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft, Publication
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.runtime.executor import Executor, LocalExecutor
from mmdiff.runtime.find_or_make import Run, make
from mmdiff.runtime.progress import Advance, Progress, silent

KIND, SCHEMA = "report", 1

# A checkpoint is a file of a few hundred bytes; a file takes a block of the disk.
_CHECKPOINT_BYTES = 4096


@dataclass(frozen=True)
class Outcome:
    """Experiment results. `found` counts cells of an interrupted run or of other results, which were not computed again."""

    artifact: Artifact
    reused: bool
    found: int
    seconds: float

    def summary(self) -> Json:
        return {
            "artifact": self.artifact.name,
            "object": self.artifact.id,
            "reused": self.reused,
            "cells": self.artifact.spec("keys").shape[0],
            "cells_found": self.found,
            "seconds": round(self.seconds, 3),
            "parameters": self.artifact.manifest.parameters,
            "facts": self.artifact.manifest.facts,
        }


@explaining
def run_experiment(
    path: Path, config_file: Path, command: str, progress: Progress = silent, executor: Executor | None = None
) -> Outcome:
    """Computes the missing cells, here or with `executor`, and publishes all cells as one artifact."""
    run = Run(command)
    config = read_config(config_file)
    data = Data.read(config)
    protocols = {group: Protocol.of(data, config, group) for group in config.groups}
    name = f"reports/{config.name}"
    recipe = Recipe(KIND, SCHEMA, config.parameters(), data.prints, data.source_fingerprints)
    with Publication(path, [name], command) as publication:

        def fill(draft: Draft) -> Json:
            published = dict(_published(publication.store, data.source_fingerprints))
            cells = CheckpointedCells(
                draft=draft,
                config=config,
                prints=data.prints,
                protocols=protocols,
                published=published,
                executor=executor or LocalExecutor(),
            )
            facts, seconds = _write(draft, cells, progress)
            run.entries |= {"cell_seconds": seconds, "cells_found": cells.found}
            return facts

        disk = Grid(config, {}, lambda _: []).cells * _CHECKPOINT_BYTES
        made = make(publication, name, recipe, run, fill, disk=disk)
        return Outcome(made.artifact, made.reused, run.entries.get("cells_found", 0), run.seconds)


@dataclass
class CheckpointedCells:
    """Finds cells computed before, has the executor compute the others, and writes a checkpoint for each."""

    draft: Draft
    config: Config
    prints: Json
    protocols: dict[Group, Protocol]
    published: dict[str, Result]
    executor: Executor
    found: int = 0
    advance: Advance = lambda _: None

    def __post_init__(self) -> None:
        self._local = GridComputer(self.config, self.protocols)
        self._work = ExperimentWork.of(self.config, self.prints)

    def compute(self, cells: Sequence[Cell]) -> list[tuple[str, Result]]:
        keys = [cell.key(self.config, self.prints) for cell in cells]
        results = {key: result for key in keys if (result := self._find(key)) is not None}
        todo = {key: cell for key, cell in zip(keys, cells, strict=True) if key not in results}
        for _ in range(len(cells) - len(todo)):
            self.found += 1
            self.advance(1)
        for (key, _), result in self.executor.each(self._local.result, lambda: self._work, list(todo.items())):
            self.draft.save_part(key, result.to_json())
            results[key] = result
            self.advance(1)
        return [(key, results[key]) for key in keys]

    def _find(self, key: str) -> Result | None:
        checkpoint = self.draft.saved_part(key)
        return Result.from_json(checkpoint) if checkpoint is not None else self.published.get(key)


def _write(draft: Draft, cells: CheckpointedCells, progress: Progress) -> tuple[Json, list[float]]:
    """Computes all cells and writes the arrays; returns the facts, and the seconds of each cell."""
    tests = {group: (len(protocol.tests), int(protocol.tests_are_novel.sum())) for group, protocol in cells.protocols.items()}
    grid = Grid(cells.config, tests, cells.compute)
    lines: list[Json] = []
    results: list[Result] = []
    keys: list[str] = []
    with progress(f"experiment {cells.config.name}", grid.cells, "cells") as advance:
        cells.advance = advance
        for series, choice in grid.series():
            lines.append(series.line(choice, len(keys)))
            results.extend(series.results)
            keys.extend(series.keys)
    draft.values("planes", np.concatenate([result.counts for result in results]))
    draft.values("offsets", np.cumsum([0, *(len(result.counts) for result in results)]))
    draft.values("keys", np.frombuffer(bytes.fromhex("".join(keys)), np.uint8).reshape(len(keys), -1))
    points: Any = {group: {"all": both, "novel": novel} for group, (both, novel) in tests.items()}
    return {"tests": points, "lines": lines}, [round(result.seconds, 4) for result in results]


def _published(store: Store, source_fingerprints: Json) -> Iterator[tuple[str, Result]]:
    """The cells of all experiment results in a store that were made from the present data files.

    Keys of cells contain digests of samples of large files; sizes and modification times vouch for the rest. Damaged results
    are skipped, since their cells can be computed again.
    """
    for name in store.names() if store.path.is_dir() else ():
        if name.startswith("reports/"):
            with suppress(StoreError, KeyError):
                artifact = store.open_artifact(name)
                same = all(artifact.run["witness"][role] == source_fingerprints[role] for role in DATA)
                if same and (artifact.manifest.kind, artifact.manifest.schema) == (KIND, SCHEMA):
                    yield from _cells_of(artifact)


def _cells_of(artifact: Artifact) -> Iterator[tuple[str, Result]]:
    counts, offsets, keys = (artifact.array(name) for name in ("planes", "offsets", "keys"))
    for cell, seconds in enumerate(artifact.run["cell_seconds"]):
        yield keys[cell].tobytes().hex(), Result(np.array(counts[offsets[cell] : offsets[cell + 1]]), seconds)
