"""Resources: commands under limits on files and memory, on full and read-only disks, without rights, HOME, stdout or stderr.

Every command succeeds or ends with one sentence and a documented exit code, never with a traceback. The store stays intact, and
the same command succeeds once the resource is there again.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mmdiff.formats.store.store import Store
from tests.support.paths import BACKWARD_CLOCK
from tests.support.stores import MEMORY, problems

PROGRAM = Path(sys.executable).parent / "mmdiff"
EXIT_CODES = (0, 1, 2)

# CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and CAP_FOWNER of Linux.
_PR_CAPBSET_DROP, _FILE_CAPABILITIES = 24, (0, 1, 2, 3)

# A command that its limits slow down this much has stopped.
_SECONDS = 300

# Commands with {store}, {data} and {out}; those that make something come in the order in which they build on each other.
COMMANDS: dict[str, str] = {
    "import": "import {data}/more.npy --role test --labels {data}/labels.npy",
    "build-graph": "build-graph --k 5",
    "diffuse": "diffuse --iterations 2 --name other",
    "logreg": "logreg --iterations 5 --name other",
    "evaluate": "evaluate",
    "inspect": "inspect",
    "inspect rows": "inspect descriptors/background --rows :",
    "inspect graph": "inspect graph/W --json",
    "verify": "verify",
    "export": "export graph/W {out}/graph.npz",
    "report": "report --out {out}/report.html",
    "plan": "plan diffuse",
    "gc": "gc",
    "doctor": "doctor",
}
MAKING = ("import", "build-graph", "diffuse", "logreg")


@dataclass(frozen=True)
class Place:
    """The folder of a case: a store, the user's files, and a folder for files that are written."""

    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def words(self, command: str) -> list[str]:
        given = {"store": str(self.store), "data": str(self.folder / "data"), "out": str(self.folder / "out")}
        return [*(word.format(**given) for word in COMMANDS[command].split(" ")), "--store", str(self.store)]


@dataclass(frozen=True)
class Case:
    """A command in a condition. `inside` runs in the new process before the program; `around` prepares the folder."""

    condition: str
    command: str
    inside: Callable[[], None] = lambda: None
    around: Callable[[Place], Any] | None = None
    environment: dict[str, str | None] = field(default_factory=dict)
    shell: str = ""
    folder: str = "place"
    repaired: bool = True
    succeeds: bool = False

    def __str__(self) -> str:
        return f"{self.command}, {self.condition}"


def make_original(folder: Path) -> None:
    """A store with a graph and scores, and files that it can take."""
    draw = np.random.default_rng(0)
    for name in ("data", "out"):
        (folder / name).mkdir(parents=True)
    rows = draw.standard_normal((400, 16)).astype(np.float32)
    np.save(folder / "data" / "rows.npy", rows)
    np.save(folder / "data" / "more.npy", rows[:60] + 0.1)
    np.save(folder / "data" / "labels.npy", np.arange(60) % 3)
    np.save(folder / "data" / "some.npy", np.where(np.arange(400) % 10, -1, np.arange(400) % 3))
    place = Place(folder)
    for command in (
        f"import {folder}/data/rows.npy --role background --labels {folder}/data/some.npy",
        f"import {folder}/data/more.npy --role seeds --labels {folder}/data/labels.npy",
        f"import {folder}/data/rows.npy --role test --labels {folder}/data/some.npy",
        "build-graph --k 4",
        "diffuse --iterations 2",
    ):
        subprocess.run([PROGRAM, *command.split(), "--store", place.store], check=True, capture_output=True)


def limited(kind: int, value: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))


def without_privileges() -> None:
    """Makes root a user like any other, to whom the permissions of files apply. The interpreter may lie in root's home."""
    if os.getuid() == 0:
        system = ctypes.CDLL(None)
        for capability in _FILE_CAPABILITIES:
            system.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def close(*descriptors: int) -> Callable[[], None]:
    def closing() -> None:
        for descriptor in descriptors:
            os.close(descriptor)

    return closing


def broken_pipe(descriptor: int) -> Callable[[], None]:
    """Makes a stream a pipe that has no reader, as after `| head -1`."""

    def breaking() -> None:
        reading, writing = os.pipe()
        os.dup2(writing, descriptor)
        os.close(reading)
        os.close(writing)

    return breaking


@contextmanager
def small_disk(place: Place, size: int) -> Iterator[None]:
    """Moves the store to a tmpfs of a size beyond what the store has already."""
    used = sum(path.lstat().st_size + 4096 for path in place.store.rglob("*") if not path.is_symlink())
    with mounted(place, "tmpfs", ["-t", "tmpfs", "-o", f"size={used + size}", "tmpfs"]):
        yield


@contextmanager
def mounted(place: Place, what: str, words: Sequence[str]) -> Iterator[None]:
    """Mounts something in the place of the store, with the content of the store; the content is copied back."""
    aside = place.folder / "aside"
    place.store.rename(aside)
    place.store.mkdir()
    source = [str(aside)] if what == "bind" else []
    subprocess.run(["mount", *words, *source, place.store], check=True, capture_output=True)
    try:
        if what == "bind":
            subprocess.run(["mount", "-o", "remount,ro,bind", place.store], check=True, capture_output=True)
        else:
            subprocess.run(["cp", "-a", f"{aside}/.", place.store], check=True)
        yield
        if what != "bind":
            shutil.rmtree(aside)
            shutil.copytree(place.store, aside, symlinks=True)
    finally:
        subprocess.run(["umount", "-l", place.store], check=True)
        place.store.rmdir()
        aside.rename(place.store)


def can_mount() -> bool:
    """Whether this process may mount file systems."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=False, capture_output=True)
        if done.returncode == 0:
            subprocess.run(["umount", folder], check=True)
    return done.returncode == 0


@contextmanager
def permissions(place: Place, folders: int, files: int) -> Iterator[None]:
    """Takes permissions from everything in the store, and gives them back."""
    paths = [path for path in [place.store, *place.store.rglob("*")] if not path.is_symlink()]
    for path in reversed([place.folder / "out", *paths]):
        path.chmod(folders if path.is_dir() else files)
    try:
        yield
    finally:
        for path in [place.store, *place.store.rglob("*"), place.folder / "out"]:
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() else 0o644)


@contextmanager
def future(place: Place) -> Iterator[None]:
    """Everything was made in the year 2100: the clock has been set back since."""
    for path in [*place.store.rglob("*"), *(place.folder / "data").iterdir()]:
        os.utime(path, (4102444800, 4102444800), follow_symlinks=False)
    yield


def cases(small: bool) -> Iterator[Case]:
    """All cases, or with `small` one or two of each condition."""

    def some(every: Sequence[str], few: Sequence[str]) -> Sequence[str]:
        return few if small else every

    everything = list(COMMANDS)
    for limit in some(["16", "24", "40"], ["24"]):
        for command in some(everything, ["diffuse"]):
            yield Case(f"at most {limit} open files", command, limited(resource.RLIMIT_NOFILE, int(limit)))
    for size in some(["200", "400", "700", "1500"], ["400"]):
        for command in some(everything, ["build-graph"]):
            yield Case(f"at most {size} MB of data", command, limited(resource.RLIMIT_DATA, int(size) << 20))
    for size in some(["0", "1000", "5000", "20000"], ["5000"]):
        for command in some([*MAKING, "export", "report"], ["export"]):
            yield Case(f"files of at most {size} bytes", command, limited(resource.RLIMIT_FSIZE, int(size)))
    if can_mount():
        for size in some(["0", "8192", "40000"], ["8192"]):
            for command in some(everything, ["diffuse"]):
                yield Case(f"{size} bytes free", command, around=lambda place, size=size: small_disk(place, int(size)))  # type: ignore[misc]
        for command in some(everything, ["import"]):
            yield Case(
                "read-only mount",
                command,
                around=lambda place: mounted(place, "bind", ["--bind"]),
                succeeds=_only_reads(command),
            )
    for command in some(everything, ["diffuse"]):
        yield Case(
            "read-only files",
            command,
            without_privileges,
            lambda place: permissions(place, 0o555, 0o444),
            succeeds=_only_reads(command) and command not in ("export", "report"),
        )
    for command in some(everything, ["inspect"]):
        yield Case("unreadable files", command, without_privileges, lambda place: permissions(place, 0o000, 0o000))
    homes: dict[str, dict[str, str | None]] = {
        "without HOME": {"HOME": None},
        "HOME that does not exist": {"HOME": "/nonexistent"},
        "nothing in the environment": {"HOME": None, "LANG": None, "PATH": None, "LC_ALL": "C", "PYTHONUTF8": "0"},
    }
    for condition, environment in list(homes.items())[-1:] if small else homes.items():
        for command in some(everything, ["inspect"]):
            yield Case(condition, command, environment=environment, succeeds=True)
    for command in some(everything, ["inspect"]):
        yield Case("clock set back", command, around=future, succeeds=True)
        yield Case("clock that runs backwards", command, environment={"PYTHONPATH": str(BACKWARD_CLOCK)}, succeeds=True)
    for name in (
        "with spaces",
        "with\nnewline",
        "ünïcode ☃",
        os.fsdecode(b"not utf-8 \xff"),
        "'\"$(x)`;*?[a]",
        "-dash",
        "a%20b&c",
    ):
        for command in some(everything, ["import", "inspect"]):
            yield Case(f"path {name!r}", command, folder=name, succeeds="?" not in name)
    streams = {"stdin": close(0), "stdout": close(1), "stderr": close(2), "all streams": close(0, 1, 2)}
    for condition, closing in streams.items():
        for command in some(everything, ["inspect"]):
            yield Case(f"{condition} closed", command, closing)
    for command in some(everything, ["diffuse"]):
        yield Case("stderr into a broken pipe", command, broken_pipe(2), succeeds=True)
    for condition, shell in (("into head", "| head -1"), ("into true", "| true"), ("into /dev/full", "> /dev/full")):
        for command in some(everything, ["inspect rows"]):
            yield Case(condition, command, shell=shell)


def _only_reads(command: str) -> bool:
    return command not in (*MAKING, "gc", "doctor")


def run_case(case: Case, original: Path, scratch: Path) -> str:
    """Runs a case on a copy of the original; returns what is wrong, or ""."""
    folder = scratch / os.fsencode(case.folder).decode(errors="surrogateescape")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original, folder, symlinks=True)
    folder.chmod(0o755)
    place = Place(folder)
    before = _named(place)
    with ExitStack() as stack:
        if case.around is not None:
            stack.enter_context(case.around(place))
        code, told = execute(case, place)
    wrong = judge(case, code, told)
    if not wrong and code == 0 and case.command in MAKING and _named(place) == before:
        wrong = "exit code 0, but nothing was made"
    left = problems(Store.open(place.store)) if not wrong else []
    if left:
        wrong = f"the store is damaged: {left[0]}"
    if not wrong and case.command in MAKING and case.repaired:
        again = subprocess.run([PROGRAM, *place.words(case.command)], check=False, capture_output=True, text=True)
        if again.returncode != 0 or problems(Store.open(place.store)):
            wrong = f"the same command fails afterwards: {again.stderr[-300:]}"
    shutil.rmtree(folder)
    return wrong


def _named(place: Place) -> dict[Path, Path]:
    """The names of the store, with the objects that they lead to."""
    return {link: link.readlink() for link in place.store.glob("*/*") if link.is_symlink()}


def execute(case: Case, place: Place) -> tuple[int, str]:
    """Runs the program; returns its exit code and what it wrote to stderr."""
    environment = {**os.environ, "MMDIFF_CACHE": str(place.folder / "cache")}
    for key, value in case.environment.items():
        environment.pop(key, None)
        if value is not None:
            environment[key] = value
    words = [os.fsencode(word) for word in [str(PROGRAM), *place.words(case.command)]]
    if case.shell:
        words = [b"bash", b"-c", b'"$0" "$@" ' + case.shell.encode() + b"; exit ${PIPESTATUS[0]}", *words]
    process = subprocess.Popen(
        words,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=environment,
        cwd=place.folder,
        preexec_fn=case.inside,
    )
    try:
        _, told = process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        _, told = process.communicate()
    return process.returncode, told.decode(errors="replace")


def judge(case: Case, code: int, told: str) -> str:
    """The fault of the end of a command; "" if there is none."""
    lines = [line for line in told.splitlines() if line.strip()]
    if "Traceback" in told or "Fatal Python error" in told or "Exception ignored" in told:
        return f"a traceback (exit code {code}): {' / '.join(lines[-2:])[:300]}"
    if case.shell.startswith("|") and code == 128 + signal.SIGPIPE:
        return ""
    if code not in EXIT_CODES:
        return f"exit code {code}: {' / '.join(lines[-2:])[:300]}"
    closed = "stderr" in case.condition or "all streams" in case.condition
    reports = case.command in ("verify", "doctor") and code == 1
    if code != 0 and not closed and not reports and not any(line.startswith("mmdiff: ") for line in lines):
        return f"exit code {code} without a sentence: {' / '.join(lines[-2:])[:300]}"
    if code != 0 and case.succeeds:
        return f"refused (exit code {code}): {' / '.join(lines[-2:])[:300]}"
    return ""


def run(scale: float, seed: int, small: bool | None = None) -> dict[str, int | float | str]:
    """Runs all cases, or a share of them below scale 1; raises AssertionError with all that went wrong."""
    chosen = list(cases(scale < 0.2 if small is None else small))
    if small is None and 0.2 <= scale < 1:
        picks = np.random.default_rng(seed).permutation(len(chosen))[: round(scale * len(chosen))]
        chosen = [chosen[at] for at in sorted(picks)]
    scratch = Path(tempfile.mkdtemp(dir=MEMORY, prefix="resources-"))
    scratch.chmod(0o755)
    failures: list[str] = []
    told = time.monotonic()
    try:
        make_original(scratch / "original")
        for number, case in enumerate(chosen):
            try:
                wrong = run_case(case, scratch / "original", scratch)
            except OSError as error:
                if error.errno != errno.EILSEQ:
                    raise
                continue
            if wrong:
                failures.append(f"{case}: {wrong}")
                sys.stderr.write(f"resources: {failures[-1]}\n")
            if time.monotonic() - told > 60:
                told = time.monotonic()
                sys.stderr.write(f"resources: {number:,} of {len(chosen):,}, {len(failures)} failures\n")
    finally:
        shutil.rmtree(scratch)
    kinds = Counter(case.condition for case in chosen)
    assert not failures, f"{len(failures)} failures:\n" + "\n".join(failures)
    return {"cases": len(chosen), "conditions": len(kinds), "mounts": "yes" if can_mount() else "no", "failures": 0}
