"""An array of 6 GB over many chunk files is one ndarray, for less than 100 MB of memory.

The chunk files are hard links to a few real ones, which makes no difference to the map and saves disk space.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from mmdiff.formats.storage.arrays import ArraySpec
from mmdiff.formats.store.manifest import Recipe
from mmdiff.formats.store.publish import Publication

WIDTH = 256
ROWS_PER_CHUNK = 1 << 14
CHUNKS = 368
REAL_CHUNKS = 4

READ = """
import sys
from pathlib import Path
import numpy as np
from mmdiff.formats.store.store import Store

array = Store.open(Path(sys.argv[1])).open_artifact("descriptors/background").array("vectors")
assert isinstance(array, np.ndarray) and array.flags.c_contiguous and not array.flags.writeable
most, total = 0, 0.0
for start in range(0, len(array), 100_000):  # blocks that do not end where chunks do
    total += float(array[start : start + 100_000].sum(dtype=np.float64))
    status = Path("/proc/self/status").read_text()
    most = max(most, next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")))
print(array.nbytes, total, most / 1024)
"""


def test_six_gigabytes_read_as_one_array_in_less_than_100_megabytes(tmp_path: Path) -> None:
    name, recipe = "descriptors/background", Recipe("descriptors", 1, {}, {})
    shape = (CHUNKS * ROWS_PER_CHUNK - 5, WIDTH)
    rows = np.random.default_rng(0).integers(0, 9, (REAL_CHUNKS, ROWS_PER_CHUNK, WIDTH)).astype(np.float32)
    with Publication(tmp_path / "store", [name], "a test") as publication:
        draft = publication.draft(name, recipe)
        folder = tmp_path / "store" / "work" / "descriptors.background" / "object" / "vectors"
        writer = draft.array("vectors", shape, "float32", ROWS_PER_CHUNK)
        for chunk in range(REAL_CHUNKS):
            writer.write(chunk, rows[chunk])
        spec = writer.spec
        for chunk in range(REAL_CHUNKS, CHUNKS - 1):
            os.link(folder / spec.chunk_file(chunk % REAL_CHUNKS), folder / spec.chunk_file(chunk))
        writer = draft.array("vectors", shape, "float32", ROWS_PER_CHUNK)
        assert writer.missing == [CHUNKS - 1]
        writer.write(CHUNKS - 1, rows[0, :-5])
        publication.link({name: publication.publish(draft, {"rows": shape[0], "dropped": {}}, {"command": "a test"})})
    found = subprocess.run([sys.executable, "-c", READ, tmp_path / "store"], capture_output=True, text=True, check=True)
    size, total, megabytes = (float(word) for word in found.stdout.split())
    expected = sum(rows[chunk % REAL_CHUNKS].sum(dtype=np.float64) for chunk in range(CHUNKS - 1)) + rows[0, :-5].sum(
        dtype=np.float64
    )
    assert size == ArraySpec(shape, "float32", ROWS_PER_CHUNK).row_bytes * shape[0] > 6e9
    assert total == expected
    assert megabytes < 100
