"""`feedrate simulate` as a user runs it: the files of a sweep, marked simulated."""

from command import feedrate

from emulator.config.workload import load_workload
from emulator.plugins.systems.simulate import simulate
from emulator.plugins.systems.system import StorageSystem, System
from emulator.record.out import read_result
from emulator.record.steps import read_steps

SYSTEM = """
[storage]
bandwidth = "45GB/s"
[clients]
hosts = 12
nic = "200Gb/s"
[sources]
"storage.bandwidth" = "a test"
"""


def command(out, *words, counts="1,8,28,40"):
    path = out.parent / "system.toml"
    path.write_text(SYSTEM)
    words = ("--steps", 20, "--set", "training.sync=none", "--out", out, *words)
    return feedrate("simulate", "-w", "unet3d-a100", "-s", path, "--counts", counts, *words)


def test_out_is_that_of_a_sweep(tmp_path):
    out = tmp_path / "out"
    done = command(out)
    assert done.status == 0, done.err
    result, steps = read_result(out), read_steps(out)
    assert result.kind == "simulated" and result.status == "complete"
    assert [point.ranks for point in result.points] == [1, 8, 28, 40]
    assert result.points[3].bytes_per_second < 45.5e9
    assert 27 < result.knee.n_au < 33  # 45 GB/s / 1.614 GB/s / 0.9 = 31
    assert len(steps) == 20 * (1 + 8 + 28 + 40)
    assert len(result.points[3].hosts) == 12
    assert [flag.name for flag in result.points[3].flags] == ["short"]  # 20 steps, 8 batches ahead
    assert result.points[0].flags == ()
    shown = feedrate("report", out)
    assert shown.status == 0 and "Simulated" in shown.out
    again = command(out)
    assert again.status == 2 and "not empty" in again.one_line()


def test_hosts_can_be_given(tmp_path):
    done = command(tmp_path / "out", "--hosts", 1, counts="24")
    assert done.status == 0, done.err
    point = read_result(tmp_path / "out").points[0]
    assert len(point.hosts) == 1
    assert point.bytes_per_second < 25.1e9  # one NIC


def test_the_step_log_of_many_ranks_holds_some_and_says_so(tmp_path):
    one_sample = load_workload("unet3d-a100", ["loader.batch_size=1", "accelerator.step_batch_size=1"])
    system = System(storage=StorageSystem(bandwidth=45e9))
    result, steps = simulate(one_sample, system, (1500,), tmp_path / "out", steps=3)
    assert [flag.name for flag in result.flags] == ["step-log"]
    assert len(steps) == 3 * 1000
    assert result.points[0].samples == 3 * 1500


def test_what_is_wrong_is_said_in_one_line(tmp_path):
    line = feedrate("simulate", "-w", "unet3d-a100", "-s", "nowhere", "--counts", "1").one_line()
    assert "no system 'nowhere'" in line and "weka" in line
    assert "1,2,4,8" in command(tmp_path / "out", counts="one").one_line()
    assert not (tmp_path / "out").exists()
