"""Registries of methods: decorator, entry points, plug-in files, and specs like ``"foe(eta=2)"``.

``@register("alie", version=1)`` on a subclass of a contract puts it in the registry of its kind. Built-ins and third
parties come in the same way: through the entry-point group ``robustfl.plugins`` or ``--plugin file.py``.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import itertools
import json
import pickle
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, lru_cache
from importlib.metadata import Distribution, EntryPoint, distribution, entry_points, packages_distributions
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import cloudpickle

from robustfl import autobyz
from robustfl.contracts import Method
from robustfl.contracts.torch_model import is_network, torch_model
from robustfl.errors import RobustflError, UsageError, closest, told
from robustfl.file_io import METHOD_NAME
from robustfl.layer_kinds import TABLE
from robustfl.origins import file_origin, short_digest
from robustfl.parameters import check_given, is_plain, remember, types_of
from robustfl.plugin_code import MAIN, OWN, code_of, files_of, imports, session_code
from robustfl.specs import parse, write_value

KINDS = ("attack", "evasion", "defense", "norm", "algorithm", "objective", "model", "dataset", "partition")
GROUP = "robustfl.plugins"
_RESERVED = {"kind", "name", "version", "paper", "cost", "exempt"}
_SHORT = {"kind", "name", "cost"}  # too short for one letter more or less to be a slip
WORDS: dict[str, dict[str, str]] = {
    "attack": {autobyz.NAME: "the built-in set of attacks"},
    "defense": {"same": "the defense of updates, in statistics_defense", "none": "no propagation"},
    "evasion": {"sa": "standard accuracy, beside the evasions of a record"},
}
"""Per kind the words that scenarios and records read as something else than a method of that name."""

M = TypeVar("M", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")


@dataclasses.dataclass(frozen=True)
class Entry:
    """One registered method and where it came from.

    ``origin`` is empty for robustfl's own; else the distribution and its version, or the file and its digest, or a
    digest of a class of the main program. ``by_hand``: neither an entry point nor ``load_file`` brings it in.
    """

    kind: str
    name: str
    version: int
    cls: type[Method]
    origin: str = ""
    by_hand: bool = False


_entries: dict[str, dict[str, Entry]] = {kind: {} for kind in KINDS}


@dataclasses.dataclass
class _State:
    """Where what registers now comes from, and that the entry points are loaded, or being loaded."""

    origin: str = ""
    loaded: bool = False


_state = _State()
_caches: list[Callable[[], None]] = []
_files: dict[str, str] = {}


def register(name: str, *, version: int = 1) -> Callable[[M], M]:
    """Register a frozen dataclass under ``name`` in the registry of its contract.

    A class of ``torch.nn.Module``, or a function that returns one, becomes a model (``contracts.torch_model``). A class
    of the main program takes the place of its former self, so that a notebook's cell can be edited and run again.
    Raises ``UsageError`` for a taken or malformed name, and for a class that is no concrete method.
    """

    def decorate(made: M) -> M:
        enter(torch_model(made) if is_network(made) else made)
        return made

    def enter(cls: Any) -> None:
        for reserved in _RESERVED.intersection(_field_names(cls)):
            raise UsageError(f"{cls.__name__}: {reserved!r} is a fact of every method; name the parameter differently")
        kind = getattr(cls, "kind", "")
        if kind not in KINDS:
            raise UsageError(f"{cls.__name__} must derive from a contract in robustfl.contracts to be registered")
        check_name(kind, name)
        if not getattr(getattr(cls, "__dataclass_params__", None), "frozen", False):
            raise UsageError(f"{cls.__name__} must be a frozen dataclass (@dataclass(frozen=True) below @register)")
        _check_names(cls)
        if inspect.isabstract(cls):
            missing = ", ".join(sorted(cls.__abstractmethods__))
            raise UsageError(f"{cls.__name__} does not implement {missing}")
        _check_fields(cls, version)
        if fault := cls._fault():
            raise UsageError(f"{cls.__name__}: {fault}")
        taken = _entries[kind].get(name)
        if taken is not None and not _rewritten(taken.cls, cls):
            of = f" ({taken.origin})" if taken.origin else ""
            raise UsageError(f"{kind} {name!r} is taken by {taken.cls.__module__}.{taken.cls.__qualname__}{of}")
        cls.name, cls.version = name, version
        by_hand = not _state.origin and cls.__module__.partition(".")[0] != OWN
        _entries[kind][name] = Entry(kind, name, version, cls, _state.origin or _origin_of_module(cls), by_hand)
        _changed()

    return decorate


def check_name(kind: str, name: str) -> None:
    """Raise ``UsageError`` for a malformed name, and for one that means something else where methods are named."""
    if not METHOD_NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no method name: small letters, digits, '-' and '.' only")
    if name in WORDS.get(kind, {}):
        raise UsageError(f"{kind} {name!r} is taken by robustfl for {WORDS[kind][name]}; choose another name")


def _rewritten(one: type, other: type) -> bool:
    """True for two versions of a class of the main program."""
    return one.__module__ == other.__module__ == MAIN and one.__qualname__ == other.__qualname__


def until_changed(function: Callable[P, R]) -> Callable[P, R]:
    """Remember what a function derives from specs until a method comes or goes: then it may no longer hold."""
    cached = lru_cache(4096)(function)
    _caches.append(cached.cache_clear)
    return cast(Callable[P, R], cached)


def _changed() -> None:
    for clear in _caches:
        clear()


def _check_names(cls: type) -> None:
    """Refuse a misspelt method or fact of the contract, which nobody would ever ask for."""
    contract = {name for base in cls.__mro__[1:] for name in vars(base) if not name.startswith("_")}
    own = vars(cls).keys() - contract - set(_field_names(cls))
    for name, meant in itertools.product(sorted(own), sorted(contract - vars(cls).keys() - _SHORT)):
        if not name.startswith("_") and _misspelt(name, meant):
            raise UsageError(
                f"{cls.__name__}: {name!r} is no part of its contract; did you mean {meant!r}? "
                f"The name of a helper may begin with '_'"
            )


def _misspelt(name: str, meant: str) -> bool:
    """True for letters that changed places, and for one that is wrong, missing or too many."""
    if abs(len(name) - len(meant)) > 1:
        return False
    equal = sum(block.size for block in difflib.SequenceMatcher(None, name, meant).get_matching_blocks())
    return equal >= max(len(name), len(meant)) - 1 or sorted(name) == sorted(meant)


def _check_fields(cls: type, version: Any) -> None:
    """Refuse a class whose version, defaults or printed facts are no plain data: a cell's key is made of them."""
    for fact, kind in (("paper", str), ("cost", str), ("exempt", Mapping)):
        if not isinstance(getattr(cls, fact), kind):
            raise UsageError(
                f"{cls.__name__}.{fact} must be a {'text' if kind is str else 'table of texts'} of the class"
            )
    if type(version) is not int or version < 1:
        raise UsageError(f"{cls.__name__}: version={version!r} must be a whole number ≥ 1")
    for f in dataclasses.fields(cls):
        default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        if default is not dataclasses.MISSING and not is_plain(default):
            raise UsageError(
                f"{cls.__name__}: {f.name} has a {type(default).__name__} as default; parameters are numbers, texts, "
                "None or tuples of these"
            )


def _field_names(cls: type) -> list[str]:
    return [f.name for f in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []


def load_plugins(*, only: Collection[str] | None = None) -> None:
    """Import every module named by the entry-point group, once. A broken third-party plug-in names itself.

    ``only`` names the distributions beside robustfl that may be imported in this process, by default all.
    """
    if _state.loaded:
        return
    _state.loaded = True  # already: what is imported may ask for methods
    try:
        for point in sorted(entry_points(group=GROUP), key=lambda p: (p.dist is None or p.dist.name != OWN, p.name)):
            if only is None or point.dist is None or point.dist.name in {OWN, *only}:
                _load_point(point)
    except BaseException:
        _state.loaded = False
        raise


def _load_point(point: EntryPoint) -> None:
    module = point.value.split(":")[0]
    own = point.dist is not None and point.dist.name == OWN
    origin = "" if own or point.dist is None else _origin_of_distribution(point.dist, module)
    what = f"plug-in {point.name!r}" + (f" ({origin})" if origin else "")
    _import_as(origin, lambda: importlib.import_module(module), what, own)


def _import_as(origin: str, load: Callable[[], Any], what: str, own: bool = False) -> None:
    """Import, with what registers meanwhile marked as coming from ``origin``; a plug-in that fails leaves nothing."""
    before = _state.origin
    known, kinds = {kind: dict(names) for kind, names in _entries.items()}, set(TABLE)
    _state.origin = origin
    try:
        load()
    except BaseException as error:
        if own or isinstance(error, KeyboardInterrupt):
            raise
        for kind, names in _entries.items():
            for name in names.keys() - known[kind].keys():
                del names[name]
        _changed()
        for layer in TABLE.keys() - kinds:
            del TABLE[layer]
        if isinstance(error, UsageError):
            raise UsageError(f"{what}: {error}") from error
        raise UsageError(f"{what} could not be imported: {told(error)}") from error
    finally:
        _state.origin = before


def _origin_of_distribution(dist: Distribution, module: str) -> str:
    """``name version``; an editable install, whose code can change under one version, adds a digest of its code."""
    origin = f"{dist.name} {dist.version}"
    try:
        installed = json.loads(dist.read_text("direct_url.json") or "{}")
    except ValueError:
        installed = {}
    if not installed.get("dir_info", {}).get("editable"):
        return origin
    code = code_of(module)
    return f"{origin}+{short_digest(repr(code).encode())}" if code else origin


def _origin_of_module(cls: type) -> str:
    """Where a class comes from that no plug-in loader registers: a package imported by hand, a script, a notebook."""
    top = cls.__module__.partition(".")[0]
    if top == OWN:
        return ""
    if top == MAIN:
        return f"session {session_code(cls)[0]}"
    for name in _distributions().get(top, ()):
        return _origin_of_distribution(distribution(name), cls.__module__)
    try:
        file, code = Path(inspect.getfile(cls)), code_of(top)
        alone = len(code) < 2 and len(files_of(top)) < 2  # as --plugin would name it
        return file_origin(file.name, file.read_bytes() if alone else repr(code).encode())
    except (TypeError, OSError):
        return cls.__module__


_origin_of_kind = cache(_origin_of_module)  # of rows of the table of layer kinds


def reread_session() -> None:
    """Look again at methods of the main program: what they use may have been edited since."""
    for names in _entries.values():
        for name, entry in names.items():
            origin = _origin_of_module(entry.cls) if entry.by_hand and entry.cls.__module__ == MAIN else entry.origin
            if origin != entry.origin:
                names[name] = dataclasses.replace(entry, origin=origin)
                _changed()


def guests() -> tuple[Entry, ...]:
    """The methods that other processes do not find by themselves: those registered by hand."""
    return tuple(entry for names in _entries.values() for entry in names.values() if entry.by_hand)


def pack(brought: Sequence[Entry]) -> bytes:
    """Methods registered by hand, and digests of the modules they use, for ``unpack`` in another process.

    Raises ``UsageError`` for what cannot be pickled.
    """
    if not brought:
        return b""
    code: dict[str, str] = {}
    for cls in (entry.cls for entry in brought):
        code |= session_code(cls)[1] if cls.__module__ == MAIN else code_of(cls.__module__)
    try:
        methods = [(dataclasses.replace(entry, by_hand=False), types_of(entry.cls)) for entry in brought]
        return pickle.dumps((code, cloudpickle.dumps(methods)))
    except Exception as error:  # whatever a class holds on to
        raise UsageError(
            f"what this process defines cannot be sent to workers ({told(error)}): methods: "
            f"{', '.join(f'{entry.kind} {entry.name}' for entry in brought)}; write them in a file that "
            "plugins=[...] names, or take jobs=0"
        ) from None


def unpack(sent: bytes) -> None:
    """Register the methods of ``pack``. Raises ``UsageError`` where modules that they use are missing or others."""
    if not sent:
        return
    code, methods = pickle.loads(sent)
    if other := [name for name, digest in code.items() if code_of(name).get(name) != digest]:
        raise UsageError(
            f"{', '.join(other)} changed after it was imported, or is another one here; start a new process"
        )
    try:
        found = pickle.loads(methods)
    except Exception as error:  # whatever its imports raise
        raise UsageError(f"methods of the main program cannot be loaded by workers: {told(error)}") from error
    for entry, types in found:
        remember(entry.cls, types)
        _entries[entry.kind][entry.name] = entry
    _changed()


@cache
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()


def load_file(path: str | Path) -> list[Entry]:
    """Load a plug-in file and return the methods it registers; loading twice is a no-op.

    The digest of its content becomes part of its methods' identity.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise UsageError(f"plug-in {str(path)!r} is not a file")
    source = file.read_bytes()
    digest, origin = short_digest(source), file_origin(file.name, source)
    if _files.get(str(file)) == digest:
        return _entries_from(origin)
    if str(file) in _files:
        raise UsageError(f"plug-in {str(path)!r} changed after it was loaded; start a new process")
    load_plugins()
    module_name = f"robustfl_plugin_{file.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"plug-in {str(path)!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)

    def run() -> None:
        for name in sorted(imports(source)):
            found = [*files_of(name).values()]
            if name not in sys.modules and importlib.util.find_spec(name) is None:
                found = [path for path in (file.parent / f"{name}.py", file.parent / name) if path.exists()]
            if found:
                raise UsageError(
                    f"it imports {name} ({found[0]}), whose code would be in no key of a result: put it into "
                    f"{file.name}, or make an installed package of both that names its module as an entry point of "
                    "robustfl.plugins"
                )
        # the bytes of the digest, and no compiled file that lies beside them
        exec(compile(source, str(file), "exec", dont_inherit=True), module.__dict__)

    sys.modules[module_name] = module
    try:
        _import_as(origin, run, f"plug-in {str(path)!r}")
    except BaseException:
        sys.modules.pop(module_name, None)
        raise
    _files[str(file)] = digest
    return _entries_from(origin)


def origin_of_file(path: str | Path) -> str:
    """The origin that methods of a plug-in file have, without loading it."""
    file = Path(path).resolve()
    return file_origin(file.name, file.read_bytes())


def loaded_files(origins: Collection[str]) -> list[str]:
    """The plug-in files from which methods of these ``origins`` were loaded."""
    return [path for path, digest in _files.items() if f"{Path(path).name} {digest}" in origins]


def _entries_from(origin: str) -> list[Entry]:
    return [entry for names in _entries.values() for entry in names.values() if entry.origin == origin]


def entries(*kinds: str) -> list[Entry]:
    """All entries of some kinds, by default of every one, by kind and name."""
    load_plugins()
    return [_entries[kind][name] for kind in kinds or KINDS for name in sorted(_entries[kind])]


def lookup(kind: str, name: str, *, beside: Collection[str] = ()) -> Entry:
    """The entry ``name``; raises ``UsageError`` with close matches among all names and the words ``beside`` them."""
    load_plugins()
    found = _entries[kind].get(name)
    if found is None:
        several = [part.strip() for part in name.split(",")]
        if all(part in _entries[kind] for part in several):
            raise UsageError(f"unknown {kind} {name!r}; several are written as a list: {json.dumps(several)}")
        raise UsageError(f"unknown {kind} {name!r}; {closest(name, [*_entries[kind], *beside])}")
    return found


def _having(kind: str, parameter: str) -> list[str]:
    """The methods of a kind that have a parameter of this name."""
    return [e.name for e in entries(kind) if parameter in {f.name for f in dataclasses.fields(e.cls)}]  # type: ignore[arg-type]


def create(kind: str, spec: str, **params: Any) -> Any:
    """Build a method from ``"name"`` or ``"name(a=1, b=2)"`` and keyword parameters."""
    name, inline = parse(spec)
    entry = lookup(kind, name)
    given = _named({**inline, **params}, entry, spec)
    check_given(f"{kind} {name!r}", entry.cls, given, having=lambda key: _having(kind, key))
    try:
        return _made_elsewhere(entry, given) if entry.origin else entry.cls(**given)
    except UsageError as error:  # a class names itself; who wrote a spec knows its name alone
        own = f"{entry.cls.__name__}: "
        if not str(error).startswith(own):
            raise
        raise UsageError(f"{kind} {name!r}: {str(error).removeprefix(own)}") from None


def _made_elsewhere(entry: Entry, given: Mapping[str, Any]) -> Method:
    """A plug-in's method. Raises ``UsageError`` naming it for one that cannot be made."""
    try:
        return entry.cls(**given)
    except RobustflError:
        raise
    except Exception as error:
        raise UsageError(f"{entry.kind} {entry.name!r} ({entry.origin}) cannot be made: {told(error)}") from error


def _named(params: dict[str, Any], entry: Entry, spec: str) -> dict[str, Any]:
    """The parameters with the bare method in its place: the first field, if it is called like the method's kind."""
    if "" not in params:
        return params
    if _field_names(entry.cls)[:1] != [entry.kind]:
        raise UsageError(f"{spec!r}: {params['']!r} is not parameter=value; {entry.name} takes no bare {entry.kind}")
    if entry.kind in params:
        raise UsageError(f"{spec!r}: {entry.kind} is given twice, {params['']!r} and {params[entry.kind]!r}")
    return {entry.kind: params[""], **{key: value for key, value in params.items() if key}}


def describe(method: Method) -> str:
    """The shortest spec that builds ``method`` again: name and the parameters that differ from their defaults."""
    shown = []
    for f in dataclasses.fields(method):  # type: ignore[arg-type]
        value = getattr(method, f.name)
        if f.default is dataclasses.MISSING or value != f.default:
            shown.append(f"{f.name}={write_value(value)}")
    return method.name + (f"({', '.join(shown)})" if shown else "")


def identity(method: Method) -> Mapping[str, Any]:
    """A method's part in a cell key: name, version, parameters (``param``), the origin of a plug-in, what it wraps.

    To a model or norm from elsewhere belong the layer kinds from other places: its layers may be of these.
    """
    entry = lookup(method.kind, method.name)
    fields = dataclasses.fields(method)  # type: ignore[arg-type]
    params = {f.name: getattr(method, f.name) for f in fields}
    params = {f.name: params[f.name] for f in fields if not f.metadata.get("later") or params[f.name] != f.default}
    for key, value in params.items():
        if not is_plain(value):
            raise UsageError(
                f"{entry.kind} {entry.name!r}: {key} is a {type(value).__name__}; parameters are numbers, texts, None "
                "or tuples of these"
            )
    known: dict[str, Any] = {"name": entry.name, "version": entry.version, "params": params}
    inner = getattr(method, "inner", None)
    known |= {"inner": identity(inner)} if isinstance(inner, Method) else {}
    found = getattr(method, "parts", ())
    parts = [p for p in found if isinstance(p, Method)] if isinstance(found, tuple) else []  # else a parameter's name
    known |= {"parts": [identity(part) for part in parts]} if parts else {}
    if entry.origin and entry.kind in ("model", "norm"):  # robustfl's own have layers of its own kinds alone
        kinds = sorted({_origin_of_kind(type(kind)) for kind in TABLE.values()} - {"", entry.origin})
        known |= {"layer_kinds": kinds} if kinds else {}
    return known | ({"origin": entry.origin} if entry.origin else {})


def origin_of(method: Method) -> str:
    """Where a registered method comes from; empty for robustfl's own and for what is not registered."""
    entry = _entries.get(method.kind, {}).get(method.name)
    return "" if entry is None else entry.origin
