"""Threads that never keep a process alive: a hung read must not hang the exit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_CLOSE_SECONDS = 1.0
"""How long `close` waits for work that is under way; what hangs longer is left to the exit."""


class DaemonPool:
    """A fixed number of daemon threads that take work in the order in which it was handed in.

    `concurrent.futures.ThreadPoolExecutor` joins its threads when the interpreter exits, however long
    that takes; this one does not.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._closed = False
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """`call(*args)`, later, by one of the threads; cancelled when the pool is closed."""
        future: Future[T] = Future()
        self._tasks.put((future, partial(call, *args, **kwargs)))
        if self._closed:  # looked at after the put: `close` sets it before it empties the queue
            future.cancel()
        return future

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            _run(*task)
            del task  # or it would keep its arguments and its result until the next one comes

    def close(self) -> None:
        """Cancel what has not begun, wait a little for what has."""
        self._closed = True
        with suppress(Empty):
            while True:
                task = self._tasks.get_nowait()
                if task is not None:
                    task[0].cancel()
        for _ in self._threads:
            self._tasks.put(None)
        deadline = time.monotonic() + _CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _run(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - whoever waits for the future shall see it
        future.set_exception(error)
    else:
        future.set_result(result)
