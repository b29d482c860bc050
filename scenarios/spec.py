"""A scenario as the user writes it (TOML): a grid of cells; frozen, and JSON."""

from __future__ import annotations

import difflib
import itertools
import json
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from robustfl.errors import UsageError, closest, near, reason
from robustfl.file_io import parse_toml, read_file
from robustfl.parameters import python_numbers
from robustfl.registry import KINDS, entries
from robustfl.specs import parse

from .cell import LISTS, Cell, Frozen, first_problem, meant
from .methods import METHODS

PRESETS = Path(__file__).parent / "presets"


class Scenario(Frozen):
    """A named grid: every list in ``cell`` is an axis.

    ``exclude`` drops cells that match all entries of a rule; ``zip`` names axes that advance together. ``scales`` are
    named sets of cell settings that ``--set scale=NAME`` puts on top, in a scenario of its own name.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")
    description: str = ""
    plugins: tuple[str, ...] = ()
    cell: dict[str, Any] = Field(default_factory=dict)
    exclude: tuple[dict[str, Any], ...] = ()
    zip: tuple[tuple[str, ...], ...] = ()
    scales: dict[str, dict[str, Any]] = Field(default_factory=dict)

    def beside(self, plugins: Iterable[str | Path]) -> Scenario:
        """The scenario with more files of plug-ins."""
        return self.model_copy(update={"plugins": (*self.plugins, *(str(Path(p).resolve()) for p in plugins))})

    def values(self, setting: str) -> list[Any]:
        """The values of a cell's setting, several where it is an axis."""
        value = self.cell[setting] if setting in self.cell else Cell.model_fields[setting].default
        return list(value) if is_axis(setting, value) else [value]

    @classmethod
    def load(cls, source: str | Path, *, settings: Sequence[str] = ()) -> Scenario:
        """Read a preset by name or a TOML file by path, with ``settings`` such as ``"rounds=10"`` on top."""
        if not isinstance(source, (str, Path)):
            raise UsageError(
                f"a scenario is a preset's name, a TOML file or a Scenario, not {type(source).__name__}; "
                "Scenario.of({'name': 'mine', 'cell': {'rounds': 10}}) makes one of a table"
            )
        path = _find(source)
        try:
            data = parse_toml(read_file(path).decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise UsageError(
                f"scenario {str(source)!r} is not UTF-8 text (byte {error.start + 1}); save it as UTF-8"
            ) from None
        except ValueError as error:
            raise UsageError(f"scenario {str(source)!r} is not valid TOML: {error}") from None
        except OSError as error:
            raise UsageError(f"scenario {str(source)!r} cannot be read: {reason(error)}") from None
        data.setdefault("name", path.stem)
        _check_shape(data)
        if any("\0" in p for p in data.get("plugins", [])):
            raise UsageError("scenario: plugins holds a file name with a null character")
        data["plugins"] = [str((path.parent / p).resolve()) for p in data.get("plugins", [])]
        made = apply_settings(data, settings)
        if "cell" not in data:
            raise UsageError(
                f"scenario {str(source)!r} has no [cell]; write that line and settings below it, such as "
                'defense = ["mean", "krum"] (a [cell] with nothing below it is the cell of all defaults)'
            )
        return made

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Scenario:
        """A scenario from plain data; an unknown key is an error with the nearest right one."""
        data, known = python_numbers(data), list(cls.model_fields)
        for key in data:
            if key not in known:
                hint = f"it belongs under [cell]: cell.{key}" if key in Cell.model_fields else closest(key, known)
                raise UsageError(f"no scenario key {key!r}; {hint}")
        scales = data.get("scales", {})
        tables = [("exclude", rule) for rule in data.get("exclude", ())]
        tables += [(f"scales.{n}", scale) for n, scale in (scales.items() if isinstance(scales, Mapping) else ())]
        for where, table in tables:
            for key in table if isinstance(table, Mapping) else ():
                if key not in Cell.model_fields:
                    raise UsageError(f"{where}: no cell setting {key!r}; {meant(key)}")
        try:
            return cls.model_validate(dict(data))
        except ValidationError as error:
            raise UsageError(f"scenario: {first_problem(error)}") from None


def apply_settings(data: Mapping[str, Any], settings: Sequence[str]) -> Scenario:
    """The scenario ``data`` with ``settings`` such as ``"rounds=10"`` on top."""
    _check_shape(data)
    _check_order(settings)
    changed = {**data, "cell": dict(data.get("cell", {}))}
    for setting in sorted(settings, key=lambda s: name_of(s) != "scale"):  # a scale first, so that others refine it
        if name_of(setting) == "scale":
            _scale(changed, setting.partition("=")[2].strip().strip("\"'"))
        else:
            _apply(changed, setting)
    said = changed.get("description")
    if isinstance(said, str) and said and said == data.get("description"):
        told = [s for s in settings if name_of(s) != "name"]
        changed["description"] = f"{said} (with {', '.join(told)})" if told else said
    return Scenario.of(changed)


def _check_order(settings: Sequence[str]) -> None:
    """Raise ``UsageError`` for a part of a setting that comes before the whole, which would undo it unheard."""
    parts: dict[str, str] = {}
    for setting in settings:
        name, _, part = name_of(setting).removeprefix("cell.").partition(".")
        if part:
            parts[name] = setting
        elif name in parts:
            raise UsageError(f"--set {setting!r} would undo --set {parts[name]!r} before it; give the whole first")


_SHAPES: dict[str, tuple[type, type | None, str]] = {
    "cell": (Mapping, None, "a table"),
    "scales": (Mapping, Mapping, "a table of tables"),
    "plugins": (Sequence, str, "a list of files"),
    "exclude": (Sequence, Mapping, "a list of tables"),
    "zip": (Sequence, Sequence, "a list of lists"),
}


def _check_shape(data: Mapping[str, Any]) -> None:
    """Check a scenario as a whole, before its parts."""
    for key, (outer, inner, words) in _SHAPES.items():
        if key not in data:
            continue
        value = data[key]
        right = isinstance(value, outer) and not isinstance(value, str)
        parts = value.values() if isinstance(value, Mapping) else value
        if right and key == "zip" and value and all(isinstance(part, str) for part in value):
            raise UsageError(f"scenario: zip={value!r} must be {words}; write zip = {json.dumps([list(value)])}")
        if not right or (inner is not None and not all(isinstance(part, inner) for part in parts)):
            raise UsageError(f"scenario: {key}={value!r} must be {words}")


def name_of(setting: str) -> str:
    """The name in a setting such as ``"rounds=10"``."""
    return setting.partition("=")[0].strip()


def _scale(data: dict[str, Any], name: str) -> None:
    scales = data.get("scales", {})
    if name not in scales:
        hint = closest(name, scales) if scales else "it has none"
        raise UsageError(f"--set scale={name}: scenario {data.get('name')!r} has no such scale; {hint}")
    data["cell"] |= scales[name]
    data["name"] = f"{data['name']}-{name}"
    # An axis that the scale fixes no longer advances with others; one that it gives other values still does.
    fixed = {setting for setting, value in scales[name].items() if not is_axis(setting, value)}
    zipped = [[axis for axis in group if axis not in fixed] for group in data.get("zip", ())]
    data["zip"] = [group for group in zipped if len(group) > 1]


def is_axis(setting: str, value: Any) -> bool:
    """True if a list gives a setting several values; for settings that are lists themselves, a list of lists does."""
    several = setting not in LISTS or (isinstance(value, list) and any(isinstance(v, (list, bool)) for v in value))
    return isinstance(value, list) and several


def preset_names() -> list[str]:
    """The names of the built-in scenarios."""
    return sorted(p.relative_to(PRESETS).with_suffix("").as_posix() for p in PRESETS.rglob("*.toml"))


def _find(source: str | Path) -> Path:
    preset = PRESETS / f"{source}.toml"
    path = Path(source)
    if isinstance(source, str) and source in preset_names() and not path.is_file():
        return preset
    if path.is_file():
        return path
    if path.exists():
        raise UsageError(f"{str(source)!r} is {'a folder' if path.is_dir() else 'no regular file'}; name a TOML file")
    nearby = [p.name for p in path.parent.glob("*.toml")] if path.parent.is_dir() else []
    beside = difflib.get_close_matches(path.name, nearby, n=1)
    presets = preset_names()
    hint = f"did you mean {beside[0]!r}?" if beside else near(str(source), presets)
    file = "no such file" if path.suffix == ".toml" else ""
    for kind in KINDS if not (hint or file) else ():  # a method in a scenario's place: how it gets into one
        for found in difflib.get_close_matches(str(source), [e.name for e in entries(kind)], n=1, cutoff=0.8):
            hint = hint or f"{found!r} is the name of a method: robustfl grid quickstart --set {kind}={found}"
    hint = hint or file or closest(str(source), presets)
    raise UsageError(f"no preset or file {str(source)!r}; {hint}")


def _apply(data: dict[str, Any], setting: str) -> None:
    """Apply one ``a.b=c``: ``rounds=10``, ``cell.rounds=10``, ``schedule.lr=0.1``, ``partition.gamma=[0, 0.5]``."""
    path, equals, text = setting.partition("=")
    keys = [k.strip() for k in path.split(".")]
    if not equals or not all(keys):
        raise UsageError(f"--set {setting!r} must have the form name=value or a.b=value")
    value = _setting_value(path.strip(), text.strip())
    if keys[0] == "cell":
        keys = keys[1:]
    if len(keys) == 1 and keys[0] in ("name", "description"):
        data[keys[0]] = value
        return
    if not keys or keys[0] not in Cell.model_fields:
        name = keys[0] if keys else "cell"
        if name == "plugins":
            raise UsageError(f"--set {setting!r}: files of plug-ins are named by --plugin FILE, once for each")
        raise UsageError(f"--set {setting!r}: no cell setting {name!r}; {meant(name)}")
    cell = data.setdefault("cell", {})
    if len(keys) == 1:
        cell[keys[0]] = value
    elif keys[0] == "schedule":
        current = cell.get("schedule", {})
        if not isinstance(current, Mapping):
            raise UsageError(f"--set {setting!r}: schedule={current!r} is no table")
        cell["schedule"] = {**current, ".".join(keys[1:]): value}
    elif keys[0] in METHODS and keys[0] != "defense" and len(keys) == 2:
        current = cell.get(keys[0], Cell.model_fields[keys[0]].default)
        options = current if isinstance(current, list) else [current]
        cell[keys[0]] = [{**as_table(keys[0], option), keys[1]: value} for option in options]
    else:
        raise UsageError(f"--set {setting!r}: {keys[0]!r} has no part {'.'.join(keys[1:])!r}")


def as_table(setting: str, option: Any) -> dict[str, Any]:
    """A method given as a spec string or a table, as a table."""
    if isinstance(option, str):
        name, params = parse(option)
        return {"name": name, **params}
    if isinstance(option, Mapping) and isinstance(option.get("name"), str):
        return dict(option)
    raise UsageError(f"{setting}={option!r} is no method: write 'name', 'name(a=1)' or {{ name = 'name', a = 1 }}")


def tables_of(what: str, table: Mapping[str, Any], *, but: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """Every table that one with lists as axes stands for, ``but`` for names whose values are lists themselves.

    Raises ``UsageError`` for an axis without values.
    """
    axes = {name: value if isinstance(value, list) and name not in but else [value] for name, value in table.items()}
    for name, values in axes.items():
        if not values:
            raise UsageError(f"{what}: {name}=[] is an empty axis")
    return (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))


def specs_of(setting: str, option: Mapping[str, Any]) -> Iterator[str]:
    """A method table with lists as axes, as specs. A parameter that is a tuple is written as a list of lists."""
    table = as_table(setting, option)
    name = table.pop("name")
    for params in tables_of(name, table):
        inside = ", ".join(f"{k}={tuple(v) if isinstance(v, list) else v!r}" for k, v in params.items())
        yield f"{name}({inside})" if inside else name


def _setting_value(path: str, text: str) -> Any:
    try:
        data = parse_toml(f"v = {text}")
    except tomllib.TOMLDecodeError:
        return text
    except ValueError as error:
        raise UsageError(f"--set {path}: {error}") from None
    if set(data) != {"v"}:
        raise UsageError(f"--set {path}={text!r} sets more than {path}; give every setting a --set of its own")
    if "#" in re.sub(r"\"(\\.|[^\"])*\"|'[^']*'", "", text):
        raise UsageError(f"--set {path}={text!r} holds a comment, which nobody would read; a text with # takes quotes")
    return data["v"]
