"""The registry of artifact kinds: one entry declares the arrays, checks, inspection and export of a kind.

A new kind, or a new schema version of one, is declared here and specified in `docs/formats.md`. The packages below receive the
registry as an argument and do not import it.
"""

from __future__ import annotations

from mmdiff.evaluation.scores import score_statistics, what_scores
from mmdiff.experiment.results import experiment_statistics, what_experiment
from mmdiff.export.arrays import write_csr, write_npy, write_npz, write_safetensors
from mmdiff.export.predictions import write_predictions_csv, write_predictions_parquet
from mmdiff.export.tables import write_csv, write_parquet
from mmdiff.formats.store import checks
from mmdiff.formats.store.kinds import ArrayRule, ArrayWriter, Exports, Kind, string_arrays
from mmdiff.graph.statistics import graph_statistics, knn_statistics, what_graph, what_knn
from mmdiff.inspection.stage import (
    cell_statistics,
    descriptor_statistics,
    pca_statistics,
    what_cells,
    what_descriptors,
    what_pca,
)
from mmdiff.logreg.model import logreg_statistics, what_logreg

_ARRAY_FILES: dict[str, ArrayWriter] = {".npy": write_npy, ".npz": write_npz}

_ALL = (
    Kind(
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
        check=checks.check_descriptors,
        title=what_descriptors,
        statistics=descriptor_statistics,
        exports=Exports({**_ARRAY_FILES, ".parquet": write_parquet, ".csv": write_csv}, main="vectors"),
    ),
    Kind(
        name="pca",
        schema=1,
        arrays={
            "mean": ArrayRule(("float32",)),
            "components": ArrayRule(("float32",), (2,)),
            "explained_variance": ArrayRule(("float32",)),
        },
        check=checks.check_pca,
        title=what_pca,
        statistics=pca_statistics,
        exports=Exports(_ARRAY_FILES, main="components"),
    ),
    Kind(
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
        check=checks.check_cells,
        title=what_cells,
        statistics=cell_statistics,
        exports=Exports(_ARRAY_FILES),
    ),
    Kind(
        name="knn",
        schema=1,
        arrays={
            "neighbors": ArrayRule(("uint32",), (2,), required=True),
            "similarities": ArrayRule(("float32",), (2,), required=True),
        },
        check=checks.check_knn,
        title=what_knn,
        statistics=knn_statistics,
        exports=Exports(_ARRAY_FILES, main="neighbors"),
    ),
    Kind(
        name="graph",
        schema=1,
        arrays={
            "indptr": ArrayRule(("int64",), required=True),
            "indices": ArrayRule(("uint32",), required=True),
            "scale": ArrayRule(("float32",), required=True),
            "weights": ArrayRule(("float32", "float16")),
            "order": ArrayRule(("uint32",)),
        },
        check=checks.check_graph,
        title=what_graph,
        statistics=graph_statistics,
        exports=Exports({**_ARRAY_FILES, ".npz": write_csr}, main="indices", counted="scale"),
    ),
    Kind(
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
        check=checks.check_scores,
        title=what_scores,
        statistics=score_statistics,
        exports=Exports(
            _ARRAY_FILES, main="scores", tables={".parquet": write_predictions_parquet, ".csv": write_predictions_csv}
        ),
    ),
    Kind(
        name="logreg",
        schema=1,
        arrays={
            "safetensors": ArrayRule(("uint8",), required=True),
            "class_numbers": ArrayRule(("int64",), required=True),
            **string_arrays("class_names"),
        },
        check=checks.check_logreg,
        title=what_logreg,
        statistics=logreg_statistics,
        exports=Exports({".safetensors": write_safetensors, **_ARRAY_FILES}, main="safetensors", counted="class_numbers"),
    ),
    Kind(
        name="report",
        schema=1,
        arrays={
            "planes": ArrayRule(("int64",), (2,), required=True),
            "offsets": ArrayRule(("int64",), required=True),
            "keys": ArrayRule(("uint8",), (2,), required=True),
        },
        check=checks.check_report,
        title=what_experiment,
        statistics=experiment_statistics,
        exports=Exports(_ARRAY_FILES),
    ),
)

KINDS: dict[tuple[str, int], Kind] = {(kind.name, kind.schema): kind for kind in _ALL}
