"""The layouts of all kinds of artifacts: the arrays, facts and parameters that each has on disk, and its checks.

Opening an artifact compares its manifest with them; publishing, fetching and `verify` also check the content.
`docs/formats.md` is the specification; `mmdiff/kinds.py` adds what is shown and exported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmdiff.formats.errors import BadResult, Corrupt
from mmdiff.formats.store import checks, shapes
from mmdiff.formats.store.kinds import (
    NUMBER,
    ArrayRule,
    Layout,
    problems_of_content,
    problems_of_manifest,
    problems_of_name,
    string_arrays,
)

if TYPE_CHECKING:
    from mmdiff.formats.store.store import Artifact

_ALL = (
    Layout(
        name="descriptors",
        schema=1,
        arrays={
            "vectors": ArrayRule(("float32", "float16"), (2,), required=True),
            "raw": ArrayRule(("float32", "float16", "uint8", "int8"), (2,)),
            "labels": ArrayRule(("int32",), (1, 2)),
            "class_numbers": ArrayRule(("int64",)),
            **string_arrays("class_names"),
            "ids": ArrayRule(("int64",)),
            **string_arrays("ids"),
            "dropped_ids": ArrayRule(("int64",)),
            **string_arrays("dropped_ids"),
        },
        shapes=shapes.shapes_of_descriptors,
        check=checks.check_descriptors,
        facts={"rows": (int,), "dropped": (dict,)},
    ),
    Layout(
        name="labels",
        schema=1,
        arrays={
            "ids": ArrayRule(("int64",)),
            **string_arrays("ids"),
            "labels": ArrayRule(("int32",), required=True),
            "batch": ArrayRule(("int32",), required=True),
            "class_numbers": ArrayRule(("int64",)),
            **string_arrays("class_names"),
            "batch_times": ArrayRule(("int64",), required=True),
            **string_arrays("batch_sources"),
        },
        shapes=shapes.shapes_of_labels,
        check=checks.check_labels,
        facts={"entries": (int,), "batches": (int,), "classes": (int,)},
        parameters={"digest": (str,), "holdout": NUMBER, "seed": (int,)},
    ),
    Layout(
        name="pca",
        schema=1,
        arrays={
            "mean": ArrayRule(("float32",)),
            "components": ArrayRule(("float32",), (2,)),
            "explained_variance": ArrayRule(("float32",)),
        },
        shapes=shapes.shapes_of_pca,
        check=checks.check_pca,
        facts={"width": (int,), "dims": (int,), "reduces": (bool,)},
        parameters={"normalize": (bool,)},
    ),
    Layout(
        name="cells",
        schema=1,
        arrays={
            "vectors": ArrayRule(("float32", "float16"), (2,), required=True),
            "order": ArrayRule(("uint32",), required=True),
            "centroids": ArrayRule(("float32",), (2,), required=True),
            "cell_of": ArrayRule(("uint32",), required=True),
            "members": ArrayRule(("uint32",), required=True),
            "offsets": ArrayRule(("int64",), required=True),
        },
        shapes=shapes.shapes_of_partitions,
        check=checks.check_partitions,
        facts={"cells": (int,), "partitions": (int,)},
    ),
    Layout(
        name="cells",
        schema=2,
        arrays={
            "vectors": ArrayRule(("float32", "float16"), (2,), required=True),
            "order": ArrayRule(("uint32",), required=True),
            "cell_of": ArrayRule(("uint32",), required=True),
            "offsets": ArrayRule(("int64",), required=True),
            "centroids": ArrayRule(("float32",), (2,), required=True),
            "coarse": ArrayRule(("float32",), (2,), required=True),
            "children": ArrayRule(("int64",), required=True),
        },
        shapes=shapes.shapes_of_cells,
        check=checks.check_cells,
        facts={"cells": (int,)},
    ),
    Layout(
        name="knn",
        schema=1,
        arrays={
            "neighbors": ArrayRule(("uint32",), (2,), required=True),
            "similarities": ArrayRule(("float32",), (2,), required=True),
        },
        shapes=shapes.shapes_of_knn,
        check=checks.check_knn,
        facts={"nodes": (int,)},
    ),
    Layout(
        name="knn",
        schema=2,
        arrays={
            "rows": ArrayRule(("uint32",), required=True),
            "neighbors": ArrayRule(("uint32",), (2,), required=True),
            "similarities": ArrayRule(("float32",), (2,), required=True),
        },
        shapes=shapes.shapes_of_patch,
        check=checks.check_patch,
        facts={"nodes": (int,), "background": (int,)},
    ),
    Layout(
        name="graph",
        schema=1,
        arrays={
            "indptr": ArrayRule(("int64",), required=True),
            "indices": ArrayRule(("uint32",), required=True),
            "scale": ArrayRule(("float32",), required=True),
            "weights": ArrayRule(("float32", "float16")),
            "order": ArrayRule(("uint32",)),
        },
        shapes=shapes.shapes_of_graph,
        check=checks.check_graph,
        facts={"nodes": (int,), "edges": (int,), "background": (int,), "seeds": (int,), "test": (int,), "reciprocal": NUMBER},
    ),
    Layout(
        name="scores",
        schema=1,
        arrays={
            "scores": ArrayRule(("float32",), (3,)),
            "column_sums": ArrayRule(("float32",), (2,)),
            "class_numbers": ArrayRule(("int64",), required=True),
            **string_arrays("class_names"),
            "top_classes": ArrayRule(("int32",), (2,)),
            "top_scores": ArrayRule(("float32",), (2,)),
        },
        shapes=shapes.shapes_of_scores,
        check=checks.check_scores,
        facts={"tests": (int,), "classes": (int,), "planes": (list,)},
        parameters={"method": (str,)},
    ),
    Layout(
        name="folds",
        schema=1,
        arrays={
            "scores": ArrayRule(("float32",), (3,), required=True),
            "rows": ArrayRule(("int64",), required=True),
            "fold": ArrayRule(("int32",), required=True),
            "labels": ArrayRule(("int32",), (2,), required=True),
            "class_numbers": ArrayRule(("int64",), required=True),
            **string_arrays("class_names"),
        },
        shapes=shapes.shapes_of_folds,
        check=checks.check_folds,
        facts={
            "rows": (int,),
            "classes": (int,),
            "planes": (list,),
            "folds": (int,),
            "singletons": (int,),
            "curve": (list,),
        },
        parameters={"method": (str,), "scheme": (str,), "folds": (int,), "seed": (int,)},
    ),
    Layout(
        name="audit",
        schema=1,
        arrays={
            "rows": ArrayRule(("int64",), required=True),
            "labels": ArrayRule(("int32",)),
            "predicted": ArrayRule(("int32",)),
            "confidence": ArrayRule(("float32",)),
            "predicted_confidence": ArrayRule(("float32",)),
            "doubt": ArrayRule(("float32",)),
            "class_numbers": ArrayRule(("int64",)),
            **string_arrays("class_names"),
            "group": ArrayRule(("int64",)),
            "representative": ArrayRule(("uint8",)),
            "matches": ArrayRule(("int64",)),
            "similarity": ArrayRule(("float32",)),
            "named": ArrayRule(("int64",)),
            "reasons": ArrayRule(("uint8",)),
        },
        shapes=shapes.shapes_of_audit,
        check=checks.check_audit,
        facts={"rows": (int,), "of": (dict,), "estimated": (dict,)},
        parameters={"part": (str,)},
    ),
    Layout(
        name="logreg",
        schema=1,
        arrays={
            "safetensors": ArrayRule(("uint8",), required=True),
            "class_numbers": ArrayRule(("int64",), required=True),
            **string_arrays("class_names"),
        },
        shapes=shapes.shapes_of_logreg,
        check=checks.check_logreg,
        facts={"classes": (int,), "width": (int,), "samples": (int,)},
    ),
    Layout(
        name="report",
        schema=1,
        arrays={
            "planes": ArrayRule(("int64",), (2,), required=True),
            "offsets": ArrayRule(("int64",), required=True),
            "keys": ArrayRule(("uint8",), (2,), required=True),
        },
        shapes=shapes.shapes_of_report,
        check=checks.check_report,
        facts={"tests": (dict,), "lines": (list,)},
        parameters={"draws": (int,), "n": (list,), "methods": (list,)},
    ),
)

LAYOUTS: dict[tuple[str, int], Layout] = {(layout.name, layout.schema): layout for layout in _ALL}


def require_possible(artifact: Artifact) -> None:
    """Raises Corrupt for an artifact whose manifest contradicts itself or its kind, whatever its digests say."""
    for _, what in problems_of_name(artifact.name, artifact.manifest.kind):
        raise Corrupt(f"{artifact.name}: {what}. Run again the command that made it.")
    for array, what in problems_of_manifest(artifact.manifest, LAYOUTS):
        place = f"{artifact.name}, array {array}" if array else artifact.name
        known = (artifact.manifest.kind, artifact.manifest.schema) in LAYOUTS
        raise Corrupt(f"{place}: {what}. {artifact.remedy if known else 'Use the version of mmdiff that wrote it.'}")


def require_sound(artifact: Artifact, advice: str) -> None:
    """Raises BadResult for an artifact that `verify` would call bad; it is not to be published."""
    for array, what in problems_of_content(artifact, LAYOUTS):
        place = f"array {array}: {what}" if array else what
        raise BadResult(f"{artifact.name}: not published, since its content is wrong ({place}). {advice}")
