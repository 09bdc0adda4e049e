"""Optional dependencies, imported on first use. A missing one is reported with the line that installs it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mmdiff.formats.errors import MissingExtra, Part

# The extra of mmdiff that installs each top-level module.
EXTRAS = {
    "pyarrow": "files",
    "h5py": "files",
    "faiss": "cpu",
    "torch": "torch",
    "safetensors": "torch",
    "distributed": "dask",
    "dask": "dask",
    "fsspec": "s3",
    "s3fs": "s3",
    "PIL": "report",
    "sklearn": "sklearn",
    "timm": "networks",
    "open_clip": "networks",
    "transformers": "networks",
    "starlette": "web",
    "uvicorn": "web",
}
# Modules whose package has another name.
_PACKAGES = {"PIL": "Pillow", "sklearn": "scikit-learn", "open_clip": "open_clip_torch"}


def load(module: str, purpose: Part, extra: str | None = None) -> Any:
    """Imports an optional module; `purpose` begins the message where it is not installed: "writing .parquet needs ...".

    `extra` is the one to install, where another one than that of the module has all that is needed.
    """
    top_level = module.partition(".")[0]
    try:
        # A submodule that is loaded already would hide that its package is missing.
        import_module(top_level)
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(_PACKAGES.get(top_level, top_level), extra or EXTRAS[top_level], purpose) from error
