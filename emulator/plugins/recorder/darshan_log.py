"""A program that prints a Darshan log as lines of JSON, one for each file and rank that read.

    python -m emulator.plugins.recorder.darshan_log LOG

PyDarshan reads logs with a C library, which a damaged log can crash. In a separate process, the crash does
not end the caller.
"""

from __future__ import annotations

import json
import sys


def main(path: str) -> int:
    """Print the lines and return the exit status: 0, or 3 if the log has no DXT."""
    import darshan

    report = darshan.DarshanReport(path, read_all=False)
    if "DXT_POSIX" not in report.modules:
        return 3
    report.mod_read_all_dxt_records("DXT_POSIX", dtype="numpy")
    report.mod_read_all_records("POSIX", dtype="dict")
    counters = {(int(one["id"]), int(one["rank"])): one["counters"] for one in report.records["POSIX"]}
    for record in report.records["DXT_POSIX"]:
        number, rank = int(record["id"]), int(record["rank"])
        mine = counters.get((number, rank), {})
        known = mine or counters.get((number, -1), {})
        reads = sorted(
            (float(one["start_time"]), int(one["offset"]), int(one["length"]), float(one["end_time"]))
            for one in record["read_segments"]
        )
        ends = [int(known.get(f"POSIX_MAX_BYTE_{what}", -1)) + 1 for what in ("READ", "WRITTEN")]
        if reads:
            facts = {
                "file": number,
                "rank": rank,
                "opens": int(mine.get("POSIX_OPENS", 1)),
                "size": max(*ends, *(offset + length for _, offset, length, _ in reads)),
            }
            print(json.dumps({**facts, "reads": reads}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
