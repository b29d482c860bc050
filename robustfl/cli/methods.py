"""``robustfl list`` and ``robustfl show``: facts from the classes themselves."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from robustfl.cli.options import FORMAT, KINDS, Command, Word, load_plugins, plugins, presets
from robustfl.cli.printing import as_json, console, say, table
from robustfl.errors import UsageError, closest

if TYPE_CHECKING:
    from robustfl.autobyz import Ensemble


@click.command(cls=Command, name="list", short_help="List methods and presets.")
@click.argument("kind", type=Word(KINDS), required=False, metavar="[KIND]")
@plugins()
@click.option("--markdown", is_flag=True, help="Print everything about robustfl's own methods as one page.")
@FORMAT
def list_methods(kind: str | None, *, plugins: tuple[str, ...], markdown: bool, form: str) -> int:
    """List the methods of KIND, or of all kinds.

    KIND: attacks, evasions, defenses, norms, algorithms, objectives, models, datasets, partitions, presets.
    """
    load_plugins(plugins)
    if markdown:
        from robustfl.cli.facts import page

        say(page(None if kind is None else kind[:-1]), nl=False)
        return 0
    groups = {k: _members(k) for k in ([kind] if kind else KINDS)}
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


@click.command(cls=Command, short_help="Show what a method or preset is: parameters, paper.")
@click.argument("name", shell_complete=presets)
@plugins()
@FORMAT
def show(name: str, *, plugins: tuple[str, ...], form: str) -> int:
    """Show a method or preset: what it does, its parameters with ranges and defaults, its paper."""
    from robustfl.cli.facts import facts_of
    from robustfl.registry import entries

    load_plugins(plugins)
    everything = entries()
    found = [facts_of(e) for e in everything if e.name == name]
    if not found:
        from robustfl.autobyz import NAME, named
        from robustfl.defenses.pipeline import split_spec
        from robustfl.scenarios import preset_names

        if name in preset_names():
            return _show_preset(name, form)
        ensemble = named(name)
        if ensemble is not None:
            return _show_ensemble(ensemble, form)
        known = [e.name for e in everything] + preset_names() + [NAME]
        for part in (part.partition("(")[0].strip() for part in split_spec(name)):  # such as ``nnm+foe(eta=2)``
            found += [facts_of(e) for e in everything if e.name == part]
            if part not in known:
                raise UsageError(f"no method or preset {part!r}; {closest(part, known)}")
    if form == "json":
        as_json([dataclasses.asdict(facts) for facts in found])
        return 0
    for facts in found:
        _print(facts)
    return 0


def _print(facts: Any) -> None:
    screen = console()
    screen.print(f"{facts.kind} {facts.name} (version {facts.version})", style="bold", markup=False)
    say("\n" + facts.doc.replace("``", "") + "\n")
    if facts.parameters:
        rows = [list(dataclasses.astuple(p)) for p in facts.parameters]
        screen.print(table(["parameter", "type", "default", "allowed", ""], rows))
    for label, value in {"from": facts.origin, **facts.facts}.items():
        if value:
            say(f"{label}: {value}")


def _members(plural: str) -> list[dict[str, Any]]:
    if plural == "presets":
        from robustfl.scenarios import Scenario, preset_names

        return [{"name": n, "summary": Scenario.load(n).description} for n in preset_names()]
    from robustfl.cli.facts import facts_of
    from robustfl.registry import entries

    members = []
    for facts in map(facts_of, entries(plural[:-1])):
        member = {"name": facts.name, "summary": facts.summary, "version": facts.version}
        members.append(member | ({"origin": facts.origin} if facts.origin else {}))
    return members


def _show_ensemble(ensemble: Ensemble, form: str) -> int:
    if form == "json":
        as_json(dataclasses.asdict(ensemble))
        return 0
    rows = [[member.attack, member.scope or "as the cell says", member.reason] for member in ensemble.members]
    title = f"attack {ensemble.spec}: the worst of these per seed"
    console().print(table(["member", "forges", "why"], rows, title=title))
    return 0


def _show_preset(name: str, form: str) -> int:
    from robustfl.scenarios import Scenario, expand
    from robustfl.scenarios.spec import PRESETS

    scenario = Scenario.load(name)
    if form == "json":
        as_json(scenario.model_dump(mode="json"))
    else:
        say(f"# {len(expand(scenario))} cells\n" + (PRESETS / f"{name}.toml").read_text(encoding="utf-8"))
    return 0
