"""Labelling on the page in a real browser: forty labels on the sample, with everything that comes in between."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import mmdiff
from tests.support.browser import CHROMIUM, WHY_NOT
from tests.support.devtools import Browser, Page
from tests.support.paths import SAMPLE
from tests.support.served import Served

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)

# Serves at an address that is known before, so that a killed server comes back at the same one.
PROGRAM = """
import sys
from pathlib import Path
from mmdiff.browsing.stage import Request, browse
from mmdiff.formats.store.store import Store
from mmdiff.kinds import KINDS
store, port, images = sys.argv[1:]
browse(Store.open(Path(store)), Request(int(port), images), KINDS, lambda address: print(address, flush=True), "t" * 32)
"""
HOSTILE = "<img src=x onerror=alert(1)>"
# What the browser logs by itself of a server that is away, and of one that refuses.
AWAY, REFUSED = "net::ERR_", "status of 400"

LABELLED = "Number(document.querySelector('#strip .figure')?.firstChild.textContent.replaceAll(',', ''))"
STATE = "document.getElementById('run').dataset.state"
ALERTS = "document.getElementById('alerts').innerText"
AT_REST = f"{STATE} === 'idle' && document.querySelector('#run-text').textContent.startsWith('Up to date')"
CARDS = "document.querySelectorAll('#grid .card .face').length"


class World:
    """A store of the sample without any label, its true classes, and the server of its page."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        self.images = str(folder / "{id}.png")
        names = json.loads((SAMPLE / "class_names.json").read_text())
        classes = np.concatenate([np.load(SAMPLE / "test_labels.npy"), np.load(SAMPLE / "seed_labels.npy")])
        self.truth = [names[str(number)].split(",")[0] for number in classes]
        vectors = np.concatenate([np.load(SAMPLE / "test.npy"), np.load(SAMPLE / "seeds.npy")]).astype(np.float32)
        # Row 1 is row 0 again.
        vectors[1], self.truth[1] = vectors[0], self.truth[0]
        ids = [f"photo-{row}" for row in range(len(vectors))]
        ids[5] = HOSTILE
        store = mmdiff.open(self.store, create=True)
        store.add(vectors, ids=ids)
        store.build_graph(k=10)
        store.audit("duplicates", above=0.999)
        for row in range(0, len(ids), 2):
            Image.new("RGB", (8, 8), (row % 256, 90, 140)).save(folder / f"photo-{row}.png")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])

    def serve(self) -> Served:
        command = [sys.executable, "-c", PROGRAM, str(self.store), str(self.port), self.images]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        return Served(process, process.stdout.readline().decode().strip())


def end(served: Served, how: signal.Signals) -> None:
    served.process.send_signal(how)
    served.process.wait(60)
    assert served.process.stdout is not None
    served.process.stdout.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def servers(world: World) -> Iterator[list[Served]]:
    """The running server is the last one; a test that kills it appends the next."""
    running = [world.serve()]
    yield running
    end(running[-1], signal.SIGINT)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def visit(browser: Browser, servers: list[Served]) -> Iterator[Callable[..., Page]]:
    """Opens the page at a view. Nothing is logged but that the server was away, or refused where a test wants it."""
    pages: dict[Page, tuple[str, ...]] = {}

    def open_page(view: str = "#/label", refuses: bool = False) -> Page:
        page = browser.open(servers[-1].address + view, alone=True)
        pages[page] = (AWAY, REFUSED) if refuses else (AWAY,)
        page.wait("document.documentElement.dataset.ready")
        if view == "#/label":
            page.wait(CARDS)
        return page

    yield open_page
    for page, expected in pages.items():
        assert [line for line in page.console if not any(text in line for text in expected)] == []
        page.close()


@pytest.fixture
def labelled(servers: list[Served], world: World) -> int:
    """The number of rows that have labels; there are some, and predictions from them."""
    served = servers[-1]
    if served.ask("status")["labelled"] < 30:
        for name in dict.fromkeys(world.truth):
            served.label([row for row in range(20, len(world.truth)) if world.truth[row] == name][:2], name)
    return int(served.wait(lambda status: status["state"] == "idle")["labelled"])


def focused(page: Page) -> int:
    """The row of the card that has the focus."""
    return int(page.evaluate("Number(document.activeElement.querySelector('.open').getAttribute('href').split('/').pop())"))


def start_typing(page: Page) -> None:
    """Focuses the first card that has no label."""
    page.evaluate("document.querySelector('.card[data-state=open]').focus()")


def name_focused(page: Page, world: World, number: int = 1) -> None:
    """Types the class of the focused card and of those that follow, and waits until they are saved."""
    before = page.evaluate(LABELLED)
    for _ in range(number):
        page.wait("document.activeElement.dataset?.state === 'open'")
        page.type(world.truth[focused(page)])
        page.press("Enter")
    page.wait(f"{LABELLED} === {before + number}")


@contextmanager
def gone(servers: list[Served], world: World) -> Iterator[None]:
    """Without a server, which is killed at the beginning and back at the end."""
    end(servers[-1], signal.SIGKILL)
    yield
    servers.append(world.serve())


def test_forty_labels_by_keys_with_a_reload_and_a_killed_server(
    visit: Callable[..., Page], servers: list[Served], world: World
) -> None:
    page = visit()
    assert page.evaluate(LABELLED) == 0
    start_typing(page)
    name_focused(page, world, 12)
    # A reload keeps the labels and what was selected.
    page.press(" ")
    chosen = focused(page)
    page.reload()
    page.wait(f"{LABELLED} === 12 && document.querySelector('[aria-selected=true]')")
    assert page.evaluate("document.querySelector('[aria-selected=true] .open').getAttribute('href')") == f"#/row/{chosen}"
    page.evaluate("document.querySelector('[aria-selected=true]').focus()")
    page.press("Escape")
    page.wait(AT_REST)
    page.wait("document.querySelector('.prediction:not(.none)')")
    # While the server is gone, a label waits and the page says so; nothing else is lost.
    start_typing(page)
    with gone(servers, world):
        row = focused(page)
        page.type(world.truth[row])
        page.press("Enter")
        page.wait(f"{ALERTS}.includes('not saved yet')")
        page.wait("document.querySelector('[data-state=waiting] .word')?.textContent === 'waits'")
        page.press(" ")
        assert page.evaluate(LABELLED) == 12
    page.wait(f"{LABELLED} === 13 && {ALERTS} === ''")
    assert servers[-1].ask("row", row=row, path=0)["given"] == [world.truth[row]]
    assert page.evaluate("document.querySelectorAll('[aria-selected=true]').length") == 1
    page.evaluate("document.querySelector('[aria-selected=true]').focus()")
    page.press("Escape")
    name_focused(page, world, 12)
    page.wait(f"{AT_REST} && document.querySelector('.tile:nth-child(3) .figure').innerText.endsWith('%')")
    name_focused(page, world, 15)
    page.wait(AT_REST)
    status = servers[-1].ask("status")
    assert status["labelled"] == 40
    assert page.evaluate(LABELLED) == 40
    page.wait("document.querySelectorAll('#grid .prediction:not(.none)').length > 10")
    tiles = dict(
        page.evaluate("[...document.querySelectorAll('.tile')].map((tile) => [...tile.children].map((part) => part.innerText))")
    )
    assert tiles["Estimated accuracy"].startswith(f"{100 * status['accuracy']['top1']:.0f} %")
    assert tiles["Coverage"].startswith("100 %")
    page.wait("document.querySelector('.spark')")
    classes = {entry["label"]: entry["given"] for entry in servers[-1].ask("classes")["classes"]}
    assert sum(classes.values()) == 40
    assert set(classes) <= set(world.truth)


def test_selection_by_clicks_gets_one_label_in_one_batch_that_undo_takes_back(
    visit: Callable[..., Page], labelled: int
) -> None:
    page = visit()
    page.click(".line:nth-child(1) .card:nth-child(2)")
    page.click(".line:nth-child(1) .card:nth-child(5)", shift=True)
    page.click(".line:nth-child(1) .card:nth-child(3)")
    assert page.evaluate("document.querySelector('#aim').textContent") == "Selected: 3 rows"
    page.click("#balance button")
    page.wait(f"{LABELLED} === {labelled + 3} && document.querySelector('#said').textContent.startsWith('Saved')")
    assert page.evaluate("document.querySelectorAll('[aria-selected=true]').length") == 0
    page.press("z", control=True)
    page.wait(f"{LABELLED} === {labelled} && document.querySelector('#said').textContent.startsWith('Undone')")


def test_accepted_predictions_of_several_classes_are_one_batch(visit: Callable[..., Page], labelled: int) -> None:
    page = visit()
    page.wait("document.querySelectorAll('#grid .prediction:not(.none)').length > 10")
    start_typing(page)
    for _ in range(7):
        page.press("ArrowRight", shift=True)
    wanted = page.evaluate(
        "[...document.querySelectorAll('[aria-selected=true] .prediction .name')].map((name) => name.textContent)"
    )
    assert len(set(wanted)) > 1
    page.press("0")
    page.wait(f"{LABELLED} === {labelled + len(wanted)}")
    page.click("#undo")
    page.wait(f"{LABELLED} === {labelled}")


def test_duplicates_get_the_same_label(visit: Callable[..., Page], servers: list[Served], world: World) -> None:
    page = visit("#/row/0")
    page.wait("document.querySelector('.give input[type=checkbox]')")
    page.evaluate("document.querySelector('.give input[type=text]').focus()")
    page.type(world.truth[0])
    page.press("Enter")
    page.wait("document.querySelector('#row-labels .given') && !document.querySelector('#row-labels .word')")
    assert [servers[-1].ask("row", row=row, path=0)["given"] for row in (0, 1)] == [[world.truth[0]]] * 2


def test_another_tab_sees_the_label(visit: Callable[..., Page], servers: list[Served]) -> None:
    # The suggestions that follow the labels of the test before would replace the card.
    servers[-1].wait(lambda status: status["state"] == "idle")
    first, second = visit(), visit()
    row = second.evaluate("document.querySelector('.card[data-state=open] .open').getAttribute('href').split('/').pop()")
    servers_version = servers[-1].ask("status")["version"]
    first.click(f".card:has([href='#/row/{row}'])")
    first.evaluate("document.querySelector('.entry input').focus()")
    first.type("only one tab typed this")
    first.press("Enter")
    # A busy machine may have new suggestions, which leave the labelled row out, before the other tab asks again.
    card = f"document.querySelector(\".card:has([href='#/row/{row}'])\")"
    second.wait(f"!{card} || {card}.querySelector('.given')?.textContent === 'only one tab typed this'")
    assert servers[-1].ask("status")["version"] > servers_version
    second.wait(
        "[...document.querySelectorAll('#balance .name')].some((name) => name.textContent === 'only one tab typed this')"
    )


def test_refused_label_says_so_and_can_be_given_up(visit: Callable[..., Page]) -> None:
    page = visit(refuses=True)
    before = page.evaluate(LABELLED)
    start_typing(page)
    page.press("x")
    page.evaluate("document.activeElement.value = 'y'.repeat(201)")
    page.press("z")
    page.press("Enter")
    page.wait(f"{ALERTS}.includes('Not saved: the labels of 1 row. labels: a class is one line')")
    assert page.evaluate("document.querySelector('[data-state=failed] .word').textContent") == "not saved"
    page.evaluate(
        "[...document.querySelectorAll('#alerts button')].find((button) => button.textContent === 'Try again').click()"
    )
    page.wait(f"{ALERTS}.includes('Not saved')")
    page.evaluate("[...document.querySelectorAll('#alerts button')].find((button) => button.textContent === 'Give up').click()")
    page.wait(f"{ALERTS} === ''")
    assert page.evaluate(LABELLED) == before


def test_markup_in_ids_and_classes_is_text(visit: Callable[..., Page], servers: list[Served]) -> None:
    servers[-1].label([5], "<b id=bold>class</b>")
    page = visit("#/row/5")
    page.wait("document.querySelector('#row h1')")
    assert page.evaluate("document.querySelector('#row h1').textContent") == HOSTILE
    assert page.evaluate("document.querySelector('#row-labels .given').textContent") == "<b id=bold>class</b>"
    assert page.evaluate("document.querySelector('#bold, img[src=x]')") is None


def test_row_leads_to_its_neighbours_and_back(visit: Callable[..., Page]) -> None:
    page = visit("#/rows")
    page.evaluate("document.querySelector('#query').focus()")
    page.type("photo-17")
    page.wait("document.querySelector('#results .id')?.textContent === 'photo-17'")
    page.press("Enter")
    page.wait("document.querySelector('#row h1')?.textContent === 'photo-17'")
    page.wait("document.querySelector('#row-path .path')")
    neighbour = page.evaluate("document.querySelector('.minis .id').textContent")
    page.click(".minis a")
    page.wait(f"document.querySelector('#row h1').textContent === {json.dumps(neighbour)}")
    page.evaluate("history.back()")
    page.wait("document.querySelector('#row h1').textContent === 'photo-17'")
    page.wait("[...document.querySelectorAll('#row img')].some((image) => image.naturalWidth === 8)")


def test_artifact_shows_its_facts_a_page_of_rows_and_histograms(visit: Callable[..., Page]) -> None:
    page = visit("#/artifacts")
    page.wait("document.querySelector('#tree a[href=\"#/artifact/graph/W\"]')")
    page.click("#tree a[href='#/artifact/graph/W']")
    page.wait("document.querySelectorAll('#histograms .column').length > 5")
    page.click("#artifact a[href$='array=indptr']")
    page.wait("document.querySelectorAll('.values tbody tr').length === 50")
    # The histogram above the rows takes its place when it is there.
    page.wait("document.querySelectorAll('#array-histogram .column').length > 3")
    page.click(".steps a")
    page.wait("document.querySelector('.values tbody th').textContent === '50'")
    page.reload()
    page.wait("document.querySelector('.values tbody th')?.textContent === '50'")
    assert page.evaluate("document.querySelector('#artifact h1').textContent") == "graph/W"
