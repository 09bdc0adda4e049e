"""Chromium driven over the DevTools protocol: pages that are clicked, typed into, measured and photographed.

The protocol is spoken over a pipe (`--remote-debugging-pipe`), so no port is open and no library is needed.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.browser import CHROMIUM, WHY_NOT

OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--remote-debugging-pipe"),
)
# A machine that is busy with other tests may take this long for anything.
PATIENCE = 90.0
# Names of keys that are not the text they write: (code, number).
KEYS = {
    **{
        "Enter": ("Enter", 13),
        "Escape": ("Escape", 27),
        "Tab": ("Tab", 9),
        "Delete": ("Delete", 46),
        "Backspace": ("Backspace", 8),
    },
    **{
        "ArrowLeft": ("ArrowLeft", 37),
        "ArrowUp": ("ArrowUp", 38),
        "ArrowRight": ("ArrowRight", 39),
        "ArrowDown": ("ArrowDown", 40),
    },
    **{"Home": ("Home", 36), "End": ("End", 35), "PageUp": ("PageUp", 33), "PageDown": ("PageDown", 34)},
}
SHIFT, CONTROL = 8, 2
# The frame that draws what has changed has begun when the one after it is asked for. A tab in the background has no frames.
DRAWN = """Promise.race([
  new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done()))),
  new Promise((done) => setTimeout(done, 500)),
])"""


class Browser:
    """One Chromium process; use it as a context."""

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None, WHY_NOT
        # The browser reads from descriptor 3 and writes to 4. Ours are put out of their way first.
        theirs, self._out = _pipe()
        self._in, answers = _pipe()
        program = f"import os, sys; os.dup2({theirs}, 3); os.dup2({answers}, 4); os.execv(sys.argv[1], sys.argv[1:])"
        command = [sys.executable, "-c", program, CHROMIUM, *OPTIONS, f"--user-data-dir={folder}"]
        self._process = subprocess.Popen(
            command, pass_fds=(theirs, answers), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        os.close(theirs)
        os.close(answers)
        self._lock = threading.Lock()
        self._number = 0
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.call("Browser.close")
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        os.close(self._out)

    def call(self, method: str, parameters: dict[str, Any] | None = None, session: str | None = None) -> dict[str, Any]:
        """One command of the protocol and its result."""
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            self._number += 1
            message = {"id": self._number, "method": method, "params": parameters or {}}
            self._waiting[self._number] = future
            data = json.dumps(message if session is None else {**message, "sessionId": session}).encode() + b"\0"
            while data:
                data = data[os.write(self._out, data) :]
        answer = future.result(PATIENCE)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return dict(answer["result"])

    def open(self, address: str, width: int = 1440, height: int = 900, dark: bool = False, alone: bool = False) -> Page:
        """A new tab; `alone` gives it storage of its own."""
        where = {"browserContextId": self.call("Target.createBrowserContext")["browserContextId"]} if alone else {}
        target = self.call("Target.createTarget", {"url": "about:blank", **where})["targetId"]
        session = str(self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"])
        page = Page(self, target, session)
        self._pages[session] = page
        for domain in ("Page", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.look(width, height, dark)
        page.go(address)
        return page

    def _read(self) -> None:
        with open(self._in, "rb") as pipe:  # noqa: PTH123 - a descriptor
            rest = b""
            while data := os.read(pipe.fileno(), 1 << 20):
                *messages, rest = (rest + data).split(b"\0")
                for message in messages:
                    self._arrived(json.loads(message))
        for future in self._waiting.values():
            future.cancel()

    def _arrived(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._waiting.pop(message["id"]).set_result(message)
        elif page := self._pages.get(message.get("sessionId", "")):
            page.event(message["method"], message["params"])


def refuse_other(error: RuntimeError) -> None:
    """Raises all errors but those of a page that is being replaced, which has no context to ask in."""
    if not any(word in str(error) for word in ("context", "navigated", "collected")):
        raise error


def _pipe() -> tuple[int, int]:
    """Both ends of a pipe, above the descriptors that a program is given."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


class Page:
    """A tab: what it logs is in `console`, what it evaluates comes back as JSON."""

    def __init__(self, browser: Browser, target: str, session: str) -> None:
        self._browser, self._target, self._session = browser, target, session
        self.console: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, parameters, self._session)

    def event(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.console.append(str(details.get("exception", {}).get("description", details["text"])))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in {"error", "warning", "assert"}:
            self.console.append(" ".join(str(part.get("value", part.get("description"))) for part in parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in {"error", "warning"}:
            self.console.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
        elif method == "Page.javascriptDialogOpening":
            threading.Thread(target=self.call, args=("Page.handleJavaScriptDialog",), kwargs={"accept": True}).start()

    def look(self, width: int, height: int, dark: bool = False) -> None:
        """The size of the window and the colour scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        motion = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.call("Emulation.setEmulatedMedia", features=[scheme, motion])

    def go(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def reload(self) -> None:
        self.evaluate("window.before = true")
        self.call("Page.reload")
        self.wait("window.before === undefined && document.readyState === 'complete'")

    def close(self) -> None:
        self._browser.call("Target.closeTarget", {"targetId": self._target})

    def front(self) -> None:
        self.call("Page.bringToFront")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, of a promise when it is kept."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(
                answer["exceptionDetails"].get("exception", {}).get("description", answer["exceptionDetails"]["text"])
            )
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = PATIENCE) -> None:
        """Asks until the expression is true; an element counts as true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if self.evaluate(f"Boolean({condition})"):
                    break
            except RuntimeError as error:
                refuse_other(error)
            time.sleep(0.03)
        else:
            self._give_up(condition, seconds)
        self.draw()

    def _give_up(self, condition: str, seconds: float) -> None:
        seen = self.evaluate("document.body.innerText")
        raise AssertionError(f"not within {seconds:.0f} s: {condition}; console: {self.console}; page: {seen[:1500]}")

    def draw(self) -> None:
        """Waits until all that has changed is drawn, which takes a frame or two; a page that goes draws nothing."""
        try:
            self.evaluate(DRAWN)
        except RuntimeError as error:
            refuse_other(error)

    def press(self, key: str, shift: bool = False, control: bool = False) -> None:
        """One key, down and up; a single character writes itself."""
        self._press(key, shift, control)
        self.draw()

    def _press(self, key: str, shift: bool = False, control: bool = False) -> None:
        modifiers = SHIFT * shift + CONTROL * control
        code, number = KEYS.get(key, (f"Key{key.upper()}" if key.isalpha() else key, ord(key[0].upper())))
        text = {"text": "\r" if key == "Enter" else key} if (len(key) == 1 or key == "Enter") and not control else {}
        for kind in ("keyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=code,
                windowsVirtualKeyCode=number,
                modifiers=modifiers,
                **more,
            )

    def type(self, text: str) -> None:
        for letter in text:
            self._press(letter)
        self.draw()

    def click(self, selector: str, shift: bool = False) -> None:
        """Clicks the middle of an element that is in the window."""
        where = self.evaluate(
            f"(() => {{ const element = document.querySelector({json.dumps(selector)});"
            " element.scrollIntoView({block: 'nearest'}); const box = element.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                **{"type": kind, "x": where[0], "y": where[1], "button": "left", "clickCount": 1, "modifiers": SHIFT * shift},
            )
        self.draw()

    def photograph(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
