"""Scores and models as other tools see them: exported, inspected, verified."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from mmdiff.evaluation.metrics import predictions, ranks_of
from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.store.store import Store
from mmdiff.formats.store.tensors import tensor_shapes
from mmdiff.labels.classes import Classes
from mmdiff.logreg.stage import Request as LogregRequest
from mmdiff.logreg.stage import logreg
from tests.support.scored import (
    CLASSES,
    descriptors,
    diffused,
    import_role,
    make_scored,
    publish_diffusion,
    refused,
    run,
    run_json,
)
from tests.support.stores import problems, publish, recipe

NAMES = [f"kind, {i}" for i in range(CLASSES)]


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    """Test points with ids, some without labels and some of a class that no seed has; seeds with class names."""
    labels = np.arange(40) % CLASSES
    (tmp_path / "names.txt").write_text("".join(f"{name}\n" for name in NAMES))
    import_role(tmp_path, "seeds", descriptors(labels, 1), labels, no_background=True, class_names=str(tmp_path / "names.txt"))
    labels = np.arange(50) % (CLASSES + 1)
    labels[::9] = -1
    (tmp_path / "ids.txt").write_text("".join(f"img-{i}\n" for i in range(50)))
    import_role(tmp_path, "test", descriptors(np.maximum(labels, 0), 2), labels, ids=str(tmp_path / "ids.txt"))
    store = Store.open(tmp_path / "store")
    logreg(store.path, LogregRequest(iterations=60))
    publish_diffusion(store, diffused(store))
    return tmp_path


def expected_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    store = Store.open(folder / "store")
    plane = store.open_artifact(name).array("scores")[-1]
    test = store.open_artifact("descriptors/test")
    numbers, labels = test.array("class_numbers"), test.array("labels")
    rows = []
    for i, (row, label) in enumerate(zip(plane, labels, strict=True)):
        number = None if label == -1 else int(numbers[label])
        known = number is not None and number < CLASSES
        best = int(row.argmax()) if (row == row.max()).sum() == 1 else None
        rows.append(
            {
                "id": f"img-{i}",
                "label": None if number is None else NAMES[number] if known else str(number),
                "predicted": None if best is None else NAMES[best],
                "score": float(row.max()),
                "margin": float(np.sort(row)[-1] - np.sort(row)[-2]),
                "rank": int((row >= row[number]).sum()) if known else None,
            }
        )
    return rows


@pytest.mark.parametrize("name", ["scores/diffusion", "scores/logreg"])
def test_predictions_are_exported_with_the_users_ids_and_class_names(scored: Path, name: str) -> None:
    shown = run_json(scored, f"export {name} {scored / 'out.parquet'}")
    assert (shown["rows"], shown["format"]) == (50, "parquet")
    found = pq.read_table(scored / "out.parquet").to_pylist()
    expected = expected_rows(scored, name)
    for row, right in zip(found, expected, strict=True):
        assert {key: row[key] for key in ("id", "label", "predicted", "rank")} == {
            key: right[key] for key in ("id", "label", "predicted", "rank")
        }
        assert (row["score"], row["margin"]) == pytest.approx((right["score"], right["margin"]), rel=1e-5)
    run_json(scored, f"export {name} {scored / 'out.csv'}")
    with (scored / "out.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    for line, row in zip(lines, found, strict=True):
        assert [line[key] for key in ("id", "label", "predicted", "rank")] == [
            "" if row[key] is None else str(row[key]) for key in ("id", "label", "predicted", "rank")
        ]
        assert np.float32(line["score"]) == np.float32(row["score"])


def test_predictions_without_ids_and_labels_have_row_numbers(tmp_path: Path) -> None:
    store = make_scored(tmp_path, 20, 10)
    import_role(tmp_path, "test", descriptors(np.arange(10) % CLASSES, 5), None)
    logreg(store.path, LogregRequest(iterations=5))
    run_json(tmp_path, f"export scores/logreg {tmp_path / 'out.parquet'}")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["id"].to_pylist() == list(range(10))
    assert table["label"].to_pylist() == table["rank"].to_pylist() == [None] * 10


def test_scores_are_exported_as_arrays_too(scored: Path) -> None:
    scores = Store.open(scored / "store").open_artifact("scores/diffusion").array("scores")
    run_json(scored, f"export scores/diffusion {scored / 'out.npy'}")
    np.testing.assert_array_equal(np.load(scored / "out.npy"), scores)
    assert run_json(scored, f"export scores/diffusion {scored / 'out.npz'}")["rows"] == 50
    with np.load(scored / "out.npz") as read:
        np.testing.assert_array_equal(read["scores"], scores)
        assert len(read["class_numbers"]) == CLASSES


def test_a_model_is_exported_as_the_safetensors_file_it_is(scored: Path) -> None:
    assert run_json(scored, f"export models/logreg {scored / 'm.safetensors'}")["rows"] == CLASSES
    from safetensors.numpy import load_file
    from safetensors.torch import load_file as load_torch_file

    model, same = load_file(scored / "m.safetensors"), load_torch_file(scored / "m.safetensors")
    raw = Store.open(scored / "store").open_artifact("descriptors/test").array("raw")
    logits: NDArray[Any] = raw @ model["weight"].T + model["bias"]
    scores = Store.open(scored / "store").open_artifact("scores/logreg").array("scores")[0]
    assert (logits.argmax(axis=1) == scores.argmax(axis=1)).all()
    assert same["class_numbers"].tolist() == list(range(CLASSES))


REFUSED = {
    "export scores/logreg x.txt": "x.txt: scores/logreg can be exported to .npy, .npz, .parquet, .csv. "
    "Choose a file with one of these endings.",
    "export models/logreg x.csv": "x.csv: models/logreg can be exported to .safetensors, .npy, .npz. "
    "Choose a file with one of these endings.",
    "export scores/logreg x.csv --array scores": "--array scores: a .csv file of scores/logreg is no array. "
    "Export it to .npy instead.",
}


@pytest.mark.parametrize(("command", "told"), REFUSED.items(), ids=REFUSED.keys())
def test_what_cannot_be_exported_is_told(command: str, told: str, scored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(scored)
    assert refused(scored, command) == told
    assert not list(scored.glob("x.*"))


def test_predictions_of_other_test_points_are_refused(scored: Path) -> None:
    labels = np.arange(50) % CLASSES
    import_role(scored, "test", descriptors(labels, 9), labels)
    told = refused(scored, f"export scores/diffusion {scored / 'out.csv'}")
    assert told == (
        "scores/diffusion: descriptors/test has changed since, so the ids belong to other points. Run again: mmdiff diffuse"
    )
    assert not (scored / "out.csv").exists()


def test_inspect_tells_what_scores_and_models_are(scored: Path) -> None:
    run_json(scored, "fuse --tune")
    lines = {line["artifact"]: line["what"] for line in run_json(scored, "inspect")["artifacts"]}
    assert lines["scores/diffusion"] == "diffusion, 50 test points x 6 classes, 3 iterations"
    assert lines["scores/logreg"] == "logreg, 50 test points x 6 classes"
    assert lines["scores/fusion"].startswith("fusion, 50 test points x 6 classes, weight ")
    assert lines["models/logreg"] == "6 classes of 10 values, from 40 seeds"
    statistics = run_json(scored, "inspect scores/diffusion")["statistics"]
    plane = Store.open(scored / "store").open_artifact("scores/diffusion").array("scores")[-1]
    best, margin = predictions(plane)
    assert statistics["undecided"] == pytest.approx((best == -1).mean())
    assert statistics["margin_of_best_over_second"]["median"] == pytest.approx(np.median(margin))
    assert statistics["classes_never_predicted"] == CLASSES - len(set(best.tolist()) - {-1})
    model = run_json(scored, "inspect models/logreg")
    assert model["statistics"]["weight_norms"]["min"] > 0
    shown = run(scored, "inspect models/logreg").stdout
    assert "0.0003" in shown
    assert "21 entries, shown by --json" in run(scored, "inspect scores/fusion").stdout


def test_ranks_of_the_export_are_those_of_the_evaluation(scored: Path) -> None:
    store = Store.open(scored / "store")
    test, scores = store.open_artifact("descriptors/test"), store.open_artifact("scores/logreg")
    columns = np.append(Classes.of(test).columns_in(Classes.of(scores)), -1)
    ranks = ranks_of(scores.array("scores")[0], columns[test.array("labels")][:, None])
    labelled = test.array("labels") != -1
    report = run_json(scored, "evaluate logreg")["scores"][0]["iterations"][0]["all"]
    assert report["top1"]["accuracy"] == pytest.approx((ranks[labelled] <= 1).mean(), abs=1e-6)


def a_model(**changed: Any) -> dict[str, NDArray[Any]]:
    from safetensors.numpy import save

    tensors: dict[str, Any] = {
        "weight": np.ones((3, 4), np.float32),
        "bias": np.ones(3, np.float32),
        "class_numbers": np.arange(3),
    } | changed
    file = save({name: tensor for name, tensor in tensors.items() if tensor is not None})
    return {"safetensors": np.frombuffer(file, np.uint8), "class_numbers": np.arange(3)}


def with_header(change: Callable[[dict[str, Any]], None]) -> dict[str, NDArray[Any]]:
    """A model whose header is forged."""
    model = a_model()
    file = model["safetensors"].tobytes()
    length = int.from_bytes(file[:8], "little")
    header = json.loads(file[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    forged = len(text).to_bytes(8, "little") + text + file[8 + length :]
    return model | {"safetensors": np.frombuffer(forged, np.uint8)}


MODEL_FACTS = {"width": 4, "classes": 3, "samples": 5}
BAD_MODELS = {
    "another width": a_model(weight=np.ones((3, 5), np.float32)),
    "too few classes": a_model(bias=np.ones(2, np.float32)),
    "no bias": a_model(bias=None),
    "a tensor too many": a_model(more=np.ones(1, np.float32)),
    "cut short": a_model() | {"safetensors": a_model()["safetensors"][:-1]},
    "no header": a_model() | {"safetensors": np.zeros(100, np.uint8)},
    "nothing": a_model() | {"safetensors": np.zeros(0, np.uint8)},
    "offsets that are fractions": with_header(lambda header: header["weight"].update(data_offsets=[0.0, 48.0])),
    "a shape of words": with_header(lambda header: header["bias"].update(shape=["x", 10**19])),
    "a shape of many words": with_header(lambda header: header["bias"].update(shape=["x", 10**12])),
}


@pytest.mark.parametrize("arrays", BAD_MODELS.values(), ids=BAD_MODELS.keys())
def test_verify_finds_a_model_that_is_none(arrays: dict[str, NDArray[Any]], tmp_path: Path) -> None:
    publish(tmp_path / "store", "models/logreg", arrays, recipe("logreg"), MODEL_FACTS)
    found = problems(Store.open(tmp_path / "store"))
    assert [(problem.array, problem.what) for problem in found] == [
        ("safetensors", "not a file of the tensors weight, bias, class_numbers for 3 classes and 4 values")
    ]


def test_verify_finds_weights_that_are_not_finite(tmp_path: Path) -> None:
    arrays = a_model(weight=np.full((3, 4), np.nan, np.float32))
    publish(tmp_path / "store", "models/logreg", arrays, recipe("logreg"), MODEL_FACTS)
    assert [problem.what for problem in problems(Store.open(tmp_path / "store"))] == ["weights that are not finite"]


def test_verify_finds_nothing_wrong_with_a_good_model(tmp_path: Path) -> None:
    publish(tmp_path / "store", "models/logreg", a_model(), recipe("logreg"), MODEL_FACTS)
    assert problems(Store.open(tmp_path / "store")) == []


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"[" * 200_000,
        b'{"a": 1}',
        b'{"a": {}}',
        b"\xff",
        b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,-4]}}',
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0.0,8.0]}}',
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[false,8]}}',
        b'{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}',
        b'{"a":{"dtype":"F32","shape":["x",1000000000000],"data_offsets":[0,8]}}',
        b'{"a":{"dtype":"F32","shape":["x",10000000000000000000],"data_offsets":[0,8]}}',
        b'{"a":{"dtype":"F32","shape":[0,10000000000000000000],"data_offsets":[0,0]}}',
        b'{"a":{"dtype":"F32","shape":[0' + b",9" * 200_000 + b'],"data_offsets":[0,0]}}',
        b'{"a":{"dtype":["F32"],"shape":[2],"data_offsets":[0,8]}}',
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[14],"data_offsets":[8,64]}}',
    ],
)
def test_headers_that_lie_are_refused(header: bytes) -> None:
    with pytest.raises(UnreadableSource):
        tensor_shapes(len(header).to_bytes(8, "little") + header + bytes(64))
