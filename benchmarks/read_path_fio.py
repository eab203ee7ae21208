"""fio as a contestant: the same files, the same queue depth, the same requests, buffers on huge pages."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from read_path_turn import Files, Turn, watched

from emulator.plugins.baseline.fio import fio_environment


def fio_turn(files: Files, engine: str, direct: bool, depth: int, block: int) -> Turn:
    """Read all files once with fio's `engine`; psync has `depth` threads, the others one queue."""
    jobs = depth if engine == "psync" else 1
    lines = [
        "[global]",
        f"ioengine={engine}",
        "rw=read",
        f"bs={block}",
        f"direct={int(direct)}",
        f"iodepth={1 if engine == 'psync' else depth}",
        "thread=1",
        "iomem_align=2m",
        "invalidate=0",  # who reads cold has had the files evicted
        "file_service_type=sequential",
        "allow_file_create=0",
    ]
    for job in range(jobs):
        names = ":".join(str(path.resolve()).replace(":", "\\:") for path in files.paths[job::jobs])
        lines += [f"[job{job}]", f"filename={names}"]
    with tempfile.TemporaryDirectory() as folder:
        job_file = Path(folder, "job.fio")
        job_file.write_text("\n".join(lines) + "\n")
        done = watched(["fio", "--output-format=json", str(job_file)], fio_environment())
    told = json.loads(done.out[done.out.index("{") :])["jobs"]
    reads = [job["read"] for job in told]
    size = sum(read["io_bytes"] for read in reads)
    if size < 0.95 * files.total:  # it leaves out what does not fill a request
        raise SystemExit(f"fio {engine} read {size} of {files.total} bytes")
    # fio's own account of its jobs, in percent of their run time: its start-up is not in it.
    spent = sum((job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000 for job in told)
    return Turn(size, max(read["runtime"] for read in reads) / 1000, spent, done.peak_pss, None)
