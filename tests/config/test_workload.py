"""Workloads: what ships is complete and sourced, and a wrong one is refused where it is wrong."""

import re
from dataclasses import asdict

import pytest

from emulator.config.catalog import find, names
from emulator.config.recipe import load_recipe
from emulator.config.storage import parse_storage
from emulator.config.workload import load_workload
from emulator.errors import SpecError

CHOICES_WITHOUT_A_SOURCE = {"loader.stall_timeout", "training.shuffle_seed"}


@pytest.mark.parametrize("name", names("workloads"))
def test_every_number_of_a_shipped_workload_has_a_source(name):
    spec = asdict(load_workload(name))
    numbers = {
        f"{section}.{key}"
        for section in ("sample", "access", "loader", "accelerator", "training")
        for key, value in spec[section].items()
        if isinstance(value, int | float | tuple) and not isinstance(value, bool)
    }
    if spec["sample"]["samples_per_file"] == 1:
        numbers.remove("sample.samples_per_file")
    if spec["access"]["pattern"] == "random":
        numbers -= {"access.streams", "access.shuffle_buffer"}
    if not spec["access"]["columns"]:
        numbers -= {"access.columns", "sample.bytes_read", "access.chunk_bytes"}
    numbers -= {"accelerator.taking_seconds"}
    if spec["accelerator"]["in_flight"] == 1:
        numbers.remove("accelerator.in_flight")
    assert numbers - CHOICES_WITHOUT_A_SOURCE == set(spec["sources"]) - {"yaml"}  # the file of all of them
    assert spec["name"] == name


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("loader.wokers=8", "unknown key 'loader.wokers'.*did you mean 'loader.workers'"),
        ("loadr.workers=8", "unknown key 'loadr'.*did you mean 'loader'"),
        (
            "loader.workers=many",
            "--set loader.workers=many: loader.workers must be a whole number, not 'many'",
        ),
        ("loader.workers=true", "must be a whole number"),
        ("loader.batch_size=0", "loader.batch_size must be at least 1"),
        ("loader.batch_size=8", "step_seconds was taken at batch size 7"),
        ("loader.block_bytes=5000", "multiple of 4096"),
        ("access.streams=2", "access.pattern = 'random' has no streams.*access.streams=1"),
        ("access.pattern=zigzag", "must be one of 'random', 'sequential'"),
        ("accelerator.step_seconds=nan", "must be at least 0"),
        ("accelerator.step_seconds=quick", "is not a duration"),
        ("training.sync=never", "must be one of 'step', 'epoch', 'none'"),
        ("training.au_threshold=1", "above 0 and at most 0.999"),
        ("loader.workers", "is not KEY=VALUE"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(setting, said):
    with pytest.raises(SpecError, match=said) as caught:
        load_workload("unet3d-a100", [setting])
    assert "\n" not in str(caught.value)


def test_settings_are_laid_over_the_file():
    spec = load_workload("unet3d-a100", ["loader.workers=8", "loader.block_bytes=1MiB", "training.sync=none"])
    assert (spec.loader.workers, spec.loader.block_bytes, spec.training.sync) == (8, 2**20, "none")


def test_an_error_in_a_file_names_file_and_line(tmp_path):
    text = find("workloads", "unet3d-tiny").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(text.replace("workers = 2", "workers = 0"))
    number = next(n for n, line in enumerate(text.splitlines(), 1) if line.startswith("workers"))
    with pytest.raises(SpecError, match=rf"mine.toml, line {number}: loader.workers must be at least 1"):
        load_workload(str(path))


def test_an_unknown_name_gets_the_nearest_known_one():
    with pytest.raises(SpecError, match="did you mean 'unet3d-a100'"):
        load_workload("unet3d-a10")
    with pytest.raises(SpecError, match="there is no file"):
        load_workload("nowhere/mine.toml")
    with pytest.raises(SpecError, match="use unet3d-a100 or .*unet3d-h100"):
        load_workload("unet3d")


def test_storage_texts():
    shaped = parse_storage("shaped:400MB/s,2ms")
    assert (shaped.shaped_rate, shaped.shaped_latency, shaped.emulated) == (4e8, 0.002, True)
    assert not parse_storage("posix", "warm").emulated
    for text in ("shaped", "shaped:", "shaped:0MB/s", "nfs", "shaped:1GB/s,soon"):
        with pytest.raises(SpecError):
            parse_storage(text)


def test_an_error_in_an_array_of_tables_names_the_line_of_its_element(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(
        'name = "a"\ntitle = "A"\nformat = "parquet"\n[size]\ndistribution = "fixed"\nbytes_mean = 1000\n'
        '[[columns]]\nname = "x"\ndtype = "int8"\n[[columns]]\nname = "y"\ndtype = "int9"\n'
    )
    with pytest.raises(SpecError, match=re.escape("recipe.toml, line 12: columns[1].dtype must be one of")):
        load_recipe(str(path))
    path.write_text(path.read_text().replace('dtype = "int9"\n', ""))
    with pytest.raises(SpecError, match=r"recipe.toml, line 10: the key 'columns\[1\].dtype' is missing"):
        load_recipe(str(path))
    path.write_text(path.read_text() + 'dtype = "int8"\nsiez = 2\n')
    with pytest.raises(
        SpecError, match=r"line 13: unknown key 'columns\[1\].siez': did you mean 'columns\[1\].size'"
    ):
        load_recipe(str(path))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[" * 100_000, "is not valid TOML"),
        ("name = ", "is not valid TOML"),
        ("name = '\udcff'", "not UTF-8"),
        ("a = " + "[" * 100_000, "is not valid TOML"),
        ("a = " + "9" * 10_000, "is not valid TOML"),
        ("name = 1979-05-27", "line 1: name must be text"),
        ("name = [[1]]", r"name must be text, not \[\[1\]\]"),
        ("loader = 3", "line 5: loader must be a table, not 3"),
        (
            "[loader]\nbatch_size = 0x1_0000_0000_0000_0000",
            "line 6: loader.batch_size must be a whole number of",
        ),
        (
            '[loader]\nbatch_size = 1\nblock_bytes = "9000EB"',
            "line 7: loader.block_bytes must be a whole number of at most 64 bits",
        ),
        ("loader.batch_size = true", "line 5: loader.batch_size must be a whole number, not True"),
        ("loader = {batch_size = 1.5}", "line 5: loader.batch_size must be a whole number, not 1.5"),
        ("loader = 1\n# " + "x" * 100_000, "line 5: loader must be a table, not 1$"),
        ("loader = '" + "x" * 100_000 + "'", r"must be a table, not 'x{56}\.\.\.$"),
    ],
)
def test_hostile_values_are_one_short_line(tmp_path, content, said):
    path = tmp_path / "mine.toml"
    start = 'name = "a"\ntitle = "A"\nsample.format = "npz"\nsample.bytes_mean = 1\n'
    path.write_text(content if content.startswith("name") else start + content, errors="surrogateescape")
    with pytest.raises(SpecError, match=said) as caught:
        load_workload(str(path))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(path))
