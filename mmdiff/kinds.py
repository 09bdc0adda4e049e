"""The registry of artifact kinds: one entry declares the inspection and export of a kind, and names its layout on disk.

A new kind, or a new schema version of one, is specified in `docs/formats.md`; its arrays, facts and checks are declared in
`formats/store/layouts.py`, and the rest here. The packages below receive the registry as an argument and do not import it.
"""

from __future__ import annotations

from mmdiff.auditing.artifact import audit_statistics, what_audit
from mmdiff.evaluation.scores import score_statistics, what_scores
from mmdiff.experiment.results import experiment_statistics, what_experiment
from mmdiff.export.arrays import write_csr, write_npy, write_npz, write_safetensors
from mmdiff.export.atlas import write_atlas
from mmdiff.export.faiss_files import write_faiss
from mmdiff.export.graphs import write_csr_of, write_edge_index, write_edge_table
from mmdiff.export.predictions import write_predictions_csv, write_predictions_parquet
from mmdiff.export.sisap import write_sisap
from mmdiff.export.tables import write_csv, write_parquet
from mmdiff.formats.store.kinds import ArrayWriter, Exports, Kind, NamedFormat
from mmdiff.formats.store.layouts import LAYOUTS
from mmdiff.graph.statistics import graph_statistics, knn_statistics, what_graph, what_knn
from mmdiff.inspection.stage import (
    cell_statistics,
    descriptor_statistics,
    pca_statistics,
    what_cells,
    what_descriptors,
    what_pca,
)
from mmdiff.labels.journal import journal_statistics, what_labels
from mmdiff.logreg.model import logreg_statistics, what_logreg
from mmdiff.validation.held_out import fold_statistics, what_folds

_ARRAY_FILES: dict[str, ArrayWriter] = {".npy": write_npy, ".npz": write_npz}

_GRAPH_FILES = {
    "csr": NamedFormat((".npz",), write_csr_of),
    "edges": NamedFormat((".parquet", ".csv"), write_edge_table, ("self_loops",)),
    "edge-index": NamedFormat((".safetensors", ".npz"), write_edge_index, ("self_loops",)),
}
_LIST_FILES = {
    **_GRAPH_FILES,
    "csr": NamedFormat((".npz",), write_csr_of, ("self_loops",)),
    "sisap": NamedFormat((".h5", ".hdf5"), write_sisap, ("self_loops",)),
    "embedding-atlas": NamedFormat((".parquet",), write_atlas, ("self_loops", "projection")),
}
_INDEX_FILES = {"faiss": NamedFormat((".faiss", ".index"), write_faiss)}

_ALL = (
    Kind(
        **vars(LAYOUTS["descriptors", 1]),
        title=what_descriptors,
        statistics=descriptor_statistics,
        exports=Exports({**_ARRAY_FILES, ".parquet": write_parquet, ".csv": write_csv}, main="vectors", formats=_INDEX_FILES),
    ),
    Kind(
        **vars(LAYOUTS["labels", 1]),
        title=what_labels,
        statistics=journal_statistics,
        exports=Exports(_ARRAY_FILES),
    ),
    Kind(
        **vars(LAYOUTS["pca", 1]),
        title=what_pca,
        statistics=pca_statistics,
        exports=Exports(_ARRAY_FILES, main="components"),
    ),
    *(
        Kind(
            **vars(LAYOUTS["cells", schema]),
            title=what_cells,
            statistics=cell_statistics,
            exports=Exports(_ARRAY_FILES, formats=_INDEX_FILES if schema == 2 else {}),
        )
        for schema in (1, 2)
    ),
    *(
        Kind(
            **vars(LAYOUTS["knn", schema]),
            title=what_knn,
            statistics=knn_statistics,
            exports=Exports(_ARRAY_FILES, main="neighbors", formats=_LIST_FILES),
        )
        for schema in (1, 2)
    ),
    Kind(
        **vars(LAYOUTS["graph", 1]),
        title=what_graph,
        statistics=graph_statistics,
        exports=Exports({**_ARRAY_FILES, ".npz": write_csr}, main="indices", counted="scale", formats=_GRAPH_FILES),
    ),
    Kind(
        **vars(LAYOUTS["scores", 1]),
        title=what_scores,
        statistics=score_statistics,
        exports=Exports(
            _ARRAY_FILES, main="scores", tables={".parquet": write_predictions_parquet, ".csv": write_predictions_csv}
        ),
    ),
    Kind(
        **vars(LAYOUTS["folds", 1]),
        title=what_folds,
        statistics=fold_statistics,
        exports=Exports(_ARRAY_FILES, main="scores", counted="rows"),
    ),
    Kind(
        **vars(LAYOUTS["audit", 1]),
        title=what_audit,
        statistics=audit_statistics,
        exports=Exports(_ARRAY_FILES, main="rows"),
    ),
    Kind(
        **vars(LAYOUTS["logreg", 1]),
        title=what_logreg,
        statistics=logreg_statistics,
        exports=Exports({".safetensors": write_safetensors, **_ARRAY_FILES}, main="safetensors", counted="class_numbers"),
    ),
    Kind(
        **vars(LAYOUTS["report", 1]),
        title=what_experiment,
        statistics=experiment_statistics,
        exports=Exports(_ARRAY_FILES),
    ),
)

KINDS: dict[tuple[str, int], Kind] = {(kind.name, kind.schema): kind for kind in _ALL}
