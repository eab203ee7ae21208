"""Published MLPerf Storage v1.0 systems: every row predicted from the other rows of the same storage.

    python benchmarks/published.py > results/published-systems.md

One rule applies to all rows. Rows are grouped by storage, whatever the number of clients, and by network (3D
U-Net reads whole files of 147 MB, ResNet-50 records of 115 kB, CosmoFlow files of 2.8 MB). Each row is
predicted from the others in its group: `feedrate fit` fits them, and `feedrate simulate` simulates the fit
(the *twin*). Rows alone in their group cannot be predicted and are only counted. Two null models do not
simulate: *constant* is the mean AU of all other vendors' rows for the network; *cap* is the highest
throughput in the rest of the group divided by the row's demand, at most 100 %.

Submitters add accelerators until AU falls to 90 % (CosmoFlow: 70 %). No storage property implies this number,
so a constant is hard to beat, and its range (the lowest and the highest AU of other vendors) is narrow.
*Both* is the part of that range inside the twin's interval: the range uses no figure of the row's vendor, and
the twin none of another vendor. *Guess* is the constant, moved into the twin's interval.

An interval covers a row if the published AU is inside (to 0.1 points). The twin is *no better than* a null
whose median error is at most its own.

The bounds that limit a fit's interval (`Fitted.between`) were written with these rows at hand, so their
coverage here does not test them.
"""

import csv
import re
import statistics
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from twin import summary

from emulator.config.workload import AcceleratorSpec, LoaderSpec, SampleSpec, TrainingSpec, Workload
from emulator.plugins.systems.fit import fit
from emulator.plugins.systems.predict import Simulation, batch_bytes, forecast, on_paper, rank_plan_of
from emulator.plugins.systems.seen import Seen
from emulator.plugins.systems.system import System, on_hosts

ROWS = Path(__file__).parents[1] / "results" / "reference" / "mlperf_storage_v1_0.csv"
UNET = {"a100": (7, 146_600_628, 68_341_808, 0.636), "h100": (7, 146_600_628, 68_341_808, 0.323)}
# Without a spread, a batch is one read of all its samples: the same to the network, and sooner simulated.
RESNET = {"a100": (400, 114_660.07, 0.435), "h100": (400, 114_660.07, 0.224)}
COSMO = {"a100": (1, 2_828_486, 0.00551), "h100": (1, 2_828_486, 0.00350)}
STEPS = 16


@dataclass
class Row:
    submitter: str
    system: str
    workload: str
    accelerators: int
    hosts: int
    au: float
    rate: float
    """Samples/s."""

    @property
    def group(self) -> str:
        name = re.sub(r"[_-](\d+clients|\d+-Hosts?-.*|Nclient\d)$", "", self.system)
        name = re.sub(r"_(resnet50|unet3d)_\d+Client_[AH]100", "", name)
        return f"{self.submitter} {name}"

    @property
    def network(self) -> str:
        return self.workload.partition("_")[0]

    @property
    def model(self) -> tuple[Workload, int]:
        """The workload, and how many published samples one of its samples stands for."""
        kind, accelerator = self.workload.split("_")
        if kind == "unet3d":
            batch, size, spread, seconds = UNET[accelerator]
            return make(self.workload, batch, size, spread, seconds), 1
        batch, size, seconds = (RESNET if kind == "resnet50" else COSMO)[accelerator]
        return make(self.workload, 1, round(batch * size), 0, seconds), batch

    @property
    def bytes_per_second(self) -> float:
        workload, stands_for = self.model
        return self.rate / stands_for * workload.sample.bytes_mean


def make(name: str, batch: int, size: int, spread: int, seconds: float) -> Workload:
    return Workload(
        name=name,
        title=name,
        sample=SampleSpec(format="npz", bytes_mean=size, bytes_sd=spread),
        loader=LoaderSpec(batch_size=batch),
        training=TrainingSpec(sync="step"),
        accelerator=AcceleratorSpec(
            name=name, step_seconds=seconds, step_batch_size=batch, provenance="published"
        ),
    )


def simulation(row: Row, system: System) -> Simulation:
    """The row on a system, with as many hosts as it had."""
    workload, _ = row.model
    files = row.accelerators * workload.loader.batch_size * STEPS
    return on_paper(workload, on_hosts(system, row.hosts), row.accelerators, files=files, steps=STEPS)


def seen(row: Row) -> Seen:
    """The row as `fit` sees a measured count."""
    workload, _ = row.model
    size = batch_bytes(
        rank_plan_of(simulation(row, System()), row.accelerators, 0), simulation(row, System()).sizes
    )
    ideal = row.accelerators * workload.ideal_samples_per_second * workload.sample.bytes_mean
    return Seen(
        ranks=row.accelerators,
        hosts=row.hosts,
        rate=row.au * ideal,
        efficiency=row.au,
        size=size,
        compute=np.full(size.shape, workload.accelerator.step_seconds),
        gates=np.full(len(size), True),
    )


@dataclass
class Found:
    """Errors in % by network and kind, and intervals by kind."""

    errors: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    inside: dict[str, list[bool]] = field(default_factory=dict)
    widths: dict[str, list[float]] = field(default_factory=dict)

    def add_span(self, kind: str, span: tuple[float, float], au: float) -> str:
        """Count an interval, and return it as text."""
        low, high = span
        inside = low - 1e-3 <= au <= high + 1e-3
        self.inside.setdefault(kind, []).append(inside)
        self.widths.setdefault(kind, []).append(100 * (high - low))
        return f"{100 * low:.1f} to {100 * high:.1f}{'' if inside else ' (outside)'}"


def line(row: Row, others: list[Row], peers: list[float], found: Found) -> str:
    """The row of the table. `peers` are the AU of other vendors' rows of the network."""
    workload, _ = row.model
    fitted = fit([], workload, [seen(other) for other in others])
    name = f"| {row.workload} | {row.accelerators:,} | {row.hosts} | {100 * row.au:.1f} |"
    if fitted.refusal:
        return f"{name} refused | | | | | | |"
    guess = forecast(simulation(row, fitted.system), row.accelerators)
    point, twin = guess.point, guess.interval
    asked = row.accelerators * workload.demand
    constant = statistics.mean(peers)
    guesses = {
        "twin": point.x_ideal,
        "guess": float(np.clip(constant, *twin)),
        "constant": constant,
        "cap": min(1.0, max(seen(other).rate for other in others) / asked),
    }
    spread = min(peers), max(peers)
    low, high = (float(np.clip(end, *twin)) for end in spread)
    off = {kind: 100 * (value / row.au - 1) for kind, value in guesses.items()}
    spans = {"twin": twin, "range": spread, "both": (low, high)}
    shown = {kind: found.add_span(kind, span, row.au) for kind, span in spans.items()}
    for kind, error in off.items():
        found.errors.setdefault(row.network, {}).setdefault(kind, []).append(error)
    least = "" if fitted.fitted.identified else "at least "
    return (
        f"{name} {least}{100 * point.x_ideal:.1f} | {off['twin']:+.1f} | {shown['twin']} | {shown['both']} | "
        f"{off['guess']:+.1f} | {off['constant']:+.1f} | {off['cap']:+.1f} |"
    )


def main() -> int:
    with ROWS.open() as file:
        rows = [
            Row(
                r["submitter"],
                r["system"],
                r["workload"],
                int(r["accelerators"]),
                int(r["hosts"]),
                float(r["au_percent_mean"]) / 100,
                float(r["samples_per_second_mean"]),
            )
            for r in csv.DictReader(file)
        ]
    print(f"# Published systems, each predicted from its others\n\n{__doc__.split(chr(10) * 2, 2)[2]}")
    print("Made by `python benchmarks/published.py`. Errors are of AU, in % of it.\n")
    alone, found = 0, Found()
    for group in sorted({row.group for row in rows}):
        lines = []
        mine = [row for row in rows if row.group == group]
        for row in sorted(mine, key=lambda row: (NETWORKS.index(row.network), row.hosts, row.accelerators)):
            others = [other for other in mine if other.network == row.network and other is not row]
            if not others:
                alone += 1
                continue
            peers = [o.au for o in rows if o.network == row.network and o.submitter != row.submitter]
            lines.append(line(row, others, peers, found))
        if lines:
            print(f"## {group}\n\n| workload | accelerators | hosts | AU % | twin % | error % ", end="")
            print("| 95 % interval | both | guess: error % | constant: % | cap: % |\n" + 11 * "|---" + "|")
            print("\n".join(lines) + "\n", flush=True)
    print("## All\n")
    kinds = ("twin", "guess", "constant", "cap")
    every = {kind: [e for errors in found.errors.values() for e in errors[kind]] for kind in kinds}
    for name, errors in (*found.errors.items(), ("all", every)):
        print(f"- {name}, {len(errors['twin'])} rows: {summary(errors)}")
    for kind, what in (("twin", "the twin"), ("range", "other vendors' range"), ("both", "both")):
        inside, widths = found.inside[kind], found.widths[kind]
        print(
            f"- interval of {what}: covers {sum(inside)} of {len(inside)} rows, median width "
            f"{statistics.median(widths):.1f} points"
        )
    print(f"\n{alone} rows are alone in their group.")
    return 0


NETWORKS = ("unet3d", "resnet50", "cosmoflow")


if __name__ == "__main__":
    raise SystemExit(main())
