"""Artifacts in Python: arrays by name, facts, a readable representation, and suggestions for misspelled names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mmdiff.cli.errors import spell
from mmdiff.formats.errors import BadOption, Missing
from mmdiff.formats.store.kinds import kind_of
from mmdiff.formats.store.store import Artifact, Store
from mmdiff.kinds import KINDS
from tests.support.stores import publish, recipe, values_for


@pytest.fixture
def artifact(quick_folder: Path) -> Artifact:
    arrays = {"vectors": values_for((9, 4), "float32"), "ids": np.arange(9)}
    return publish(quick_folder / "store", "descriptors/background", arrays, facts={"width": 4})


def test_arrays_are_found_by_name(artifact: Artifact) -> None:
    np.testing.assert_array_equal(artifact["vectors"], values_for((9, 4), "float32"))
    assert list(artifact) == list(artifact.keys()) == ["ids", "vectors"]
    assert {name: values.shape for name, values in dict(artifact).items()} == {"ids": (9,), "vectors": (9, 4)}
    assert not artifact["vectors"].flags.writeable


def test_facts_and_representation(artifact: Artifact) -> None:
    assert artifact.facts == {"width": 4}
    assert repr(artifact) == "Artifact(descriptors/background, kind descriptors: ids 9 int64, vectors 9 x 4 float32)"


def test_a_misspelled_array_is_suggested(artifact: Artifact) -> None:
    with pytest.raises(Missing, match=r"there is no array 'vector'. Did you mean vectors\? It has: ids, vectors\."):
        artifact["vector"]


@pytest.mark.parametrize("wrong", ["descriptors/backgroud", "descriptors/Background", "descriptors/backgrounds"])
def test_a_misspelled_artifact_is_suggested(artifact: Artifact, wrong: str) -> None:
    with pytest.raises(Missing, match=f"{wrong}: not in the store .*Did you mean descriptors/background\\? It holds: d"):
        artifact.store.open_artifact(wrong)


def test_a_name_unlike_any_other_gets_no_suggestion(artifact: Artifact) -> None:
    with pytest.raises(Missing, match=r"graph/W: not in the store [^?]*\. It holds: descriptors/background\."):
        artifact.store.open_artifact("graph/W")


@pytest.mark.parametrize("wrong", ["descriptor/background", "background", "descriptors background"])
def test_what_is_no_name_is_refused_with_the_nearest_name(artifact: Artifact, wrong: str) -> None:
    with pytest.raises(BadOption) as caught:
        artifact.store.open_artifact(wrong)
    assert f"{wrong!r} is not the name of an artifact. Did you mean descriptors/background? Names" in str(caught.value)
    assert str(caught.value).endswith("; store.inspect() lists them.")
    assert caught.value.spelled(spell).endswith("; mmdiff inspect lists them.")


def test_a_missing_store_is_explained_in_python_and_on_the_command_line(quick_folder: Path) -> None:
    with pytest.raises(Missing) as caught:
        Store.open(quick_folder / "none")
    assert "Make one with store.add(FILE, role='background'), or name yours with store=FOLDER." in str(caught.value)
    assert "Make one with mmdiff import FILE --role background, or name yours with --store FOLDER." in caught.value.spelled(
        spell
    )


def test_a_kind_of_another_version_is_refused(quick_folder: Path) -> None:
    artifact = publish(quick_folder / "store", "graph/W", {}, recipe("hypergraph"))
    with pytest.raises(OSError, match=r"graph/W: kind hypergraph, schema 1: this mmdiff knows descriptors 1, .*Use the v"):
        kind_of(artifact, KINDS)


def test_intact_artifact_passes_all_checks_at_once(artifact: Artifact) -> None:
    checked = artifact.checked("all")
    assert checked.checks == "all"
    np.testing.assert_array_equal(checked["ids"], np.arange(9))
