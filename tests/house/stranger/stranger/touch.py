"""Noise: a thread makes and removes small files beside the dataset, `--noise touch` or `touch:FILES`."""

import json
import threading

from emulator.errors import SpecError


def _files(text):
    number = text.partition(":")[2] or "8"
    if not number.isdigit():
        raise SpecError(f"--noise {text!r} is not understood", "write it like touch, or touch:100")
    return int(number)


def require(text):
    _files(text)


def begin(text, folder):
    return _Touching(folder, _files(text))


class _Touching:
    def __init__(self, folder, files):
        self._folder, self._files, self._made = folder, files, 0
        self._stop = threading.Event()
        folder.mkdir(parents=True)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self):
        while not self._stop.wait(0.01):
            for number in range(self._files):
                path = self._folder / str(number)
                path.touch()
                path.unlink()
                self._made += 1

    def stop(self):
        self.end()
        return json.dumps({"made": self._made})

    def end(self):
        self._stop.set()
        self._thread.join()
        if self._folder.is_dir():
            self._folder.rmdir()
            self._folder.parent.rmdir()


def line(output):
    return f"{json.loads(output)['made']} files made and removed"
