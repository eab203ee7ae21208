"""Options that `run` and `sweep` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Dataset = Annotated[str, typer.Argument(metavar="DIR", help="Folder of the dataset, or s3://BUCKET/PREFIX.")]
OptionalDataset = Annotated[
    str | None, typer.Argument(metavar="DIR", help="Folder of the dataset, or s3://BUCKET/PREFIX.")
]
WorkloadName = Annotated[str, typer.Option("--workload", "-w", help="Name or path; see feedrate workloads.")]
Out = Annotated[Path | None, typer.Option(help="Folder for the result; default feedrate-results/...")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the result in OUT.")]
LoaderName = Annotated[str, typer.Option("--loader", help="torch or direct.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Epochs of a point, at most.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Steps of a rank in a point, at most.")]
CacheName = Annotated[str, typer.Option("--cache", help="cold or warm.")]
StorageText = Annotated[str, typer.Option("--storage", help="posix or shaped:RATE[,LATENCY].")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of the workload; repeatable.")
]
VerifyReads = Annotated[
    bool, typer.Option("--verify-reads", help="Compare every sample with its checksum while reading.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and touch nothing.")]
Ranks = Annotated[
    int | None, typer.Option("--ranks", "-n", min=1, help="Ranks to start here; under mpirun it has them.")
]
