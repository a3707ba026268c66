"""Judges pairs for op_db.py. Its first line is a JSON list of op_db's entries; then it reads [entry, sample] as JSON
lines and answers each with its verdict, or null where the entry has fewer samples.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from op_db_judge import FAILED, NO_SAMPLE, Judge, Verdict, launch, one_line
from op_db_pairs import Call, Pair, load_entries, sample_calls

SAMPLES_MAX = 16


def verdict_on(judge: Judge, pair: Pair, call: Call) -> Verdict:
    """A result that cannot even be compared is a failure of its pair."""
    try:
        return judge.judge(pair, call)
    except Exception as error:
        return Verdict(pair.entry, pair.sample, FAILED, "compare", one_line(error))


def main() -> int:
    # Operators may print; what they print must not be taken for a verdict.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: Any) -> None:
        print(json.dumps(value), file=answers, flush=True)

    entries = load_entries()
    calls: dict[str, list[Call]] = {}  # of the current entry
    with launch() as cluster:
        judge = Judge(cluster)
        answer(list(entries))
        for line in sys.stdin:
            pair = Pair(*json.loads(line))
            if pair.entry not in calls:
                calls = {pair.entry: sample_calls(entries[pair.entry], SAMPLES_MAX)}
            samples = calls[pair.entry]
            if pair.sample < len(samples):
                answer(verdict_on(judge, pair, samples[pair.sample]).as_dict())
            elif samples:
                answer(None)
            else:
                answer(Verdict(pair.entry, -1, NO_SAMPLE, "samples", "no float32 sample on the CPU").as_dict())
    return 0


if __name__ == "__main__":
    sys.exit(main())
