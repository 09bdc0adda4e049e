"""`mmdiff import` of images or texts says how they become embeddings."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import mmdiff
from mmdiff.cli import app
from mmdiff.errors import UnreadableSource
from tests.support.images import picture, save_pictures, save_shard


@pytest.mark.parametrize("place", ["images/a/0.png", "images/a", "images", "shard.tar"])
def test_import_of_images_leads_to_describe(tmp_path: Path, place: str) -> None:
    save_pictures(tmp_path / "images", "a", 1)
    picture(1).save(tmp_path / "images" / "a" / "2.jpg")
    save_shard(tmp_path / "shard.tar", 2)
    with pytest.raises(UnreadableSource, match=rf"images, not embeddings.*store.describe\('.*{place}', model=FILE\)"):
        mmdiff.open(tmp_path / "store", create=True).add(tmp_path / place)
    outcome = CliRunner().invoke(app, ["import", str(tmp_path / place), "--store", str(tmp_path / "store")])
    assert f"mmdiff describe {tmp_path / place} --model FILE." in outcome.stderr


@pytest.mark.parametrize("name", ["reviews.txt", "reviews.jsonl", "reviews.csv"])
def test_import_of_texts_leads_to_the_page_on_texts(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("good\nbad\n")
    with pytest.raises(UnreadableSource, match=r"If it holds texts.*docs/texts\.md"):
        mmdiff.open(tmp_path / "store", create=True).add(tmp_path / name)
