"""What the doctor finds: facts, a verdict on them, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mmdiff.formats.manifest import Json


class Verdict(StrEnum):
    """How a finding matters."""

    OK = "ok"
    WORTH_KNOWING = "worth knowing"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. `advice` says what to do about it, where there is something to do."""

    group: str
    name: str
    facts: Json
    verdict: Verdict = Verdict.OK
    advice: str = ""

    def to_json(self) -> Json:
        return {**self.facts, "verdict": str(self.verdict), "advice": self.advice}
