"""Names of the semaphores between a rank and its worker processes: who starts the ranks can remove them.

A rank that is killed cannot, and multiprocessing's resource tracker is killed with it by mpirun.
"""

from __future__ import annotations

import os
from multiprocessing import process

PREFIX_VARIABLE = "FEEDRATE_SEMAPHORES"
"""Environment variable with the start of the names, without a slash."""


def name_semaphores() -> None:
    """Name this process's semaphores as the launcher wants them; as Python does when nobody asked."""
    prefix = os.environ.get(PREFIX_VARIABLE, "")
    # Python has no public way to choose it; where the private one is gone, nothing is changed.
    config = getattr(process.current_process(), "_config", None)
    if prefix and config is not None:
        config["semprefix"] = "/" + prefix
