"""How much memory this process holds and the machine has, so that a stage can keep within what it is allowed."""

from __future__ import annotations

from pathlib import Path

from mmdiff.cgroups import Cgroups


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
