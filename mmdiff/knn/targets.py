"""The outcome of a neighbour search: whether it reached the target recall, and the blocks that GPUs left to the CPU."""

from __future__ import annotations

from collections.abc import Iterator

from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Artifact

# The measured blocks of lists, and what they are.
_BLOCKS = {"W_LB": "{points}", "W_BL": "{points} in lists of the background", "W_test": "test points"}


def reached(measured: Json, target: float) -> bool:
    """Whether a measured recall reaches the target, given the 95 % confidence interval of the measurement.

    A target within the interval counts as reached: another sample of rows might have shown it.
    """
    if "reached" in measured:
        return bool(measured["reached"])
    return bool(measured["high" if "high" in measured else "recall"] >= target)


def with_reached(measured: Json, target: float) -> Json:
    """A measured recall with the fact `reached`."""
    return {**measured, "reached": reached(measured, target)}


def all_reached(*blocks: Json) -> Json:
    """The fact `reached` of lists that are made of several blocks."""
    return {"reached": all(block["reached"] for block in blocks)}


def missed_targets(artifact: Artifact) -> list[str]:
    """A sentence for each recall of lists of neighbours that is below its target; none for other kinds of artifacts.

    Lists that were made before the fact `reached` was recorded are judged by their measured recall.
    """
    manifest = artifact.manifest
    target = manifest.parameters.get("recall")
    if manifest.kind != "knn" or not isinstance(target, int | float):
        return []
    return [
        f"{artifact.name}: a recall of {_shown(block['recall'])} was reached{of}, but {_shown(target)} was asked for. Search "
        "exactly (index flat), or ask for less recall."
        for of, block in _measured(manifest.facts, "appended rows and seeds" if "appended" in manifest.inputs else "seeds")
        if not reached(block, target)
    ]


def recalls(artifact: Artifact) -> dict[str, float]:
    """The measured recall of lists of neighbours, by what it is of."""
    points = "appended rows and seeds" if "appended" in artifact.manifest.inputs else "seeds"
    return {f"{artifact.name}{of}": float(block["recall"]) for of, block in _measured(artifact.manifest.facts, points)}


def left_to_cpu(artifact: Artifact) -> list[str]:
    """A sentence about blocks of a search on GPUs that ran out of memory there; none for other artifacts."""
    search = artifact.manifest.facts.get("search", {})
    count = search.get("gpu", search).get("fallbacks", 0)
    if not count:
        return []
    blocks = "1 block of queries" if count == 1 else f"{count:,} blocks of queries"
    return [f"{artifact.name}: {blocks} did not fit the free memory of the GPUs and used the CPU instead."]


def _measured(facts: Json, points: str) -> Iterator[tuple[str, Json]]:
    if "recall" in facts:
        yield "", facts
    for block, what in _BLOCKS.items():
        if "recall" in facts.get(block, {}):
            yield f" for {what.format(points=points)}", facts[block]


def _shown(recall: float) -> str:
    return f"{recall:.3f}"
