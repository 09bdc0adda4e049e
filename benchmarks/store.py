"""The store against `cp` for importing, and against zarr for checking and reading.

All figures come from one file of float32 rows of 256 dimensions, which needs no PCA.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.measure import Figure, Watched, best_of, watch

WIDTH = 256
RUNS = 4
_BLOCK_ROWS = 1 << 16

_SUM_MAPPED = """
import sys
from pathlib import Path
from mmdiff.formats.store.store import Store
array = Store.open(Path(sys.argv[1])).open_artifact("descriptors/background").array("vectors")
print(sum(float(array[i : i + 65536].sum(dtype="float64")) for i in range(0, len(array), 65536)))
"""
_SUM_WITH_ZARR = """
import sys, zarr
array = zarr.open_group(sys.argv[1], mode="r")["descriptors/background/vectors"]
step = array.chunks[0]
print(sum(float(array[i : i + step].sum(dtype="float64")) for i in range(0, array.shape[0], step)))
"""


def figures(folder: Path, gigabytes: float) -> list[Figure]:
    """Import, verification and reading against their peers."""
    source, copy, store = folder / "rows.npy", folder / "copy.npy", folder / "store"
    _generate(source, gigabytes)
    size = source.stat().st_size

    def start_anew() -> None:
        shutil.rmtree(store, ignore_errors=True)
        copy.unlink(missing_ok=True)
        subprocess.run(["sync"], check=True)

    mmdiff = Path(sys.executable).parent / "mmdiff"
    copied = best_of(RUNS, lambda: watch(["sh", "-c", f"cp '{source}' '{copy}' && sync '{copy}'"]), start_anew)
    imported = best_of(RUNS, lambda: watch([mmdiff, "import", source, "--role", "background", "--store", store]), start_anew)
    verified = min(json.loads(watch([mmdiff, "verify", "--store", store, "--json"]).output)["seconds"] for _ in range(RUNS))
    mapped = best_of(RUNS, lambda: watch([sys.executable, "-c", _SUM_MAPPED, store]))
    with_zarr = best_of(RUNS, lambda: watch([sys.executable, "-c", _SUM_WITH_ZARR, store]))
    _same_sum(mapped, with_zarr)
    gb = size / 1e9
    return [
        Figure(
            "import",
            f"import {gb:.1f} GB of float32 `.npy`",
            gb / imported.seconds,
            "`cp` and `sync`",
            gb / copied.seconds,
            "GB/s",
        ),
        Figure("verify", "check every byte", gb / verified, "read all with zarr", gb / with_zarr.seconds, "GB/s"),
        Figure("read", "sum of all values", gb / mapped.seconds, "zarr, chunk by chunk", gb / with_zarr.seconds, "GB/s"),
        Figure(
            "memory",
            "memory for that sum",
            mapped.megabytes,
            "zarr, chunk by chunk",
            with_zarr.megabytes,
            "MB",
            more_is_better=False,
        ),
        Figure(
            "import_memory",
            "memory of the import",
            imported.megabytes,
            "the file itself",
            size / 1e6,
            "MB",
            more_is_better=False,
        ),
    ]


def _same_sum(one: Watched, other: Watched) -> None:
    np.testing.assert_allclose(float(one.output), float(other.output), rtol=1e-9)


def _generate(file: Path, gigabytes: float) -> None:
    """Writes a `.npy` file of rows that all differ."""
    rows = int(gigabytes * 1e9) // (4 * WIDTH) // _BLOCK_ROWS * _BLOCK_ROWS
    block = np.random.default_rng(0).standard_normal((_BLOCK_ROWS, WIDTH), dtype=np.float32)
    with file.open("wb") as stream:
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, WIDTH)}
        np.lib.format.write_array_header_1_0(stream, header)
        for start in range(0, rows, _BLOCK_ROWS):
            (block + np.float32(start / rows)).tofile(stream)
