"""Import a YAML file of DLIO as a TOML file: a workload, a model of checkpoints, or a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from emulator.config.checkpoint import CheckpointModel, checkpoint_models, load_checkpoint_model
from emulator.config.reader import Source, build, toml_text
from emulator.errors import SpecError
from emulator.files import refuse_existing
from emulator.plugins.mlperf.config import Config, read_config
from emulator.plugins.mlperf.workload import Converted, comment, convert, recipe_text, workload_text
from emulator.record.out import write_output
from emulator.registry import FORMATS

_STATE_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8}
"""Bytes of a parameter, by its data type in DLIO's models."""
_ADAM_COPIES = 3
"""Values that the optimiser keeps for each parameter."""


def import_yaml(
    path: Path, out: Path, overrides: Sequence[str] = (), recipe: Path | None = None, *, force: bool = False
) -> Converted | CheckpointModel:
    """Write what the YAML file `path` describes to `out`, and return it.

    That is a workload, a checkpoint model, or, for a file that only generates a dataset, its recipe.
    `overrides` are Hydra's, `recipe` is a file for the recipe beside a workload. Nothing is written unless
    everything is valid. Raises SpecError, StorageError.
    """
    if out.suffix != ".toml":
        raise SpecError(f"--out {out} does not end in .toml", "a workload is a TOML file")
    for file in (out, recipe):
        if file is not None and file.is_dir():
            raise SpecError(f"{file} is a folder", "give a file to write")
        if file is not None:
            refuse_existing(file, force)
    config = read_config(path, overrides)
    if config.purpose == "nothing":
        why = (
            "its workflow says so" if config.at("workflow.train") is False else "no section dataset or train"
        )
        raise SpecError(f"{path}: does not train ({why})", "import the file of the training itself")
    if config.purpose != "training" and recipe is not None:
        raise SpecError(f"{path} describes {config.purpose}, not a training", "leave out --recipe")
    if config.purpose == "checkpoints":
        model = checkpoint_model(config, out.stem)
        write_output(out, comment(f"Imported by feedrate from {path.name}.") + toml_text(model))
        return model
    converted = convert(config, out.stem)
    form = converted.workload.sample.format
    if form not in FORMATS:
        raise SpecError(f"{path}: feedrate does not read the format {form}", f"it reads {FORMATS}")
    if config.purpose == "generation":
        write_output(out, recipe_text(converted, path.name))
        return converted
    recipe_toml = recipe_text(converted, path.name) if recipe else ""
    write_output(out, workload_text(converted, path.name))
    if recipe is not None:
        write_output(recipe, recipe_toml)
    return converted


def checkpoint_model(config: Config, name: str) -> CheckpointModel:
    """Return the model, named `name`, whose checkpoints `config` describes.

    DLIO derives the number of copies from the started ranks. Here it is that of the catalogue's model with
    the same shape, or 1. Raises SpecError if the configuration does not have the shapes of the layers.
    """
    shape = _shape(config)
    spread = {
        "tensor": config.whole("model.parallelism.tensor", 1),
        "pipeline": config.whole("model.parallelism.pipeline", 1),
        "zero": config.whole("model.parallelism.zero_stage"),
    }
    model_type = config.text("model.model_datatype", "fp16")
    optimiser_type = config.text("model.optimizer_datatype", "fp32")
    if model_type not in _STATE_BYTES or optimiser_type not in _STATE_BYTES:
        types = f"{config.name}: cannot read the data types {model_type}, {optimiser_type}"
        raise SpecError(types, f"known: {', '.join(_STATE_BYTES)}")
    known = map(load_checkpoint_model, checkpoint_models())
    same = next((model for model in known if asdict(model.shape) == shape), None)
    file = Path(config.name).name
    copies, copies_from = config.whole("model.parallelism.data"), f"{file}: model.parallelism.data"
    if not copies and same:
        copies, copies_from = same.parallelism.data, "the catalogue's model of this shape"
    elif not copies:
        copies, copies_from = 1, "not stated: DLIO divides its ranks by tensor x pipeline"
    table = {
        "name": name,
        "title": same.title if same else f"{config.model(name)}, as DLIO's YAML describes it",
        "shape": shape,
        "parallelism": {**spread, "data": copies},
        "state": {
            "model_bytes": _STATE_BYTES[model_type],
            "optimiser_bytes": _ADAM_COPIES * _STATE_BYTES[optimiser_type],
        },
        "io": {
            "writes": config.whole("checkpoint.num_checkpoints_write"),
            "reads": config.whole("checkpoint.num_checkpoints_read"),
            "pause": float(config.number("checkpoint.time_between_checkpoints") or 0.0),
        },
        "sources": {
            "shape": f"{file}: model.num_layers, model.transformer",
            "parallelism": f"{file}: model.parallelism",
            "parallelism.data": copies_from,
            "state": f"{file}: model.model_datatype, model.optimizer_datatype; Adam keeps three",
            "io": f"{file}: checkpoint",
        },
    }
    try:
        return build(CheckpointModel, table, Source(config.name))
    except SpecError as error:
        raise SpecError(f"{error.what} (as converted from DLIO's keys)", error.hint) from None


def _shape(config: Config) -> dict[str, int]:
    """Return the fields of a TransformerShape. Raises SpecError."""
    layers = config.whole("model.num_layers")
    if not layers or not config.at("model.transformer"):
        what = f"{config.name}: checkpoints of a model without a transformer's shape"
        raise SpecError(what, "it needs model.num_layers and model.transformer")
    return {
        "hidden": config.whole("model.transformer.hidden_size"),
        "ffn": config.whole("model.transformer.ffn_hidden_size"),
        "heads": config.whole("model.transformer.num_attention_heads"),
        "kv_heads": config.whole("model.transformer.num_kv_heads"),
        "layers": layers,
        "vocabulary": config.whole("model.transformer.vocab_size"),
    }
