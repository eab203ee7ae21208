"""The fork server that starts a rank's worker processes.

A fork of the rank itself would inherit its threads' locks in whatever state they are, and some MPI libraries
do not survive one.
"""

from __future__ import annotations

import ctypes
import os
from multiprocessing import process, resource_tracker
from multiprocessing.context import ForkServerContext
from types import ModuleType
from typing import Any

from emulator.files import PREFIX_VARIABLE


def start_server(preload: ModuleType) -> Forkserver:
    """Start a fork server that has imported `preload`. Raises OSError, EOFError."""
    _name_semaphores()
    _start_tracker()
    context = Forkserver()
    context.set_forkserver_preload([preload.__name__])
    # The server starts with its first child. Start it here, or its imports would be part of the first step.
    first = context.Process(target=_nothing)
    first.start()
    first.join()
    return context


class _Flag:
    """An Event without a lock: a killed worker holds nothing."""

    def __init__(self, set_already: ctypes.c_bool) -> None:
        self._set = set_already

    def set(self) -> None:
        self._set.value = True

    def is_set(self) -> bool:
        return self._set.value


class Forkserver(ForkServerContext):
    """multiprocessing's fork server, with a lock-free Event.

    A DataLoader tells its workers to end by an Event. A worker killed while it reads multiprocessing's own
    would take the Event's lock along, and the rank would wait for it forever.
    """

    def Event(self) -> Any:  # noqa: N802 - as the method is called there
        return _Flag(self.RawValue(ctypes.c_bool))


def _nothing() -> None:
    """Return at once: the target of the first child."""


def _start_tracker() -> None:
    """Start multiprocessing's resource tracker with its warnings off.

    When a rank ends at an error, semaphores are left, which the launcher removes: the tracker would print a
    page about them over the error's line.
    """
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = "ignore"
    try:
        resource_tracker.ensure_running()
    finally:
        del os.environ["PYTHONWARNINGS"]
        if before is not None:
            os.environ["PYTHONWARNINGS"] = before


def _name_semaphores() -> None:
    """Give the semaphores between this rank and its workers the prefix that the launcher has chosen.

    A killed rank cannot remove them, and mpirun kills multiprocessing's resource tracker with it. So the
    launcher removes all semaphores with its prefix.
    """
    prefix = os.environ.get(PREFIX_VARIABLE, "")
    # Private, but Python has no public way to choose the names. Without it, nothing is changed.
    config = getattr(process.current_process(), "_config", None)
    if prefix and config is not None:
        config["semprefix"] = "/" + prefix
