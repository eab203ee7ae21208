"""Measures the simulator: CPU seconds and memory for up to 100,000 accelerators.

    python benchmarks/simulate.py [WORDS OF A CASE'S NAME]

Each case runs in a process of its own. CPU seconds are those of the simulation: drawing batches, playing,
and the point's figures; imports and compiling (once after an installation, then cached) are left out.
The system has 2 % less bandwidth than is asked for. Exit status 1: a case took more than it may.
"""

import json
import resource
import subprocess
import sys
import time

from emulator.config.workload import load_workload
from emulator.plugins.systems.predict import Simulation, on_paper, predict
from emulator.plugins.systems.system import ClientSystem, StorageSystem, System

CASES = {
    "288 x 500, barriers": (288, 500, "step", None),
    "100,000 x 500": (100_000, 500, "none", None),
    "100,000 x 500, barriers": (100_000, 500, "step", None),
    "100,000 x 500, barriers, 12,500 hosts": (100_000, 500, "step", 12_500),
    "small, 64 x 100": (64, 100, "none", None),
}
"""Name -> ranks, steps, barriers, hosts with a NIC of their own."""
ALLOWED = {"288": (1.0, 2e9), "100,000": (60.0, 2e9)}
"""Begin of a name -> CPU seconds and bytes of memory that it may take."""


def make(ranks: int, steps: int, sync: str, hosts: int | None) -> Simulation:
    workload = load_workload("unet3d-a100", [f"training.sync={sync}"])
    demand = workload.ideal_samples_per_second * workload.sample.bytes_mean
    clients = ClientSystem() if hosts is None else ClientSystem(hosts=hosts, nic=demand * ranks / hosts)
    storage = StorageSystem(bandwidth=demand * ranks / 1.02, latency=2e-3)
    return on_paper(workload, System(storage=storage, clients=clients), ranks, steps=steps)


def measure(name: str) -> dict[str, float]:
    """Run one case in this process."""
    ranks, _, sync, hosts = CASES[name]
    simulation = make(*CASES[name])
    predict(make(4, 3, sync, hosts), 4)  # compiled, or taken from the cache
    begin = time.process_time()
    found = predict(simulation, ranks)
    seconds = time.process_time() - begin
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "events": found.events, "memory": memory, "au": found.point.au}


def main() -> int:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2])))
        return 0
    failed = 0
    print(f"{'ranks x steps':40} {'CPU s':>8} {'events':>12} {'events/s':>12} {'GB':>6} {'AU %':>7}")
    for name in CASES:
        if not all(word in name for word in sys.argv[1:]):
            continue
        done = subprocess.run(
            [sys.executable, __file__, "--one", name], capture_output=True, text=True, check=True
        )
        got = json.loads(done.stdout)
        allowed = next((limit for start, limit in ALLOWED.items() if name.startswith(start)), None)
        missed = allowed is not None and (got["seconds"] > allowed[0] or got["memory"] > allowed[1])
        failed |= missed
        print(
            f"{name:40} {got['seconds']:8.2f} {got['events']:12,} {got['events'] / got['seconds']:12,.0f} "
            f"{got['memory'] / 1e9:6.2f} {100 * got['au']:7.2f}" + ("   MISSED" if missed else ""),
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
