"""System files: the ones that come with feedrate, units, and what is wrong with others."""

import pytest

from emulator.config.catalog import names
from emulator.errors import SpecError
from emulator.plugins.systems.system import load_system, protection_overhead


@pytest.mark.parametrize("name", names("results/systems"))
def test_examples_are_read_and_every_number_has_a_source(name):
    system = load_system(name)
    assert system.name == name and system.title
    for section in ("storage", "clients", "hardware"):
        spec = getattr(system, section)
        default = type(spec)()
        for key in spec.__dataclass_fields__:
            if getattr(spec, key) != getattr(default, key):
                assert f"{section}.{key}" in system.sources, f"{section}.{key} has no source"
    for source in system.sources:
        section, key = source.split(".")
        assert hasattr(getattr(system, section), key), source


def write(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


def test_units(tmp_path):
    text = """
[storage]
bandwidth = "45GB/s"
latency = "1ms"
read_efficiency = [["4KiB", 0.1], ["1MiB", 1.0]]
[clients]
nic = "200Gb/s"
[hardware]
drive_capacity = "7.68TB"
"""
    system = load_system(str(write(tmp_path, text)))
    assert system.name == "mine"
    assert (system.storage.bandwidth, system.storage.latency) == (45e9, 0.001)
    assert system.storage.read_efficiency == ((4096, 0.1), (2**20, 1.0))
    assert system.clients.nic == 25e9
    assert system.hardware.drive_capacity == 7_680_000_000_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[storage]\nbandwith = 1",
            "line 2: unknown key 'storage.bandwith': did you mean 'storage.bandwidth'?",
        ),
        ("[storage]\nbandwidth = '45GB'", "line 2: storage.bandwidth = '45GB' is not a rate"),
        ("[storage]\nprotection = 'raid'", "line 2: storage.protection 'raid' is not known"),
        ("[clients]\nhosts = 0", "line 2: clients.hosts must be above 0"),
        ("[storage]\nread_efficiency = [[4096, 2.0]]", "line 2: storage.read_efficiency must be above 0"),
        ("[storage]\nread_efficiency = [[8, 0.2], [4, 0.1]]", "ascending"),
        ("[storage\n", "not valid TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, said):
    with pytest.raises(SpecError) as error:
        load_system(str(write(tmp_path, text)))
    assert said in str(error.value)


def test_protection():
    assert (protection_overhead("4+2"), protection_overhead("3x")) == (1.5, 3.0)
    for wrong in ("0+1", "0x", "4-2", ""):
        with pytest.raises(SpecError):
            protection_overhead(wrong)
