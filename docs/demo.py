"""`make demo`: all commands on a small sample of real descriptors, in `demo-store`."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STORE = "demo-store"
COMMANDS = (
    "mmdiff import tests/sample/background.npy --role background",
    "mmdiff import tests/sample/seeds.npy --labels tests/sample/seed_labels.npy"
    " --class-names tests/sample/class_names.json --role seeds",
    "mmdiff import tests/sample/test.npy --labels tests/sample/test_labels.npy --role test",
    "mmdiff build-graph --k 10",
    "mmdiff plan diffuse",
    "mmdiff diffuse",
    "mmdiff logreg",
    "mmdiff fuse scores/logreg scores/diffusion",
    "mmdiff explain --test 0",
    "mmdiff inspect",
    "mmdiff verify",
    "mmdiff report --novel tests/sample/novel.txt --out demo-report.html",
    "mmdiff evaluate --novel tests/sample/novel.txt",
)


def main() -> None:
    shutil.rmtree(ROOT / STORE, ignore_errors=True)
    for command in COMMANDS:
        sys.stdout.write(f"\n$ {command}\n")
        sys.stdout.flush()
        program, *arguments = shlex.split(command)
        script = Path(sys.executable).parent / program
        subprocess.run([script, *arguments, "--store", STORE], cwd=ROOT, check=True)
    sys.stdout.write(f"\nThe store is {STORE}/. To list its artifacts: .venv/bin/mmdiff inspect --store {STORE}\n")
    sys.stdout.write(f"The report: {ROOT / 'demo-report.html'}\n")


if __name__ == "__main__":
    main()
