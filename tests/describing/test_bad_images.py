"""Images that are damaged, hostile or merely unusual, and models that describe nothing or could run code."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import mmdiff
from mmdiff.cli import app
from mmdiff.describing.decoding import Preprocessing, Unreadable, decode, decoding
from mmdiff.describing.resnet import Shape
from mmdiff.errors import BadOption, BadRow
from tests.support.images import SIDE, picture, save_exported, save_pictures, save_resnet, save_script

RED, WHITE = (255, 0, 0), (255, 255, 255)
SMALL = {"resize": SIDE, "crop": SIDE, "batch_size": 4}


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def decoded(content: bytes, side: int = 8) -> np.ndarray:
    with decoding():
        return decode(content, Preprocessing(resize=side, crop=side))


def close(found: np.ndarray, colour: tuple[int, int, int]) -> bool:
    return bool((np.abs(found.astype(int) - colour) <= 6).all())


def transparent_palette() -> bytes:
    """Half red, half transparent."""
    image = Image.new("P", (20, 20), 0)
    image.putpalette([*RED, 0, 0, 0])
    image.paste(1, (0, 10, 20, 20))
    return saved(image, "PNG", transparency=1)


def sixteen_bits() -> bytes:
    return saved(Image.fromarray(np.full((20, 20), 0x80FF, np.uint16)), "PNG")


MODES: dict[str, tuple[Callable[[], bytes], tuple[int, int, int]]] = {
    "1-bit": (lambda: saved(Image.new("1", (20, 20), 1), "PNG"), WHITE),
    "grey": (lambda: saved(Image.new("L", (20, 20), 77), "PNG"), (77, 77, 77)),
    "grey with alpha": (lambda: saved(Image.new("LA", (20, 20), (0, 0)), "PNG"), WHITE),
    "colours with alpha": (lambda: saved(Image.new("RGBA", (20, 20), (*RED, 0)), "PNG"), WHITE),
    "CMYK": (lambda: saved(Image.new("CMYK", (20, 20), (0, 255, 255, 0)), "JPEG"), (254, 0, 0)),
    "16-bit": (sixteen_bits, (0x80, 0x80, 0x80)),
    "palette": (lambda: saved(Image.new("RGB", (20, 20), RED).quantize(4), "PNG"), RED),
    "GIF": (lambda: saved(Image.new("RGB", (20, 20), RED), "GIF"), RED),
    "WEBP": (lambda: saved(Image.new("RGB", (20, 20), RED), "WEBP", lossless=True), RED),
    "TIFF": (lambda: saved(Image.new("RGB", (20, 20), RED), "TIFF"), RED),
    "one pixel": (lambda: saved(Image.new("RGB", (1, 1), RED), "PNG"), RED),
    "long and narrow": (lambda: saved(Image.new("RGB", (60_000, 1), RED), "PNG"), RED),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_kind_of_pixel_becomes_rgb(mode: str) -> None:
    make, colour = MODES[mode]
    assert close(decoded(make()), colour)


def test_transparent_parts_lie_on_white() -> None:
    found = decoded(transparent_palette())
    assert close(found[:3], RED)
    assert close(found[-3:], WHITE)


def test_of_an_animation_the_first_frame_is_described() -> None:
    frames = [Image.new("RGB", (20, 20), colour) for colour in (RED, (0, 0, 255))]
    assert close(decoded(saved(frames[0], "GIF", save_all=True, append_images=frames[1:])), RED)


def test_images_are_turned_upright() -> None:
    """Orientation 6 of EXIF: the camera was held by 90 degrees."""
    image = Image.new("RGB", (16, 16), RED)
    image.paste((0, 0, 255), (0, 0, 8, 16))
    exif = Image.Exif()
    exif[0x0112] = 6
    found = decoded(saved(image, "PNG", exif=exif))
    assert close(found[:3], (0, 0, 255))
    assert close(found[-3:], RED)


def bomb() -> bytes:
    """A small PNG that claims to hold 60,000 x 60,000 pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def large() -> bytes:
    """More pixels than are decoded, and fewer than Pillow refuses by itself would be of no use here."""
    return saved(Image.new("1", (20_001, 10_000)), "PNG")


def cut() -> bytes:
    content = saved(picture(1, (200, 200)), "JPEG")
    return content[: len(content) // 2]


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "corrupt JPEG": (cut, "truncated"),
    "text": (lambda: b"hello", "not an image"),
    "decompression bomb": (bomb, "pixels"),
    "too many pixels": (large, "pixels"),
    "EPS, whose reader starts a program": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
    "fractions": (lambda: saved(Image.new("F", (9, 9), 0.5), "TIFF"), "fractions"),
    "32-bit": (lambda: saved(Image.new("I", (9, 9), 1 << 20), "TIFF"), "32 bits"),
}


@pytest.mark.parametrize("kind", BAD)
def test_damaged_and_hostile_images_are_unreadable_with_a_reason(kind: str) -> None:
    make, told = BAD[kind]
    with pytest.raises(Unreadable, match=told) as caught:
        decoded(make())
    assert "0x" not in str(caught.value)


def test_unreadable_images_are_white_and_recorded_or_left_out_or_refused(tmp_path: Path) -> None:
    images, model = save_pictures(tmp_path / "images", "a"), save_resnet(tmp_path / "tiny.safetensors")
    for name, content in (("cut.jpg", cut()), ("empty.png", b""), ("bomb.png", bomb())):
        (images / "a" / name).write_bytes(content)
    Image.new("RGB", (40, 40), "white").save(images / "a" / "white.png")
    store = mmdiff.open(tmp_path / "store", create=True)
    with pytest.raises(BadRow, match=r"images, a/bomb.png: cannot be read \(.*pixels.*on_bad='white'"):
        store.describe(images, model=model, on_bad="error", **SMALL)
    made = store.describe(images, model=model, **SMALL)
    assert made["unreadable"]["count"] == 3
    assert set(made["unreadable"]["images"]) == {"a/cut.jpg", "a/empty.png", "a/bomb.png"}
    artifact = store["descriptors/background"]
    assert artifact.facts["images"]["unreadable"] == made["unreadable"]
    rows = dict(zip(artifact.strings("ids"), np.asarray(artifact["vectors"]), strict=True))
    for name in made["unreadable"]["images"]:
        np.testing.assert_allclose(rows[name], rows["a/white.png"], atol=1e-6)
    dropped = store.describe(images, model=model, on_bad="drop", **SMALL)
    assert (dropped["shape"][0], dropped["dropped"]) == (6, {"unreadable": 3})
    assert list(store["descriptors/background"].strings("dropped_ids")) == ["a/bomb.png", "a/cut.jpg", "a/empty.png"]


class Maps(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.relu()


class Two(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return images.mean((2, 3)), images.amax((2, 3))


class Numbers(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean((2, 3)).long()


class NotANumber(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean((2, 3)) * float("nan")


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (Maps(), r"for 4 images has the shape \(4, 3, 16, 16\), expected 2 dimensions"),
        (Two(), "is a tuple, expected one tensor"),
        (Numbers(), "of type torch.int64, expected floating-point"),
        (NotANumber(), "NaN in 3 of 3 values"),
    ],
    ids=["maps", "two", "numbers", "NaN"],
)
def test_models_without_a_row_of_numbers_for_each_image_are_refused(tmp_path: Path, module: torch.nn.Module, told: str) -> None:
    images, model = save_pictures(tmp_path / "images", "a"), save_script(tmp_path / "model.ts", module)
    with pytest.raises((BadOption, BadRow), match=told):
        mmdiff.open(tmp_path / "store", create=True).describe(images, model=model, **SMALL)


def test_an_exported_program_for_another_size_is_refused_with_what_to_give(tmp_path: Path) -> None:
    class Colours(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.mean((2, 3))

    images, model = save_pictures(tmp_path / "images", "a"), save_exported(tmp_path / "m.pt2", Colours(), batch=2)
    store = mmdiff.open(tmp_path / "store", create=True)
    with pytest.raises(BadOption, match=r"m.pt2'?: fails on 3 images of 16 x 16 pixels .*batch_size"):
        store.describe(images, model=model, resize=SIDE, crop=SIDE, batch_size=3)
    with pytest.raises(BadOption, match="fails on 2 images of 20 x 20"):
        store.describe(images, model=model, crop=20, batch_size=2)
    assert store.describe(images, model=model, resize=SIDE, crop=SIDE, batch_size=2)["shape"] == [5, 3]


class RunsCode:
    """What a hostile pickle would hold."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return _touch, (str(self.file),)


def _touch(file: str) -> None:
    Path(file).touch()


def with_pickle_inside(model: Path, member: str, evil: bytes) -> None:
    """Replaces or adds a file of an exported program."""
    with zipfile.ZipFile(model) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    root = next(iter(content)).partition("/")[0]
    content[f"{root}/{member}"] = evil
    with zipfile.ZipFile(model, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)


def test_no_pickle_is_opened_wherever_it_hides(tmp_path: Path) -> None:
    class Colours(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.mean((2, 3))

    proof = tmp_path / "ran"
    torch.save(RunsCode(proof), tmp_path / "zip.pt")
    torch.save(RunsCode(proof), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / "weights.bin")
    save_exported(tmp_path / "whole.pt2", Colours())
    hiding = ["data/sample_inputs/model.pt", "data/weights/model.pt", "data/constants/model.pt", "data/constants/opaque_obj_0"]
    for number, member in enumerate(hiding):
        model = tmp_path / f"hiding{number}.pt2"
        model.write_bytes((tmp_path / "whole.pt2").read_bytes())
        with_pickle_inside(model, member, (tmp_path / "zip.pt").read_bytes())
    images = save_pictures(tmp_path / "images", "a")
    for model in ("zip.pt", "old.pth", "weights.bin", *(f"hiding{number}.pt2" for number in range(len(hiding)))):
        outcome = CliRunner().invoke(
            app, ["describe", str(images), "--model", str(tmp_path / model), "--crop", "16", "--store", str(tmp_path / "s")]
        )
        assert outcome.exit_code == 2, model
        assert "could run any code when it is opened" in outcome.stderr
        assert "torch.export.save(" in outcome.stderr
        assert not proof.exists()


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("no.pt2", b"hello", "neither an exported program"),
        ("no.safetensors", b"hello", "no .safetensors file"),
        ("missing.pt2", None, "no such file, nor a name such as timm:resnet50"),
    ],
)
def test_other_files_are_no_models(tmp_path: Path, name: str, content: bytes | None, told: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    images = save_pictures(tmp_path / "images", "a")
    with pytest.raises(ValueError, match=told):
        mmdiff.open(tmp_path / "store", create=True).describe(images, model=tmp_path / name)


def test_weights_of_another_network_or_of_another_width_are_refused(tmp_path: Path) -> None:
    images = save_pictures(tmp_path / "images", "a")
    other = save_resnet(tmp_path / "more.safetensors", **{"layer5.0.weight": torch.zeros(3)})
    with pytest.raises(BadOption, match=r"layer5.0.weight is missing, too much, or of another shape"):
        mmdiff.open(tmp_path / "store", create=True).describe(images, model=other, **SMALL)
    store = mmdiff.open(tmp_path / "store", create=True)
    store.describe(images, model=save_resnet(tmp_path / "a.safetensors"), **SMALL)
    wider = save_resnet(tmp_path / "b.safetensors", Shape((1, 1, 1, 1), False, 8, 3))
    with pytest.raises(ValueError, match="rows of 64 values, but models/pca is for rows of 32"):
        store.describe(images, model=wider, role="test", prefix="test/", **SMALL)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"crop": 20, "resize": 16}, "more than the 16 pixels"),
        ({"mean": [0.5, 0.5]}, "expected three numbers"),
        ({"std": [0.5, 0.5, 0.0]}, "expected a number from"),
        ({"batch_size": 0}, "expected a whole number"),
        ({"prefix": 3}, "expected text"),
        ({"on_bad": "black"}, "not one of the choices"),
        ({"device": "tpu"}, "not one of the choices"),
        ({"labels_from_folders": True, "labels": ["a"] * 5}, "give one or the other"),
    ],
)
def test_impossible_options_are_refused(tmp_path: Path, options: dict[str, object], told: str) -> None:
    images = save_pictures(tmp_path / "images", "a")
    with pytest.raises(BadOption, match=told):
        mmdiff.open(tmp_path / "store", create=True).describe(images, model=save_resnet(tmp_path / "t.safetensors"), **options)  # type: ignore[arg-type]
