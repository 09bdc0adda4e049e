"""Random kills of the real program: competing writers, a reader and gc on one store, each killed at a random time.

After each round `verify` is content. Writers and readers answer with sentences (Locked, Missing, Stale) and never find damage;
at the end the same commands complete to the bytes of a store that was never disturbed. Most processes are forked from one that
has imported and compiled everything; some are new interpreters.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import mmdiff
from mmdiff.errors import Corrupt, Missing, MmdiffError
from mmdiff.formats.store.gc import collect
from mmdiff.formats.store.store import Store
from tests.support.graphs import pieces_of
from tests.support.paths import ROOT
from tests.support.stages import small_thresholds
from tests.support.stores import MEMORY, make_inputs, problems, tree

# Kills of the long run, rounds until the commands may finish, and one round in so many with new interpreters.
KILLS = 1200
_ROUNDS = 12
_INTERPRETERS = 40
# The longest that a process runs before it is killed, forked and as a new interpreter.
_SECONDS = 0.25
_INTERPRETER_SECONDS = 4.0
# A run that takes longer hangs.
_MOST_SECONDS = 120.0
_SCRIPT = "from tests.long.kills import command; import sys; command(sys.argv[1:])"


def command(words: list[str]) -> None:
    """The program with its arguments, on small chunks, blocks and cells."""
    from mmdiff.cli import main

    sys.argv = ["mmdiff", *words]
    with small_thresholds(), pieces_of(500, 2000):
        main()


@dataclass
class Arena:
    """A store under attack, and all that was seen of it."""

    folder: Path
    draw: random.Random
    kills: int = 0
    finished: int = 0
    rounds: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store, self.said = self.folder / "store", self.folder / "said"
        self.said.mkdir()
        inputs = make_inputs(self.folder / "inputs").folder
        np.save(inputs / "few.npy", np.load(inputs / "vectors.npy")[:300] + 1)
        np.save(inputs / "few_labels.npy", np.arange(300) % 5)
        dims = ["--dims", "8"]
        # The commands in the order in which they make the final store; the last ones are only for disturbance.
        self.commands = [
            ["import", str(inputs / "vectors.npy"), "--role", "background", *dims],
            ["import", str(inputs / "others.npy"), "--role", "seeds", "--labels", str(inputs / "labels.npy"), *dims],
            ["import", str(inputs / "few.npy"), "--role", "test", "--labels", str(inputs / "few_labels.npy"), *dims],
            ["build-graph", "--k", "5", "--index", "flat"],
            ["diffuse", "--iterations", "3", "--cols-per-batch", "3"],
            ["diffuse", "--iterations", "2", "--cols-per-batch", "3", "--eta", "row", "--name", "coupled"],
            ["logreg", "--iterations", "3", "--device", "cpu"],
        ]
        self.disturbing = [
            ["import", str(inputs / "others.npy"), "--role", "background", *dims],
            ["build-graph", "--k", "4", "--index", "flat"],
            ["gc"],
        ]

    def complete(self, store: Path) -> None:
        """Runs all commands to their end. Nothing disturbs them, so each succeeds at once."""
        for words in [*self.commands, ["gc"]]:
            code, text = self._wait(self._fork([*words, "--store", str(store)]), _MOST_SECONDS)
            if code != 0 or "Traceback" in text:
                self._find("a command that is not disturbed", f"mmdiff {' '.join(words)}: exit code {code}\n{text}")

    def round(self, stage: int, interpreters: bool) -> None:
        """Starts writers and a reader together, and kills each after a random time."""
        self.rounds += 1
        near = self.commands[max(0, stage - 2) : stage + 2]
        chosen = [self.draw.choice(near) for _ in range(self.draw.randint(1, 2))]
        if self.draw.random() < 0.5:
            chosen.append(self.draw.choice(self.disturbing))
        if self.draw.random() < 0.2:
            chosen.append(chosen[0])
        most = _INTERPRETER_SECONDS if interpreters else _SECONDS
        start = self._start if interpreters else self._fork
        running = [(self.draw.uniform(0, most), start([*words, "--store", str(self.store)]), words) for words in chosen]
        reader, now = self._read(), time.monotonic()
        for moment, process, words in sorted(running, key=lambda each: each[0]):
            code, text = self._wait(process, max(0.0, moment - (time.monotonic() - now)), kill=True)
            self._judge(words, code, text)
        self._wait(reader, 0, kill=True)
        # Behind the last end of a line is what the reader was writing when it was killed.
        for line in (self.said / "reader").read_text().split("\n")[:-1]:
            kind, message = json.loads(line)
            self.answers[f"reader: {kind}"] += 1
            if kind in ("Corrupt", "problems", "traceback"):
                self._find(f"a reader saw: {kind}", message)
        self.check()

    def check(self) -> None:
        try:
            found = problems(Store.open(self.store))
        except Missing:
            return
        if found:
            self._find("verify after a round", f"{found}")

    def _judge(self, words: list[str], code: int, text: str) -> None:
        if code == -signal.SIGKILL:
            self.kills += 1
            return
        self.finished += 1
        self.answers[f"writer: exit code {code}"] += 1
        if "Traceback" in text or code not in (0, 2):
            self._find(f"mmdiff {words[0]}: exit code {code}", text)

    def _find(self, what: str, details: str) -> None:
        self.findings[what] += 1
        self.examples.setdefault(what, f"round {self.rounds}:\n{details[-3000:]}")

    def _fork(self, words: list[str]) -> tuple[int, Path]:
        """Runs a command in a fork of this process."""
        return self._child(lambda: command(words))

    def _start(self, words: list[str]) -> tuple[int, Path]:
        """Runs a command in a new interpreter."""
        output = self._output()
        with output.open("wb") as stream:
            process = subprocess.Popen([sys.executable, "-c", _SCRIPT, *words], cwd=ROOT, stdout=stream, stderr=stream)
        # The process is waited for by its number, like the forked ones.
        process.returncode = 0
        return process.pid, output

    def _read(self) -> tuple[int, Path]:
        """Reads the store in every way until it is killed, and notes the answers."""
        told = self.said / "reader"
        told.write_bytes(b"")

        def read() -> None:
            store = mmdiff.open(self.store, create=True)
            ways: list[Callable[[], object]] = [store.verify, store.inspect, store.evaluate]
            while True:
                try:
                    found = self.draw.choice(ways)()
                    trouble = [] if not isinstance(found, dict) else found.get("problems", [])
                    answer = ["problems", str(trouble)] if trouble else ["answer", ""]
                except MmdiffError as error:
                    answer = ["Corrupt" if isinstance(error, Corrupt) else type(error).__name__, traceback.format_exc()]
                except Exception:
                    answer = ["traceback", traceback.format_exc()]
                with told.open("a") as stream:
                    stream.write(json.dumps(answer) + "\n")

        return self._child(read)

    def _child(self, work: Callable[[], None]) -> tuple[int, Path]:
        output = self._output()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                stream = os.open(output, os.O_WRONLY)
                os.dup2(stream, 1)
                os.dup2(stream, 2)
                work()
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        return child, output

    def _output(self) -> Path:
        output = self.said / f"output-{self.rounds}-{time.monotonic_ns()}"
        output.touch()
        return output

    def _wait(self, process: tuple[int, Path], seconds: float, kill: bool = False) -> tuple[int, str]:
        """Waits so long for the end of a process, then kills it; returns its exit code and output."""
        child, output = process
        end = time.monotonic() + seconds
        ended, status = os.waitpid(child, os.WNOHANG)
        while not ended and time.monotonic() < end:
            time.sleep(0.001)
            ended, status = os.waitpid(child, os.WNOHANG)
        if not ended:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            if not kill:
                self._find("a command that hangs", output.read_text(errors="replace"))
        text = output.read_text(errors="replace")
        output.unlink()
        return os.waitstatus_to_exitcode(status), text


def run(scale: float, seed: int) -> dict[str, int | float | str]:
    """Kills until there are `scale` times KILLS kills; after every dozen rounds the commands complete."""
    clock, said, episodes = time.monotonic(), 0.0, 0
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="kills-") as name:
        arena = Arena(Path(name), random.Random(seed))
        reference = arena.folder / "reference"
        with small_thresholds(), pieces_of(500, 2000):
            warm_up(arena, reference)
        expected = tree(reference, with_runs=False)
        while arena.kills < scale * KILLS:
            episodes += 1
            shutil.rmtree(arena.store, ignore_errors=True)
            for step in range(_ROUNDS):
                arena.round(step * len(arena.commands) // _ROUNDS, arena.draw.random() * _INTERPRETERS < 1)
            arena.complete(arena.store)
            arena.check()
            found = tree(arena.store, with_runs=False)
            differing = sorted(key for key in {*found, *expected} if found.get(key) != expected.get(key))
            if differing:
                arena._find("a store that differs from one that was never disturbed", str(differing[:20]))
            if time.monotonic() - said > 60:
                said = time.monotonic()
                sys.stderr.write(f"{said - clock:.0f} s: {arena.kills:,} kills, {len(arena.findings)} findings\n")
    report = "\n".join(f"--- {count} times: {what}\n{arena.examples[what]}" for what, count in arena.findings.most_common())
    assert not arena.findings, f"{len(arena.findings)} findings, seed {seed}, scale {scale}; {dict(arena.answers)}:\n{report}"
    return {
        "kills": arena.kills,
        "commands that finished": arena.finished,
        "rounds": arena.rounds,
        "stores completed": episodes,
        "answers to readers": sum(count for who, count in arena.answers.items() if who.startswith("reader")),
        "findings": 0,
    }


def warm_up(arena: Arena, store: Path) -> None:
    """Makes the undisturbed store in this process, so that forked processes find everything imported and compiled."""
    for words in arena.commands:
        with suppress(SystemExit), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            command([*words, "--store", str(store)])
    opened = mmdiff.open(store)
    for look in (opened.verify, opened.inspect, opened.evaluate):
        look()
    collect(Store.open(store))
    assert {"scores/diffusion", "scores/coupled", "scores/logreg"} <= set(opened.names())
