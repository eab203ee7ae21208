"""The table of what feedrate offers. Each entry is imported when it is asked for.

The core does not import its plug-ins, and a heavy package is imported for its own entry alone. They are
found here, and only here: a new verb, file format, loader, storage, kind of result or kind of noise is one
line in this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class Verb:
    """A command of the command line."""

    function: str
    """`module:function` below `emulator`; its parameters are the options, its docstring the help."""
    summary: str
    """What `feedrate --help` says of it."""
    stray: str = ""
    """What to do with an argument that it does not take: words that end in that argument."""


VERBS = {
    "generate": Verb("cli.generate:generate", "Grow a dataset: deterministic, resumable, not compressible."),
    "adopt": Verb("plugins.adopt.cli:adopt", "Make a manifest for files that feedrate did not generate."),
    "verify": Verb("cli.datasets:verify", "Check every byte of a dataset against its manifest."),
    "datasize": Verb("cli.datasets:datasize", "Say how much data a valid measurement needs."),
    "workloads": Verb("cli.workloads:workloads", "List the workloads, or show one with its sources."),
    "run": Verb("cli.run:run", "Emulate training with one rank per accelerator, once."),
    "sweep": Verb("cli.run:sweep", "Scale the number of ranks and find the knee."),
    "simulate": Verb("plugins.systems.cli:simulate", "Run a sweep in virtual time."),
    "fit": Verb("plugins.systems.cli:fit", "Estimate a system file from a few measured counts."),
    "plan": Verb(
        "plugins.systems.cli:plan",
        "Say what a system feeds, or what accelerators need.",
        stray="name a system with --system",
    ),
    "baseline": Verb(
        "plugins.baseline.cli:baseline", "Measure the storage's own limits with fio or rados bench."
    ),
    "checkpoint": Verb("plugins.checkpoint.cli:checkpoint", "Write and restore a large model's checkpoints."),
    "efficiency": Verb("plugins.systems.cli:efficiency", "Compare systems per terabyte, watt and price."),
    "report": Verb("plugins.page.cli:report", "Show a result: a table, a page, a picture."),
    "compare": Verb(
        "plugins.page.cli:compare", "Put results beside each other and beside published figures."
    ),
    "calibrate": Verb(
        "plugins.calibrate.cli:calibrate", "Measure the step time of this machine's accelerator."
    ),
    "record": Verb("plugins.recorder.cli:record", "Record a PyTorch job as a workload to replay."),
    "import": Verb(
        "plugins.mlperf.cli:import_", "Read DLIO's YAML, MLPerf Storage's result folders, profilers' traces."
    ),
    "export": Verb("plugins.mlperf.cli:export", "Write a result in MLPerf Storage's layout."),
    "config": Verb("cli.config:config", "Say which defaults of feedrate.toml hold."),
    "doctor": Verb("cli.doctor:doctor", "Say what is missing on this machine, and how to get it."),
}
"""In the order of `feedrate --help`."""


@dataclass(frozen=True, slots=True)
class LoaderKind:
    """A way in which a rank reads."""

    owner: str
    """`module:class` below `emulator`, made of a LoaderSpec, a reader, a seed and the workload's refill."""
    summary: str
    """What `--help` says of it."""
    tensors: bool = False
    """It makes tensors of samples, cropped where the workload says so: it needs PyTorch."""
    processes: bool = False
    """Those who read are processes of their own."""


LOADERS = {
    "torch": LoaderKind(
        "loader.torch:ProcessLoader",
        "DataLoader and its worker processes, as a training has them",
        tensors=True,
        processes=True,
    ),
    "ring": LoaderKind(
        "loader.torch:RingLoader",
        "torch, whose workers use a ring of shared memory again instead of fresh memory for each batch",
        tensors=True,
        processes=True,
    ),
    "threads": LoaderKind(
        "loader.torch:ThreadLoader",
        "DataLoader over threads: the same reads and crops at less CPU, as on a host with cores to spare",
        tensors=True,
    ),
    "direct": LoaderKind(
        "loader.direct:DirectLoader", "every byte is read and none kept: many accelerators on few cores"
    ),
}
"""What `--loader` may be; the first is the default."""


@dataclass(frozen=True, slots=True)
class Objects:
    """A kind of object store, named by URLs KIND://BUCKET/PREFIX?OPTION=VALUE."""

    store: str
    """`module:class` below `emulator`: a Store made of an ObjectURL. Without its package, a MissingError."""
    example: str
    """How its URLs look."""
    options: tuple[str, ...]
    """Options of its URLs, beside timeout and retries."""


OBJECTS = {
    "s3": Objects("plugins.objects.s3:S3Store", "s3://BUCKET/PREFIX", ("endpoint", "region")),
    "rados": Objects("plugins.objects.rados:RadosStore", "rados://POOL/PREFIX", ("conf", "user")),
}

KINDS = {
    "sweep": "report.training",
    "run": "report.training",
    "simulated": "report.training",
    "imported": "report.training",
    "checkpoint": "plugins.checkpoint.report",
    "baseline": "plugins.baseline.report",
}
"""Kind of result -> the module that speaks for it (`report.view.Kind`); the first of a folder leads."""

BESIDE = {"systems": "plugins.systems.efficiency:tables_beside"}
"""What else may stand beside a result: the function from the result and names or files to tables."""

NOISE = {"fio": "plugins.baseline.fio_noise", "checkpoint": "plugins.checkpoint.checkpoint_noise"}
"""What may run beside a sweep: the module with its `require`, `begin` and `line`."""


TRACES = dict.fromkeys((".json", ".json.gz", ".darshan"), "plugins.recorder.traces:import_trace")
"""What `feedrate import` reads beside MLPerf's files: end of a name -> import_trace."""


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A format of sample files."""

    owner: str
    """`module:class` below `emulator`."""
    suffix: str
    """End of the name of a sample's file; with `_x`: of the image's, the label's has `_y`."""
    other_suffix: str = ""
    """Another end that other programs give it; empty: none."""
    many: bool = False
    """A file can hold many samples."""
    written: bool = True
    """False: only files of others are read."""


FORMATS = {
    "npz": FileFormat("dataset.formats.numpy_files:Npz", ".npz"),
    "npy": FileFormat("dataset.formats.numpy_files:NpyPair", "_x.npy"),
    "nii": FileFormat("plugins.formats.nifti:Nifti", "_x.nii"),
    "nii.gz": FileFormat("plugins.formats.nifti:NiftiGz", "_x.nii.gz"),
    "hdf5": FileFormat("plugins.formats.hdf5:Hdf5", ".h5", ".hdf5", many=True),
    "raw": FileFormat("dataset.formats.raw:Raw", ".raw"),
    "tfrecord": FileFormat("plugins.formats.tfrecord:TfRecord", ".tfrecord", many=True),
    "jpeg": FileFormat("plugins.formats.jpeg:Jpeg", ".jpeg", ".jpg"),
    "parquet": FileFormat("plugins.formats.parquet:Parquet", ".parquet", many=True),
    "bytes": FileFormat("dataset.formats.bytes:Bytes", ".bytes", many=True),
    "npy-array": FileFormat("dataset.formats.numpy_files:NpyArray", ".npy", written=False),
}
"""File formats by the name that recipes and manifests give them."""
WRITTEN_FORMATS = tuple(name for name, form in FORMATS.items() if form.written)


def load(name: str) -> Any:
    """What `name` stands for: `module`, or `module:attribute`, below `emulator`."""
    module, _, attribute = name.partition(":")
    found = import_module(f"emulator.{module}")
    return getattr(found, attribute) if attribute else found
