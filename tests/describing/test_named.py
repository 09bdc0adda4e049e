"""Networks of timm, open_clip and transformers by name, from folders, with the libraries where they are installed."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

import mmdiff
from mmdiff.errors import BadOption, MissingExtra
from tests.support.images import save_pictures


def library(name: str) -> Any:
    """A library, or a skipped test. torchvision, which all of them use, only loads with the torch that it was built for."""
    try:
        return import_module(name)
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"{name} is not installed, or does not load: {error}")


def described(tmp_path: Path, model: str) -> Any:
    store = mmdiff.open(tmp_path / "store", create=True)
    return store, store.describe(save_pictures(tmp_path / "images"), model=model, dims=4)


@pytest.mark.filterwarnings("ignore")
def test_a_network_of_timm_from_a_folder(tmp_path: Path) -> None:
    timm = library("timm")
    folder = tmp_path / "resnet10t"
    folder.mkdir()
    module = timm.create_model("resnet10t", num_classes=7)
    recorded: dict[str, Any] = {
        "input_size": [3, 32, 32],
        "crop_pct": 0.8,
        "mean": [0.5] * 3,
        "std": [0.25] * 3,
        "interpolation": "bicubic",
    }
    config = {
        "architecture": "resnet10t",
        "num_classes": 7,
        "pretrained_cfg": {**recorded, "num_classes": 7, "classifier": "fc"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.torch.save_file(module.state_dict(), folder / "model.safetensors")
    store, made = described(tmp_path, f"timm:local-dir:{folder}")
    assert (made["model"]["kind"], made["model"]["values"]) == ("timm", 512)
    preprocessing = store["descriptors/background"].facts["images"]["preprocessing"]
    assert preprocessing == {
        "resize": 40,
        "crop": 32,
        "mean": [0.5] * 3,
        "std": [0.25] * 3,
        "interpolation": "bicubic",
    }
    (folder / "model.safetensors").rename(folder / "weights.bin")
    with pytest.raises(BadOption, match=r"holds no \.safetensors, and pickled weights are not opened"):
        store.describe(tmp_path / "images", model=f"timm:local-dir:{folder}")
    with pytest.raises(BadOption, match="timm cannot make it"):
        store.describe(tmp_path / "images", model="timm:no-such-network")


@pytest.mark.filterwarnings("ignore")
def test_a_network_of_open_clip_from_a_folder(tmp_path: Path) -> None:
    open_clip = library("open_clip")
    folder = tmp_path / "clip"
    folder.mkdir()
    vision, text = {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16}, {"width": 64, "heads": 1, "layers": 1}
    shape = {"embed_dim": 12, "vision_cfg": vision, "text_cfg": {**text, "context_length": 8, "vocab_size": 60}}
    config = {"model_cfg": shape, "preprocess_cfg": {"mean": [0.4] * 3, "std": [0.3] * 3}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    weights = {name: value.contiguous() for name, value in open_clip.CLIP(**shape).state_dict().items()}
    safetensors.torch.save_file(weights, folder / "open_clip_model.safetensors")
    _, made = described(tmp_path, f"open_clip:local-dir:{folder}")
    assert made["model"]["values"] == 12
    with pytest.raises(BadOption, match="name the weights too, such as open_clip:ViT-B-32/"):
        described(tmp_path, "open_clip:ViT-B-32")


@pytest.mark.filterwarnings("ignore")
def test_a_network_of_transformers_from_a_folder(tmp_path: Path) -> None:
    transformers = library("transformers")
    folder = tmp_path / "vit"
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    try:
        module = transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=32, patch_size=16))
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"transformers does not load its networks: {error}")
    module.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": 32, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}))
    _, made = described(tmp_path, f"transformers:{folder}")
    assert made["model"]["values"] == 16


@pytest.mark.parametrize("name", ["timm", "open_clip", "transformers"])
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=r"pip install 'mmdiff\[networks\]'"):
        described(tmp_path, f"{name}:anything")
    with pytest.raises(BadOption, match="needs a name"):
        described(tmp_path, f"{name}:")


def test_torch_is_named_with_the_extra_for_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = save_pictures(tmp_path / "images")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"reading images needs Pillow.*mmdiff\[images\]"):
        mmdiff.open(tmp_path / "store", create=True).describe(images, model="m.pt2")
