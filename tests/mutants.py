"""Plant faults in the sources one at a time and run the tests, which should fail: ``python -m tests.mutants``.

20 faults are written by hand, 40 are drawn from the syntax trees of the current sources: an operator, an index, a
constant or a sign is changed. Each is planted in a copy of the working tree with an environment of its own, where the
tests related to the file run, and then the whole default suite. Exits with 1 if one survives that ``EQUIVALENT`` lacks.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from bisect import bisect
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from itertools import accumulate, chain, count, islice, zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOMS: dict[str, tuple[str, ...]] = {
    "aggregators": ("defenses/aggregators/*.py", "defenses/preaggregators.py"),
    "attacks": ("attacks/byzantine/*.py",),
    "norms": ("robustfl/norms/*.py",),
    "algorithms": ("robustfl/algorithms/*.py",),
    "partitions": ("robustfl/data/*.py",),
    "evasions": ("attacks/evasion/*.py",),
    "key": ("robustfl/records.py", "scenarios/expand.py"),
    "resume": ("scenarios/checkpoint.py", "reports/store.py"),
    "ranks": ("reports/ranking.py", "reports/table_cell.py", "reports/moderated_t.py", "reports/paired.py"),
    "verify": ("scenarios/verify.py", "scenarios/isolated*.py", "reports/published/*.py"),
}
OWN_TESTS = "tests/unit/test_mutants.py"
"""They look for texts of the sources, and would fail with every fault."""
BY_HAND: tuple[tuple[str, str, str], ...] = (
    ("defenses/aggregators/krum.py", '(2 if variant == "blanchard" else 1)', '(3 if variant == "blanchard" else 1)'),
    ("defenses/aggregators/centered_clipping.py", "start, (1 - share.sum()).to(start))", "start, share.new_ones(()))"),
    ("attacks/byzantine/alie.py", "max(n // 2 + 1 - f, 1)", "max(n // 2 - f, 1)"),
    ("attacks/byzantine/mimic.py", "(centred @ z) @ centred", "(honest @ z) @ honest"),
    ("robustfl/norms/merging.py", "((totals[i] - 1) * momentum)", "(totals[i] * momentum)"),
    ("robustfl/norms/merging.py", "(values / values.sum(0)).unbind(1) if by_values else None", "None"),
    ("robustfl/algorithms/local_objectives.py", "moved * (len(messages) / work.clients)", "moved"),
    ("robustfl/algorithms/fedavg.py", "float(shares @ weights / shares.sum())", "float(weights.mean())"),
    ("robustfl/data/partitions.py", "cuts[:, -1] = counts  #", "pass  #"),
    ("robustfl/data/partitions.py", "taken, left = taken + take, left - take", "left = left - take"),
    ("attacks/evasion/pgd.py", "low, high = (x - eps)", "low, high = (current - eps)"),
    ("attacks/evasion/apgd.py", "self.fooled = self.fooled | hit", "self.fooled = hit"),
    ("scenarios/expand.py", "if k not in LATER or v != LATER[k]}", "if k not in LATER}"),
    ("scenarios/expand.py", '(*(known[name] for name in names), *weights)', "(known[name] for name in names)"),
    ("scenarios/checkpoint.py", 'if content["made_by"] != canonical(self.made_by):', "if False:"),
    ("reports/store.py", "in self._statuses(keys).items() if status not in RERUN}", "in self._statuses(keys).items()}"),
    ("reports/table_cell.py", "lowest = tuple((s, min(each))", "lowest = tuple((s, each[0])"),
    ("reports/moderated_t.py", "math.sqrt(moderated / n)", "math.sqrt(moderated / (n - 1))"),
    ("reports/published/agreement.py", "max(distances", "min(distances"),
    ("scenarios/isolated.py", "if here.key != key:", "if False:"),
)  # fmt: skip
"""File, text that stands there exactly once, and what the fault makes of it."""
EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "scenarios/checkpoint.py", "self._earlier_seconds, self._earlier_peak = 0.0, 0",
        "self._earlier_seconds, self._earlier_peak = 0.0, 1",
    ): "a peak of one byte is below every other",
}  # fmt: skip
"""Why no test can find a drawn mutant: by file, line before and line after."""

OPERATORS = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Pow: ("**", "*"), ast.Mod: ("%", "//"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.And: ("and", "or"),
    ast.Or: ("or", "and"), ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}
NO_CODE = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)
STAMPS = count(2)
LOGGED = ("debug", "info", "warn", "warning")
TINY = 1e-4  # constants below are allowances for rounding, and twice as much is as good
FILES, SECONDS = 6, 60.0  # related tests of a mutant: files by name, and seconds of the clean run
PATIENCE, GRACE = 5, 60.0  # a mutant hangs if its tests take so many times, and seconds, longer than the clean run


@dataclass(frozen=True)
class Mutant:
    """One fault: ``new`` instead of the bytes ``start`` to ``end`` of a file."""

    name: str
    room: str
    file: str
    start: int
    end: int
    new: bytes

    def planted(self, source: bytes) -> bytes:
        return source[: self.start] + self.new + source[self.end :]

    def lines(self, source: bytes) -> tuple[str, str]:
        """What changes, the whole lines before and after."""
        first, last = source.rfind(b"\n", 0, self.start) + 1, source.find(b"\n", self.end)
        texts = source[first:last], source[first : self.start] + self.new + source[self.end : last]
        return " ".join(texts[0].decode().split()), " ".join(texts[1].decode().split())

    def words(self, source: bytes) -> str:
        line, (before, after) = source[: self.start].count(b"\n") + 1, self.lines(source)
        return f"{self.name} {self.room}: {self.file}:{line}\n      {before}\n    → {after}"


def changes(source: bytes) -> list[tuple[int, int, str]]:
    """The changes that can be drawn in the function bodies of a source: start, end and the new text."""
    starts = [0, *accumulate(map(len, source.splitlines(keepends=True)))]
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    return sorted({change for function in functions for change in _of(function, source, starts)})


def _of(node: ast.AST, source: bytes, starts: Sequence[int]) -> Iterator[tuple[int, int, str]]:
    """The changes of a node and of what it holds; no types, docstrings, messages or default values."""
    if isinstance(node, NO_CODE) or getattr(getattr(node, "func", None), "attr", "") in LOGGED:
        return

    def first(node: Any) -> int:
        return int(starts[node.lineno - 1] + node.col_offset)

    def last(node: Any) -> int:
        return int(starts[node.end_lineno - 1] + node.end_col_offset)

    def between(left: ast.expr, right: ast.expr, operator: ast.AST, mark: str = "") -> Iterator[tuple[int, int, str]]:
        if type(operator) in OPERATORS:
            old, new = OPERATORS[type(operator)]
            place = re.search(re.escape(old + mark).encode(), source[last(left) : first(right)])
            if place is not None:
                yield last(left) + place.start(), last(left) + place.end(), new + mark

    match node:
        case ast.BinOp(left=left, right=right, op=op):
            if not any(isinstance(side, ast.JoinedStr) for side in (left, right)):
                yield from between(left, right, op)
        case ast.AugAssign(target=ast.expr() as target, value=value, op=op):
            yield from between(target, value, op, "=")
        case ast.Compare(left=left, ops=[op], comparators=[right]) | ast.BoolOp(op=op, values=[left, right, *_]):
            yield from between(left, right, op)
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            yield first(node), first(operand), ""
        case ast.Constant(value=bool() as value):
            yield first(node), last(node), str(not value)
        case ast.Constant(value=int() as value):
            yield first(node), last(node), str(value + 1)
            if value:
                yield first(node), last(node), str(value - 1)
        case ast.Constant(value=float() as value) if value == 0 or abs(value) >= TINY:
            yield first(node), last(node), repr(2 * value or 1.0)
        case ast.Slice(lower=lower, upper=upper, step=None) if (lower is None) != (upper is None):
            bound = source[first(lower or upper) : last(lower or upper)].decode()
            yield first(node), last(node), f":{bound}" if lower else f"{bound}:"
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in CALLS:
            yield last(node.func) - len(name), last(node.func), CALLS[name]
    for child in ast.iter_child_nodes(node):
        types = child is getattr(node, "annotation", None) or child is getattr(node, "returns", None)
        if not types and not isinstance(child, ast.arguments) and child not in getattr(node, "decorator_list", []):
            yield from _of(child, source, starts)


def git(*arguments: str) -> list[str]:
    """What git says about the working tree, an entry per line."""
    said = subprocess.check_output(["git", "-C", str(ROOT), *arguments, "-z"], text=True)
    return [line for line in said.split("\0") if line]


def rooms_of(files: Sequence[str]) -> dict[str, str]:
    """The rooms of those files in which faults are planted."""
    return {f: room for room, patterns in ROOMS.items() for one in patterns for f in files if fnmatch(f, one)}


def by_hand(sources: Mapping[str, bytes], rooms: Mapping[str, str]) -> list[Mutant]:
    """The mutants written by hand. Exits where a text is not there exactly once."""
    found = []
    for number, (file, old, new) in enumerate(BY_HAND, 1):
        if (times := sources.get(file, b"").count(old.encode())) != 1:
            sys.exit(f"H{number:02} of tests/mutants.py: {file} has this text {times} times instead of once: {old!r}")
        start = sources[file].index(old.encode())
        found.append(Mutant(f"H{number:02}", rooms[file], file, start, start + len(old.encode()), new.encode()))
    return found


def draw(sources: Mapping[str, bytes], rooms: Mapping[str, str], seed: int) -> Iterator[Mutant]:
    """Mutants drawn room by room in turn: a file of the room, and a change in it."""

    def of_room(room: str) -> Iterator[Mutant]:
        dice = random.Random(f"{seed} {room}")
        left = {file: changes(sources[file]) for file in sorted(rooms) if rooms[file] == room}
        while left := {file: found for file, found in left.items() if found}:
            file = dice.choice(list(left))
            start, end, new = left[file].pop(dice.randrange(len(left[file])))
            mutant = Mutant("", room, file, start, end, new.encode())
            with contextlib.suppress(SyntaxError):
                ast.parse(mutant.planted(sources[file]))
                yield mutant

    found = filter(None, chain.from_iterable(zip_longest(*map(of_room, ROOMS))))
    return (replace(mutant, name=f"D{number:02}") for number, mutant in enumerate(found, 1))


def related(file: str, source: bytes, ids: Sequence[str], texts: Mapping[str, str]) -> list[str]:
    """The tests named after what a file registers, and those of files that mention it most for their length."""
    text, stem = source.decode(), re.escape(Path(file).stem)
    methods = [re.escape(name) for name in re.findall(r'@register\("([^"]+)"', text)]
    public = re.findall(r"^(?:class|def|async def) ([A-Za-z]\w{3,})", text, flags=re.MULTILINE)
    mentions = [rf"""["'+(]{name}["'+(]""" for name in methods] + [rf"\b{name}\b" for name in public]
    pattern = re.compile("|".join([*mentions, rf"(?:import [^\n]*|\.)\b{stem}\b(?= import|\n|,)"]))
    often = {test: len(pattern.findall(words)) / (len(words) + 1000) for test, words in texts.items()}
    files = sorted((test for test, share in often.items() if share), key=lambda test: -often[test])[:FILES]
    named = re.compile("|".join(rf"(?<![\w+]){name}(?![\w+])" for name in methods) or "(?!)")
    own = [i for i in ids if named.search(i.partition("::")[2].replace("_", "-"))]
    return list(dict.fromkeys([*own, *(i for test in files for i in ids if i.partition("::")[0] == test)]))


class Copy:
    """A copy of the working tree in ``folder``, installed into an environment of its own."""

    def __init__(self, folder: Path) -> None:
        self.tree, self.python = folder / "tree", folder / "env" / "bin" / "python"
        subprocess.run(
            ["git", "-c", "advice.detachedHead=false", "clone", "-q", "--shared", str(ROOT), str(self.tree)], check=True
        )
        for name in [*git("diff", "--name-only", "HEAD"), *git("ls-files", "--others", "--exclude-standard")]:
            (self.tree / name).unlink(missing_ok=True)
            if (ROOT / name).exists():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.tree / name)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
        packages = next((folder / "env").glob("lib/python*/site-packages"))
        shared = dict.fromkeys(p for p in sys.path if p.endswith(("site-packages", "dist-packages")))
        (packages / "shared.pth").write_text("".join(f"{p}\n" for p in shared))
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--no-build-isolation", "--editable", str(self.tree)], check=True)
        ask = [str(self.python), "-c", "import robustfl.norms; print(robustfl.norms.__file__)"]
        if not (found := subprocess.check_output(ask, cwd=folder, text=True)).startswith(str(self.tree)):
            sys.exit(f"tests would import {found.strip()} and not the copy; install robustfl with pip install -e")

    def write(self, file: str, source: bytes) -> None:
        """Write a source with a time that no earlier version of it had, so that no stale bytecode is taken for it."""
        (self.tree / file).write_bytes(source)
        stamp = time.time() + next(STAMPS)
        os.utime(self.tree / file, (stamp, stamp))

    def pytest(self, *arguments: str, limit: float | None = None) -> tuple[int | None, str]:
        """The exit code (None after ``limit`` seconds) and output of pytest."""
        env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        env |= {"PATH": f"{self.python.parent}{os.pathsep}{env['PATH']}", "OMP_NUM_THREADS": "1"}
        command = [str(self.python), "-m", "pytest", "-p", "no:cacheprovider", "--ignore", OWN_TESTS, *arguments]
        with tempfile.TemporaryFile("w+") as out:
            run = subprocess.Popen(command, cwd=self.tree, env=env, stdout=out, stderr=out, start_new_session=True)
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    run.wait(limit)
            finally:
                if (code := run.poll()) is None:
                    os.killpg(run.pid, signal.SIGKILL)
                    run.wait()
            out.seek(0)
            return code, out.read()

    def killer(self, mutant: Mutant, source: bytes, arguments: Sequence[str], limit: float) -> str | None:
        """The test that fails with the mutant planted, or None."""
        self.write(mutant.file, mutant.planted(source))
        try:
            code, output = self.pytest("-x", *arguments, limit=limit)
        finally:
            self.write(mutant.file, source)
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, flags=re.MULTILINE)
        late = f"no end in {limit:.0f} s" if code is None else f"exit code {code}: {output.strip()[-200:]}"
        return None if code == 0 else failed[1] if failed else late


def arguments_for(chosen: Sequence[str], ids: Sequence[str]) -> list[str]:
    """Tests as arguments of pytest: a file's name where all its tests are chosen."""
    files = [Counter(i.partition("::")[0] for i in some) for some in (ids, chosen)]
    whole = {file for file, times in files[1].items() if times == files[0][file]}
    return list(dict.fromkeys(file if (file := i.partition("::")[0]) in whole else i for i in chosen))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of the drawn mutants (default: 0)")
    parser.add_argument("--draws", type=int, default=40, help="drawn mutants (default: 40)")
    parser.add_argument("--only", default="", metavar="REGEX", help="mutants of these files or names alone")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    parser.add_argument("--jobs", type=int, default=2, help="mutants, and workers of the whole suite, at a time")
    parser.add_argument("--related-only", action="store_true", help="do not run the whole suite on survivors")
    options = parser.parse_args()
    began, wanted = time.monotonic(), re.compile(options.only)
    tracked = [file for file in git("ls-files") if (ROOT / file).is_file()]
    rooms = rooms_of(tracked)
    sources = {file: (ROOT / file).read_bytes() for file in rooms}
    mutants = [m for m in by_hand(sources, rooms) if wanted.search(m.file) or wanted.fullmatch(m.name)]
    named = {file: room for file, room in rooms.items() if wanted.search(file)}
    mutants += islice(draw(sources, named, options.seed), options.draws)
    known = [m for m in mutants if (m.file, *m.lines(sources[m.file])) in EQUIVALENT]
    for mutant in mutants if options.list else known:
        print(mutant.words(sources[mutant.file]), "\n    equivalent" if mutant in known else "")
    if options.list or not mutants:
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        copies = [Copy(Path(scratch) / str(k)) for k in range(options.jobs)]
        survivors = run(copies, [m for m in mutants if m not in known], sources, tracked, options.related_only)
    took, killed = (time.monotonic() - began) / 60, len(mutants) - len(known) - len(survivors)
    print(f"{killed} killed, {len(known)} equivalent, {len(survivors)} survived ({took:.0f} minutes)")
    print(*(f"SURVIVED {m.words(sources[m.file])}" for m in survivors), sep="\n")
    return 1 if survivors else 0


def run(
    copies: Sequence[Copy], mutants: Sequence[Mutant], sources: Mapping[str, bytes], tracked: Sequence[str], short: bool
) -> list[Mutant]:
    """Print what kills each mutant, the related tests or (unless ``short``) the whole suite; return the survivors."""
    ids = re.findall(r"^tests/\S+\.py::.+$", copies[0].pytest("--collect-only", "-n", "0")[1], flags=re.MULTILINE)
    texts = {f: (ROOT / f).read_text(encoding="utf-8") for f in tracked if re.match(r"tests/.*test_\w+\.py$", f)}
    tests = {file: related(file, sources[file], ids, texts) for file in {m.file for m in mutants}}
    workers = ["-n", str(len(copies))]
    union = arguments_for([i for file in tests for i in tests[file]], ids) if short else []
    print(f"clean run for {len(mutants)} mutants …", flush=True)
    code, output = copies[0].pytest(*workers, "--durations=0", "--durations-min=0", *dict.fromkeys(union))
    if code:
        sys.exit(f"the tests fail without any mutant, so nothing can be learned from them:\n{output[-3000:]}")
    seconds = dict[str, float]()
    for took, test in re.findall(r"^ *([\d.]+)s (?:setup|call|teardown) +(.+?) *$", output, flags=re.MULTILINE):
        seconds[test] = seconds.get(test, 0.0) + float(took)
    mean = {file: fmean([0.0, *(s for test, s in seconds.items() if test.startswith(f"{file}::"))]) for file in texts}
    free = deque(copies)

    def meet(mutant: Mutant, whole: bool) -> bool:
        """Run tests on a mutant and print what became of it; True if it survived."""
        copy, start = free.pop(), time.monotonic()
        quick = sorted(tests[mutant.file], key=lambda test: seconds.get(test, 0.0))
        took = list(accumulate(seconds.get(test, 0.0) for test in quick))
        chosen = sorted(quick[: bisect(took, SECONDS)], key=lambda test: mean[test.partition("::")[0]])
        arguments = workers if whole else arguments_for(chosen, ids)
        limit = PATIENCE * (sum(seconds.values()) if whole else SECONDS) + GRACE
        killer = copy.killer(mutant, sources[mutant.file], arguments, limit) if whole or chosen else None
        free.append(copy)
        end = f"killed by {killer}" if killer else "SURVIVED" if whole or short else "survived the related tests"
        print(f"{mutant.words(sources[mutant.file])}\n    {end} ({time.monotonic() - start:.0f} s)", flush=True)
        return killer is None

    with ThreadPoolExecutor(len(copies)) as pool:
        alive = [m for m, left in zip(mutants, pool.map(lambda m: meet(m, False), mutants), strict=True) if left]
    return alive if short else [m for m in alive if meet(m, True)]


if __name__ == "__main__":
    sys.exit(main())
