"""What mpirun starts in place of a rank."""

import subprocess
import sys

from emulator.run import stand_in


def test_without_its_server_it_is_the_rank_itself(tmp_path):
    """mpirun may start it on another host of an allocation, where no fork server is."""
    command = [sys.executable, "-I", "-S", stand_in.__file__, tmp_path / "nobody", "run", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "--workload" in done.stdout
