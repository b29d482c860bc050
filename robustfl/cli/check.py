"""``robustfl check``: the contract suite on a plug-in file or on methods by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from robustfl.cli.options import FORMAT, Command, Finite, load_plugins, plugins
from robustfl.cli.printing import as_json, console, table
from robustfl.errors import UsageError, closest, near, told


@click.command(cls=Command, short_help="Check methods against robustfl's contract.")
@click.argument("target", metavar="FILE-OR-NAME", type=click.Path())
@plugins()
@click.option("--limit", default=60.0, show_default=True, type=Finite(0, min_open=True), help="Seconds per law.")
@FORMAT
def check(target: str, *, plugins: tuple[str, ...], limit: float, form: str) -> int:
    """Check the methods of a plug-in FILE, or those called NAME, against robustfl's contract; 1 if a law is broken.

    \b
    robustfl check my_attack.py
    robustfl check 'foe(eta=2)'
    """
    load_plugins(plugins)
    found = _file(target, limit) if _is_file(target) else _named(target, limit)
    if form == "json":
        as_json([{**f, "checks": [dataclasses.asdict(c) for c in f["checks"]]} for f in found])
    else:
        for one in found:
            _print(one)
    return 0 if all(c.passed for one in found for c in one["checks"]) else 1


def _is_file(target: str) -> bool:
    path = Path(target)
    if path.is_dir():
        raise UsageError(f"{target!r} is a folder; pip install -e it and check its method by name, or name its file")
    return path.is_file() or target.endswith(".py") or "/" in target.partition("(")[0]


def _near_file(target: str) -> str:
    """Ends a message about a file that is not there: the files beside it with names like it, or nothing."""
    path = Path(target)
    files = (str(f) for f in path.parent.glob("*.py")) if path.suffix else ()
    found = near(target, files)
    return found and f"; {found}"


def _file(target: str, limit: float) -> list[dict[str, Any]]:
    from robustfl import testing
    from robustfl.registry import load_file, load_plugins
    from robustfl.testing.suite import Hung, within

    if not Path(target).is_file():
        raise UsageError(f"plug-in {target!r} is not a file{_near_file(target)}")
    load_plugins()
    wrong = ""
    try:
        entries = within(limit, lambda: load_file(target))
    except Hung:
        wrong = f"importing the file does not end within {limit:g} s"
    except UsageError as error:
        wrong = str(error)
    if wrong:
        law = "name" if " is taken by " in wrong else "loads"
        return [_result("file", target, "", [testing.Check(law, False, wrong)])]
    if not entries:
        return [_result("file", target, "", [testing.Check("loads", False, "no method has @register(name) in it")])]
    return [_suite(entry, entry.cls, limit) for entry in entries]


def _named(target: str, limit: float) -> list[dict[str, Any]]:
    from robustfl.registry import create, entries
    from robustfl.specs import parse, split_outside

    parts = split_outside(target, "+")
    if len(parts) > 1:  # a pipeline obeys the laws that its parts obey
        return [found for part in parts for found in _named(part.strip(), limit)]
    name, params = parse(target)
    found = [e for e in entries() if e.name == name]
    if not found:
        hint = _near_file(name) or f"; {closest(name, [e.name for e in entries()])}"
        raise UsageError(f"no method or file {name!r}{hint}")
    return [_suite(e, create(e.kind, target) if params else e.cls, limit) for e in found]


def _suite(entry: Any, method: Any, limit: float) -> dict[str, Any]:
    from robustfl import testing

    try:
        method = method() if isinstance(method, type) else method
    except (TypeError, ValueError) as error:
        hint = f"it cannot be made of its defaults ({told(error)}); check '{entry.name}(parameter=value)'"
        return _result(entry.kind, entry.name, entry.origin, [testing.Check("defaults", False, hint)])
    return _result(entry.kind, entry.name, entry.origin, testing.check(method, limit=limit))


def _result(kind: str, name: str, origin: str, checks: list[Any]) -> dict[str, Any]:
    return {"kind": kind, "name": name, "origin": origin, "checks": checks}


def _print(one: dict[str, Any]) -> None:
    screen = console()
    checks = one["checks"]
    origin = f" ({one['origin']})" if one["origin"] else ""
    rows = [["–" if c.because else "pass" if c.passed else "FAIL", c.name, c.reason] for c in checks]
    screen.print(table(["", "law", ""], rows, title=f"{one['kind']} {one['name']}{origin}"))
    kept, open_ = sum(c.passed and not c.because for c in checks), sum(bool(c.because) for c in checks)
    broken = not all(c.passed for c in checks)
    until = "what broke is mended" if broken else "its files are here"
    later = f"; {open_} more can be decided once {until}" if open_ else ""
    screen.print(f"{kept} of {len(checks)} laws hold{later}.\n", markup=False)
