"""The published case of 288 A100s and 45 GB/s: what fits and what does not. The text is seed_case.md's.

python benchmarks/seed_case.py > results/seed-case-45GBps.md
"""

from dataclasses import replace
from pathlib import Path

from emulator.config.workload import load_workload
from emulator.plugins.systems.predict import on_paper, predict
from emulator.plugins.systems.system import ClientSystem, StorageSystem, System

SAMPLE = 146_313_216
BATCH, SECONDS, FILES, HOSTS = 4, 4.59, 3620, 12
LIMIT = 45e9
DEMAND = BATCH * SAMPLE / SECONDS
COUNTS = (1, 96, 192, 240, 264, 288, 312, 336, 352, 384, 391, 420, 480, 600)
SOFTNESS = 8.5
SPREAD = 68_341_808
V04 = (
    f"loader.batch_size={BATCH}",
    f"accelerator.step_batch_size={BATCH}",
    f"accelerator.step_seconds={SECONDS}",
    f"sample.bytes_mean={SAMPLE}",
)
HARD = System(storage=StorageSystem(bandwidth=LIMIT), clients=ClientSystem(hosts=HOSTS, nic=25e9))
CLIENTS = System(clients=ClientSystem(hosts=HOSTS, nic=LIMIT / HOSTS))


def simulated(system: System, spread: int, prefetch: int | None) -> dict[int, tuple[float, float]]:
    """Count -> AU, bytes/s; barriers at every step, as the benchmark had them."""
    workload = load_workload("unet3d-a100", [*V04, f"sample.bytes_sd={spread}"])
    simulation = replace(on_paper(workload, system, max(COUNTS), files=FILES, steps=60), prefetch=prefetch)
    points = [predict(simulation, ranks).point for ranks in COUNTS]
    return {point.ranks: (point.au, point.bytes_per_second) for point in points}


def soft(power: float) -> dict[int, tuple[float, float]]:
    """Count -> AU, bytes/s when demand and limit add as a p-norm."""
    rates = {ranks: ((ranks * DEMAND) ** -power + LIMIT**-power) ** (-1 / power) for ranks in COUNTS}
    return {ranks: (rate / (ranks * DEMAND), rate) for ranks, rate in rates.items()}


def table(columns: dict[str, dict[int, tuple[float, float]]]) -> str:
    lines = [
        "| processes | asked for, GB/s | " + " | ".join(f"{name}: AU % | GB/s" for name in columns) + " |"
    ]
    lines.append("|" + "---|" * (2 + 2 * len(columns)))
    for ranks in COUNTS:
        cells = [
            f"{100 * column[ranks][0]:.1f} | {column[ranks][1] / 1e9:.1f}" for column in columns.values()
        ]
        lines.append(f"| {ranks} | {ranks * DEMAND / 1e9:.1f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    columns = {
        "hard": simulated(HARD, 0, None),
        "soft": soft(SOFTNESS),
        "client-bound": simulated(CLIENTS, SPREAD, None),
        "no read-ahead": simulated(HARD, 0, 0),
    }
    au = {name: {n: 100 * point[0] for n, point in column.items()} for name, column in columns.items()}
    rate = {name: {n: point[1] / 1e9 for n, point in column.items()} for name, column in columns.items()}
    text = Path(__file__).with_suffix(".md").read_text()
    print(
        text.format(
            table=table(columns),
            one=DEMAND / 1e6,
            asked=288 * DEMAND / 1e9,
            each=LIMIT / 288 / 1e6,
            more=100 * (LIMIT / 288 / DEMAND - 1),
            processes=LIMIT / DEMAND,
            whole=LIMIT / DEMAND,
            hard=au["hard"],
            soft=au["soft"],
            clients=au["client-bound"],
            bare=au["no read-ahead"],
            soft_rate=rate["soft"],
            clients_rate=rate["client-bound"],
        ),
        end="",
    )


if __name__ == "__main__":
    main()
