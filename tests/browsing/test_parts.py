"""Parts of the page on their own, against their naive twins: the search by id, texts, messages, refusals before it starts."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mmdiff
from mmdiff.browsing import rows as rows_module
from mmdiff.browsing.messages import line_of, message_of, parts_of_json, parts_to_json
from mmdiff.browsing.rows import AllRows, Span
from mmdiff.browsing.texts import Texts
from mmdiff.formats.errors import FILE, BadOption, Call, CountMismatch, Parameter, call
from mmdiff.formats.storage.strings import Strings
from mmdiff.formats.store.store import Artifact

numbers = st.lists(st.integers(-20, 2000), min_size=1, max_size=40, unique=True)
names = st.lists(st.text("ab0é", max_size=4), min_size=1, max_size=40, unique=True)


class Sized(Span):
    """Rows that have only ids."""

    @property
    def rows(self) -> int:
        return len(self.ids)


def all_rows(*parts: Any) -> AllRows:
    spans, first = [], 0
    for ids in parts:
        spans.append(Sized("background", cast(Artifact, None), ids, first))
        first += len(ids)
    return AllRows(tuple(spans), None, first)


@given(st.one_of(numbers, names), st.text("ab0129é-", max_size=3), st.integers(0, 5), st.integers(1, 6), st.integers(1, 30))
def test_search_finds_what_a_look_at_every_id_finds(ids: list[Any], wanted: str, start: int, count: int, block: int) -> None:
    before, rows_module._BLOCK = rows_module._BLOCK, block
    try:
        stored = np.array(ids) if isinstance(ids[0], int) else Strings.of(ids)
        found = all_rows(stored).search(wanted, start, count)
    finally:
        rows_module._BLOCK = before
    texts = [str(each) for each in ids]
    beginning = [row for row, text in enumerate(texts) if text.startswith(wanted) and (text[:1] != "-" or not wanted)]
    exact = [row for row, text in enumerate(texts) if wanted and text == wanted]
    expected = [*exact, *(row for row in beginning if row not in exact)]
    assert found.rows == expected[start : start + count]
    assert found.more == (len(expected) > start + count)
    assert found.more or found.total == len(expected)


def test_rows_without_ids_are_found_by_their_number() -> None:
    found = all_rows(range(0, 150), range(150, 300)).search("15", 0, 100)
    assert found.rows == [15, *range(150, 160)]
    assert all_rows(range(300)).search("007", 0, 10).rows == []


parameters = st.builds(Parameter, st.sampled_from(["k", "by"]), st.one_of(st.none(), st.integers(), st.text(), st.booleans()))
parts = st.one_of(
    st.text(), parameters, st.just(Parameter("k")), st.just(call("add", FILE, role="test")), st.just(call("label", 7))
)


@given(st.lists(parts))
def test_the_parts_of_an_error_arrive_as_they_were(given_parts: list[str | Parameter | Call]) -> None:
    arrived = parts_of_json(message_of(line_of({"error": parts_to_json(given_parts)}))["error"])
    assert [str(part) for part in arrived] == [str(part) for part in given_parts]
    assert [type(part) for part in arrived] == [type(part) for part in given_parts]


def test_texts_are_one_for_each_row_and_cut_off_where_they_are_long(tmp_path: Path) -> None:
    file = tmp_path / "texts.csv"
    file.write_text("id,text\n1,aé" + "é" * 500 + "\n2,\n3,17\n")
    texts = Texts.read(f"{file}::text", 3, 1 << 20)
    assert texts.text(0, 10) == "aéééééééé" + "é..."
    assert [texts.text(row) for row in (1, 2, 3)] == ["", "17", None]
    with pytest.raises(CountMismatch, match=r"3 texts for 4 rows of the collection"):
        Texts.read(f"{file}::text", 4, 1 << 20)
    with pytest.raises(BadOption, match="more than a quarter of the memory"):
        Texts.read(f"{file}::text", 3, 1000)


def test_a_page_that_cannot_be_served_is_refused_before_it_starts(tmp_path: Path) -> None:
    store = mmdiff.open(tmp_path / "store", create=True)
    with pytest.raises(mmdiff.errors.Missing, match="no store here"):
        store.browse()
    store.add(np.eye(4))
    for port in (-1, 65536, True, "80"):
        with pytest.raises(BadOption, match=r"port=.*: expected a whole number from 0 to 65,535"):
            store.browse(port=port)  # type: ignore[arg-type]
    for images in ("nowhere", "nowhere/{id}.png", "https://example.com/{id}", "\0"):
        with pytest.raises(BadOption, match="images="):
            store.browse(images=images)
    with pytest.raises(mmdiff.errors.InputError, match=r"none\.csv"):
        store.browse(texts=str(tmp_path / "none.csv"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(BadOption, match="the system refuses it"):
            store.browse(port=taken.getsockname()[1])
