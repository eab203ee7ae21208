"""Programs that work for us: fed, listened to, given up after a time, and gone when we are."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from command import outlive, until

from emulator.errors import StorageError
from emulator.launch.child import ChildProcess
from emulator.launch.scratch import remove_dead


def test_it_reads_what_it_is_given_and_says_what_it_says():
    child = ChildProcess("cat", ["cat"])
    assert child.finish("words\n", seconds=60) == ("words\n", "")
    assert child.returncode == 0
    child = ChildProcess("sh", ["sh", "-c", "echo why >&2; exit 3"])
    assert child.finish("nobody reads this" * 10000, seconds=60) == ("", "why\n")
    assert child.returncode == 3


def test_it_is_given_up_after_a_time():
    child = ChildProcess("sleep", ["sleep", "60"])
    with pytest.raises(StorageError) as error:
        child.finish(seconds=0.1, hint="wake it")
    assert str(error.value) == "sleep did not end within 100 ms: wake it"
    assert not psutil.pid_exists(child.pid)
    child.end()  # once more is no harm


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_when_its_parent_is_killed(how: int):
    code = (
        "import time; from emulator.launch.child import ChildProcess\n"
        "print(ChildProcess('sleep', ['sleep', '60']).pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        assert os.getsid(child.pid) == child.pid  # Ctrl-C at the terminal does not reach it
        parent.send_signal(how)
    assert not outlive([child])


def test_it_can_tidy_up_although_nobody_listens_any_more(tmp_path: Path):
    mess = tmp_path / "mess"
    code = (
        "import sys, time; from pathlib import Path; from emulator.launch.child import ChildProcess\n"
        "job = 'trap \"echo bye; rm $0; exit\" TERM; touch $0; while true; do sleep 0.05; done'\n"
        "child = ChildProcess('sh', ['sh', '-c', job, sys.argv[1]], on_death=15)\n"
        "while not Path(sys.argv[1]).exists(): time.sleep(0.02)\n"
        "print('begun', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, mess], stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"begun\n" and mess.exists()
        parent.kill()
    assert until(lambda: not mess.exists())


def test_the_scratch_folder_of_a_killed_process_is_removed_by_the_next_start():
    code = (
        "import time; from emulator.launch.scratch import scratch\n"
        "with scratch() as (folder, _):\n"
        "    print(folder, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        folder = Path(owner.stdout.readline().strip())
        assert folder.is_dir() and folder.stat().st_mode & 0o777 == 0o700
        remove_dead()
        assert folder.is_dir()  # its owner is alive
        owner.kill()
    remove_dead()
    assert not folder.exists()


@pytest.mark.long
def test_a_command_that_was_stopped_as_a_whole_goes_on():
    """Its supervisor, stopped a little later, has read every heartbeat, and finds none when it runs again."""
    script = (
        "import os, time\nfrom emulator import notes\nfrom emulator.launch.supervise import supervised\n"
        "supervised()\nnotes.page().head.timeout = 1.0\n"
        "print(os.getpid(), flush=True)\ntime.sleep(3)\nprint('over')\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        time.sleep(1)
        os.kill(child, signal.SIGSTOP)
        time.sleep(1)
        process.send_signal(signal.SIGSTOP)
        time.sleep(3)
        os.killpg(process.pid, signal.SIGCONT)
        assert process.stdout.read() == "over\n"
    assert process.returncode == 0
