"""The limits that a container or a batch system sets: control groups of version 2 and 1.

A process is in a group, which lies in others, and the tightest limit of them all holds. Within a container the path of the
group may be that of the host, whose folders are not there; then the limits of those that are there count.

How much memory this process holds and the machine has, so that a stage can keep within what it is allowed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# Version 1 writes "no limit" as the largest number of pages.
_UNLIMITED = 1 << 60

# Seconds between two samples of the memory of a run.
_SAMPLE_SECONDS = 0.02


@dataclass(frozen=True)
class Cgroups:
    """The groups of this process."""

    root: Path = Path("/sys/fs/cgroup")
    membership: Path = Path("/proc/self/cgroup")

    def memory_limit(self) -> int | None:
        """The bytes that the process and its siblings may use."""
        texts = [*self._files("", "memory.max"), *self._files("memory", "memory.limit_in_bytes")]
        limits = [limit for _, text in texts if (limit := parse_memory_limit(text)) is not None]
        return min(limits, default=None)

    def memory_left(self) -> int | None:
        """The bytes up to the first limit that will be met; files in the cache make room when they have to."""
        left = []
        for controller, limit_file, usage_file, cache in (
            ("", "memory.max", "memory.current", "inactive_file"),
            ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            for folder, text in self._files(controller, limit_file):
                limit, usage = parse_memory_limit(text), parse_memory_limit(_read(folder / usage_file))
                if limit is not None and usage is not None:
                    left.append(max(0, limit - usage + parse_statistic(_read(folder / "memory.stat"), cache)))
        return min(left, default=None)

    def cpu_limit(self) -> float | None:
        """The cores' worth of time that the process and its siblings may use."""
        texts = [text for _, text in self._files("", "cpu.max")]
        texts += [f"{quota} {_read(folder / 'cpu.cfs_period_us')}" for folder, quota in self._files("cpu", "cpu.cfs_quota_us")]
        limits = [limit for text in texts if (limit := parse_cpu_limit(text)) is not None]
        return min(limits, default=None)

    def _files(self, controller: str, name: str) -> Iterator[tuple[Path, str]]:
        """The folders, from the process's own group outwards, that have such a file, and what it says."""
        group = parse_membership(_read(self.membership)).get(controller)
        if group is None:
            return
        for path in (PurePosixPath(group), *PurePosixPath(group).parents):
            folder = self.root / controller / str(path).lstrip("/")
            text = _read(folder / name)
            if text:
                yield folder, text


def parse_membership(text: str) -> dict[str, str]:
    """The group of each controller from /proc/self/cgroup; that of version 2 under the empty name."""
    groups = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def parse_memory_limit(text: str) -> int | None:
    """Bytes, or None for "max" and its equivalents."""
    return int(text) if text.strip().isdigit() and int(text) < _UNLIMITED else None


def parse_cpu_limit(text: str) -> float | None:
    """Cores, from "quota period"; None for "max period" and a quota of -1."""
    quota, _, period = text.strip().partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.strip().isdigit() and int(period) else None


def parse_statistic(text: str, name: str) -> int:
    """A value from memory.stat, 0 if it is not there."""
    values = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    return int(values.get(name, 0))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def anonymous_bytes() -> int:
    """Memory of this process that is not a file's: what `--memory` limits."""
    status = Path("/proc/self/status").read_text()
    return sum(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon"))


def machine_memory(cgroups: Cgroups, meminfo: str) -> tuple[int, int]:
    """Total and available bytes: the machine's, from /proc/meminfo, or what the control group leaves of them."""
    values = {key: int(rest.split()[0]) << 10 for key, _, rest in (line.partition(":") for line in meminfo.splitlines())}
    total, available = values["MemTotal"], values["MemAvailable"]
    limit, left = cgroups.memory_limit(), cgroups.memory_left()
    return min(total, total if limit is None else limit), min(available, available if left is None else left)


def available_bytes() -> int:
    """Memory that nobody holds; what is in the page cache makes room."""
    return machine_memory(Cgroups(), Path("/proc/meminfo").read_text())[1]


class PeakMemory:
    """The peak of the anonymous memory of this process, sampled by a thread until the object is gone."""

    def __init__(self) -> None:
        self._peak = [anonymous_bytes()]
        stopped = threading.Event()
        threading.Thread(target=_sample, args=(self._peak, stopped), name="peak memory", daemon=True).start()
        weakref.finalize(self, stopped.set)

    @property
    def bytes(self) -> int:
        """The peak so far."""
        return max(self._peak[0], anonymous_bytes())


def _sample(peak: list[int], stopped: threading.Event) -> None:
    while not stopped.wait(_SAMPLE_SECONDS):
        peak[0] = max(peak[0], anonymous_bytes())
