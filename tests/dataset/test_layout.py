"""`feedrate generate --layout dlio`: the same samples where DLIO looks for them."""

from __future__ import annotations

from command import feedrate

from emulator.dataset.manifest import read_manifest


def test_samples_lie_where_dlio_looks_for_them(tmp_path):
    folder = tmp_path / "data"
    made = ("generate", folder, "--layout", "dlio", "--subfolders", 2)
    assert feedrate(*made, "--recipe", "tiny", "--files", 3).status == 0
    assert [path.name for path in sorted((folder / "train").iterdir())] == ["0000", "0001"]
    assert list((folder / "valid").iterdir()) == []
    assert feedrate(*made, "--recipe", "tiny", "--files", 4).status == 0, "it can be extended"
    manifest = read_manifest(folder)
    assert manifest.names[3] == "train/0001/sample_0000003.npz"
    done = feedrate("verify", folder)
    assert done.status == 0 and "4 of 4 files checked, 0 faults" in done.out
    other = feedrate("generate", folder, "--recipe", "tiny", "--files", 4)
    assert other.status == 3 and "holds another dataset" in other.one_line()
    assert feedrate("generate", folder, "--recipe", "tiny", "--files", 4, "--force").status == 0
    assert not (folder / "train").exists() and not (folder / "valid").exists()
    assert (folder / "sample_0000003.npz").is_file()
