"""Power loss during every stage: operations replayed with unsynced writes dropped, torn and reordered.

After each crash `verify` is content, names lead to the old artifact or the new one, whole, and the same command completes to
the bytes of an undisturbed run. What a finished command has published survives every crash.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.power import Operation, Recorder, crash, digest, lay_out, policies
from tests.support.stages import Rehearsal, Stage, small_thresholds, stages
from tests.support.stores import MEMORY, restamp_drafts, tree

# Random crashes at each crash point, beside the fixed ones.
_RANDOM = 3
# The share of the crash points of a stage that scale 1 takes.
_SHARE = 0.5


@dataclass
class Losses:
    """Crashes of one or more stages. Equal states are tried once."""

    crashes: int = 0
    operations: int = 0
    states: int = 0
    findings: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def cut(self, name: str, stage: Stage, folder: Path, share: float, draw: random.Random) -> None:
        """Records a stage, and cuts the power at a random share of its operations, and at its end."""
        rehearsal = Rehearsal(stage, folder)
        rehearsal.reset()
        disk = folder / "disk"
        disk.mkdir()
        if rehearsal.store.exists():
            rehearsal.store.rename(disk / "store")
        rehearsal.store = disk / "store"
        recorder = Recorder(disk)
        with recorder.installed():
            rehearsal.act()
        assert recorder.now.tree() == tree(disk), "not all changes of the store were recorded"
        count = len(recorder.operations)
        self.operations += count
        seen: set[bytes] = set()
        for end in sorted({*draw.sample(range(count), round(share * count)), count}):
            operations: list[Operation] = recorder.operations[:end]
            for policy, keep in policies(draw, _RANDOM):
                self.crashes += 1
                left = crash(recorder.start, operations, keep, draw).tree()
                state = digest(left)
                if state not in seen or end == count:
                    seen.add(state)
                    lay_out(left, disk)
                    # A power cut leaves the inputs alone; here they were written again.
                    restamp_drafts(rehearsal.store)
                    self._check(f"{name}, {policy}, after {end} of {count} operations", rehearsal, end == count)

    def _check(self, where: str, rehearsal: Rehearsal, finished: bool) -> None:
        self.states += 1
        try:
            rehearsal.check_intact()
            if finished:
                rehearsal.check_published()
            rehearsal.act()
            rehearsal.check_finished()
        except Exception as failure:
            finding = f"{where.partition(',')[0]}: {type(failure).__name__}: {str(failure)[:80]}"
            if finding not in self.findings:
                self.examples[finding] = f"{where}:\n{traceback.format_exc()}"
                sys.stderr.write(f"power_loss: {self.examples[finding]}\n")
            self.findings[finding] += 1

    def report(self) -> str:
        """All findings with their number and an example."""
        return "\n".join(f"--- {count} times: {what}\n{self.examples[what]}" for what, count in self.findings.most_common())


def run(scale: float, seed: int) -> dict[str, int | float | str]:
    """Cuts the power at a random share of the operations of each stage."""
    draw, losses, clock = random.Random(seed), Losses(), time.monotonic()
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="power-") as name, small_thresholds():
        folder = Path(name)
        for stage, parts in stages(folder).items():
            (folder / stage).mkdir()
            losses.cut(stage, parts, folder / stage, min(1.0, scale * _SHARE), draw)
            found = f"{losses.crashes:,} crashes, {losses.states:,} states, {len(losses.findings)} findings"
            sys.stderr.write(f"{time.monotonic() - clock:.0f} s: {stage}, {found}\n")
    assert not losses.findings, f"{len(losses.findings)} findings, seed {seed}, scale {scale}:\n{losses.report()}"
    return {"operations": losses.operations, "crashes": losses.crashes, "states": losses.states, "findings": 0}
