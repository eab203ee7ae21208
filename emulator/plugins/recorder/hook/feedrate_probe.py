"""Watch a process of a recorded job: when its DataLoaders are asked for a batch, and when they deliver it.

One event is one line of JSON into a named pipe. A line is at most PIPE_BUF bytes, so that lines of many
processes do not mix; a full pipe loses events, which are counted, and never blocks the job.

Lines, by "k":  p  a process began      l  a loader, or its workers, are known      s  a batch was delivered
                x  an epoch has ended   f  a worker makes its first batch       u  and has ended
                d  an accelerator is in use   t  an accelerator took so long for a step
                a  a process that reads samples waits until it is traced
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import sys
import threading
import time
import weakref
from typing import Any, Callable, Sized  # noqa: UP035  Python 3.8

FOLDER = "FEEDRATE_RECORD"
"""Environment variable with the folder of the pipe. Without it nothing is watched."""
TRACER = "FEEDRATE_RECORD_TRACER"
"""Environment variable with the process ID of the recorder, which traces the calls of readers."""
EVENTS = "events"
"""Name of the pipe."""
TRACING = "tracing"
"""Name of the file that exists while the recorder traces calls."""
MARK = 0x7EED0000
"""Argument of a call without effect that marks a batch among the traced system calls: this plus twice the
number of the loader (0 for one with workers) where it begins, and 1 more where it ends."""

_PR_SET_PTRACER = 0x59616D61
_ATTACH_SECONDS = 5.0
"""Most seconds to wait for the recorder's strace."""
_HIGH_FD = 400
"""Lowest number of the pipe's descriptor, above those that jobs expect to be free."""
_MOST_LINE = 4096
_MODULE = "torch.utils.data.dataloader"


class _Events:
    """The write end of the pipe."""

    def __init__(self, path: str) -> None:
        # Also open for reading, so that writes never cause SIGPIPE, which could end the job.
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._fd = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)
        os.close(fd)
        self._inode = os.fstat(self._fd).st_ino
        self.open = True
        self._lost = 0

    def tell(self, line: bytes) -> None:
        if not self.open or len(line) > _MOST_LINE:
            return
        try:
            if os.fstat(self._fd).st_ino != self._inode:  # the job has closed it and uses its number
                self.open = False
                return
            os.write(self._fd, line)
        except BlockingIOError:
            self._lost += 1
            return
        except OSError:
            self.open = False
            return
        if self._lost:
            lost, self._lost = self._lost, 0
            self.facts(k="lost", n=lost)

    def facts(self, **facts: Any) -> None:
        self.tell(json.dumps(facts, separators=(",", ":")).encode() + b"\n")


_events: _Events | None = None
_tracing = ""
"""Path of the file that exists while calls are traced."""
_traced = 0
"""ID of the process that asked to be traced: a forked child has to ask for itself."""
_loaders: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()
"""Number and present epoch of each loader."""
_count = 0
_lock = threading.Lock()
_inside = threading.local()


def install() -> None:
    """Watch this process, if the environment requests it."""
    global _events, _tracing
    folder = os.environ.get(FOLDER)
    if not folder or _events is not None:
        return
    try:
        _events = _Events(os.path.join(folder, EVENTS))  # noqa: PTH118
    except OSError:
        return  # the recording is over
    _tracing = os.path.join(folder, TRACING)  # noqa: PTH118
    _events.facts(k="p", p=os.getpid())
    sys.meta_path.insert(0, _Finder())


def let_trace(process: int) -> None:
    """Let `process` and its children trace this one, where only ancestors may (Yama's ptrace_scope 1)."""
    import ctypes  # here: most processes do not read samples

    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(process), 0, 0, 0)


def tracer_of(process: int | str) -> int:
    """Return the process that traces `process`, or 0."""
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{process}/status", "rb") as file:  # noqa: PTH123
        return int(file.read().partition(b"TracerPid:")[2].split()[0])
    return 0


def _be_traced() -> None:
    """Wait until the recorder traces this process, whose reads of samples begin."""
    global _traced
    _traced = os.getpid()
    if _events is None or not os.path.exists(_tracing) or tracer_of("self"):  # noqa: PTH110  pathlib takes 5 ms
        return
    with contextlib.suppress(Exception):  # the job must run regardless
        let_trace(int(os.environ[TRACER]))
        _events.facts(k="a", p=os.getpid())
        deadline = time.monotonic() + _ATTACH_SECONDS
        while os.path.exists(_tracing) and not tracer_of("self") and time.monotonic() < deadline:  # noqa: PTH110
            time.sleep(0.001)


def _rank() -> int:
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"):
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return 0


class _Finder(importlib.abc.MetaPathFinder):
    """A finder of the watched module, which patches it as soon as it has been imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            try:
                patch(module)
            except Exception as error:  # noqa: BLE001  the DataLoader works without it
                sys.stderr.write(f"feedrate record: cannot watch this PyTorch's DataLoader ({error!r})\n")

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


# ---- DataLoaders.


def patch(module: Any) -> None:
    """Watch the iterators of `module`, torch.utils.data.dataloader."""
    base, worker, fetch = module._BaseDataLoaderIter, module._utils.worker, module._utils.fetch
    if getattr(base, "_feedrate", False):
        return
    begin, next_batch, reset, next_index = base.__init__, base.__next__, base._reset, base._next_index
    loop = worker._worker_loop

    @functools.wraps(begin)
    def init(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, loader, *args, **kwargs)
        with contextlib.suppress(TypeError):  # a DataLoader without a hash is not watched
            _begin_epoch(self, loader)

    @functools.wraps(reset)
    def again(self: Any, loader: Any, first_iter: bool = False, *args: Any, **kwargs: Any) -> Any:
        result = reset(self, loader, first_iter, *args, **kwargs)
        if not first_iter and hasattr(self, "_feedrate_loader"):
            _begin_epoch(self, loader)
        return result

    @functools.wraps(next_index)
    def ask(self: Any) -> Any:
        indices = next_index(self)
        if hasattr(self, "_feedrate_sizes"):
            # Without collation an index may be a tuple, such as a file and an offset, and a list is a batch.
            batch = self._auto_collation or isinstance(indices, list)
            self._feedrate_sizes.append(len(indices) if batch and isinstance(indices, Sized) else 0)
        return indices

    @functools.wraps(next_batch)
    def take(self: Any) -> Any:
        return _take(self, next_batch)

    @functools.wraps(loop)
    def work(*args: Any, **kwargs: Any) -> Any:
        try:
            return loop(*args, **kwargs)
        finally:
            _tell_usage(k="u")

    base.__init__, base.__next__, base._reset, base._next_index = init, take, again, ask
    worker._worker_loop = work
    base._feedrate = True
    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        kind.fetch = _marked_fetch(kind.fetch)


def _marked_fetch(torch_fetch: Callable[..., Any]) -> Callable[..., Any]:
    """Return PyTorch's `fetch`, with or without workers, which marks where each batch begins and ends."""

    @functools.wraps(torch_fetch)
    def fetch(self: Any, index: Any) -> Any:
        if _traced != os.getpid():
            # Not earlier: PyTorch reads hundreds of kB of code before a worker's first batch.
            _tell_usage(k="f")
            _be_traced()
        loader = getattr(_inside, "loader", 0)
        _border(loader, ends=False)
        try:
            return torch_fetch(self, index)
        finally:
            _border(loader, ends=True)

    return fetch


def _tell_usage(**facts: Any) -> None:
    if _events is not None:
        _events.facts(p=os.getpid(), **facts, **usage("/proc/self"))


def _take(iterator: Any, next_batch: Callable[[Any], Any]) -> Any:
    """Return the next batch of `iterator`, by PyTorch's own `__next__`, and report when it was delivered."""
    events = _events
    if events is None or not events.open or not hasattr(iterator, "_feedrate_loader"):
        return next_batch(iterator)
    _end_step(iterator)
    ready, early = _waiting(iterator)
    process, number, epoch = os.getpid(), iterator._feedrate_loader, iterator._feedrate_epoch
    _inside.loader = 0 if iterator._num_workers else number
    asked, used = time.monotonic_ns(), _cpu_ns()
    try:
        batch = next_batch(iterator)
        got, worked = time.monotonic_ns(), _cpu_ns() - used
    except StopIteration:
        events.facts(k="x", p=process, l=number, e=epoch, a=asked)
        raise
    finally:
        _inside.loader = 0
    step = iterator._feedrate_step
    iterator._feedrate_step = step + 1
    with contextlib.suppress(Exception):  # a batch or a loader of the user's own kind may raise anything
        if step == 0:
            _describe(events, iterator, number)
        elif step == 2:
            _describe_device(events)
        sent, samples = getattr(iterator, "_send_idx", step + 1), _samples(iterator, batch)
        ready = ready and int(_waiting(iterator)[1] <= early)  # not if others came before it
        events.tell(
            b'{"k":"s","p":%d,"l":%d,"e":%d,"i":%d,"a":%d,"g":%d,"r":%d,"s":%d,"n":%d,"c":%d,"d":%d}\n'
            % (process, number, epoch, step, asked, got, ready, sent, samples, used, worked)
        )
    _tell_steps(events)
    iterator._feedrate_begun = _cuda_event(), (process, number, epoch, step)
    return batch


def _cpu_ns() -> int:
    """Return the CPU nanoseconds of this process and of its children that have ended, such as decoders."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time_ns() + int(1e9 * (ended.ru_utime + ended.ru_stime))


def _begin_epoch(iterator: Any, loader: Any) -> None:
    global _count
    with _lock:
        if loader not in _loaders:
            _loaders[loader] = [_count, -1]
            _count += 1
        _loaders[loader][1] += 1
        number, epoch = _loaders[loader]
    iterator._feedrate_loader, iterator._feedrate_epoch, iterator._feedrate_step = number, epoch, 0
    iterator._feedrate_sizes = collections.deque()  # of the batches that were asked for and are on their way
    iterator._feedrate_begun = None, ()  # an event before the step's launches, and the step
    iterator._feedrate_asks = loader  # until it is described: a loop may keep only its iterator


def _waiting(iterator: Any) -> tuple[int, int]:
    """Return 1 if a batch of any worker waits to be taken, and how many were taken early; 0, 0: unknown."""
    with contextlib.suppress(Exception):  # private names of PyTorch
        tasks = iterator._task_info
        early = sum(len(task) == 2 for task in tasks.values())
        next_came = len(tasks.get(iterator._rcvd_idx, ())) == 2
        return int(next_came or not iterator._data_queue.empty()), early
    return 0, 0


def _border(loader: int, ends: bool) -> None:
    """Mark where a batch begins or ends among the traced calls."""
    with contextlib.suppress(OSError):
        os.getpriority(os.PRIO_USER, MARK + 2 * loader + ends)


def _samples(iterator: Any, batch: Any) -> int:
    """Return the samples of a batch: the indices that it was asked by.

    An item of a dataset that makes its batches is one if its parts have the same length, like columns.
    """
    asked = iterator._feedrate_sizes.popleft() if iterator._feedrate_sizes else 0
    if asked:
        return int(asked)
    parts = list(batch.values()) if isinstance(batch, dict) else batch
    if not isinstance(parts, (list, tuple)) or len(parts) < 2:
        return 1
    shapes = [tuple(getattr(part, "shape", ())) for part in parts]
    lengths = {shape[:1] for shape in shapes}
    if len(lengths) > 1 or lengths == {()}:
        return 1
    return max(1, int(shapes[0][0]))


def _asked_of(loader: Any) -> tuple[Any, Any]:
    """Return the batch sampler and the sampler that give the DataLoader its indices.

    With a batch sampler of the job, `loader.sampler` is PyTorch's default and unused. Batch samplers that
    distribute the batches of another one (accelerate's BatchSamplerShard) have it in `batch_sampler`.
    """
    batching: Any = getattr(loader, "batch_sampler", None)
    while getattr(batching, "batch_sampler", None) is not None:
        batching = batching.batch_sampler
    if batching is None:
        return None, getattr(loader, "sampler", None)
    inner = getattr(batching, "sampler", None) if type(batching).__name__ == "BatchSampler" else None
    return batching, inner if inner is not None else batching


def _describe(events: _Events, iterator: Any, number: int) -> None:
    """Report the settings of the loader of `iterator`. Of the user's code, only len() is called."""
    loader, iterator._feedrate_asks = iterator._feedrate_asks, None
    batching, sampler = _asked_of(loader)
    size = getattr(loader, "batch_size", None) or getattr(batching, "batch_size", None)
    length = 0
    if getattr(iterator, "_dataset_kind", 0) != 1:  # not an iterable dataset
        with contextlib.suppress(Exception):  # it may have no length
            length = len(loader.dataset)
    facts = {
        "batch_size": size if isinstance(size, int) else 0,
        "workers": int(iterator._num_workers),
        "prefetch_factor": int(getattr(loader, "prefetch_factor", None) or 0),
        "replacement": getattr(sampler, "replacement", False) is True,
        "dataset_length": length,
        "persistent_workers": bool(getattr(loader, "persistent_workers", False)),
        "auto_collation": bool(iterator._auto_collation),
        "pinned": bool(getattr(iterator, "_pin_memory", False)),
    }
    pids = [worker.pid for worker in getattr(iterator, "_workers", ())][:384]  # as many as a line holds
    events.facts(k="l", p=os.getpid(), l=number, w=pids, rank=_rank(), f=facts)


def _describe_device(events: _Events) -> None:
    """Report the accelerator that this process has initialised, if any."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    with contextlib.suppress(Exception):  # a driver's trouble is not the job's
        if cuda is not None and cuda.is_initialized():
            events.facts(k="d", p=os.getpid(), name=str(cuda.get_device_name(cuda.current_device())))


_MOST_QUEUED = 4096
_queued: collections.deque[Any] = collections.deque(maxlen=_MOST_QUEUED)
"""Steps whose launches are submitted: the CUDA events before and after them, and the step."""


def _cuda_event() -> Any:
    """Return a CUDA event behind all that was launched; None without a GPU, or outside the main thread."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    with contextlib.suppress(Exception):  # a driver's trouble is not the job's
        if cuda is None or not cuda.is_initialized() or cuda.is_current_stream_capturing():
            return None
        if threading.current_thread() is not threading.main_thread():
            return None  # a thread that takes batches for another one, which launches the steps
        event = cuda.Event(enable_timing=True)
        event.record()
        return event
    return None


def _end_step(iterator: Any) -> None:
    """Keep the CUDA events before and after the launches of the step that ends with this request."""
    (begun, step), iterator._feedrate_begun = iterator._feedrate_begun, (None, ())
    ended = begun and _cuda_event()
    if ended:
        _queued.append((begun, ended, step))


def _tell_steps(events: _Events) -> None:
    """Report the seconds between the events of the steps that the GPU has finished. Does not wait for it."""
    with contextlib.suppress(Exception):
        while _queued and _queued[0][1].query():
            begun, ended, (process, number, epoch, step) = _queued.popleft()
            took = round(1e6 * begun.elapsed_time(ended))
            events.facts(k="t", p=process, l=number, e=epoch, i=step, t=took)


def usage(process: str) -> dict[str, int]:
    """Return the counters of the process at /proc/... that the system reports.

    calls: bytes that read(2) and similar calls returned. storage: bytes fetched from storage. ticks: user +
    system time, of ended children, too, in the kernel's ticks.
    """
    counters: dict[str, int] = {}
    unknown = contextlib.suppress(OSError, ValueError, KeyError, IndexError)
    with unknown, open(process + "/io", "rb", buffering=0) as file:  # noqa: PTH123
        lines = dict(line.split(b": ") for line in file.read(4096).splitlines())
        counters.update(calls=int(lines[b"rchar"]), storage=int(lines[b"read_bytes"]))
    with unknown, open(process + "/stat", "rb", buffering=0) as file:  # noqa: PTH123
        fields = file.read(4096).rpartition(b") ")[2].split()
        counters.update(ticks=sum(map(int, fields[11:15])))
    return counters
