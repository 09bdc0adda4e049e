"""Runs fuzz cases in forked workers, each with bounded memory and a time limit, and keeps what was found.

Case number n of a seed is always the same input. A worker writes the number of its case into shared memory first, so that the
parent knows which input ended a worker: a crash or an endless loop in a C library costs one worker and not the campaign.
"""

from __future__ import annotations

import hashlib
import io
import json
import mmap
import os
import re
import resource
import shutil
import signal
import struct
import sys
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from mmdiff.formats.errors import MmdiffError
from tests.support.fuzz_mutations import Files, mutate
from tests.support.fuzz_targets import Target, make_seeds, targets

CASES_PER_WORKER = 20_000
# A case that takes so many seconds of processor time is a finding. The parent waits for a worker that does not go on: a loop in
# C, which no signal handler interrupts, or a read that blocks.
_CASE_SECONDS = 10
_WORKER_SECONDS = 120
# Address space beyond that of a fresh worker, and resident memory that one case may add.
_MORE_ADDRESSES = 2 << 30
_MORE_MEMORY = 400 << 20
_PROGRESS_SECONDS = 60
# Inputs of one kind of error that a worker hands over.
_KEPT = 3


class TooLong(BaseException):
    """Raised by the timer of a case."""


@dataclass(frozen=True)
class Finding:
    """An input with a wrong outcome; `native` if it ended the process."""

    seed: int
    number: int
    target: str
    wrong: str
    files: Files
    native: bool = False

    def __str__(self) -> str:
        return f"case {self.number} of seed {self.seed} ({self.target}): {self.wrong}"


@dataclass
class Found:
    """Figures of a campaign: errors by kind ("" is success), and the smallest inputs of each kind."""

    cases: int = 0
    accepted: int = 0
    by_target: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    rare: dict[str, tuple[str, Files]] = field(default_factory=dict)

    def keep(self, kind: str, target: str, files: Files) -> None:
        if kind not in self.rare or _size(files) < _size(self.rare[kind][1]):
            self.rare[kind] = (target, files)


def _size(files: Files) -> int:
    return sum(map(len, files.values()))


def case(found: dict[str, Target], seed: int, number: int) -> tuple[Target, Files]:
    """The target and the input of a case."""
    random = Random(f"{seed}/{number}")
    target = random.choices(list(found.values()), [target.share for target in found.values()])[0]
    return target, mutate(random, random.choice(target.seeds), random.choice(target.seeds))


def write(folder: Path, files: Files) -> None:
    """Writes an input into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def outcome(target: Target, folder: Path, files: Files) -> tuple[str, str | None]:
    """The kind of error that an input gives ("" for none), and what is wrong with that (None if nothing is)."""
    if not target.in_memory:
        write(folder, files)
    memory = _peak_memory()
    try:
        with _time_limit():
            target.read(folder, files)
        kind, wrong = "", None
    except MmdiffError as error:
        kind, wrong = _kind(target, error), None
    except TooLong:
        kind, wrong = f"{target.name}: took too long", f"took more than {_CASE_SECONDS} s of processor time"
    except Exception as error:
        kind, wrong = _kind(target, error), "".join(traceback.format_exception(error)[-6:])
    if wrong is None and _peak_memory() - memory > _MORE_MEMORY:
        wrong = f"took {_peak_memory() - memory:,} bytes of memory"
    return kind, wrong


def _peak_memory() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _kind(target: Target, error: BaseException) -> str:
    """The error without what differs between inputs: numbers, names and values."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"|/\S*|[0-9][0-9,.]*|[^\x20-\x7e]", "", str(error))
    return f"{target.name}: {type(error).__name__}: {' '.join(text.split())[:90]}"


@contextmanager
def _time_limit() -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, _CASE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def run_cases(seed: int, first: int, count: int, scratch: Path) -> Found:
    """Runs cases first..first+count-1, and returns their figures."""
    scratch.mkdir(parents=True, exist_ok=True)
    known = _made_in_a_child()
    total, done, told = Found(), first, time.monotonic()
    place = mmap.mmap(-1, 8)
    while done < first + count:
        end = min(done + CASES_PER_WORKER, first + count)
        place[:] = struct.pack("<q", done)
        child = os.fork()
        if child == 0:
            _worker(known, seed, range(done, end), scratch, place)
        ended, at, since = None, done, time.monotonic()
        while ended is None:
            waited, status = os.waitpid(child, os.WNOHANG)
            now = struct.unpack("<q", place[:])[0]
            if waited:
                ended = _ended(status)
            elif now != at:
                at, since = now, time.monotonic()
            elif time.monotonic() - since > _WORKER_SECONDS:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                ended = "a loop in a library, or a read that blocks"
            else:
                time.sleep(0.02)
            if time.monotonic() - told > _PROGRESS_SECONDS:
                told = time.monotonic()
                sys.stderr.write(f"fuzz: {now - first:,} of {count:,} cases, {len(total.findings)} findings\n")
        _collect(total, scratch / "records", seed)
        at = struct.unpack("<q", place[:])[0]
        if ended:
            target, files = case(known, seed, at)
            total.cases += 1
            total.by_target[target.name] += 1
            total.findings.append(Finding(seed, at, target.name, ended, files, native="library" in ended))
        done = at + 1 if ended else end
    shutil.rmtree(scratch, ignore_errors=True)
    return total


def _ended(status: int) -> str:
    """The end of a worker, "" if it did all its cases."""
    if os.WIFSIGNALED(status):
        return f"a crash of a library ({signal.Signals(os.WTERMSIG(status)).name})"
    return "" if status == 0 else f"the worker ended with status {os.waitstatus_to_exitcode(status)}"


def _made_in_a_child() -> dict[str, Target]:
    """The targets, with seeds made by a child: libraries that have run once have threads, which a fork does not copy."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(writing, "w") as stream:
            json.dump({name: list(map(_as_text, seeds)) for name, seeds in make_seeds().items()}, stream)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        found = json.load(stream)
    os.waitpid(child, 0)
    return targets({name: tuple(map(_as_files, seeds)) for name, seeds in found.items()})


def _as_text(files: Files) -> dict[str, str]:
    return {name: content.decode("latin-1") for name, content in files.items()}


def _as_files(texts: dict[str, str]) -> Files:
    return {name: text.encode("latin-1") for name, text in texts.items()}


def _worker(known: dict[str, Target], seed: int, numbers: range, scratch: Path, place: mmap.mmap) -> NoReturn:
    """Runs cases in a child process and ends it. Each case is recorded at once, since the next may end the process."""
    seen: Counter[str] = Counter()
    try:
        resource.setrlimit(resource.RLIMIT_AS, (_addresses() + _MORE_ADDRESSES, resource.RLIM_INFINITY))
        with (scratch / "records").open("w") as records, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number in numbers:
                place[:] = struct.pack("<q", number)
                target, files = case(known, seed, number)
                kind, wrong = outcome(target, scratch / "case", files)
                seen[kind] += 1
                kept = files if wrong or (kind and seen[kind] <= _KEPT) else None
                records.write(json.dumps([number, target.name, kind, wrong, None if kept is None else _as_text(kept)]) + "\n")
                records.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _addresses() -> int:
    """The address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _collect(total: Found, records: Path, seed: int) -> None:
    """Adds what a worker has recorded. The last record may be cut short."""
    for line in records.read_text().splitlines() if records.exists() else ():
        with suppress(ValueError):
            number, target, kind, wrong, texts = json.loads(line)
            total.cases += 1
            total.by_target[target] += 1
            total.accepted += not kind
            total.kinds[kind] += 1
            if texts is not None:
                total.keep(kind, target, _as_files(texts))
            if wrong:
                total.findings.append(Finding(seed, number, target, wrong, _as_files(texts)))
    records.unlink(missing_ok=True)


def pack(files: Files) -> bytes:
    """An input as one file of the corpus: an archive without compression, always the same bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name), content)
    return stream.getvalue()


def unpack(content: bytes) -> Files:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def corpus_name(target: str, files: Files) -> str:
    return f"{target}.{hashlib.blake2b(pack(files), digest_size=4).hexdigest()}.zip"
