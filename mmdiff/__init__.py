"""mmdiff: out-of-core label diffusion over the k-nearest-neighbour graph of up to 10^8 embeddings.

`mmdiff` computes, `mmdiff.formats` knows the disk, `mmdiff.cli` talks to people; imports point from cli to mmdiff to formats.
The method is that of Douze, Szlam, Hariharan and Jegou, "Low-shot learning with large-scale diffusion", CVPR 2018.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmdiff.arrays import Graph
    from mmdiff.diffusion.api import diffuse

__all__ = ["Graph", "__version__", "diffuse"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What needs numpy is imported when it is asked for, so that `mmdiff --help` is quick."""
    if name == "Graph":
        from mmdiff.arrays import Graph

        return Graph
    if name == "diffuse":
        from mmdiff.diffusion.api import diffuse

        return diffuse
    raise AttributeError(f"module 'mmdiff' has no attribute {name!r}")
