"""``robustfl new``: a working plug-in package from a template."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from pathlib import Path
from string import Template

import click

from robustfl import __version__
from robustfl.cli.options import PATH, TEMPLATES, Command, Word
from robustfl.cli.printing import say
from robustfl.errors import StoreError, UsageError, reason

_FILES = {
    "pyproject.toml": "pyproject.toml.tmpl",
    "README.md": "README.md.tmpl",
    "src/{package}/__init__.py": "init.py.tmpl",
    "src/{package}/{kind}.py": "{template}.py.tmpl",
    "tests/test_{module}.py": "test.py.tmpl",
}
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.\-]*[a-z0-9])?")
_LONGEST = 80


@click.command(cls=Command, short_help="Write a working plug-in package to start from.")
@click.argument("kind", type=Word(TEMPLATES))
@click.argument("name")
@click.option("--dir", "folder", default=".", show_default=True, type=PATH, help="Where.")
def new(*, kind: str, name: str, folder: Path) -> int:
    """Write a working plug-in package with one method of KIND called NAME, to start from.

    KIND: attack, defense, stateful-defense, norm, evasion, algorithm, objective, model, dataset, partition.

    \b
    robustfl new attack my-attack               # or: new stateful-defense my-rule, new model my-model, ...
    pip install -e robustfl-my-attack && robustfl check my-attack
    """
    target = write(kind, name, folder)
    say(f"Written to {target}:")
    for path in sorted(p for p in target.rglob("*") if p.is_file()):
        say(f"  {path.relative_to(target)}")
    say(f"\nNext:\n  pip install -e '{target}[test]'\n  robustfl check {name}\n  pytest {target}")
    return 0


def write(kind: str, name: str, folder: Path) -> Path:
    """The folder of the new package. Raises ``UsageError`` for a name that cannot be or is taken."""
    from robustfl.registry import check_name, entries

    template, kind = kind, kind.removeprefix("stateful-")
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no method name: small letters, digits, '-' and '.' only")
    if len(name) > _LONGEST:
        raise UsageError(f"{name[:20]!r}… has {len(name)} letters; the name of a package has at most {_LONGEST}")
    check_name(kind, name)
    taken = next((e for e in entries(kind) if e.name == name), None)
    if taken is not None:
        raise UsageError(f"{kind} {name!r} is taken by {taken.cls.__module__}.{taken.cls.__qualname__}")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--dir {str(folder)!r} is a file, where a folder is needed")
    target = folder / f"robustfl-{name}"
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{str(target)!r} is already there; choose another name or --dir")
    words = {**facts(kind, name), "template": template}
    templates = files("robustfl.cli") / "templates"
    try:
        method = (templates / f"{template}.py.tmpl").read_text(encoding="utf-8")
        _, title, test = re.split(r"\n# --- test: (.*)\n", method)  # and what goes into its test
        imports, _, example = test.partition("\n\n\n")
        for path, made_from in _FILES.items():
            text = (templates / made_from.format(**words)).read_text(encoding="utf-8").partition("\n# --- test")[0]
            text = text.replace("$imports", imports).replace("$example", example).replace("$title", title)
            file = target / path.format(**words)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(Template(text).substitute(words), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{target}: cannot write the package: {reason(error)}") from error
    return target


def facts(kind: str, name: str) -> dict[str, str]:
    """The words that the templates are filled with."""
    module = re.sub(r"[^a-z0-9]+", "_", name)
    words = "".join(part.capitalize() for part in module.split("_"))
    title = words if words[0].isalpha() else f"{kind.capitalize()}{words}"
    role = kind.capitalize()
    cls = title if title.endswith(role) and title != role else title + role
    assert cls.isidentifier()
    assert not keyword.iskeyword(cls)
    major, minor, *_ = (*re.findall(r"\d+", __version__), "0", "1")
    return {
        "kind": kind,
        "name": name,
        "module": module,
        "package": f"robustfl_{module}",
        "cls": cls,
        "layer": f"{title}Layer",
        "distribution": f"robustfl-{name}",
        "least": f"{major}.{minor}",
    }
