"""Makes loaders for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from contracts.loader_contract import SPEC, Files, MakeLoader

from emulator.config.workload import LoaderSpec
from emulator.loader import make_loader
from emulator.loader.base import Loader
from emulator.storage.base import Storage


@pytest.fixture
def maker() -> Iterator[Callable[[str], MakeLoader]]:
    """Makes functions that make loaders of a kind; every loader is closed at the end."""
    with ExitStack() as stack:

        def of_kind(kind: str) -> MakeLoader:
            def make(files: Files, spec: LoaderSpec = SPEC, storage: Storage | None = None) -> Loader:
                loader = make_loader(kind, spec, storage or files.storage(), files)
                stack.callback(loader.close)
                return loader

            return make

        yield of_kind
