"""Memory of this process and of the machine, and the limits of control groups (versions 1 and 2) on memory and processors.

A process is in a group, which is in others; the tightest limit of all holds. In a container, the path of the group may be that
of the host, whose folders are absent; then the folders that exist count.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path, PurePosixPath

from mmdiff.formats.errors import BadOption, Parameter

# Version 1 writes "no limit" as the largest number of pages.
_UNLIMITED = 1 << 60

# More than any machine has; sums of amounts up to this stay within 64 bits.
_MOST_BYTES = 1 << 60

# Seconds between two samples of the memory of a run.
_SAMPLE_SECONDS = 0.02


@dataclass(frozen=True)
class Cgroups:
    """The control groups of this process."""

    root: Path = Path("/sys/fs/cgroup")
    membership: Path = Path("/proc/self/cgroup")

    def memory_limit(self) -> int | None:
        """The bytes that the group may use."""
        texts = [*self._files("", "memory.max"), *self._files("memory", "memory.limit_in_bytes")]
        limits = [limit for _, text in texts if (limit := parse_memory_limit(text)) is not None]
        return min(limits, default=None)

    def memory_left(self) -> int | None:
        """The bytes left below the tightest limit, including reclaimable page cache."""
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
        """The processor time that the group may use, in cores."""
        texts = [text for _, text in self._files("", "cpu.max")]
        texts += [f"{quota} {_read(folder / 'cpu.cfs_period_us')}" for folder, quota in self._files("cpu", "cpu.cfs_quota_us")]
        limits = [limit for text in texts if (limit := parse_cpu_limit(text)) is not None]
        return min(limits, default=None)

    def _files(self, controller: str, name: str) -> Iterator[tuple[Path, str]]:
        """Folders with such a file, from the process's group outwards, and the text of the file."""
        group = parse_membership(_read(self.membership)).get(controller)
        if group is None:
            return
        for path in (PurePosixPath(group), *PurePosixPath(group).parents):
            folder = self.root / controller / str(path).lstrip("/")
            text = _read(folder / name)
            if text:
                yield folder, text


def parse_membership(text: str) -> dict[str, str]:
    """The group of each controller from /proc/self/cgroup; version 2 has the empty name."""
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
    """A value from memory.stat, 0 if it is absent."""
    values = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    return int(values.get(name, 0))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def anonymous_bytes() -> int:
    """Anonymous memory of this process: without mapped files. This is the memory that users limit."""
    status = Path("/proc/self/status").read_text()
    return sum(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon"))


def machine_memory(cgroups: Cgroups, meminfo: str) -> tuple[int, int]:
    """Total and available bytes of the machine, from /proc/meminfo, within the limits of the control group."""
    values = {key: int(rest.split()[0]) << 10 for key, _, rest in (line.partition(":") for line in meminfo.splitlines())}
    total, available = values["MemTotal"], values["MemAvailable"]
    limit, left = cgroups.memory_limit(), cgroups.memory_left()
    return min(total, total if limit is None else limit), min(available, available if left is None else left)


def available_bytes() -> int:
    """Available memory, including reclaimable page cache."""
    return machine_memory(Cgroups(), Path("/proc/meminfo").read_text())[1]


def parse_bytes(amount: int | str) -> int:
    """A memory limit in bytes, from bytes or from text such as `4G`, `4GiB` or `800M`."""
    count: float = 0
    if isinstance(amount, Integral) and not isinstance(amount, bool):
        count = int(amount)
    elif isinstance(amount, str):
        found = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([KMGT]?)(i?B)?", amount.strip(), re.IGNORECASE)
        count = float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " ") if found is not None else 0
    if not 1 <= count <= _MOST_BYTES:
        raise BadOption(Parameter("memory", amount), ": not an amount of memory. Write it like 4G or 800M.")
    return int(count)


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
