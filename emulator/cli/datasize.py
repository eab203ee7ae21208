"""`feedrate datasize`: how much to generate."""

from __future__ import annotations

from typing import Annotated

import typer


def datasize(
    workload: Annotated[str, typer.Option("--workload", "-w", help="Name or path.")],
    accelerators: Annotated[int, typer.Option(min=1, help="Emulated accelerators in all.")],
    hosts: Annotated[int, typer.Option(min=1, help="Client hosts.")] = 1,
    host_memory: Annotated[
        str | None, typer.Option(help="Memory of one host, like 256GiB; default: this machine's.")
    ] = None,
    rate: Annotated[str, typer.Option(help="Rate of writing, for the time that it takes.")] = "1GB/s",
    as_json: Annotated[bool, typer.Option("--json", help="As one line of JSON.")] = False,
) -> None:
    """Files and bytes by MLPerf Storage's rule: 5 x the hosts' memory, and 500 steps an epoch."""
    import dataclasses
    import json

    import psutil

    from emulator.dataset.datasize import datasize as needed
    from emulator.spec.catalog import load_workload
    from emulator.units import parse_bytes, parse_rate, show_bytes, show_rate, show_seconds

    memory = parse_bytes(host_memory) if host_memory else int(psutil.virtual_memory().total)
    spec = load_workload(workload)
    size = needed(spec, accelerators, hosts, memory)
    speed = parse_rate(rate)
    if as_json:
        print(json.dumps({**dataclasses.asdict(size), "seconds": size.bytes / speed}))
        return
    unit = "files" if size.samples == size.files else "samples"
    each = "" if unit == "files" else f" of {spec.sample.samples_per_file} samples"
    print(f"{size.files} files{each}, {show_bytes(size.bytes)}")
    print(f"  5 x {show_bytes(hosts * memory)} of memory on {hosts} hosts: {size.by_memory} {unit}")
    print(
        f"  500 steps x batch size {spec.loader.batch_size} x {accelerators} accelerators: "
        f"{size.by_steps} {unit}"
    )
    print(f"generating takes {show_seconds(size.bytes / speed)} at {show_rate(speed)}")
