"""Faults and kills at chosen file operations of a stage, which runs in a forked child with the functions of `os` wrapped.

Only operations on files below one folder count, so that imports and caches of the interpreter stay undisturbed. Forking is
safe in an interpreter with BLAS on one thread and no other thread running.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import gc
import io
import json
import os
import re
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmdiff.formats.errors import MmdiffError
from tests.support.stages import Rehearsal
from tests.support.stores import chunk_inodes

WRITES = ("write", "pwrite")
CHANGES = (
    *("create", "write", "pwrite", "posix_fallocate", "ftruncate", "truncate", "fsync"),
    *("rename", "replace", "link", "symlink", "mkdir", "unlink", "rmdir"),
)
READS = (
    *("open", "read", "pread", "readv", "preadv", "scandir", "listdir"),
    *("stat", "lstat", "fstat", "statvfs", "readlink", "flock"),
)
# Python itself repeats other calls that a signal interrupts (PEP 475).
_NOT_REPEATED = ("rename", "replace", "link", "symlink", "mkdir", "unlink", "rmdir", "scandir", "listdir", "stat", "lstat")
_NEED_SPACE = tuple(call for call in CHANGES if call not in ("unlink", "rmdir", "truncate"))

# The calls at which each kind of fault can happen.
KILLS: dict[str, tuple[str, ...]] = {"killed before": CHANGES, "killed after": CHANGES, "killed within": WRITES}
FAULTS: dict[str, tuple[str, ...]] = {
    "EIO": (*CHANGES, *READS),
    "ENOSPC": _NEED_SPACE,
    "EDQUOT": _NEED_SPACE,
    "EINTR": _NOT_REPEATED,
    "EMFILE": ("create", "open", "scandir", "listdir"),
    "ENOLCK": ("flock",),
    "short": WRITES,
}
# A child that takes longer hangs.
_MOST_SECONDS = 120


@dataclass(frozen=True)
class Fault:
    """A fault at one operation of its kind, counted from 0, or with `forever` at all operations from there on."""

    kind: str
    at: int
    forever: bool = False

    @property
    def kills(self) -> bool:
        return self.kind in KILLS

    @property
    def calls(self) -> tuple[str, ...]:
        return KILLS[self.kind] if self.kills else FAULTS[self.kind]

    def __str__(self) -> str:
        return f"{self.kind} at {'and after ' if self.forever else ''}operation {self.at}"


class Injector:
    """Wraps the file operations of this process: lists them, and makes one of them fail or kills the process there.

    Kills: `before` the call, nothing of it has happened; `after`, all of it has; `within`, half of the bytes were written.
    """

    def __init__(self, folder: Path, fault: Fault | None = None, told: Callable[[str], None] = lambda _: None) -> None:
        self.folder, self.fault, self.told = str(folder), fault, told
        self.calls: list[str] = []
        self.count = 0
        self.active = True
        self.hit = ""
        self.lock = threading.Lock()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Wraps the functions, and puts them back."""
        names = {*CHANGES, *READS} - {"create", "flock"}
        found: list[tuple[Any, str]] = [*((os, name) for name in names), (fcntl, "flock"), (io, "open"), (builtins, "open")]
        originals = [(module, name, getattr(module, name)) for module, name in found]
        for module, name, call in originals:
            setattr(module, name, self._wrapped(module, name, call))
        try:
            yield
        finally:
            self.active = False
            for module, name, call in originals:
                setattr(module, name, call)

    def _wrapped(self, module: Any, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            what = name
            if name == "open":
                what = "create" if _creates(module, args, kwargs) else "open"
            if not self.active or not self._concerns(what, args, kwargs):
                return call(*args, **kwargs)
            with self.lock:
                self.calls.append(what)
                fails = self._fails(what)
                if fails and self.fault is not None and self.fault.kills:
                    self._die(self.fault.kind, what, call, args, kwargs)
            return self._failed(call, args) if fails else call(*args, **kwargs)

        return counted

    def _fails(self, what: str) -> bool:
        if self.fault is None or what not in self.fault.calls:
            return False
        number, self.count = self.count, self.count + 1
        fails = number == self.fault.at or (self.fault.forever and number > self.fault.at)
        if fails and not self.hit:
            self.hit = what
        return fails

    def _failed(self, call: Callable[..., Any], args: Any) -> Any:
        assert self.fault is not None
        if self.fault.kind == "short":
            descriptor, data, *where = args
            view = memoryview(data).cast("B")
            return call(descriptor, view[: max(1, view.nbytes // 2)], *where)
        number: int = getattr(errno, self.fault.kind)
        named = args[:1] if args and isinstance(args[0], str | os.PathLike) else ()
        raise OSError(number, os.strerror(number), *map(os.fspath, named))

    def _die(self, kind: str, what: str, call: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self.told(what)
        try:
            if kind == "killed after":
                call(*args, **kwargs)
            elif kind == "killed within":
                descriptor, data, *where = args
                call(descriptor, memoryview(data).cast("B")[: memoryview(data).nbytes // 2], *where)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)

    def _concerns(self, what: str, args: Any, kwargs: Any) -> bool:
        """Whether a call is about a file below the folder."""
        path = args[1] if what in ("symlink", "link") else args[0] if args else "."
        return full_path(path, kwargs.get("dir_fd")).startswith(self.folder)


def full_path(path: Any, dir_fd: int | None = None) -> str:
    """The absolute path of a path or descriptor; empty for a descriptor without one."""
    if hasattr(path, "fileno"):
        path = path.fileno()
    if isinstance(path, int):
        try:
            return _readlink(f"/proc/self/fd/{path}")
        except OSError:
            return ""
    text = os.fsdecode(path)
    if dir_fd is not None and not text.startswith("/"):
        return f"{full_path(dir_fd)}/{text}"
    return text if text.startswith("/") else f"{os.getcwd()}/{text}"  # noqa: PTH109


_readlink = os.readlink


def _creates(module: Any, args: Any, kwargs: Any) -> bool:
    """Whether a call of `os.open` or of the builtin `open` may make or change a file."""
    if module is os:
        return bool(args[1] & os.O_CREAT)
    mode = args[1] if len(args) > 1 else kwargs.get("mode", "r")
    return bool(set(mode) & set("wax+"))


@dataclass(frozen=True)
class Outcome:
    """The end of a child. `how`: "finished", "refused" (a typed error), "killed", or "failed", with the reason."""

    how: str
    call: str = ""
    error: str = ""
    where: str = ""


def operations(rehearsal: Rehearsal, folder: Path) -> list[str]:
    """The file operations of an undisturbed run, in order."""
    rehearsal.reset()
    injector = Injector(folder)

    def act() -> list[str]:
        with injector.installed():
            rehearsal.act()
        return injector.calls

    found: list[str] = json.loads(_in_child(lambda _: json.dumps(act())))
    return found


def disturb(rehearsal: Rehearsal, folder: Path, fault: Fault) -> Outcome:
    """Runs the stage with a fault, checks what it leaves, and runs it again; the store must be that of an undisturbed run.

    The second run is in the same process, as by a caller who catches the error; after a kill it is in another one.
    """
    rehearsal.reset()
    told: dict[str, Any] = {}
    try:
        text = _in_child(lambda say: json.dumps(_disturbed(rehearsal, Injector(folder, fault, say))))
    except Killed as killed:
        if not fault.kills:
            return Outcome("failed", error=f"the process was ended by {killed}", where=str(killed))
        told = {"how": "killed", "call": killed.said}
        try:
            rehearsal.check_intact()
            finished = chunk_inodes(rehearsal.store)
            told |= json.loads(_in_child(lambda _: json.dumps(_again(rehearsal, strict=True))))
            again = finished - chunk_inodes(rehearsal.store) if rehearsal.stage.keeps_chunks else set()
            assert not again, f"{len(again)} chunks that were finished were written again"
        except (AssertionError, Killed) as error:
            told = {"how": "failed", "call": killed.said, "error": str(error), "where": "after the kill"}
        return Outcome(**told)
    return Outcome(**json.loads(text))


def _disturbed(rehearsal: Rehearsal, injector: Injector) -> dict[str, str]:
    """The first run, and if it ends without a kill the checks and the second run."""
    how, error, where = "finished", "", ""
    try:
        with injector.installed():
            rehearsal.act()
    except MmdiffError as refusal:
        how, error = "refused", str(refusal)
        if not re.search(r"\w{2,} \w{2,}.*[.?]", error):
            how, where = "failed", "no sentence"
    except BaseException as failure:
        how, error, where = "failed", traceback.format_exc(), _origin(failure)
    found = {"how": how, "call": injector.hit, "error": error, "where": where}
    gc.collect()
    try:
        left = [path for path in map(full_path, _descriptors()) if path.startswith(str(rehearsal.store))]
        assert not left, f"left open: {left}"
        rehearsal.check_intact()
        if how == "finished":
            rehearsal.check_published()
    except Exception as failure:
        return found | {"how": "failed", "error": f"{error}\n{failure}", "where": f"checks: {_short(failure)}"}
    return found | _again(rehearsal, strict=False)


def _again(rehearsal: Rehearsal, strict: bool) -> dict[str, str]:
    """Runs the stage undisturbed; returns nothing if it makes what it should.

    Unless `strict`, an object that could not be read may have been made again, beside itself.
    """
    try:
        rehearsal.act()
        rehearsal.check_finished(duplicates=not strict)
    except BaseException as failure:
        return {"how": "failed", "error": traceback.format_exc(), "where": f"run again: {_short(failure)}"}
    return {}


def with_signals(rehearsal: Rehearsal, seconds: float) -> int:
    """Runs the stage while a timer interrupts its system calls all the time; returns the number of signals."""
    rehearsal.reset()

    def act(_: Callable[[str], None]) -> str:
        signals = 0

        def count(*_: Any) -> None:
            nonlocal signals
            signals += 1

        signal.signal(signal.SIGALRM, count)
        signal.siginterrupt(signal.SIGALRM, True)
        signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
        try:
            rehearsal.act()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return str(signals)

    found = int(_in_child(act))
    rehearsal.check_finished()
    return found


class Killed(Exception):
    """A child that a signal ended, and what it had said before."""

    def __init__(self, number: int, said: str) -> None:
        super().__init__(signal.Signals(number).name)
        self.said = said


def _in_child(work: Callable[[Callable[[str], None]], str]) -> str:
    """The text that `work` returns in a forked child; it is given a function that says something before a kill."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            write = os.write

            def say(text: str) -> None:
                write(write_end, text.encode())

            signal.alarm(_MOST_SECONDS)
            with open(write_end, "w", closefd=False) as stream:
                stream.write(work(say))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write_end)
    with open(read_end) as stream:  # noqa: PTH123
        said = stream.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        raise Killed(os.WTERMSIG(status), said)
    assert status == 0, "the child failed"
    return said


def _descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208


def _short(failure: BaseException) -> str:
    """The beginning of a message without paths and numbers, by which the same failures are recognised."""
    return re.sub(r"/\S*/|[0-9a-f]{24}|\d+", "", f"{type(failure).__name__}: {failure}")[:100]


def _origin(failure: BaseException) -> str:
    """The error and the innermost line of our own code in its traceback."""
    frames = [frame for frame in traceback.extract_tb(failure.__traceback__) if "/tests/" not in frame.filename]
    own = [frame for frame in frames if "/mmdiff/" in frame.filename or "/formats/" in frame.filename]
    place = (own or frames)[-1] if frames else None
    return f"{type(failure).__name__}" + (f" at {Path(place.filename).name}:{place.name}:{place.lineno}" if place else "")
