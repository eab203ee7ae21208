"""The keys of DLIO's and MLPerf Storage's YAML that feedrate knows but does not use, and why not.

From the workload files of MLPerf Storage v0.4 to v3.0 and DLIO 1.0 to 2.0. A key that is neither here nor
used is unknown: it is listed as such and never guessed.
"""

from __future__ import annotations

_CHECKPOINT = "checkpoints are no part of a training workload: feedrate checkpoint"
_EVALUATION = "evaluation is not emulated"
_GENERATE = "of the generator: feedrate generate has its own"
_OWN = "feedrate's loaders are its own"
_ORDER = "feedrate shuffles files and samples by seed, anew in every epoch"
_PROFILE = "profiling is DLIO's own"

UNUSED = {
    "model": "of a network, only the time of its step is emulated",
    "framework": _OWN,
    "workflow.generate_data": "feedrate generate",
    "workflow.train": "feedrate run and sweep train",
    "workflow.debug": _PROFILE,
    "workflow.profiling": _PROFILE,
    "workflow.profile": _PROFILE,
    "workflow.evaluation": _EVALUATION,
    "workflow.do_eval": _EVALUATION,
    "workflow.checkpoint": _CHECKPOINT,
    "dataset.data_folder": "the folder is given to feedrate generate, run and sweep",
    "dataset.num_files_train": "the dataset has its number of files: feedrate generate DIR --files",
    "dataset.num_subfolders_train": "the dataset has its sub-folders: feedrate generate DIR --subfolders",
    "dataset.num_files_eval": _EVALUATION,
    "dataset.num_subfolders_eval": _EVALUATION,
    "dataset.eval_num_samples_per_file": _EVALUATION,
    "dataset.record_length_resize": "DLIO drops what it reads and returns a constant of this size",
    "dataset.record_length_bytes_resize": "DLIO drops what it reads and returns a constant of this size",
    "dataset.file_prefix": _GENERATE,
    "dataset.generation_buffer_size": _GENERATE,
    "dataset.enable_chunking": _GENERATE,
    "dataset.chunk_size": _GENERATE,
    "dataset.chunking": _GENERATE,
    "dataset.compression": _GENERATE,
    "dataset.compression_level": _GENERATE,
    "dataset.keep_files": _GENERATE,
    "dataset.parquet": "name the columns that are read in access.columns; row groups are the recipe's",
    "reader.data_loader": _OWN,
    "reader.data_loader_classname": _OWN,
    "reader.data_loader_sampler": _OWN,
    "reader.reader_classname": _OWN,
    "reader.multiprocessing_context": _OWN,
    "reader.dont_use_mmap": _OWN,
    "reader.file_access": _OWN,
    "reader.read_type": _OWN,
    "reader.pin_memory": _OWN,
    "reader.odirect": "feedrate run --cache cold reads past the page cache",
    "reader.computation_threads": "DLIO's own preprocessing",
    "reader.preprocess_time": "DLIO's own preprocessing",
    "reader.preprocess_time_stdev": "DLIO's own preprocessing",
    "reader.batch_size_eval": _EVALUATION,
    "reader.file_shuffle": _ORDER,
    "reader.sample_shuffle": _ORDER,
    "reader.shuffle_size": "of tf.data: where it reads TFRecords it is access.shuffle_buffer",
    "train.seed_change_epoch": _ORDER,
    "train.computation_time_stdev": "every step takes the same time",
    "train.total_training_steps": "feedrate run and sweep --steps",
    "train.total_eval_steps": _EVALUATION,
    "storage": "feedrate run and sweep --storage",
    "evaluation": _EVALUATION,
    "checkpoint": _CHECKPOINT,
    "output": "feedrate run and sweep --out",
    "profiling": _PROFILE,
}
"""Dotted key, or a whole table -> why it is not used."""


def why_unused(key: str) -> str | None:
    """Why the key, or a table that it lies in, is not used; None when it is unknown."""
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        why = UNUSED.get(".".join(parts[:length]))
        if why is not None:
            return why
    return None
