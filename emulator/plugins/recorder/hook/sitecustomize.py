"""Start the probe in every Python process of a recorded job, and then import the user's own sitecustomize.

The job may run in another environment, with another Python: this module and `feedrate_probe` use only the
standard library and Python 3.8.
"""

from __future__ import annotations

import importlib
import os
import sys


def _begin() -> None:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  pathlib takes 5 ms
    sys.path.insert(0, here)
    try:
        importlib.import_module("feedrate_probe").install()
    except Exception as error:  # noqa: BLE001  the job must run regardless
        sys.stderr.write(f"feedrate record: cannot look into this process ({error!r})\n")
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]  # noqa: PTH100
    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as missing:
        if missing.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


_begin()
