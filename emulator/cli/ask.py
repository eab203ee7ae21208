"""`feedrate ask`: from an empty folder to the answer."""

from __future__ import annotations

import shlex
import time
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Annotated

import typer

from emulator import live
from emulator.analysis.answer import Answer, answer_of, at_threshold, gated
from emulator.cli import options
from emulator.config.catalog import names
from emulator.config.reader import to_plain
from emulator.config.storage import parse_place, parse_storage
from emulator.config.workload import load_workload
from emulator.errors import SpecError
from emulator.launch.comm import Comm
from emulator.launch.launched import rank_hint
from emulator.launch.world import on_ranks
from emulator.record.machine import cores
from emulator.registry import LOADERS
from emulator.report.terminal import Text, answer_blocks, print_blocks
from emulator.report.view import measured_on
from emulator.sweep.answer import Client, pytorch_answer
from emulator.sweep.ask import STORAGE, Measured, measured_in, storage_is_known
from emulator.sweep.ask import ask as find_answer
from emulator.sweep.asked_data import Question
from emulator.sweep.ranks import follow
from emulator.units import parse_seconds, show_seconds


def ask(
    place: Annotated[
        str,
        typer.Argument(metavar="PLACE", help="A folder on the storage, a dataset, or s3://BUCKET/PREFIX."),
    ],
    gate: options.Gate,
    accelerator: Annotated[
        str | None,
        typer.Option(
            "--accelerator",
            "-a",
            metavar="NAME",
            help="v100, a100, h100, b200 or mi355; default: a100.",
            autocompletion=options.completing("accelerators"),
        ),
    ] = None,
    workload: Annotated[
        str,
        typer.Option(
            "--workload",
            "-w",
            metavar="NAME",
            help="unet3d, or the name of a workload.",
            autocompletion=options.WORKLOADS,
        ),
    ] = "unet3d",
    up_to: Annotated[
        int, typer.Option(min=1, help="The largest number of accelerators that is of interest.")
    ] = 16,
    within: Annotated[str, typer.Option(metavar="TIME", help="Time for all of it.")] = "5min",
    keep: Annotated[bool, typer.Option("--keep", help="Keep the data that were made.")] = False,
    out: options.Out = None,
    storage: options.StorageText = "posix",
    settings: options.Settings = None,
    force: options.Force = False,
) -> None:
    """Say how many accelerators a storage feeds: make data, probe, sweep, and try PyTorch on this client.

    \b
    Examples:
      feedrate ask /mnt/ai --accelerator h100 --up-to 64
      feedrate ask s3://bucket/scratch --within 10min --require 8
    """
    spec = load_workload(workload_named(workload, accelerator), gate.settings(settings))
    question = Question(
        place=parse_place(place),
        workload=spec,
        up_to=up_to,
        seconds=parse_seconds(within),
        storage=parse_storage(storage, "cold"),
        out=out or options.default_out(f"ask-{spec.name}"),
        keep=keep,
        force=force,
        command=options.command_line(),
    )
    begin = time.monotonic()
    LOADERS.load(_largest_loader()).get()  # before ranks are forked
    status = on_ranks(partial(_work, question, begin), usual=up_to, out=question.out)
    if rank_hint():
        return
    if status and (force or not storage_is_known(question.out)):  # an older answer may be in OUT
        raise typer.Exit(status)
    measured = measured_in(question.out)
    measured = replace(measured, storage=at_threshold(measured.storage, gate.threshold))
    _say(question, measured, gate, time.monotonic() - begin)
    if status:  # the trainings failed
        raise typer.Exit(status)


def answers(measured: Measured, require: int | None = None) -> tuple[Answer, Answer | None]:
    """Return what the storage feeds, and what PyTorch on these clients feeds."""
    storage, trained = measured.storage, measured.pytorch
    answer = gated(answer_of(storage), require, storage)
    if trained is None:
        return answer, None
    hosts = len(storage.environment["hosts"])
    client = Client(cores=cores() * hosts, hosts=hosts)
    return answer, pytorch_answer(trained, storage.environment["asked"]["up_to"], client)


def workload_named(workload: str, accelerator: str | None) -> str:
    """Return the name of `workload` on `accelerator`, in any case. Raises SpecError if they do not fit."""
    chosen = (accelerator or "a100").lower()
    if workload.endswith(".toml") or workload in names("workloads"):
        if accelerator and not workload.endswith(f"-{chosen}"):
            raise SpecError(
                f"-w {workload} has its accelerator, and -a {accelerator} names another", "leave out -a"
            )
        return workload
    prefix = f"{workload}-"
    accelerators = [name.removeprefix(prefix) for name in names("workloads") if name.startswith(prefix)]
    if not accelerators:
        return workload  # which load_workload refuses, with the names that are near
    if chosen not in accelerators:
        what = f"{workload} has no accelerator {chosen}"
        raise SpecError(what, f"say which with -a: {', '.join(accelerators)}")
    return f"{workload}-{chosen}"


def _largest_loader() -> str:
    return "direct" if find_spec("torch") is None else "torch"


def _work(question: Question, begin: float, comm: Comm) -> int:
    """Find the answer on rank 0; the other ranks follow it. Returns the exit status."""
    LOADERS.load(_largest_loader()).begin()
    if comm.rank:
        return follow(comm)
    status = 1
    try:
        find_answer(question, comm, begin)
        status = 0
    finally:
        comm.bcast(status)
    return status


def _say(question: Question, measured: Measured, gate: options.Gate, seconds: float) -> None:
    answer, trained = answers(measured, gate.require)
    if live.for_programs():
        live.answer(
            {
                "measured": measured_on(measured.storage),
                "out": str(question.out),
                "seconds": seconds,
                "answer": answer.as_plain(),
                "pytorch_answer": trained.as_plain() if trained else None,
                "storage": to_plain(measured.storage),
                "pytorch": to_plain(measured.pytorch) if measured.pytorch else None,
            }
        )
    elif live.quiet():
        print(answer.line)
    else:
        blocks = [Text(f"\nstorage: {measured_on(measured.storage)}", "dim"), *answer_blocks(answer)]
        if trained:
            blocks += [Text(""), *answer_blocks(trained)]
        print_blocks(blocks)
        page = shlex.join(["feedrate", "report", str(question.out / STORAGE), "--html", "page.html"])
        print(f"\n{show_seconds(seconds)}; {page}")
    gate.leave(answer, str(question.place))
