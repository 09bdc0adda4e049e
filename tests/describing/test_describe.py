"""`mmdiff describe`: images of every kind of place become the descriptors that the network gives, whatever interrupts it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from typer.testing import CliRunner

import mmdiff
from mmdiff.cli import app
from mmdiff.describing import stage
from mmdiff.describing.resnet import Shape, build
from mmdiff.errors import BadOption, BadRow, DuplicateIds, UnreadableSource
from tests.support.images import (
    SIDE,
    TINY,
    interrupted_after,
    picture,
    save_exported,
    save_pictures,
    save_resnet,
    save_script,
    save_shard,
)
from tests.support.paths import ROOT
from tests.support.stores import tree

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
CHECKPOINT = Path("store", "work", "descriptors.background-features", "checkpoint")
SMALL = {"resize": SIDE, "crop": SIDE, "batch_size": 4}


class Colours(torch.nn.Module):
    """The mean colours of an image, and something that depends on every pixel."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.cat([images.mean((2, 3)), images[:, 0, :, 0]], 1)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_exported(tmp_path_factory.mktemp("model") / "colours.pt2", Colours())


def described(store: mmdiff.Store, role: str = "background") -> np.ndarray:
    return np.asarray(store[f"descriptors/{role}"]["vectors"])


def naive(module: torch.nn.Module, images: list[Image.Image]) -> np.ndarray:
    """Descriptors image by image: resized and cut by Pillow, standardised in numpy, of unit length."""
    rows = []
    for image in images:
        short = min(image.size)
        left, top = ((length - short) / 2 for length in image.size)
        square = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=(left, top, left + short, top + short))
        values = (np.asarray(square, np.float64) / 255 - MEAN) / STD
        with torch.inference_mode():
            row = module(torch.from_numpy(values.transpose(2, 0, 1)).float()[None])[0].double().numpy()
        rows.append(row / np.linalg.norm(row))
    return np.array(rows)


def test_descriptors_are_the_output_of_the_network_with_paths_as_ids_and_folders_as_labels(tmp_path: Path) -> None:
    images = save_pictures(tmp_path / "images")
    picture(7).save(images / "outside.png")
    (images / "notes.txt").write_text("no image")
    store = mmdiff.open(tmp_path / "store", create=True)
    made = store.describe(images, model=save_resnet(tmp_path / "tiny.safetensors"), labels_from_folders=True, **SMALL)
    assert made["shape"] == [11, TINY.features]
    assert (made["images"], made["described"], made["classes"]) == (11, 11, 2)
    artifact = store["descriptors/background"]
    names = [f"{name}/{i}.png" for name in "ab" for i in range(5)] + ["outside.png"]
    assert list(artifact.strings("ids")) == names
    assert artifact.array("labels").tolist() == [0] * 5 + [1] * 5 + [-1]
    assert list(artifact.strings("class_names")) == ["a", "b"]
    module = build(TINY).eval()
    module.load_state_dict(safetensors.torch.load_file(tmp_path / "tiny.safetensors"))
    expected = naive(module, [Image.open(images / name) for name in names])
    np.testing.assert_allclose(described(store), expected, atol=2e-5)
    assert store.verify()["problems"] == []


def test_torchscript_and_exported_programs_and_a_fixed_number_of_images_describe_alike(tmp_path: Path, exported: Path) -> None:
    images = save_pictures(tmp_path / "images", each=3)
    models = [exported, save_script(tmp_path / "m.ts", Colours()), save_exported(tmp_path / "four.pt2", Colours(), batch=4)]
    rows = []
    for number, model in enumerate(models):
        store = mmdiff.open(tmp_path / f"store{number}", create=True)
        store.describe(images, model=model, **SMALL)
        rows.append(described(store))
    expected = naive(Colours(), [Image.open(images / f"{name}/{i}.png") for name in "ab" for i in range(3)])
    for found in rows:
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(("shape", "name"), [((2, 2, 2, 2), "resnet18"), ((3, 4, 6, 3), "resnet50")])
def test_weights_with_the_names_of_torchvision_give_512_and_2048_values(
    tmp_path: Path, shape: tuple[int, int, int, int], name: str
) -> None:
    kind = Shape(shape, name == "resnet50", 64, 7)
    assert (kind.features, kind.name) == ((512, "ResNet-18") if name == "resnet18" else (2048, "ResNet-50"))
    with torch.device("meta"):
        names = build(kind).state_dict()
    # The numbers of parameters that torchvision gives, without those of the last layer.
    parameters = sum(value.numel() for key, value in names.items() if not key.endswith(("mean", "var", "tracked")))
    assert parameters == {"resnet18": 11_689_512 - 513_000, "resnet50": 25_557_032 - 2_049_000}[name]
    assert "layer2.0.downsample.0.weight" in names
    if name == "resnet18":
        save_resnet(tmp_path / "r.safetensors", kind, **{"fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)})
        store = mmdiff.open(tmp_path / "store", create=True)
        picture(1).save(tmp_path / "1.png")
        made = store.describe(tmp_path / "1.png", model=tmp_path / "r.safetensors", crop=32, dims=512)
        assert (made["shape"], made["model"]["kind"]) == ([1, 512], "ResNet-18")


def test_a_list_a_pattern_and_shards_name_the_same_images(tmp_path: Path, exported: Path) -> None:
    folder = tmp_path / "flat"
    folder.mkdir()
    for i in range(12):
        picture(i).save(folder / f"{i:05}.png")
    (tmp_path / "list.txt").write_text("".join(f"flat/{i:05}.png\n" for i in range(12)))
    save_shard(tmp_path / "s-00.tar", 7)
    save_shard(tmp_path / "s-01.tar", 5, first=7)
    rows, ids = {}, {}
    for place in ("flat", "flat/*.png", "list.txt", "s-*.tar", "s-{00..01}.tar"):
        store = mmdiff.open(tmp_path / f"store{len(rows)}", create=True)
        store.describe(str(tmp_path / place), model=exported, **SMALL)
        rows[place], ids[place] = described(store), list(store["descriptors/background"].strings("ids"))
    for found in rows.values():
        np.testing.assert_array_equal(found, rows["flat"])
    assert ids["flat"][:2] == ids["flat/*.png"][:2] == ["00000.png", "00001.png"]
    assert ids["list.txt"][0] == "flat/00000.png"
    assert (ids["s-*.tar"][0], ids["s-*.tar"][-1]) == ("s-00/00000.png", "s-01/00011.png")


def test_seeds_and_test_images_share_the_space_and_later_images_are_appended(tmp_path: Path, exported: Path) -> None:
    store = mmdiff.open(tmp_path / "store", create=True)
    for role, each in (("background", 5), ("seeds", 2), ("test", 3)):
        save_pictures(tmp_path / role, each=each)
        # The ids of seeds and test images must not be those of the collection.
        store.describe(
            tmp_path / role, model=exported, role=role, prefix=f"{role}/", labels_from_folders=role == "seeds", **SMALL
        )
    assert store["descriptors/test"].strings("ids")[0] == "test/a/0.png"
    save_pictures(tmp_path / "more", "cd")
    added = store.describe(tmp_path / "more", model=exported, append=True, **SMALL)
    assert (added["artifact"], added["added"]) == ("descriptors/appended", 10)
    assert store.describe(tmp_path / "more", model=exported, append=True, **SMALL)["reused"]
    assert described(store, "appended").shape == (10, 19)


def test_python_and_the_command_make_the_same_bytes_and_a_second_run_does_nothing(tmp_path: Path, exported: Path) -> None:
    images = save_pictures(tmp_path / "images")
    (images / "a" / "empty.png").write_bytes(b"")
    arguments = ["describe", str(images), "--model", str(exported), "--crop", "16", "--on-bad", "drop", "--batch-size", "4"]
    outcome = CliRunner().invoke(app, [*arguments, "--store", str(tmp_path / "cli"), "--json"])
    assert outcome.exit_code == 0, outcome.stderr
    summary = json.loads(outcome.stdout)
    assert summary["dropped"] == {"unreadable": 1}
    assert summary["unreadable"] == {"count": 1, "treatment": "drop", "images": {"a/empty.png": "an empty file"}}
    assert "1 image could not be read, left out (a/empty.png: an empty file)" in outcome.stderr
    again = CliRunner().invoke(app, [*arguments, "--store", str(tmp_path / "cli")])
    assert "already described, nothing to do" in again.stdout
    store = mmdiff.open(tmp_path / "python", create=True)
    store.describe(images, model=exported, crop=16, on_bad="drop", batch_size=4)
    assert tree(tmp_path / "cli", with_runs=False) == tree(tmp_path / "python", with_runs=False)


@pytest.mark.parametrize("at", ["describing", "importing"])
def test_an_interrupted_run_continues_to_identical_bytes(
    tmp_path: Path, exported: Path, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "_SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    images = save_pictures(tmp_path / "images", "abc", 7)
    (images / "a" / "1.png").write_bytes(b"no image")
    mmdiff.open(tmp_path / "whole", create=True).describe(images, model=exported, **SMALL)
    with pytest.raises(KeyboardInterrupt):
        mmdiff.open(tmp_path / "store", create=True, progress=interrupted_after(12, at, tmp_path / CHECKPOINT)).describe(
            images, model=exported, **SMALL
        )
    made = mmdiff.open(tmp_path / "store", create=True).describe(images, model=exported, **SMALL)
    assert 8 <= made["continued"] <= 21
    assert made["continued"] + made["described"] == 21
    assert list(made["unreadable"]["images"]) == ["a/1.png"]
    assert tree(tmp_path / "store", with_runs=False) == tree(tmp_path / "whole", with_runs=False)


_KILLED = """
import os, signal, sys
from pathlib import Path
import mmdiff
from mmdiff.describing import stage
from tests.support.images import interrupted_after
stage._SECONDS_BETWEEN_CHECKPOINTS = 0.0
store, images, model, checkpoint = sys.argv[1:]
try:
    progress = interrupted_after(12, "describing", Path(checkpoint))
    stage.Growth.__exit__ = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    mmdiff.open(store, create=True, progress=progress).describe(images, model=model, resize=16, crop=16, batch_size=4)
finally:
    sys.exit(3)
"""


def test_a_killed_run_continues_to_identical_bytes(tmp_path: Path) -> None:
    images, model = save_pictures(tmp_path / "images", "abc", 7), save_resnet(tmp_path / "tiny.safetensors")
    mmdiff.open(tmp_path / "whole", create=True).describe(images, model=model, **SMALL)
    arguments = [tmp_path / "store", images, model, tmp_path / CHECKPOINT]
    killed = subprocess.run([sys.executable, "-c", _KILLED, *map(str, arguments)], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    made = mmdiff.open(tmp_path / "store", create=True).describe(images, model=model, **SMALL)
    assert made["continued"] >= 4
    assert tree(tmp_path / "store", with_runs=False) == tree(tmp_path / "whole", with_runs=False)


def test_features_are_kept_when_rows_are_refused_and_serve_the_next_try(tmp_path: Path) -> None:
    class Large(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return 1e6 * images.mean((2, 3))

    images, model = save_pictures(tmp_path / "images"), save_script(tmp_path / "large.ts", Large())
    store = mmdiff.open(tmp_path / "store", create=True)
    with pytest.raises(BadOption, match=r"a/0.png: values too large for float16"):
        store.describe(images, model=model, normalize=False, dtype="float16", **SMALL)
    assert store.describe(images, model=model, **SMALL)["continued"] == 10


def test_changed_images_and_another_model_are_described_anew(tmp_path: Path, exported: Path) -> None:
    images, store = save_pictures(tmp_path / "images"), mmdiff.open(tmp_path / "store", create=True)
    store.describe(images, model=exported, **SMALL)
    picture(99).save(images / "a" / "0.png")
    assert store.describe(images, model=exported, **SMALL)["described"] == 10
    made = store.describe(images, model=save_resnet(tmp_path / "tiny.safetensors"), **SMALL)
    assert made["shape"] == [10, TINY.features]


def test_places_without_images_are_refused(tmp_path: Path, exported: Path) -> None:
    store = mmdiff.open(tmp_path / "store", create=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "twice.txt").write_text("a.png\na.png\n")
    (tmp_path / "missing.txt").write_text("a.png\nb.png\n")
    (tmp_path / "s.tar.gz").write_bytes(b"x")
    (tmp_path / "s.tar").write_bytes(b"x" * 2000)
    for place, error, told in (
        ("empty", UnreadableSource, "no images in it"),
        ("nowhere", UnreadableSource, "no such file or folder"),
        ("nowhere/*.png", UnreadableSource, "nothing matches"),
        ("twice.txt", DuplicateIds, "a.png is named twice"),
        ("missing.txt", UnreadableSource, "none of its 2 images can be read"),
        ("s.tar.gz", UnreadableSource, "compressed"),
        ("s.tar", UnreadableSource, "not readable as a tar file"),
    ):
        with pytest.raises(error, match=told):
            store.describe(tmp_path / place, model=exported, **SMALL)
    assert not (tmp_path / "store").exists()


def test_a_row_that_is_refused_is_named_by_its_image(tmp_path: Path) -> None:
    class BadForDark(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return torch.log(images.mean((2, 3)) + 2.0)

    images = save_pictures(tmp_path / "images", "a")
    Image.new("RGB", (20, 20), "black").save(images / "a" / "9.png")
    model = save_script(tmp_path / "log.ts", BadForDark())
    store = mmdiff.open(tmp_path / "store", create=True)
    with pytest.raises(BadRow, match=r"log.ts, .*images, a/9.png: NaN in [123] of 3 values"):
        store.describe(images, model=model, **SMALL)
    made = store.describe(images, model=model, on_bad="drop", **SMALL)
    assert (made["shape"], made["dropped"]) == ([5, 3], {"not_finite": 1})
