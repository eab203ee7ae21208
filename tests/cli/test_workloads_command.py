"""`feedrate workloads`."""

from command import feedrate


def test_its_file_begins_one_of_your_own(tmp_path):
    (tmp_path / "mine.toml").write_text(feedrate("workloads", "unet3d-a100", "--toml").out)
    assert feedrate("workloads", tmp_path / "mine.toml").out == feedrate("workloads", "unet3d-a100").out
    assert "name it" in feedrate("workloads", "--toml").err
