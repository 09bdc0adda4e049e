"""The readers that are fuzzed: each with small valid inputs, and a function that reads an input as a command would.

A reader returns with a sane result or raises MmdiffError; anything else is a finding.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp
import zarr
from safetensors.numpy import save

from mmdiff.experiment.config import read_config
from mmdiff.formats.sources.base import MOST_WIDTH, Column
from mmdiff.formats.sources.columns.files import find_column
from mmdiff.formats.sources.columns.reading import read_class_names, read_column
from mmdiff.formats.sources.graphs import NeighbourFile, read_csr
from mmdiff.formats.sources.opening import open_source
from mmdiff.formats.sources.text import read_values
from mmdiff.formats.storage.arrays import ArraySpec
from mmdiff.formats.store.manifest import ArrayEntry, Manifest, attributes, group_json, parse_run, run_json
from mmdiff.formats.store.store import check_mark
from mmdiff.graph.import_graph import FileLists, MatrixFile
from mmdiff.labels.classes import encode
from tests.support.fuzz_mutations import Files

X = np.random.default_rng(0).standard_normal((12, 4)).astype(np.float32)
LABELS = np.arange(12) % 5
NAMES = ["cat", "dog", "", "äöü", "cat", "eel", "fox", "cat", "dog", "eel", "", "fox"]

# Values that are read of a matrix: a mutated header may promise any number that the file can hold.
_MOST_VALUES = 1 << 20


@dataclass(frozen=True)
class Target:
    """A reader; `read` gets the folder of the input and its files, `share` is its part of all cases."""

    name: str
    seeds: tuple[Files, ...]
    read: Callable[[Path, Files], None]
    share: float = 1.0
    in_memory: bool = False


Seeds = dict[str, tuple[Files, ...]]


def make_seeds() -> Seeds:
    """The valid inputs of all targets."""
    return {
        **_matrices(),
        **{f"column-{name}": seeds for name, seeds in _columns().items()},
        "class-names-txt": ({"x.txt": b"cat\ndog\n\xc3\xa4\n"},),
        "class-names-csv": ({"x.csv": b"number,name\n0,cat\n7,dog\n"}, {"x.csv": b'0,"a,b"\n1,c\n'}),
        "class-names-json": tuple({"x.json": json.dumps(names).encode()} for names in _NAMES),
        "values": ({"x.txt": b"0.5\n1e3\n-2\n"}, {"x.npy": _npy(np.arange(5.0))}),
        "graph-npz": tuple({"x.npz": _npz(matrix)} for matrix in _MATRICES),
        "graph-lists": ({"x.ivecs": _vecs(_LISTS)}, {"x.npy": _npy(_LISTS)}),
        "config": ({"c.toml": _CONFIG, "split.json": _SPLIT, "x.npy": b""},),
        "manifest": ({"zarr.json": _manifest()},),
        "run": ({"zarr.json": run_json({"seconds": 0.5, "versions": {"a": "1"}})},),
        "array-spec": ({"spec.json": json.dumps(_SPEC.to_json()).encode()},),
        "store-mark": ({"zarr.json": group_json({"mmdiff_store": {"schema": 1}})},),
    }


def targets(seeds: Seeds) -> dict[str, Target]:
    """All targets by name, with their seeds. Readers that take milliseconds get fewer cases."""
    readers: dict[str, tuple[Callable[[Path, Files], None], float]] = {
        "npy": (_read_matrix, 4.0),
        "vecs": (_read_matrix, 3.0),
        "bin": (_read_matrix, 3.0),
        "hdf5": (_read_matrix, 2.0),
        "parquet": (_read_matrix, 2.0),
        "zarr": (_read_matrix, 0.4),
        "clip": (_read_matrix, 0.5),
        "arrow": (_read_matrix, 2.0),
        "dataset": (_read_matrix, 1.0),
        "npz": (_read_matrix, 2.0),
        "safetensors": (_read_matrix, 2.0),
        "column-npy": (_read_labels, 3.0),
        "column-txt": (_read_labels, 3.0),
        "column-csv": (_read_labels, 3.0),
        "column-parquet": (_read_labels, 2.0),
        "column-arrow": (_read_labels, 2.0),
        "column-dataset": (_read_labels, 1.0),
        "column-npz": (_read_labels, 2.0),
        "column-safetensors": (_read_labels, 1.0),
        "class-names-txt": (_read_names, 0.5),
        "class-names-csv": (_read_names, 1.0),
        "class-names-json": (_read_names, 1.0),
        "values": (_read_vector, 0.5),
        "graph-npz": (_read_graph, 1.0),
        "graph-lists": (_read_lists, 1.0),
        "config": (_read_experiment, 2.0),
        "manifest": (_parse_manifest, 2.0),
        "run": (_parse_run, 1.0),
        "array-spec": (_parse_spec, 1.0),
        "store-mark": (_parse_mark, 0.5),
    }
    in_memory = ("manifest", "run", "array-spec", "store-mark")
    return {name: Target(name, seeds.get(name, ()), *readers[name], name in in_memory) for name in readers}


_NAMES: tuple[Any, ...] = (["cat", "dog"], {"0": "cat", "12": "dog"}, {"cat": 0, "dog": 3})
_MATRICES = (sp.csr_array(np.array([[0, 1.0, 2], [1, 0, 0], [2, 0, 5]])), sp.eye_array(5, dtype=np.float32, format="csr"))
_LISTS = np.array([[1, 2], [0, 2], [3, -1], [0, 1]], np.int32)
_SPEC = ArraySpec((20, 4), "float32", 256)
_SPLIT = json.dumps({"base_1": [0, 1], "novel_1": [2, 3], "others": [4]}).encode()
_CONFIG = b"""name = "small"
n = [1, 3]
draws = 2
seed = 1
dims = 16
backgrounds = ["none", "in-domain", "out-of-domain:40"]
[data]
train = "x.npy"
train_labels = "x.npy"
test = "x.npy"
test_labels = "x.npy"
split = "split.json"
[groups]
out_of_domain = "others"
[groups.validation]
base = "base_1"
novel = "novel_1"
[groups.test]
base = [0, 1]
novel = [2]
[[methods]]
name = "diffusion"
kind = "diffusion"
k = [5, 8]
iterations = 3
[[methods]]
name = "logreg"
kind = "logreg"
iterations = 20
tune.weight_decay = [1e-3, 0.01]
[[methods]]
name = "fusion"
kind = "fusion"
of = ["logreg", "diffusion"]
"""


def _npy(values: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def _npz(matrix: Any) -> bytes:
    stream = io.BytesIO()
    sp.save_npz(stream, matrix)
    return stream.getvalue()


def _vecs(rows: Any) -> bytes:
    return b"".join(np.int32(len(row)).tobytes() + row.tobytes() for row in rows)


def _bin(rows: Any) -> bytes:
    return b"".join((np.array(rows.shape, "<u4").tobytes(), rows.tobytes()))


def _parquet(**columns: Any) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream, row_group_size=8)
    return stream.getvalue()


def _arrow(as_stream: bool = True, compression: str | None = None, **columns: Any) -> bytes:
    stream, table = io.BytesIO(), pa.table(columns)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (pa.ipc.new_stream if as_stream else pa.ipc.new_file)(stream, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=8)
    return stream.getvalue()


def _dataset(**columns: Any) -> Files:
    state = {"_data_files": [{"filename": f"data-{part}.arrow"} for part in range(2)], "_split": "train"}
    info = {"features": {"label": {"names": ["a", "b", "c", "d", "e"], "_type": "ClassLabel"}}}
    return {
        "d/state.json": json.dumps(state).encode(),
        "d/dataset_info.json": json.dumps(info).encode(),
        **{f"d/data-{part}.arrow": _arrow(**columns) for part in range(2)},
    }


def _archive(compressed: bool, **arrays: Any) -> bytes:
    stream = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(stream, **arrays)
    return stream.getvalue()


def _hdf5(**options: Any) -> bytes:
    stream = io.BytesIO()
    with h5py.File(stream, "w", libver=options.pop("libver", "earliest")) as file:
        file.create_dataset("emb", data=X, **options)
        file["soft"] = h5py.SoftLink("/emb")
    return stream.getvalue()


def _zarr(**options: Any) -> Files:
    with TemporaryDirectory() as folder:
        zarr.create_array(Path(folder) / "x.zarr", data=X, **{"chunks": (8, 4), **options})
        root = Path(folder)
        return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def _manifest() -> bytes:
    arrays = {"vectors": ArrayEntry(_SPEC, (1,)), "labels": ArrayEntry(ArraySpec((20,), "int32", 1024), (2,))}
    inputs = {"source": {"source": "x.npy", "bytes": 320, "files": 1, "digest": "00"}, "pca": {"artifact": "a", "object": "b"}}
    return Manifest("descriptors", 1, {"role": "seeds", "dims": 4}, inputs, {"rows": 20}, arrays).zarr_json()


def _matrices() -> Seeds:
    lists = pa.array(X.tolist(), pa.list_(pa.float32()))
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(X.astype(np.float64).reshape(-1)), 4)
    clip = {
        "img_emb/img_emb_0.npy": _npy(X[:6]),
        "img_emb/img_emb_1.npy": _npy(X[6:]),
        "metadata/metadata_0.parquet": _parquet(image_path=[f"a{i}" for i in range(6)]),
        "metadata/metadata_1.parquet": _parquet(image_path=[f"b{i}" for i in range(6)]),
    }
    arrays = (X, np.asfortranarray(X.astype(">f8")), X.astype("f2"))
    return {
        "npy": tuple({"x.npy": _npy(values)} for values in arrays),
        "vecs": ({"x.fvecs": _vecs(X)}, {"x.bvecs": _vecs(X.astype("u1"))}),
        "bin": ({"x.fbin": _bin(X)}, {"x.u8bin": _bin(X.astype("u1"))}, {"x.f16bin": _bin(X.astype("f2"))}),
        "hdf5": (
            {"x.h5": _hdf5()},
            {"x.h5": _hdf5(chunks=(8, 4), compression="gzip")},
            {"x.h5": _hdf5(libver="latest", chunks=(4, 4))},
        ),
        "parquet": ({"x.parquet": _parquet(emb=lists, id=NAMES)}, {"x.parquet": _parquet(emb=fixed)}),
        "zarr": (_zarr(), _zarr(zarr_format=2), _zarr(chunks=(4, 2), shards=(8, 4)), _zarr(compressors=None)),
        "clip": (clip,),
        "arrow": (
            {"x.arrow": _arrow(emb=lists, id=NAMES)},
            {"x.arrow": _arrow(False, "lz4", label=pa.array(NAMES).dictionary_encode(), emb=fixed)},
            {"x.feather": _arrow(False, "zstd", pixels=[b"x"] * 12, emb=lists)},
        ),
        "dataset": (_dataset(emb=lists, label=LABELS),),
        "npz": tuple({"x.npz": _archive(compressed, emb=X, label=LABELS)} for compressed in (False, True)),
        "safetensors": ({"x.safetensors": save({"emb": X, "label": LABELS})}, {"x.safetensors": save({"emb": X.astype("f2")})}),
    }


def _columns() -> Seeds:
    lists = pa.array([[1], [2, 3], None, []] * 3, pa.list_(pa.int64()))
    coded = pa.array(NAMES).dictionary_encode()
    arrays = (
        LABELS,
        LABELS.astype("u8"),
        LABELS.reshape(4, 3),
        np.where(LABELS, LABELS, np.nan),
        np.array(NAMES),
        np.array(["a", "bc"] * 6, "S"),
    )
    tables: tuple[dict[str, Any], ...] = (
        {"label": LABELS},
        {"label": NAMES},
        {"label": lists},
        {"label": coded},
        {"label": LABELS.astype("u8"), "x": X[:, 0]},
    )
    return {
        "npy": tuple({"y.npy": _npy(values)} for values in arrays),
        "txt": ({"y.txt": "\n".join(NAMES).encode()}, {"y.txt": "\n".join(map(str, LABELS)).encode() + b"\n"}),
        "csv": ({"y.csv": b"id,label\n1,cat\n2,dog\n"}, {"y.csv": b'"a, b"\n\nc\n'}, {"y.csv": b"label\r\n1\r\n-1\r\n"}),
        "parquet": tuple({"y.parquet": _parquet(**table)} for table in tables),
        "arrow": (
            *({"y.arrow": _arrow(**table)} for table in tables),
            *({"y.feather": _arrow(False, "lz4", **table)} for table in tables),
        ),
        "dataset": (_dataset(label=LABELS), _dataset(label=lists)),
        "npz": tuple({"y.npz": _archive(number % 2 == 1, label=values)} for number, values in enumerate(arrays)),
        "safetensors": ({"y.safetensors": save({"label": LABELS})}, {"y.safetensors": save({"label": LABELS.astype("u1")})}),
    }


def _only(folder: Path, files: Files) -> Path:
    """The file of an input, or the folder that holds all its files."""
    tops = {name.partition("/")[0] for name in files}
    return (
        folder / tops.pop()
        if len(tops) == 1 and not any(name.startswith(("img_emb", "metadata")) for name in files)
        else folder
    )


def _read_matrix(folder: Path, files: Files) -> None:
    source = open_source([str(_only(folder, files))])
    assert source.rows > 0
    assert 0 < source.width <= MOST_WIDTH
    count = max(1, min(source.rows, _MOST_VALUES // source.width))
    for start in {0, source.rows - count}:
        rows = source.read(start, start + count)
        assert rows.shape == (count, source.width)
        assert rows.dtype == source.dtype
    ids = source.ids()
    assert ids is None or len(ids) == source.rows
    assert source.files


def _read_labels(folder: Path, files: Files) -> None:
    path = str(_only(folder, files))
    column: Column = read_column(path)
    assert len(column) > 0
    for name in find_column(f"{path}::label", ()).class_names() or {}:
        assert name >= 0
    indices, classes = encode(column, None, True, "labels")
    assert len(indices) == len(column)
    assert int(indices.max()) < max(1, len(classes))


def _read_names(folder: Path, files: Files) -> None:
    names = read_class_names(_only(folder, files))
    assert names
    assert np.array(sorted(names), np.int64)[0] >= 0
    assert all(name.encode() for name in names.values())


def _read_vector(folder: Path, files: Files) -> None:
    assert read_values(_only(folder, files)).ndim == 1


def _read_graph(folder: Path, files: Files) -> None:
    path = _only(folder, files)
    data, indices, _, _ = read_csr(path)
    assert len(data) == len(indices)
    assert MatrixFile(path).nodes > 0


def _read_lists(folder: Path, files: Files) -> None:
    file = NeighbourFile(_only(folder, files))
    neighbors, _ = FileLists(file, None, "distance").block(0, min(file.rows, 1000))
    assert neighbors.shape[1] == file.width


def _read_experiment(folder: Path, files: Files) -> None:
    del files
    config = read_config(folder / "c.toml")
    assert config.groups
    json.dumps(config.parameters())


def _parse_manifest(folder: Path, files: Files) -> None:
    del folder
    text = files["zarr.json"]
    manifest = Manifest.parse(text, "artifact")
    assert manifest.bytes_on_disk >= 0


def _parse_run(folder: Path, files: Files) -> None:
    del folder
    assert run_json(parse_run(files["zarr.json"], "artifact")) == files["zarr.json"]


def _parse_spec(folder: Path, files: Files) -> None:
    del folder
    # A manifest hands over what it found in its JSON.
    document = attributes(b'{"attributes": {"spec": ' + files["spec.json"] + b"}}", "artifact").get("spec")
    spec = ArraySpec.from_json(document, "array")  # type: ignore[arg-type]
    assert spec.bytes_on_disk >= 0
    assert spec.chunk_file(0)


def _parse_mark(folder: Path, files: Files) -> None:
    del folder
    check_mark(files["zarr.json"], "store")
