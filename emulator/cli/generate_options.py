"""Options of `feedrate generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[
    str, typer.Argument(metavar="DIR", help="Folder of the dataset to be, or s3://BUCKET/PREFIX.")
]
RecipeName = Annotated[str, typer.Option("--recipe", "-r", help="tiny, kits19, resnet50, ..., or a path.")]
Files = Annotated[int | None, typer.Option("--files", min=1, help="Files; default: the recipe's.")]
Size = Annotated[str | None, typer.Option("--size", help="Instead of --files: at least so much, like 2TB.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Other seeds, other bytes.")]
FormatName = Annotated[
    str | None, typer.Option("--format", help="npz, npy, nii, nii.gz, hdf5, raw, tfrecord, jpeg, parquet.")
]
Payload = Annotated[str | None, typer.Option("--payload", help="incompressible, ct-realistic or ratio=R.")]
Seeds = Annotated[
    Path | None,
    typer.Option("--seeds", metavar="FOLDER", help="KiTS19 as published: grow ct-realistic samples from it."),
]
Subfolders = Annotated[
    int, typer.Option("--subfolders", min=0, help="Deal the files to so many sub-folders.")
]
Layout = Annotated[
    str, typer.Option("--layout", help="flat, or dlio: in train/ beside an empty valid/, as DLIO reads them.")
]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Writers of a process; default: a few more than cores.")
]
Dask = Annotated[
    str | None,
    typer.Option("--dask", metavar="ADDRESS", help="A Dask scheduler, or local for processes here."),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of the recipe; repeatable.")
]
Fsync = Annotated[
    bool, typer.Option("--fsync/--no-fsync", help="Each file on the disk before it gets its name.")
]
Direct = Annotated[bool, typer.Option("--direct/--no-direct", help="O_DIRECT where the file system can.")]
SpaceCheck = Annotated[
    bool, typer.Option("--space-check/--no-space-check", help="Compare the plan with the free space.")
]
Paranoid = Annotated[bool, typer.Option("--paranoid", help="Resuming: compare checksums too.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and touch nothing.")]
AsJson = Annotated[bool, typer.Option("--json", help="Progress and result as lines of JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the dataset in DIR.")]
