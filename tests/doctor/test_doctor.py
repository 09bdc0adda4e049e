"""`mmdiff doctor` finds limits, missing and duplicate software and slow disks, and leaves no files."""

from __future__ import annotations

import json
import sys
import threading
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import mmdiff
from mmdiff.cli import app
from mmdiff.cli.doctor import show_checks
from mmdiff.doctor import checks as machine
from mmdiff.doctor import checks as software
from mmdiff.doctor import disk
from mmdiff.doctor.checks import Check, Verdict
from mmdiff.doctor.stage import as_document, examine, worst
from mmdiff.formats.errors import BadOption
from mmdiff.runtime.memory import (
    Cgroups,
    machine_memory,
    parse_cpu_limit,
    parse_membership,
    parse_memory_limit,
    parse_statistic,
)
from mmdiff.runtime.threads import cores, deciding_limit, in_threads, limit_cores, machine_cores
from tests.support.paths import ROOT

MIB = 1 << 20
MEMINFO = "MemTotal:       16384 kB\nMemFree:         1024 kB\nMemAvailable:    8192 kB\nHugePages_Total:       0\n"


@pytest.fixture(autouse=True)
def _small_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "MEASURED_BYTES", 2 * MIB)
    monkeypatch.setattr(disk, "_PIECE_BYTES", MIB)


def run(folder: Path, *options: str) -> Any:
    return CliRunner().invoke(app, ["doctor", "--store", str(folder / "store"), *options])


def install(folder: Path, name: str, version: str) -> None:
    """Metadata of a distribution as pip installs it, without its module."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def software_checks() -> dict[str, Check]:
    return {f"{check.group}/{check.name}": check for check in software.check_software()}


def test_json_has_what_a_bug_report_needs(tmp_path: Path) -> None:
    document = json.loads(run(tmp_path, "--json").stdout)
    assert set(document) == {"verdict", "software", "extras", "machine", "store"}
    assert set(document["software"]) == {"mmdiff", "python", "numpy", "scipy", "numba", "zarr", "faiss", "torch"}
    assert set(document["extras"]) == {
        "cpu",
        "gpu",
        "torch",
        "files",
        "dask",
        "s3",
        "report",
        "images",
        "networks",
        "sklearn",
        "web",
    }
    assert set(document["machine"]) >= {"cores", "memory", "gpus", "crc32c", "page_size"}
    assert set(document["store"]) >= {"folder", "free_space", "speed"}
    assert document["store"]["speed"]["read_bytes_per_second"] > 0
    assert document["software"]["mmdiff"]["commit"] == mmdiff.__commit__
    assert document["software"]["python"]["version"] == ".".join(map(str, sys.version_info[:3]))
    checks = [check for group, checks in document.items() if group != "verdict" for check in checks.values()]
    assert {check["verdict"] for check in checks} <= {"ok", "worth knowing", "problem"}
    assert all(check["advice"] for check in checks if check["verdict"] != "ok")


def test_text_fits_a_narrow_terminal_and_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    deep = tmp_path / ("a-folder-with-a-long-name" * 5)
    checks = [replace(check, verdict=Verdict.PROBLEM, advice=f"{check.name}, " * 30) for check in examine(deep)]
    show_checks(as_document(checks))
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    squeezed = "".join(text.split())
    assert str(deep) in squeezed
    for check in checks:
        assert check.name.replace("_", "") in squeezed
        assert "".join(check.advice.split()) in squeezed


def test_the_measured_file_is_gone_and_no_store_is_made(tmp_path: Path) -> None:
    run(tmp_path, "--json")
    assert not list(tmp_path.iterdir())


def test_a_problem_is_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "in_hardware", lambda: False)
    result = run(tmp_path)
    assert result.exit_code == 1
    assert "BAD" in result.stdout
    assert "pip install --force-reinstall google-crc32c" in result.stdout
    assert "1 problem" in result.stdout


def test_two_builds_of_faiss_are_worth_knowing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "faiss-cpu", "1.9.0")
    install(tmp_path, "faiss-gpu-cu12", "1.14.1")
    monkeypatch.syspath_prepend(str(tmp_path))
    faiss = software_checks()["software/faiss"]
    assert faiss.verdict == Verdict.WORTH_KNOWING
    assert "faiss-gpu-cu12" in faiss.advice
    assert "the same module" in faiss.advice


def test_no_faiss_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "installed_distributions", dict)
    monkeypatch.setattr(software, "find_spec", lambda _: None)
    assert software_checks()["software/faiss"].verdict == Verdict.PROBLEM


def test_faiss_without_metadata_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "installed_distributions", dict)
    monkeypatch.setattr(software, "find_spec", lambda _: "a module")
    check = software_checks()["software/faiss"]
    assert (check.verdict, check.facts["version"]) == (Verdict.OK, "unknown")


def test_a_missing_extra_comes_with_the_line_that_installs_it() -> None:
    check = software.check_extra("torch", "models", ["torch>=2.4", "safetensors>=0.4"], {"safetensors": "0.5"})
    assert (check.verdict, check.advice) == (Verdict.OK, "pip install 'mmdiff[torch]'")
    assert (check.facts["present"], check.facts["missing"]) == ({"safetensors": "0.5"}, ["torch"])


def test_a_build_for_one_cuda_is_the_extra() -> None:
    check = software.check_extra("gpu", "search", ["faiss-gpu>=1.14"], {"faiss-gpu-cu12": "1.14", "faiss-cpu": "1.9"})
    assert (check.facts["missing"], check.advice) == ([], "")


def test_every_extra_of_the_package_is_looked_at() -> None:
    found = software.extras()
    assert set(found) == set(software.PURPOSES)
    assert [software.requirement_name(requirement) for requirement in found["files"]] == ["pyarrow", "h5py"]
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(found) == set(declared) - {"all", "bench", "dev", "interop", "site"}
    for extra, requirements in found.items():
        names = [software.requirement_name(requirement) for requirement in declared[extra]]
        assert [software.requirement_name(requirement) for requirement in requirements] == names


def test_torch_is_pinned_by_the_constraints_alone() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert not [requirement for requirement in declared["torch"] if "==" in requirement]
    assert [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch==")]


@pytest.mark.parametrize(
    ("text", "limit"),
    [("max", None), ("max\n", None), ("1073741824\n", 1 << 30), ("9223372036854771712", None), ("", None), ("-1", None)],
)
def test_memory_limits_are_read(text: str, limit: int | None) -> None:
    assert parse_memory_limit(text) == limit


@pytest.mark.parametrize(
    ("text", "limit"),
    [("max 100000", None), ("150000 100000\n", 1.5), ("-1 100000", None), ("50000 0", None), ("", None), ("400000 ", None)],
)
def test_cpu_limits_are_read(text: str, limit: float | None) -> None:
    assert parse_cpu_limit(text) == limit


def test_membership_of_both_versions_is_read() -> None:
    assert parse_membership("0::/user.slice/job:7\n") == {"": "/user.slice/job:7"}
    hybrid = parse_membership("4:memory:/a/b\n2:cpu,cpuacct:/c\n1:name=systemd:/\n0::/\n")
    assert (hybrid["memory"], hybrid["cpu"], hybrid["cpuacct"], hybrid[""]) == ("/a/b", "/c", "/c", "/")


def test_statistics_that_are_not_there_are_zero() -> None:
    assert parse_statistic("anon 5\ninactive_file 70\n", "inactive_file") == 70
    assert parse_statistic("", "inactive_file") == 0


def write_tree(folder: Path, files: dict[str, str]) -> Cgroups:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Cgroups(folder / "fs", folder / "membership")


def test_the_tightest_limit_of_version_2_holds(tmp_path: Path) -> None:
    cgroups = write_tree(
        tmp_path,
        {
            "membership": "0::/outer/inner\n",
            "fs/outer/memory.max": str(10 * MIB),
            "fs/outer/memory.current": str(9 * MIB),
            "fs/outer/memory.stat": f"anon 1\ninactive_file {4 * MIB}\n",
            "fs/outer/cpu.max": "200000 100000\n",
            "fs/outer/inner/memory.max": "max\n",
            "fs/outer/inner/memory.current": str(MIB),
            "fs/outer/inner/cpu.max": "max 100000\n",
        },
    )
    assert (cgroups.memory_limit(), cgroups.memory_left(), cgroups.cpu_limit()) == (10 * MIB, 5 * MIB, 2.0)
    assert machine_memory(cgroups, MEMINFO) == (10 * MIB, 5 * MIB)


def test_version_1_in_a_container_sees_only_its_own_folder(tmp_path: Path) -> None:
    cgroups = write_tree(
        tmp_path,
        {
            "membership": "5:memory:/docker/0123\n3:cpu,cpuacct:/docker/0123\n",
            "fs/memory/memory.limit_in_bytes": str(6 * MIB),
            "fs/memory/memory.usage_in_bytes": str(5 * MIB),
            "fs/memory/memory.stat": f"total_inactive_file {MIB}\n",
            "fs/cpu/cpu.cfs_quota_us": "50000\n",
            "fs/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert (cgroups.memory_limit(), cgroups.memory_left(), cgroups.cpu_limit()) == (6 * MIB, 2 * MIB, 0.5)


def test_without_control_groups_the_machine_is_the_limit(tmp_path: Path) -> None:
    cgroups = Cgroups(tmp_path, tmp_path / "none")
    assert (cgroups.memory_limit(), cgroups.cpu_limit()) == (None, None)
    assert machine_memory(cgroups, MEMINFO) == (16 * MIB, 8 * MIB)


def quota_of(folder: Path, cores: float) -> Cgroups:
    return write_tree(folder, {"membership": "0::/job\n", "fs/job/cpu.max": f"{round(100000 * cores)} 100000\n"})


@pytest.mark.parametrize(
    ("quota", "affinity", "variable", "threads", "source"),
    [
        (None, 8, None, 8, "cores of the machine"),
        (None, 5, None, 5, "CPU affinity"),
        (2.5, 8, None, 3, "CPU quota of the control group"),
        (0.2, 8, None, 1, "CPU quota of the control group"),
        (6.0, 5, None, 5, "CPU affinity"),
        (2.5, 8, "2", 2, "NUMBA_NUM_THREADS"),
        (2.0, 8, "2", 2, "NUMBA_NUM_THREADS"),
        (None, 8, "64", 8, "cores of the machine"),
        (None, 8, "many", 8, "cores of the machine"),
    ],
)
def test_threads_are_as_many_as_the_tightest_limit_allows_and_the_doctor_names_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    quota: float | None,
    affinity: int,
    variable: str | None,
    threads: int,
    source: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cgroups = Cgroups(tmp_path, tmp_path / "none") if quota is None else quota_of(tmp_path, quota)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(affinity)))
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("NUMBA_NUM_THREADS", variable)
    monkeypatch.setattr("mmdiff.runtime.threads._cpu_quota", cgroups.cpu_limit)
    assert cores() == threads
    monkeypatch.setattr(machine, "Cgroups", lambda: cgroups)
    check = next(machine.check_machine())
    assert check == Check("machine", "cores", {"threads": threads, "decided_by": source, "quota": quota})
    show_checks(as_document([check]))
    assert f"{threads} thread{'s' if threads > 1 else ''} (limited by: {source}" in capsys.readouterr().out


def test_an_explicit_number_of_threads_is_obeyed_until_it_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    monkeypatch.setattr("mmdiff.runtime.threads._cpu_quota", lambda: None)
    before = limit_cores(3)
    try:
        assert (cores(), deciding_limit().source, machine_cores()) == (3, "threads", 8)
        assert len(set(in_threads(lambda _: threading.get_ident(), range(100)))) <= 3
    finally:
        assert limit_cores(before) == 3
    assert cores() == 8
    with pytest.raises(BadOption, match="threads=0: expected a whole number from 1"):
        limit_cores(0)


@pytest.mark.parametrize(("page", "verdict"), [(4096, Verdict.OK), (16384, Verdict.PROBLEM), (65536, Verdict.PROBLEM)])
def test_pages_larger_than_those_of_chunks_are_a_problem(page: int, verdict: Verdict) -> None:
    assert machine.check_page_size(page).verdict == verdict


def test_gpus_are_named_without_their_serial_numbers() -> None:
    listing = (
        "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1234)\nGPU 1: Tesla T4 (UUID: GPU-5)\n  MIG 1g.5gb Device 0: (UUID: MIG-6)\n"
    )
    assert machine.parse_gpu_list(listing) == ["NVIDIA A100-SXM4-40GB", "Tesla T4"]
    assert machine.parse_gpu_list("No devices found.\n") == []


def test_an_nvidia_smi_that_fails_is_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert isinstance(machine.gpus(), list)


MOUNTS = """/dev/vda / ext4 rw,relatime 0 0
tmpfs /dev/shm tmpfs rw 0 0
server:/export /data nfs4 rw 0 0
/dev/vdb /data/my\\040disk xfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me", "ext4"),
        ("/dev/shm/store", "tmpfs"),
        ("/data/store", "nfs4"),
        ("/data/my disk/x", "xfs"),
        ("/database", "ext4"),
    ],
)
def test_the_filesystem_is_that_of_the_innermost_mount(path: str, kind: str) -> None:
    assert disk.filesystem_of(Path(path), MOUNTS) == kind


@pytest.mark.parametrize(
    ("kind", "verdict"), [("ext4", Verdict.OK), ("tmpfs", Verdict.WORTH_KNOWING), ("nfs4", Verdict.WORTH_KNOWING)]
)
def test_memory_and_networks_as_disks_are_worth_knowing(kind: str, verdict: Verdict) -> None:
    assert [check.verdict for check in disk.check_filesystem(kind)] == [verdict]


def test_little_room_is_worth_knowing() -> None:
    assert disk.check_room(1 << 30).verdict == Verdict.WORTH_KNOWING
    assert disk.check_room(1 << 40).verdict == Verdict.OK


def test_a_slow_disk_is_measured_on_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_PATIENCE_SECONDS", 1e-9)
    read: list[int] = []
    speed = disk.measure(tmp_path, read.append)
    assert speed.write > 0
    assert speed.read > 0
    assert sum(read) == 2 * MIB


def test_a_folder_that_cannot_be_written_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(disk, "measure", refuse)
    result = run(tmp_path)
    assert result.exit_code == 1
    assert "Permission denied" in result.stdout


def test_the_worst_verdict_counts() -> None:
    assert worst([]) == Verdict.OK
    checks = [Check("g", "n", {}, verdict) for verdict in (Verdict.OK, Verdict.PROBLEM, Verdict.WORTH_KNOWING)]
    assert worst(checks) == Verdict.PROBLEM
    assert worst(checks[::2]) == Verdict.WORTH_KNOWING
