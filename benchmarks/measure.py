"""Measurements: processes watched from outside, the best of several runs, and a description of the machine."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mmdiff.formats.store.manifest import Json
from mmdiff.runtime.memory import parse_membership

_PACKAGES = (
    "mmdiff",
    "numpy",
    "numba",
    "zarr",
    "google-crc32c",
    "faiss-cpu",
    "scipy",
    "mkl",
    "torch",
    "scikit-learn",
    "pynndescent",
    "graphlearning",
)
_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Watched:
    """A finished command: its time, peak anonymous memory (sampled), output, and bytes read from and written to the disk.

    `disk_bytes` is the most that the disk of a folder held at any time (sampled), beyond what it held before the command.
    """

    seconds: float
    anonymous_bytes: int
    output: str
    read_bytes: int = 0
    written_bytes: int = 0
    disk_bytes: int = 0

    @property
    def megabytes(self) -> float:
        return self.anonymous_bytes / 1e6

    def figures(self) -> Json:
        """All fields but the output, in seconds and bytes."""
        return {
            "seconds": self.seconds,
            "anonymous": self.anonymous_bytes,
            "read": self.read_bytes,
            "written": self.written_bytes,
            "disk": self.disk_bytes,
        }


@dataclass(frozen=True)
class Figure:
    """A measurement of mmdiff, beside that of a peer in the same session."""

    key: str
    what: str
    ours: float
    peer: str
    theirs: float
    unit: str
    more_is_better: bool = True

    @property
    def ratio(self) -> float:
        """The factor by which mmdiff is better."""
        return self.ours / self.theirs if self.more_is_better else self.theirs / self.ours


def best_of(runs: int, measure: Callable[[], Watched], prepare: Callable[[], None] = lambda: None) -> Watched:
    """The fastest of several runs, since disturbances only make a run slower."""
    watched = []
    for _ in range(runs):
        prepare()
        watched.append(measure())
    return min(watched, key=lambda run: run.seconds)


def watch(command: Sequence[str | Path], machine_bytes: int | None = None, disk: Path = Path()) -> Watched:
    """Runs a command to its end, with memory and page cache limited to `machine_bytes` if control groups are writable."""
    most, moved, before, grown = 0, (0, 0), used_bytes(disk), 0
    with nullcontext(None) if machine_bytes is None else limited_group(machine_bytes) as group:
        words = list(map(str, command))
        if group is not None:
            words = ["sh", "-c", f'echo $$ > {group / "cgroup.procs"} && exec "$@"', "sh", *words]
        start = time.perf_counter()
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            while process.poll() is None:
                most, moved = max(most, anonymous_bytes(process.pid)), moved_bytes(process.pid) or moved
                grown = max(grown, used_bytes(disk) - before)
                time.sleep(_POLL_SECONDS)
            seconds = time.perf_counter() - start
            output = process.stdout.read() if process.stdout else ""
    if process.returncode:
        raise RuntimeError(f"{' '.join(words)} failed: {output}")
    return Watched(seconds, most, output, *moved, grown)


@contextmanager
def limited_group(size: int) -> Iterator[Path | None]:
    """A control group with a memory limit, page cache included; None without the permission to make one.

    Both versions of control groups are tried. In version 2 a group has no memory controller unless its parent delegates it.
    """
    membership = parse_membership(Path("/proc/self/cgroup").read_text())
    groups = {"memory.limit_in_bytes": f"memory{membership.get('memory', '/')}", "memory.max": membership.get("", "/")[1:]}
    for limit, folder in groups.items():
        group = Path("/sys/fs/cgroup") / folder / f"bench-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / limit).exists():
                (group / limit).write_text(str(size))
                yield group
                return
        finally:
            group.rmdir()
    yield None


def anonymous_bytes(pid: int) -> int:
    """Anonymous memory of a process (RssAnon)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon"))


def moved_bytes(pid: int) -> tuple[int, int] | None:
    """Bytes that a process has read from the disk so far, page faults included, and written to it."""
    try:
        counters = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return (int(counters["read_bytes"]), int(counters["write_bytes"])) if "read_bytes" in counters else None


def used_bytes(folder: Path) -> int:
    """The bytes in use on the disk of a folder."""
    status = os.statvfs(folder)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def evict(folder: Path, sync: bool = True) -> None:
    """Evicts the files below a folder from the page cache, after a sync, since dirty pages cannot be evicted."""
    if sync:
        subprocess.run(["sync"], check=True)
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def machine() -> Json:
    """The machine, the commit, the date and the versions of a measurement."""
    root = Path(__file__).parent.parent
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), ""
    )
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
        "versions": {"python": platform.python_version(), **_versions()},
    }


def _versions() -> dict[str, str]:
    """Versions of dependencies and peers that are installed."""
    found = {}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
