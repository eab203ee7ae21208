"""Published systems: the AU of every row, by the formula of `plan`, from the limit that other rows show.

    python benchmarks/published.py > results/published-systems.md

One document states a limit beside the accelerators that reached it: 45 GB/s and 288 (A23). Rows of MLPerf
Storage state none, but submitters add accelerators until AU falls to the threshold: a row within 2.5 points
of it shows where its storage, or its clients, ended. Its throughput is taken as the limit, and the count of
every other such row of the same storage, network and number of hosts is predicted from it: an A100's count
from the H100's and the reverse. An interval covers a row if its count, to the nearest whole one, is inside.
*Constant* predicts the count from the mean bytes/s a host of other vendors' rows of the network.
"""

import csv
import math
import re
import statistics
from dataclasses import dataclass
from pathlib import Path

from emulator.config.workload import Workload, load_workload
from emulator.plugins.systems.limits import RUN_ERROR, soft_count, soft_utilization
from emulator.plugins.systems.plan import plan

REFERENCE = Path(__file__).parents[1] / "results" / "reference"


@dataclass(frozen=True)
class Row:
    submitter: str
    system: str
    workload: str
    accelerators: int
    hosts: int
    au: float
    samples_per_second: float

    @property
    def storage(self) -> str:
        """The name of the system without its clients."""
        name = re.sub(r"[_-](\d+clients|\d+-Hosts?-.*|Nclient\d|\d+hosts?)$", "", self.system)
        return f"{self.submitter} " + re.sub(r"_(resnet50|unet3d)_\d+Client_[AH]100", "", name)

    @property
    def network(self) -> str:
        return self.workload.partition("_")[0]

    @property
    def place(self) -> tuple[str, str, int]:
        return self.storage, self.network, self.hosts

    @property
    def job(self) -> Workload:
        return load_workload(self.workload.replace("_", "-"))

    @property
    def bytes_per_second(self) -> float:
        return self.samples_per_second * self.job.sample_read.bytes_mean


def rows() -> list[Row]:
    found = []
    for path in sorted(REFERENCE.glob("mlperf_storage_*.csv")):
        with path.open() as file:
            for row in csv.DictReader(file):
                found.append(
                    Row(
                        row["submitter"], row["system"], row["workload"], int(row["accelerators"]),
                        int(row["hosts"]), float(row["au_percent_mean"]) / 100,
                        float(row["samples_per_second_mean"]),
                    )
                )  # fmt: skip
    return found


def main() -> None:
    print(f"# Does `plan` know published systems?\n\n{__doc__.split(chr(10) * 2, 1)[1]}")
    (seed,) = plan(["unet3d-a100-v04"], "ai-2023-weka-6-nodes").feeds
    full = seed.fully_fed or math.nan
    low, high = soft_utilization(full, 288), min(1.0, full / 288)
    print(
        f"A23: {full:.1f} accelerators fill 45 GB/s. At 288, where its decline began, AU is {100 * low:.1f}"
    )
    print(f"(soft) to {100 * high:.0f} % (hard). The softness was chosen for this row.\n")
    print(
        f"    {'storage':45} workload        hosts  count  predicted  95 % interval   error, %  constant, %"
    )
    every = [row for row in rows() if row.au - row.job.training.au_threshold <= 0.025]
    covered, widths, errors, constants = 0, [], [], []
    for row in every:
        others = [other for other in every if other is not row and other.place == row.place]
        if not others:
            continue
        full = statistics.mean(other.bytes_per_second for other in others) / row.job.demand
        wanted = row.job.training.au_threshold
        knee = full / wanted
        low, high = soft_count(full, wanted) / math.exp(RUN_ERROR), knee * math.exp(RUN_ERROR)
        inside = low - 0.5 <= row.accelerators <= high + 0.5
        peers = [
            other.bytes_per_second / other.hosts
            for other in every
            if other.network == row.network and other.submitter != row.submitter
        ]
        constant = statistics.mean(peers) * row.hosts / row.job.demand / wanted
        covered += inside
        widths.append((high - low) / knee)
        errors.append(knee / row.accelerators - 1)
        constants.append(constant / row.accelerators - 1)
        name = f"    {row.storage.replace(' ', ':')[:45]:45} {row.workload:15} {row.hosts:5}"
        span = f"{low:.1f}-{high:.1f}{'' if inside else ' !'}"
        off = f"{100 * errors[-1]:+8.1f} {100 * constants[-1]:+12.0f}"
        print(f"{name} {row.accelerators:6} {knee:10.1f}  {span:15} {off}")
    width, error, constant = (100 * statistics.median(map(abs, v)) for v in (widths, errors, constants))
    print(f"\n{covered} of {len(errors)} rows are covered; median width {width:.1f} % of the count. ", end="")
    print(f"Median error {error:.1f} %, of the constant {constant:.0f} %.")


if __name__ == "__main__":
    main()
