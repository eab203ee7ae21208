"""What `feedrate generate` says: lines for people, or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emulator.dataset.manifest import Manifest
    from emulator.dataset.plan import Plan
    from emulator.dataset.progress import State
    from emulator.storage.base import Store


def progress_text(state: State) -> None:
    from emulator.dataset.progress import show_on_terminal

    show_on_terminal(state)


def progress_json(state: State) -> None:
    _print_json(
        {
            "event": "progress",
            "files": state.files,
            "files_all": state.files_all,
            "bytes": state.bytes,
            "bytes_all": state.bytes_all,
            "bytes_per_second": state.bytes_per_second,
            "eta_seconds": state.eta_seconds if state.bytes else None,
        }
    )


def _print_json(value: dict[str, Any]) -> None:
    import json

    print(json.dumps(value), flush=True)


def say_done(place: str, manifest: Manifest, state: State, as_json: bool) -> None:
    """What there is now."""
    from emulator.units import show_bytes, show_rate, show_seconds

    measured = manifest.measured
    if as_json:
        _print_json(
            {
                "event": "done",
                "folder": place,
                "files": len(manifest.names),
                "bytes": manifest.total,
                "made_files": state.files,
                "made_bytes": state.bytes,
                "seconds": state.seconds,
                "cpu_seconds": state.cpu_seconds,
                "measured": dict(measured),
            }
        )
        return
    print(
        f"{place}: {len(manifest.names)} files, {show_bytes(manifest.total)} "
        f"({manifest.format}, recipe {manifest.recipe}, seed {manifest.seed})"
    )
    if state.files:
        rate = show_rate(state.bytes_per_second)
        print(f"made {state.files} files, {show_bytes(state.bytes)} in {show_seconds(state.seconds)}: {rate}")
    else:
        print("complete already: nothing was made")
    if measured:
        print(
            f"zstd-3 ratio {measured['zstd_ratio']:.2f}, {measured['unique_blocks']:.1%} of 4 KiB blocks "
            f"unique (measured on {show_bytes(measured['bytes'])} of {measured['files']:.0f} files)"
        )


def say_plan(store: Store, plan: Plan, as_json: bool) -> None:
    """Print the plan; touch nothing."""
    import dataclasses

    from emulator.dataset.plan import outlook
    from emulator.units import show_bytes

    look = outlook(plan)
    free = store.free()
    if as_json:
        _print_json({"event": "plan", "folder": str(store), "free": free, **dataclasses.asdict(look)})
        return
    recipe = plan.recipe
    print(f"{store}: {look.files} files, {show_bytes(look.total)} ({recipe.format}, {recipe.payload})")
    print(
        f"a file: mean {show_bytes(look.mean)}, SD {show_bytes(look.sd)}, "
        f"{show_bytes(look.smallest)} to {show_bytes(look.largest)}"
    )
    if free is not None:
        print(f"free:   {show_bytes(free)}" + ("" if free >= look.total else ", NOT ENOUGH"))
