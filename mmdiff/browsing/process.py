"""The process that computes for the page (`background.py`), as the page sees it: jobs go in, messages come out."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress

from mmdiff.browsing.messages import line_of, message_of
from mmdiff.formats.store.manifest import Json


class Process:
    """The process that computes, with the messages that it has sent."""

    def __init__(self) -> None:
        script = "from mmdiff.browsing.background import main; main()"
        # It imports from where this process does.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        # A Ctrl-C in the terminal is for the page, which then ends this process.
        self._child = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self._messages: queue.SimpleQueue[Json | None] = queue.SimpleQueue()
        self._ended = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._messages.put(message_of(line))
        self._messages.put(None)

    @property
    def alive(self) -> bool:
        """Whether more may come from it."""
        return not self._ended

    @property
    def code(self) -> int | None:
        return self._child.wait()

    def send(self, job: Json) -> None:
        assert self._child.stdin is not None
        with suppress(BrokenPipeError):
            self._child.stdin.write(line_of(job))
            self._child.stdin.flush()

    def next(self, seconds: float) -> Json | None:
        """The next message; None where there is none for so long, or the process has ended."""
        try:
            found = self._messages.get(timeout=seconds)
        except queue.Empty:
            return None
        self._ended = found is None
        return found

    def interrupt(self) -> None:
        with suppress(ProcessLookupError):
            self._child.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Ends the process at once and waits for it."""
        self._child.kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
