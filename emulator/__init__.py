"""feedrate: how many accelerators can this storage feed?

For notebooks and scripts: `generate`, `verify`, `baseline`, `checkpoint`, `plan`, `efficiency`, `read`,
`compare`, `find_knee`, `figures`, imported when they are used, so that a rank imports nothing of them.
`emulator.api` also has `run`, `sweep`, `record` and `report`: here these are packages.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself would be half of what the first line of `__main__` waits for
if TYPE_CHECKING:
    from typing import Any

    from emulator.api import (
        Result,
        baseline,
        checkpoint,
        compare,
        efficiency,
        figures,
        find_knee,
        generate,
        plan,
        read,
        verify,
    )

__version__ = "0.2.0"
__all__ = [
    "Result", "__version__", "baseline", "checkpoint", "compare", "efficiency", "figures",
    "find_knee", "generate", "plan", "read", "verify",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in __all__:
        import emulator.api as api  # here: a rank needs nothing of it

        return getattr(api, name)
    raise AttributeError(f"module 'emulator' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
