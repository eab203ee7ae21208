"""`make docs`: this folder as a site that opens without a network, and as the man page feedrate(1).

Pages that the code writes: commands, fields of a result and exit codes. They are not kept.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from emulator import __version__, errors
from emulator.cli.main import app
from emulator.record import result

SUMMARY = "How many accelerators can this storage feed?"


def verbs() -> Iterator[tuple[str, Any, Any]]:
    """Name, command and context of every verb, in the order of `feedrate --help`."""
    group: Any = typer.main.get_command(app)
    above = group.make_context("feedrate", [], resilient_parsing=True)
    for name in group.list_commands(above):
        command = group.get_command(above, name)
        yield name, command, command.make_context(name, [], parent=above, resilient_parsing=True)


def summary_and_examples(command: Any) -> tuple[str, list[str]]:
    """What a command does, and the command lines of its help."""
    summary, _, examples = inspect.cleandoc(command.help or "").partition("\b\nExamples:\n")
    return summary.strip(), [line.strip() for line in examples.splitlines()]


def cell(text: str) -> str:
    """A cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def commands_page() -> str:
    lines = ["# Commands", "", "`feedrate COMMAND --help` prints the same."]
    for name, command, context in verbs():
        usage = " ".join(["feedrate", name, *command.collect_usage_pieces(context)])
        summary, examples = summary_and_examples(command)
        lines += ["", f"## {name}", "", summary, "", f"    {usage}", ""]
        lines += ["Examples:", "", *(f"    {example}" for example in examples), ""] if examples else []
        records = (parameter.get_help_record(context) for parameter in command.get_params(context))
        for written, meaning in filter(None, records):
            lines += [f"`{written}`", f": {' '.join(meaning.split())}", ""]
    return "\n".join(lines) + "\n"


def fields_page() -> str:
    """From the docstrings of `emulator/record/result.py`, in which each field has its own."""
    module = ast.parse(inspect.getsource(result))
    lines = ["# Fields of a result", "", "`run.json` is a RunResult. Sizes are bytes, times are seconds."]
    for node in reversed([each for each in module.body if isinstance(each, ast.ClassDef)]):
        lines += ["", f"## {node.name}", "", ast.get_docstring(node) or "", ""]
        lines += ["| field | type | meaning |", "|---|---|---|"]
        for field, after in zip(node.body, [*node.body[1:], None], strict=True):
            if not isinstance(field, ast.AnnAssign):
                continue
            said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            meaning = str(after.value.value) if said else ""  # type: ignore[union-attr]
            kind = cell(ast.unparse(field.annotation))
            lines.append(f"| `{ast.unparse(field.target)}` | `{kind}` | {cell(meaning)} |")
    return "\n".join(lines) + "\n"


def exit_codes_page() -> str:
    """From `EXIT_STATUS`, which `feedrate --help` prints too."""
    lines = ["# Exit codes", "", "| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {cell(meaning)} |" for code, meaning in errors.EXIT_STATUS.items()]
    lines += [
        "",
        "An error is one line on standard error: what is wrong and where, then what to do. What was measured",
        "until then is kept.",
        "`FEEDRATE_TRACEBACK=1` shows where an internal error came from.",
    ]
    return "\n".join(lines) + "\n"


def man_page() -> str:
    """feedrate(1): what the commands do, two examples of each, and the exit status."""
    described, shown = [], []
    for name, command, _ in verbs():
        summary, examples = summary_and_examples(command)
        described += [f"{name}", f": {cell(summary)}", ""]
        shown += [f"    {example}" for example in examples]
    statuses = [
        line for code, meaning in errors.EXIT_STATUS.items() for line in (f"{code}", f": {meaning}", "")
    ]
    return "\n".join(
        [
            "---", "orphan: true", "---", "# feedrate", "",
            "## SYNOPSIS", "", "    feedrate COMMAND [OPTIONS] [ARGUMENTS]", "    feedrate COMMAND --help", "",
            "## COMMANDS", "", *described, "## EXAMPLES", "", *shown, "", "## EXIT STATUS", "", *statuses,
        ]
    )  # fmt: skip


PAGES = {
    "commands.md": commands_page,
    "fields.md": fields_page,
    "exit-codes.md": exit_codes_page,
    "man.md": man_page,
}


def write_pages(sphinx: Any) -> None:
    """The generated pages, beside the others, before anything is read."""
    for name, page in PAGES.items():
        (Path(sphinx.srcdir) / name).write_text(page())


def setup(sphinx: Any) -> None:
    sphinx.connect("builder-inited", write_pages)


project, author, release = "feedrate", "the feedrate authors", __version__
extensions = ["myst_parser"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "feedrate"
html_copy_source = html_show_sphinx = False
man_pages = [("man", "feedrate", SUMMARY, [], 1)]
man_show_urls = False
