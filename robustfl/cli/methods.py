"""``robustfl list`` and ``robustfl show``: facts from the classes themselves."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import click

from robustfl.cli.printing import as_json, console, table
from robustfl.errors import UsageError, closest


def list_methods(kind: str | None, *, plugins: tuple[str, ...], form: str) -> int:
    """Print the methods of one kind, or of all."""
    _load(plugins)
    groups = {kind: _members(kind)} if kind else {k: _members(k) for k in _kinds()}
    if form == "json":
        as_json(groups if kind is None else groups[kind])
        return 0
    screen = console()
    for name, members in groups.items():
        rows = [[m["name"], m["summary"], m.get("origin", "")] for m in members]
        columns = ["name", "", "from"] if any(r[2] for r in rows) else ["name", ""]
        screen.print(table(columns, [r[: len(columns)] for r in rows], title=name if kind is None else None))
        if kind is None:
            screen.print()
    return 0


def show(name: str, *, plugins: tuple[str, ...], form: str) -> int:
    """Print everything about one method (every kind that has the name) or preset."""
    from robustfl.registry import KINDS, entries

    _load(plugins)
    found = [e for kind in KINDS for e in entries(kind) if e.name == name]
    if not found:
        from robustfl.scenarios import preset_names

        if name in preset_names():
            return _show_preset(name, form)
        known = [e.name for kind in KINDS for e in entries(kind)] + preset_names()
        raise UsageError(f"no method or preset {name!r}; {closest(name, known)}")
    facts = [_facts(entry) for entry in found]
    if form == "json":
        as_json(facts)
        return 0
    screen = console()
    for fact in facts:
        screen.print(
            f"{fact['kind']} {fact['name']} (version {fact['version']}) {fact['origin']}".rstrip(), style="bold"
        )
        click.echo(f"\n{fact['doc']}\n")
        if fact["parameters"]:
            rows = [[p["name"], p["type"], p["default"], p["allowed"], p["doc"]] for p in fact["parameters"]]
            screen.print(table(["parameter", "type", "default", "allowed", ""], rows))
        for label, value in fact["facts"].items():
            click.echo(f"{label}: {value}")
    return 0


def _kinds() -> tuple[str, ...]:
    from robustfl.registry import KINDS

    return (*(f"{kind}s" for kind in KINDS), "presets")


def _load(plugins: tuple[str, ...]) -> None:
    from robustfl.registry import load_file

    for plugin in plugins:
        load_file(plugin)


def _members(plural: str) -> list[dict[str, Any]]:
    if plural == "presets":
        from robustfl.scenarios import Scenario, preset_names

        return [{"name": n, "summary": Scenario.load(n).description} for n in preset_names()]
    from robustfl.registry import entries

    members = []
    for entry in entries(plural[:-1]):
        member = {"name": entry.name, "summary": _summary(entry.cls), "version": entry.version}
        members.append(member | ({"origin": entry.origin} if entry.origin else {}))
    return members


def _summary(cls: type) -> str:
    return (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ").replace("``", "")


def _facts(entry: Any) -> dict[str, Any]:
    from robustfl.parameters import allowed

    fields = dataclasses.fields(entry.cls)
    facts = {
        label: getattr(entry.cls, name)
        for name, label in (
            ("paper", "paper"), ("spec", "specification"), ("knowledge", "knowledge"), ("needs_own", "needs own rows"),
            ("poisons_data", "poisons data"), ("shares_statistics", "shares statistics"),
            ("one_batch", "one batch a round"),
        )
        if getattr(entry.cls, name, "") not in ("", None)
    }  # fmt: skip
    return {
        "kind": entry.kind,
        "name": entry.name,
        "version": entry.version,
        "origin": entry.origin,
        "doc": inspect.getdoc(entry.cls) or "",
        "parameters": [
            {
                "name": f.name,
                "type": str(f.type),
                "default": "required" if f.default is dataclasses.MISSING else repr(f.default),
                "allowed": allowed(f),
                "doc": f.metadata.get("doc", ""),
            }
            for f in fields
        ],
        "facts": facts | _needs(entry.cls),
    }


def _needs(cls: type) -> dict[str, str]:
    """How many clients a defense needs, read off its own rule at f = 0..3."""
    if not hasattr(cls, "min_clients"):
        return {}
    try:
        method = cls()
    except TypeError:
        return {}
    return {"clients needed": ", ".join(f"{method.min_clients(f)} for f={f}" for f in range(4))}


def _show_preset(name: str, form: str) -> int:
    from robustfl.scenarios import Scenario, expand
    from robustfl.scenarios.spec import PRESETS

    scenario = Scenario.load(name)
    if form == "json":
        as_json(scenario.model_dump(mode="json"))
    else:
        click.echo(f"# {len(expand(scenario))} cells\n" + (PRESETS / f"{name}.toml").read_text(encoding="utf-8"))
    return 0
