"""A recorded run many times over, each time with later steps and times: hours from minutes."""

import json
from collections.abc import Iterator
from pathlib import Path


class LongRun:
    """The lines of a journal that goes on and on; the numbers are those of a real run.

    Attributes:
        steps: Steps of one round. skips: Skipped steps of one round. seconds: How long it takes.
    """

    def __init__(self, run: Path):
        self._records = [json.loads(x) for x in (run / "events-0.jsonl").read_text().splitlines()]
        self._records = [r for r in self._records if r["kind"] not in ("end", "result")]
        steps = [r for r in self._records if r["kind"] == "step"]
        self.steps = steps[-1]["step"]
        self.skips = steps[-1]["skipped"] or 0
        self.first_time = self._records[0]["time"]
        self.seconds = self._records[-1]["time"] - self.first_time + 0.5

    def rounds(self, seconds: float) -> Iterator[tuple[float, bytes]]:
        """(time of its end, its lines) of each round, until ``seconds`` have passed."""
        number = 0
        while number * self.seconds < seconds:
            lines = []
            for record in self._records:
                if record["kind"] == "start" and number:
                    continue
                moved = dict(record, time=record["time"] + number * self.seconds)
                for name, by in (
                    ("step", self.steps),
                    ("skipped", self.skips),
                    ("applied", self.steps - self.skips),
                ):
                    if moved.get(name) is not None:
                        moved[name] += number * by
                lines.append(json.dumps(moved) + "\n")
            number += 1
            yield self.first_time + number * self.seconds, "".join(lines).encode()
