"""mmdiff: out-of-core label diffusion over the k-nearest-neighbour graph of up to 10^8 embeddings.

Arrays in memory: `knn_graph`, `Graph`, `diffuse`, `evaluate`. On disk, in bounded memory: `open` gives a `Store`, whose methods
do what the commands do. Results are `Scores`; problems are the exceptions in `errors`.

The method is that of Douze, Szlam, Hariharan and Jegou, "Low-shot learning with large-scale diffusion", CVPR 2018.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmdiff import errors, sklearn, text
    from mmdiff.arrays import Graph, diffuse, evaluate, knn_graph
    from mmdiff.commit import COMMIT as __commit__  # noqa: N811
    from mmdiff.describers import train_describer
    from mmdiff.diffusion.options import DiffusionOptions
    from mmdiff.results import Scores
    from mmdiff.sklearn import KNNTransformer, LabelDiffusion
    from mmdiff.store import Store
    from mmdiff.store import open_store as open  # noqa: A004

__all__ = [
    "DiffusionOptions",
    "Graph",
    "KNNTransformer",
    "LabelDiffusion",
    "Scores",
    "Store",
    "__commit__",
    "__version__",
    "diffuse",
    "errors",
    "evaluate",
    "knn_graph",
    "open",
    "sklearn",
    "text",
    "train_describer",
]
__version__ = "0.1.0"

# Where each public name is defined. They are imported on first use, so that `mmdiff --help` is quick.
_HOMES = {
    "DiffusionOptions": "diffusion.options.DiffusionOptions",
    "Graph": "arrays.Graph",
    "KNNTransformer": "sklearn.KNNTransformer",
    "LabelDiffusion": "sklearn.LabelDiffusion",
    "Scores": "results.Scores",
    "Store": "store.Store",
    "__commit__": "commit.COMMIT",
    "diffuse": "arrays.diffuse",
    "errors": "errors",
    "evaluate": "arrays.evaluate",
    "knn_graph": "arrays.knn_graph",
    "open": "store.open_store",
    "sklearn": "sklearn",
    "text": "text",
    "train_describer": "describers.train_describer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mmdiff' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].rpartition(".")
    return getattr(import_module(f"mmdiff.{module}"), attribute) if module else import_module(f"mmdiff.{name}")


def __dir__() -> list[str]:
    return __all__
