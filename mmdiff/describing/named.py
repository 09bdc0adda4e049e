"""Networks of libraries by name: timm, open_clip and transformers, with weights from their caches or from a folder.

The names are those of the libraries, with what they mean there: `timm:resnet50`, `timm:local-dir:/models/resnet50`,
`open_clip:ViT-B-32/laion2b_s34b_b79k`, `transformers:facebook/dinov2-base` or a folder. A folder must hold safetensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmdiff.describing.decoding import Preprocessing
from mmdiff.formats.errors import BadOption, MmdiffError, Parameter
from mmdiff.formats.extras import load
from mmdiff.formats.sources.limits import reason

LIBRARIES = ("timm", "open_clip", "transformers")

_LOCAL = "local-dir:"

Named = tuple[Any, Callable[[Any], Any], Preprocessing]


def open_named(spec: str, device: str) -> Named:
    """The module, the function that describes a batch, and the preprocessing that the library has recorded for it."""
    library, _, name = spec.partition(":")
    if not name:
        raise BadOption(Parameter("model", spec), f": {library} needs a name, such as {library}:NAME.")
    package = load(library, f"a network of {library}")
    _refuse_folder_with_pickles(spec, name.removeprefix(_LOCAL))
    try:
        return {"timm": _timm, "open_clip": _open_clip, "transformers": _transformers}[library](package, name, device)
    except MmdiffError:
        raise
    except Exception as error:
        raise BadOption(
            Parameter("model", spec),
            f": {library} cannot make it ({reason(error)}). Check the name, and that its weights are in the cache of {library} "
            "or can be downloaded.",
        ) from error


def _refuse_folder_with_pickles(spec: str, name: str) -> None:
    folder = Path(name)
    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        raise BadOption(
            Parameter("model", spec), ": the folder holds no .safetensors, and pickled weights are not opened. Convert them."
        )


def _timm(timm: Any, name: str, device: str) -> Named:
    module = timm.create_model(name, pretrained=True, num_classes=0).eval().to(device)
    found = timm.data.resolve_model_data_config(module)
    crop = int(found["input_size"][-1])
    resize = round(crop / found["crop_pct"])
    return module, module, _preprocessing(crop, resize, found["mean"], found["std"], found["interpolation"])


def _open_clip(open_clip: Any, name: str, device: str) -> Named:
    model, weights = name, None
    if not name.startswith((_LOCAL, "hf-hub:")):
        model, _, tag = name.partition("/")
        weights = tag or None
        if weights is None:
            raise BadOption(
                Parameter("model", f"open_clip:{name}"),
                f": name the weights too, such as open_clip:{name}/{_first_tag(open_clip, name)}.",
            )
    module = open_clip.create_model(model, pretrained=weights, device=device, weights_only=True).eval()
    size = module.visual.image_size
    crop = int(size if isinstance(size, int) else size[0])
    found = open_clip.get_model_preprocess_cfg(module)
    mean, std = found.get("mean", open_clip.OPENAI_DATASET_MEAN), found.get("std", open_clip.OPENAI_DATASET_STD)
    return module, module.encode_image, _preprocessing(crop, crop, mean, std, found.get("interpolation", "bicubic"))


def _first_tag(open_clip: Any, name: str) -> str:
    return next(iter(open_clip.list_pretrained_tags_by_model(name)), "TAG")


def _transformers(transformers: Any, name: str, device: str) -> Named:
    module = transformers.AutoModel.from_pretrained(name, use_safetensors=True).eval().to(device)
    base = load("transformers.image_processing_base", "a network of transformers")
    found, _ = base.ImageProcessingMixin.get_image_processor_dict(name)
    resize = _side(found.get("size"), 256)
    crop = _side(found.get("crop_size"), resize) if found.get("do_center_crop", True) else resize

    def run(images: Any) -> Any:
        output = module.get_image_features(images) if hasattr(module, "get_image_features") else module(pixel_values=images)
        pooled = output if not hasattr(output, "keys") else output.get("pooler_output")
        if pooled is None:
            pooled = output["last_hidden_state"][:, 0]
        return pooled.flatten(1)

    mean, std = found.get("image_mean", Preprocessing.mean), found.get("image_std", Preprocessing.std)
    return (
        module,
        run,
        _preprocessing(crop, max(resize, crop), mean, std, "bicubic" if found.get("resample") == 3 else "bilinear"),
    )


def _side(size: Any, otherwise: int) -> int:
    """The shorter side of what a library gives as a size."""
    if isinstance(size, dict):
        return int(size.get("shortest_edge") or size.get("height") or otherwise)
    return int(size) if isinstance(size, (int, float)) else otherwise


def _preprocessing(crop: int, resize: int, mean: Any, std: Any, interpolation: str) -> Preprocessing:
    red, green, blue = (float(value) for value in mean)
    made = Preprocessing(resize=resize, crop=crop, mean=(red, green, blue))
    red, green, blue = (float(value) for value in std)
    return replace(made, std=(red, green, blue), interpolation="bicubic" if interpolation == "bicubic" else "bilinear")
