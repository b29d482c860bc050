"""Registry, parameters, streams, layout: what every room stands on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import robustfl
from robustfl import registry
from robustfl.contracts import Attack, Tag, View
from robustfl.errors import UsageError
from robustfl.layout import flatten_parameters, layout_of, read_statistics, tag_of, write_statistics
from robustfl.parameters import check, param
from robustfl.randomness import derive, numpy_stream, stream
from robustfl.records import CellResult, Metrics, canonical, completed, plain
from robustfl.specs import parse


class Copy(Attack):
    def forge(self, view: View, *, generator: torch.Generator) -> Tensor:
        return view.honest[:1].expand(view.f, -1)


# --- registry --------------------------------------------------------------------------------------------------------


def test_a_registered_attack_is_found_by_name(clean_registry: None) -> None:
    @registry.register("copy-first", version=3)
    @dataclass(frozen=True)
    class First(Copy):
        scale: float = param(1.0, gt=0)

    made = robustfl.attack("copy-first", scale=2)
    assert (made, made.name, made.version) == (First(scale=2.0), "copy-first", 3)
    assert registry.identity(made)["version"] == 3
    assert registry.describe(made) == "copy-first(scale=2)"


def test_a_taken_name_is_an_error_that_names_the_owner(clean_registry: None) -> None:
    with pytest.raises(UsageError, match=r"'sf' is taken by robustfl\.attacks"):

        @registry.register("sf")
        @dataclass(frozen=True)
        class Mine(Copy):
            pass


@pytest.mark.parametrize("name", ["Copy", "copy first", "", "cöpy", "copy+x"])
def test_malformed_names_are_refused(name: str, clean_registry: None) -> None:
    @dataclass(frozen=True)
    class Fine(Copy):
        pass

    with pytest.raises(UsageError, match="no method name"):
        registry.register(name)(Fine)


def test_classes_that_are_no_method_are_refused(clean_registry: None) -> None:
    with pytest.raises(UsageError, match="derive from a contract"):
        registry.register("x")(object)  # type: ignore[type-var]
    with pytest.raises(UsageError, match="frozen dataclass"):
        registry.register("x")(Copy)

    @dataclass(frozen=True)
    class Unfinished(Attack):
        pass

    with pytest.raises(UsageError, match="does not implement forge"):
        registry.register("x")(Unfinished)

    @dataclass(frozen=True)
    class Named(Copy):
        name: str = "me"  # type: ignore[misc]

    with pytest.raises(UsageError, match="'name' is a fact of every method"):
        registry.register("x")(Named)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("sf", ("sf", {})),
        ("foe(eta=2)", ("foe", {"eta": 2})),
        ("pgd(eps=8/255, keep=best)", ("pgd", {"eps": 8 / 255, "keep": "best"})),
        ("mlp(hidden=(30, 20))", ("mlp", {"hidden": (30, 20)})),
        ("npz(path='a, b.npz')", ("npz", {"path": "a, b.npz"})),
        ("x(a=true, b=none, c=-1e-3)", ("x", {"a": True, "b": None, "c": -1e-3})),
    ],
)
def test_specs_are_parsed(spec: str, expected: tuple[str, dict[str, object]]) -> None:
    assert parse(spec) == expected


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("attack", "foe(eta=1.1)"), ("attack", "alie(z=0.3333333333333333, sign=1)"), ("model", "mlp(hidden=(7, 8))"),
        ("evasion", "pgd(eps=8/255, step=0.01)"), ("dataset", "npz(path='odd, name (1).npz')"), ("norm", "fbn"),
    ],
)  # fmt: skip
def test_describe_is_the_inverse_of_create(kind: str, spec: str) -> None:
    method = registry.create(kind, spec)
    assert registry.create(kind, registry.describe(method)) == method


def test_a_plug_in_file_that_fails_leaves_nothing_behind(tmp_path: Path, clean_registry: None) -> None:
    file = tmp_path / "half.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom robustfl.contracts import Attack\n"
        "from robustfl.registry import register\n"
        "@register('half-done')\n@dataclass(frozen=True)\nclass Half(Attack):\n"
        "    def forge(self, view, *, generator):\n        return view.own\nraise RuntimeError('oops')\n"
    )
    with pytest.raises(UsageError, match=r"half\.py.*oops"):
        registry.load_file(file)
    with pytest.raises(UsageError, match="unknown attack"):
        registry.lookup("attack", "half-done")


# --- parameters ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample(Copy):
    rate: float = param(0.1, gt=0, le=1)
    count: int | None = param(None, ge=1)
    flag: bool = param(False)
    widths: tuple[int, ...] = param((3,), ge=1)
    form: str = param("a", choices=("a", "bee"))
    inner: str = param("sf")
    length: float = param(1.0, ge=0, lt=math.inf)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("rate", 0.0, "Sample: rate=0.0 must be > 0, ≤ 1"),
        ("rate", "x", "rate='x' must be a number, > 0, ≤ 1"),
        ("rate", True, "rate=True must be a number"),
        ("rate", float("nan"), "not a number"),
        ("count", 1.0, "count=1.0 must be a whole number or none"),
        ("count", 0, "count=0 must be ≥ 1"),
        ("flag", 1, "flag=1 must be true or false"),
        ("widths", (3, 0), "widths=(3, 0) must be ≥ 1"),
        ("widths", 3, "widths=3 must be a list, each a whole number, ≥ 1"),
        ("form", "be", "did you mean 'bee'"),
        ("form", None, "form=None must be a text, one of 'a', 'bee'"),
        ("inner", None, "inner=None must be a text, and the text is written 'none', in quotes"),
        ("length", math.inf, "length=inf must be ≥ 0, finite"),
    ],
)
def test_parameters_out_of_range_name_class_field_value_and_bound(field: str, value: object, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        Sample(**{field: value})  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_fractions_integers_and_lists_are_normalised() -> None:
    made = Sample(rate="1/4", widths=[1, 2])  # type: ignore[arg-type]
    assert (made.rate, made.widths) == (0.25, (1, 2))
    assert isinstance(Sample(rate=1).rate, float)


# --- streams ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mixed:
    """Parameters of types that are put together."""

    pair: tuple[float, int] = (1.0, 2)
    rate: int | float = 1
    place: float | str = "all"
    level: Literal[1, 2] = 1
    many: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check(self)


def test_numpy_scalars_are_the_python_numbers_that_they_are() -> None:
    made = robustfl.attack("alie", z=np.float64(1.5), ddof=np.int64(0))
    assert made == robustfl.attack("alie", z=1.5, ddof=0)
    assert registry.identity(made) == registry.identity(robustfl.attack("alie", z=1.5, ddof=0))
    assert robustfl.evasion("pgd", random_start=np.bool_(False)) == robustfl.evasion("pgd", random_start=False)
    with pytest.raises(UsageError, match=r"ddof=True must be a whole number"):
        robustfl.attack("alie", ddof=np.bool_(True))


def test_parameters_may_have_types_that_are_put_together() -> None:
    made = Mixed(pair=(2, 3), rate=0.5, place="1/4", many=(1, 2, 3))  # type: ignore[arg-type]
    assert (made.pair, made.rate, made.place, made.many) == ((2.0, 3), 0.5, 0.25, (1, 2, 3))
    assert [type(v) for v in made.pair] == [float, int]
    assert (Mixed(rate=2).rate, Mixed(place="all").place) == (2, "all")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"pair": (1, 2, 3)}, "must be a list of 2: a number, a whole number"), ({"pair": (1, 2.5)}, "a list of 2"),
        ({"level": True}, "must be 1 or 2"), ({"level": 1.0}, "must be 1 or 2"), ({"rate": "x"}, "rate='x' must be"),
    ]  # fmt: skip
    for given, words in wrong:
        with pytest.raises(UsageError, match=words):
            Mixed(**given)


def test_streams_depend_on_every_name_and_nothing_else() -> None:
    names: list[tuple[str | int, ...]] = [("a",), ("b",), ("a", 1), ("a", "1"), ("a", 1, 2), ("a1",)]
    values = {derive(seed, *n) for n in names for seed in (0, 1)}
    assert len(values) == 12
    assert derive(3, "client", 7) == 5246200427930711511
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3, generator=stream(0, "x")), torch.rand(3, generator=stream(0, "x")))
    assert (numpy_stream(0, "x").random(3) == numpy_stream(0, "x").random(3)).all()


# --- layout ----------------------------------------------------------------------------------------------------------


def test_entries_are_tagged_by_module_type_and_never_by_name() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    model.add_module("bn_named_but_linear", nn.Linear(3, 1))
    layout = layout_of(model)
    tags = {slot.name: slot.tag for slot in layout.update}
    assert tags["1.weight"] is Tag.AFFINE
    assert tags["bn_named_but_linear.weight"] is Tag.WEIGHT
    assert tag_of(model[1], "num_batches_tracked") is Tag.COUNTER
    assert (layout.d, layout.s) == (2 * 3 + 3 + 3 + 3 + 3 + 1, 6)


def test_parameters_become_views_of_one_vector() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    theta = flatten_parameters(model, layout_of(model))
    assert torch.equal(theta, before)
    theta.zero_()
    assert model(torch.ones(1, 2)).item() == 0.0


def test_statistics_rows_hold_means_then_variances_layer_by_layer() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(1))
    layout = layout_of(model)
    row = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    write_statistics(model, layout, row)
    first, second = model
    assert first.running_var.tolist() == [3.0, 4.0]
    assert second.running_mean.tolist() == [5.0]
    assert torch.equal(read_statistics(model, layout, row), row)
    assert layout.variance_mask().tolist() == [False, False, True, True, False, True]
    assert layout.initial_statistics(row).tolist() == [0, 0, 1, 1, 0, 1]


# --- records ---------------------------------------------------------------------------------------------------------


def test_canonical_text_is_strict_json_whatever_the_order() -> None:
    assert canonical({"b": (1, float("inf")), "a": float("nan")}) == '{"a":"nan","b":[1,"inf"]}'
    assert plain({"x": -float("inf")}) == {"x": "-inf"}


def test_identity_of_a_wrapper_holds_that_of_what_it_wraps() -> None:
    wrapped = registry.identity(registry.create("attack", "timed(attack='foe(eta=3)')"))
    assert wrapped["inner"] == registry.identity(registry.create("attack", "foe(eta=3)"))
    assert "inner" not in registry.identity(registry.create("attack", "foe"))
    several = registry.identity(registry.create("evasion", "worst(of='fgsm+pgd')"))
    assert [part["name"] for part in several["parts"]] == ["fgsm", "pgd"]


def test_a_setting_that_is_said_is_not_its_value_from_before_a_choice(monkeypatch):
    monkeypatch.setattr("robustfl.records.LATER", {"select": "last", "rotate": 0.0, "stop": None})
    said = {"select": "validation", "seed": 1}
    assert completed(said, ["select", "rotate", "seed"]) == {**said, "rotate": 0.0}


def test_a_record_shows_its_accuracies_and_labels_as_a_table() -> None:
    metrics = Metrics(sa=0.5, loss=1.0, ra={"fgsm": 0.25}, ra_worst=0.125)
    record = CellResult(key="k", scenario="s", status="done", cell={}, labels={"attack": "sf"}, metrics=metrics)
    expected = {"status": "done", "SA": "50.0%", "RA fgsm": "25.0%", "RA worst": "12.5%", "attack": "sf"}
    rows = "".join(f"<tr><th>{name}</th><td>{text}</td></tr>" for name, text in expected.items())
    assert record._repr_html_() == f"<table>{rows}</table>"
