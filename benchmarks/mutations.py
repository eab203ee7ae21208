"""Share of random single mutations of the core that the tests notice.

    pip install pytest-cov
    python benchmarks/mutations.py [--mutants 200] [--seed 1]

One operator, constant, condition or return value is changed at a time, in a copy of the tree; then the tests
run that executed the line (by coverage, in process), and the mutant is killed when one of them fails. Lines
that no test executes in process are not drawn: `tests/mpi` runs them in ranks, which coverage does not see.
"""

from __future__ import annotations

import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import typer

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 120
"""A mutant whose tests take longer is killed: it loops."""
OPERATORS = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*",
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.And: "or", ast.Or: "and", ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip


def source_of(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


def mutant_of(node: ast.AST) -> tuple[ast.expr, str] | None:
    """The expression that is replaced, and its new source."""
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return node, f"({source_of(left)} {OPERATORS[type(op)]} {source_of(right)})"
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OPERATORS:
            return node, f"({source_of(left)} {OPERATORS[type(op)]} {source_of(right)})"
        case ast.BoolOp(op=op, values=values):
            return node, "(" + f" {OPERATORS[type(op)]} ".join(map(source_of, values)) + ")"
        case ast.Constant(value=bool(value)):
            return node, str(not value)
        case ast.Constant(value=int(value) | float(value)):
            return node, f"({value!r} + 1)"
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            return test, f"(not {source_of(test)})"
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            return value, "None"
    return None


def mutations(path: Path) -> list[tuple[ast.expr, str]]:
    """Replaced expression and new source of all mutations of a file, but for annotations."""
    tree = ast.parse(path.read_text())
    skipped = set()
    for node in ast.walk(tree):
        parts = [getattr(node, name, None) for name in ("annotation", "returns")]
        if isinstance(node, ast.JoinedStr):
            parts.append(node)
        for part in filter(None, parts):
            skipped |= set(map(id, ast.walk(part)))
    nodes = [node for node in ast.walk(tree) if id(node) not in skipped]
    return [mutant for node in nodes if (mutant := mutant_of(node))]


def replaced_source(text: str, node: ast.expr, new: str) -> str:
    lines = text.encode().split(b"\n")
    assert node.end_lineno and node.end_col_offset is not None
    head = [*lines[: node.lineno - 1], lines[node.lineno - 1][: node.col_offset]]
    tail = [lines[node.end_lineno - 1][node.end_col_offset :], *lines[node.end_lineno :]]
    return (b"\n".join(head) + new.encode() + b"\n".join(tail)).decode()


def covered(tree: Path, tests: list[str]) -> dict[tuple[str, int], list[str]]:
    """Tests by (file, line) that they execute."""
    marked = "not alone and not long and not mpi"
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marked, "--timeout=600"]
    words += ["--cov=emulator", "--cov-context=test", "--cov-report=", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "COVERAGE_FILE": str(tree / "coverage")}
    subprocess.run([sys.executable, *words], cwd=tree, env=environment, check=False, stdout=sys.stderr)
    from coverage import CoverageData

    data = CoverageData(str(tree / "coverage"))
    data.read()
    found: dict[tuple[str, int], list[str]] = {}
    for file in data.measured_files():
        name = str(Path(file).relative_to(tree))
        for line, contexts in data.contexts_by_lineno(file).items():
            ran = sorted({context.split("|")[0] for context in contexts if context.endswith("|run")})
            if ran:
                found[name, line] = ran
    return found


def main(mutants: int = 200, seed: int = 1, most_tests: int = 60) -> None:
    """Draw `mutants`, and run for each at most `most_tests` of the tests that execute its line."""
    rooms = sorted(
        path.name for path in (ROOT / "tests").iterdir() if (ROOT / "emulator" / path.name).is_dir()
    )
    rooms += [name for name in ("order", "house") if (ROOT / "tests" / name).is_dir()]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout  # noqa: S607
        for name in filter(None, tracked.decode().split("\0")):
            if os.path.lexists(ROOT / name):
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
        lines = covered(tree, [f"tests/{room}" for room in sorted(set(rooms))])
        core = [p for p in sorted((tree / "emulator").rglob("*.py")) if not {"plugins"} & set(p.parts)]
        sites = [
            (path, *mutant)
            for path in core
            for mutant in mutations(path)
            if (str(path.relative_to(tree)), mutant[0].lineno) in lines
        ]
        drawn = random.Random(seed).sample(sites, mutants)  # noqa: S311
        killed = 0
        environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
        for path, node, new in drawn:
            name = str(path.relative_to(tree))
            tests = lines[name, node.lineno]
            step = max(1, len(tests) // most_tests)
            before = path.read_text()
            path.write_text(replaced_source(before, node, new))
            words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests[::step]]
            try:
                ended = subprocess.run(
                    words, cwd=tree, env=environment, capture_output=True, timeout=SECONDS, check=False
                )
                survived = ended.returncode == 0
            except subprocess.TimeoutExpired:
                survived = False
            path.write_text(before)
            killed += not survived
            if survived:
                print(f"survived: {name}:{node.lineno}: {ast.unparse(node)} -> {new}", flush=True)
    print(f"{killed} of {len(drawn)} killed, {len(sites)} sites, seed {seed}")


if __name__ == "__main__":
    typer.run(main)
