"""Groups of options that verbs share: dataclasses whose fields are options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, Protocol, get_type_hints


class Common(Protocol):
    """A group that every verb has."""

    def apply(self) -> None:
        """Do what its options ask for, before the verb runs."""


def with_groups(verb: Callable[..., None], common: type[Common]) -> Callable[..., None]:
    """Return `verb` with options in place of its parameters that are groups, and the options of `common`."""
    hints = get_type_hints(verb, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(verb).parameters.items():
        if name in groups:
            parameters += _options(groups[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=parameter.KEYWORD_ONLY))
    parameters += _options(common)

    @wraps(verb)
    def filled(**given: Any) -> None:
        _taken(common, given).apply()
        for name, group in groups.items():
            given[name] = _taken(group, given)
        verb(**given)

    filled.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # Typer reads both
    filled.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return filled


def _options(group: Any) -> Iterator[inspect.Parameter]:
    """The fields of a group as parameters."""
    kinds = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        kind = inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(field.name, kind, default=default, annotation=kinds[field.name])


def _taken(group: Any, given: dict[str, Any]) -> Any:
    """Return a group made of its options, which are taken out of `given`."""
    return group(**{field.name: given.pop(field.name) for field in fields(group)})
