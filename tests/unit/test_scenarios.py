"""Scenario files: axes, exclusions, settings, keys, refusals, clear errors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robustfl.contracts import Propagation
from robustfl.defenses import parse_pipeline
from robustfl.errors import Refused, UsageError
from robustfl.registry import entries
from robustfl.scenarios import Cell, RunOptions, Scenario, expand, preset_names, run_cell
from robustfl.scenarios.build import build
from robustfl.scenarios.expand import fingerprints, idle_rules, key_of, labels, resolve
from robustfl.scenarios.refusals import refusal
from robustfl.scenarios.spec import apply_settings


def scenario(**cell: object) -> Scenario:
    return Scenario.of({"name": "s", "cell": cell})


def test_lists_are_axes_and_the_last_varies_fastest() -> None:
    cells = expand(scenario(seed=[0, 1], attack=["none", "sf"], f=1))
    assert [(c.seed, c.attack) for c in cells] == [(0, "none"), (0, "sf"), (1, "none"), (1, "sf")]


@pytest.mark.parametrize("seeds", [[1, 2], [1.0, 2.0], list(np.arange(1, 3)), [1, 2.0], [np.int32(1), 2]])
def test_a_seed_is_one_number_however_it_is_written(seeds: list[Any]) -> None:
    cells = expand(scenario(seed=seeds, attack=["none", "sf"], f=1))
    assert [(c.seed, c.attack) for c in cells] == [(1, "none"), (1, "sf"), (2, "none"), (2, "sf")]
    assert {type(c.seed) for c in cells} == {int}
    assert [key_of(resolve(c, "x")) for c in cells] == [
        key_of(resolve(c, "x")) for c in expand(scenario(seed=[1, 2], attack=["none", "sf"], f=1))
    ]


def test_settings_with_numpy_scalars_are_the_cell_of_python_numbers() -> None:
    written = {"rounds": np.int64(3), "flip": np.bool_(True), "schedule": {"lr": np.float64(0.5)}, "f": np.int64(1),
               "attack": {"name": "alie", "z": [np.float64(1.5)]}, "forgetting": [[np.int64(2)]]}  # fmt: skip
    plain = {"rounds": 3, "flip": True, "schedule": {"lr": 0.5}, "f": 1, "attack": "alie(z=1.5)", "forgetting": [[2]]}
    assert [key_of(resolve(c, "")) for c in expand(scenario(**written))] == [
        key_of(resolve(c, "")) for c in expand(scenario(**plain))
    ]
    assert RunOptions(jobs=np.int64(2), keep_model=np.bool_(True)) == RunOptions(jobs=2, keep_model=True)


@pytest.mark.parametrize(
    ("setting", "table", "spec"),
    [
        ("init", {"name": "weights", "path": "w.pth"}, "weights(path=w.pth)"),
        ("finetune", {"name": "st", "rounds": 3}, "st(rounds=3)"),
        ("propagation", {"name": "fedrbn"}, "fedrbn"),
        ("train_evasion", {"name": "pgd", "steps": 3}, "pgd(steps=3)"),
        ("at", {"name": "ratio", "rho": 0.2}, "ratio(rho=0.2)"),
        ("evasions", [{"name": "pgd", "steps": 3}, "fgsm"], ["pgd(steps=3)", "fgsm"]),
        ("domains", [{"name": "digits", "limit": 9}, "digits"], ["digits(limit=9)", "digits"]),
    ],
)
def test_every_method_may_be_written_as_a_table(setting: str, table: Any, spec: Any) -> None:
    assert expand(scenario(**{setting: table})) == expand(scenario(**{setting: spec}))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("defense", ""), ("statistics_defense", "x"), ("propagation", "x"), ("domains", "x"), ("train_evasion", "x"),
        ("evasions", "x"), ("init", {"path": "x"}), ("evasions", [{"eps": 1}]),
    ],
)  # fmt: skip
def test_the_error_of_a_method_names_its_setting(setting: str, value: Any) -> None:
    with pytest.raises(UsageError, match=setting):
        expand(scenario(**{setting: value}))


@pytest.mark.parametrize("value", ["x" * 10**5, list(range(10**5))])
def test_a_long_value_is_cut_between_its_setting_and_what_is_allowed(value: Any) -> None:
    with pytest.raises(UsageError, match=r"(?s)evasions.{100,1200}cut: \d+ characters") as caught:
        expand(scenario(evasions=value))
    assert len(str(caught.value)) <= 2000


def test_a_scenario_in_utf_16_says_so(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text("[cell]\nf = 1\n", encoding="utf-16")
    with pytest.raises(UsageError, match=r"s.toml' is not UTF-8 text \(byte 1\); save it as UTF-8"):
        Scenario.load(tmp_path / "s.toml")


def test_lists_inside_a_method_table_are_axes_too() -> None:
    cells = expand(scenario(partition=["iid", {"name": "gamma", "gamma": [0.0, 0.5]}]))
    assert [c.partition for c in cells] == ["iid", "gamma(gamma=0)", "gamma(gamma=0.5)"]


def test_equal_methods_written_differently_are_one_cell() -> None:
    cells = expand(scenario(attack=["alie(z=1.0)", {"name": "alie", "z": 1}], f=1))
    assert [c.attack for c in cells] == ["alie(z=1)"]


def test_schedules_and_tuples_can_be_axes() -> None:
    cells = expand(
        scenario(schedule={"kind": "constant", "lr": [0.1, 0.2]}, model={"name": "mlp", "hidden": [[8], [9]]})
    )
    assert [(c.schedule.lr, c.model) for c in cells] == [
        (0.1, "mlp(hidden=(8,))"), (0.1, "mlp(hidden=(9,))"), (0.2, "mlp(hidden=(8,))"), (0.2, "mlp(hidden=(9,))"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "table",
    [
        {"kind": "constant", "lr": 0.25},
        {"kind": "step", "values": [0.1, 0.05], "milestones": [4]},
        {"kind": "geometric", "lr": 0.3, "factor": 0.9},
        {"kind": "cosine", "lr": 0.3},
    ],
)
def test_a_schedule_may_be_written_as_boards_write_it(table: dict[str, Any]) -> None:
    (cell,) = expand(scenario(schedule=table, rounds=8))
    assert expand(scenario(schedule=str(labels(cell)["schedule"]), rounds=8)) == [cell]


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ("cosntant(lr=0.1)", "'constant', 'step', 'geometric' or 'cosine'"),
        ("constant(rate=0.1)", "no setting 'schedule.rate'"),
        ("constant(0.1)", "'0.1' is not parameter=value"),
        (5, "schedule=5 must be a table such as"),
    ],
)
def test_a_schedule_written_wrongly_is_refused(schedule: object, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        expand(scenario(schedule=schedule))


def test_exclusions_that_drop_nothing_are_told() -> None:
    rules = [{"attack": "sf", "norm": "gn"}, {"attack": "alie(z=3)"}, {"norm": "hbn"}]
    axes = {"attack": ["sf", "alie(z=1)"], "norm": ["gn", "fbn"], "f": 1}
    assert idle_rules(Scenario.of({"name": "s", "cell": axes, "exclude": rules})) == [
        "exclude: no cell has attack = 'alie(z=3)'", "exclude: no cell has norm = 'hbn'"
    ]  # fmt: skip
    narrowed = axes | {"norm": "fbn"}
    assert idle_rules(Scenario.of({"name": "s", "cell": axes, "exclude": rules[:1]})) == []
    assert len(idle_rules(Scenario.of({"name": "s", "cell": narrowed, "exclude": rules}))) == 1


def test_exclude_matches_a_name_or_a_full_spec() -> None:
    grid = Scenario.of({
        "name": "s",
        "cell": {"attack": ["none", "alie", "alie(z=1)"], "defense": ["mean", "median"], "f": 1},
        "exclude": [{"attack": "alie(z=1)"}, {"attack": "alie", "defense": ["mean"]}],
    })  # fmt: skip
    assert [(c.attack, c.defense) for c in expand(grid)] == [("none", "mean"), ("none", "median"), ("alie", "median")]


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        ("foe", ["none"]),
        ({"name": "foe"}, ["none"]),
        ("foe(eta=3)", ["none", "foe(eta=10)"]),  # the default
        ("foe()", ["none", "foe(eta=10)"]),
        ({"name": "foe", "eta": 3}, ["none", "foe(eta=10)"]),
        ({"name": "foe", "eta": [3.0, 10]}, ["none"]),
    ],
)
def test_a_parameter_at_its_default_is_no_bare_name(rule: Any, left: list[str]) -> None:
    cell = {"attack": ["none", "foe", "foe(eta=10)"], "f": 1}
    grid = Scenario.of({"name": "s", "cell": cell, "exclude": [{"attack": rule}]})
    assert [c.attack for c in expand(grid)] == left


def test_a_pipeline_without_parameters_stands_for_it_with_any() -> None:
    cell = {"defense": ["mean", "nnm+mda", "nnm+trimmed-mean"], "norm": ["gn", "gn(groups=1)"], "f": 1}
    rules: list[dict[str, Any]] = [{"defense": "nnm+mda"}, {"norm": "gn(groups=2)", "defense": "mean"}]
    found = expand(Scenario.of({"name": "s", "cell": cell, "exclude": rules}))
    assert [(c.defense, c.norm) for c in found] == [
        ("mean", "gn(groups=1)"), ("nnm+trimmed-mean", "gn"), ("nnm+trimmed-mean", "gn(groups=1)")
    ]  # fmt: skip


def test_zipped_axes_advance_together() -> None:
    grid = Scenario.of(
        {"name": "s", "cell": {"clients": [5, 9], "f": [1, 2], "seed": [0, 1]}, "zip": [["clients", "f"]]}
    )
    assert [(c.clients, c.f, c.seed) for c in expand(grid)] == [(5, 1, 0), (5, 1, 1), (9, 2, 0), (9, 2, 1)]


def test_f_declared_follows_f_unless_it_is_given() -> None:
    assert Cell.of({"f": 2}).f_declared == 2
    assert Cell.of({"f": 2, "f_declared": 0}).f_declared == 0


def test_a_cell_round_trips_through_json() -> None:
    cell = Cell.of({"attack": "foe(eta=10)", "schedule": {"kind": "step", "values": [0.1, 0.05], "milestones": [3]}})
    assert Cell.model_validate_json(cell.model_dump_json()) == cell


@pytest.mark.usefixtures("clean_registry")
def test_the_data_and_the_version_of_a_method_are_in_the_key() -> None:
    import dataclasses

    from robustfl import registry

    before = key_of(resolve(Cell.of({"attack": "sf", "f": 1}), "data"))
    assert key_of(resolve(Cell.of({"attack": "sf", "f": 1}), "other data")) != before
    entry = registry.lookup("attack", "sf")
    registry._entries["attack"]["sf"] = dataclasses.replace(entry, version=entry.version + 1)
    registry._changed()
    assert key_of(resolve(Cell.of({"attack": "sf", "f": 1}), "data")) != before


def test_settings_reach_every_place() -> None:
    data = {"name": "s", "cell": {"attack": ["alie", "foe"], "partition": "gamma(gamma=0)", "f": 1}}
    changed = apply_settings(data, [
        "rounds=7", "cell.batch=9", "schedule.lr=0.5", "partition.gamma=[0.1, 0.2]", 'attack=["sf"]', "name=t",
    ])  # fmt: skip
    cells = expand(changed)
    assert changed.name == "t"
    assert {(c.rounds, c.batch, c.schedule.lr, c.attack) for c in cells} == {(7, 9, 0.5, "sf")}
    assert [c.partition for c in cells] == ["gamma(gamma=0.1)", "gamma(gamma=0.2)"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"cell": {"attack": {"z": 1}}}, "is no method"),
        ({"cell": {"partition": "gamma(gamma=1.5)"}}, "gamma=1.5"),
        ({"cell": {"clients": 0}}, "clients=0"),
        ({"cell": {"rounds": 1.5}}, "rounds=1.5"),
        ({"cell": {"defense": "nnm"}}, "nnm"),
        ({"cell": {"schedule": {"kind": "step", "values": [0.1], "milestones": [5]}}}, "milestones"),
        ({"cell": {"schedule": {"learning_rate": 1}}}, "learning_rate"),
        ({"exclude": [{"attak": "sf"}]}, "'attack'"),
        ({"cell": {"f": [0]}, "exclude": [{"f": 0}]}, "no cells"),
    ],
)
def test_wrong_scenarios_say_what_is_allowed(data: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=r"(?s).*") as caught:
        expand(Scenario.of({"name": "s", **data}))
    assert words in str(caught.value)


def test_a_later_setting_takes_the_place_of_an_earlier_one_and_refines_it() -> None:
    later = apply_settings({"name": "s"}, ["rounds=3", "partition=gamma(gamma=0.5)", "partition.gamma=0.1", "rounds=4"])
    assert [(cell.rounds, cell.partition) for cell in expand(later)] == [(4, "gamma(gamma=0.1)")]


@pytest.mark.parametrize(("rule", "left"), [
    ({"quota": True}, 4), ({"scope": "update"}, 4), ({"forgetting": [[2, 1]]}, 4), ({"forgetting": True}, 4),
])  # fmt: skip
def test_settings_without_a_range_can_be_excluded(rule: dict[str, object], left: int) -> None:
    axes = {"quota": [True, False], "scope": ["update", "both"], "forgetting": [True, [1, 2]], "rounds": 5}
    assert len(expand(Scenario.of({"name": "s", "cell": axes, "exclude": [rule]}))) == left


@pytest.mark.parametrize(
    "aimed",
    [{"evasions": ["fgsm", "pgd(targeted=true, target=30)"]}, {"train_evasion": "mia(targeted=true, target=10)"}],
)
def test_an_evasion_that_aims_at_a_class_that_there_is_not_is_refused_before_training(aimed: dict[str, object]) -> None:
    cell = Cell.of({"rounds": 3, **aimed})
    with pytest.raises(Refused, match=r"target=\d+ of 10 classes; the last one is 9"):
        build(cell)


@pytest.mark.parametrize(
    ("text", "settings", "words"),
    [
        ('zip = ["clients", "f"]\n[cell]\n', [], 'zip = [["clients", "f"]]'),
        ("[cell]\n[scales.small]\nrouns = 2\n", [], "scales.small: no cell setting 'rouns'; did you mean 'rounds'?"),
        ("[cell]\n", ["lr=0.1"], "no cell setting 'lr'; it is schedule.lr"),
        ("[cell]\n", ["attack.eta=7", "attack=foe"], "'attack=foe' would undo --set 'attack.eta=7' before it"),
        ("[cell]\n", ["cell.schedule.lr=1", 'schedule={kind="constant"}'], "would undo --set 'cell.schedule.lr=1'"),
        ("[cell]\n", ['plugins=["a.py"]'], "files of plug-ins are named by --plugin FILE"),
    ],
)
def test_slips_of_a_file_are_told_with_what_to_write(text, settings, words, tmp_path):
    file = tmp_path / "s.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=re.escape(words)):
        Scenario.load(file, settings=settings)


@pytest.mark.parametrize("text", ["", "name = 'x'\n", "name = 'x'\nplugins = []\n"])
def test_a_file_without_cell_settings_says_what_to_write(text: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty.toml"
    empty.write_text(text)
    with pytest.raises(UsageError, match=r"empty\.toml' has no \[cell\]; write that line and settings below it"):
        Scenario.load(empty, settings=["rounds=1"])
    empty.write_text(f"{text}[cell]\n")
    assert Scenario.load(empty).cell == {}
    empty.write_text("rounds = 1\n")
    with pytest.raises(UsageError, match=r"it belongs under \[cell\]: cell\.rounds"):
        Scenario.load(empty)


def test_a_misspelt_preset_and_a_broken_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="quickstart"):
        Scenario.load("quikstart")
    broken = tmp_path / "x.toml"
    broken.write_text("cell = [")
    with pytest.raises(UsageError, match="not valid TOML"):
        Scenario.load(str(broken))


# A benchmark's refusals are on its board, and its cells are many.
@pytest.mark.parametrize("name", [name for name in preset_names() if not name.startswith("bench/")])
def test_no_cell_of_a_preset_is_refused_and_its_tail_and_forgetting_lie_in_its_run(name: str) -> None:
    for scale in ("", *Scenario.load(name).scales):
        loaded = Scenario.load(name, settings=(f"scale={scale}",) if scale else ())
        assert loaded.name == (f"{name}-{scale}" if scale else name)
        for cell in expand(loaded):
            assert refusal(cell) is None, cell
            assert cell.tail < cell.rounds
            assert max(cell.forgetting_rounds, default=0) <= cell.rounds


def test_the_zoo_holds_every_attack_and_every_defense() -> None:
    cells = expand(Scenario.load("zoo"))
    parts = {part.name for cell in cells for part in parse_pipeline(cell.defense).parts}
    assert parts == {e.name for e in entries("defense") if not issubclass(e.cls, Propagation) and not e.origin}
    assert {cell.attack.partition("(")[0] for cell in cells} == {e.name for e in entries("attack") if not e.origin}


def test_a_scale_is_refined_by_settings_in_any_order_and_frees_its_axes() -> None:
    small = Scenario.load("hbn-clients", settings=["rounds=3", "scale=small"])
    assert small.cell["rounds"] == 3
    fixed = Scenario.of({"name": "x", "cell": {"clients": [5, 6], "f": [1, 2]}, "zip": [["clients", "f"]],
                         "scales": {"small": {"clients": 7}}})  # fmt: skip
    assert len(expand(apply_settings(fixed.model_dump(), ["scale=small"]))) == 2
    other = {**fixed.model_dump(), "scales": {"small": {"clients": [7, 9]}}}
    assert [(c.clients, c.f) for c in expand(apply_settings(other, ["scale=small"]))] == [(7, 1), (9, 2)]
    with pytest.raises(UsageError, match="did you mean 'small'"):
        Scenario.load("hbn-clients", settings=["scale=smal"])


@pytest.mark.slow
@pytest.mark.parametrize("name", [
    "fbn-section5", "hbn-batchsize", "hbn-clients", "hbn-plugins", "fedtan-table1", "fedtan-table2", "fedtan-shifts",
    "fedtan-curves", "fedtan-two", "fedtan-batchsize", "fedtan-office", "fedtan-domainnet", "fedtan-mnist",
])  # fmt: skip
def test_small_scales_of_norm_papers_run(name: str) -> None:
    cell = expand(Scenario.load(name, settings=["scale=small", "seed=0", "rounds=2", "evaluate_every=2"]))[-1]
    record = run_cell(cell, fingerprint=fingerprints([cell], None)[cell])
    assert record.status == "done", record.reason


def test_a_description_says_what_was_changed() -> None:
    plain = Scenario.load("quickstart").description
    settings = ["rounds=3", "name=mine", "cell.f=2"]
    assert Scenario.load("quickstart", settings=settings).description == f"{plain} (with rounds=3, cell.f=2)"
    assert Scenario.load("quickstart", settings=[*settings, "description=Mine."]).description == "Mine."
    assert Scenario.load("quickstart", settings=["name=mine"]).description == plain


def test_more_plug_ins_stand_beside_those_of_a_scenario_by_their_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = Scenario.of({"name": "x", "plugins": ["/a.py"]}).beside(["b.py"])
    assert made.plugins == ("/a.py", str(tmp_path.resolve() / "b.py"))


def test_a_scenario_tells_the_values_of_a_setting_also_of_one_that_is_a_list() -> None:
    made = Scenario.of({"name": "x", "cell": {"seed": [3, 1], "f": 2, "evasions": ["pgd", "fgsm"]}})
    assert [made.values(name) for name in ("seed", "f", "rounds")] == [[3, 1], [2], [100]]
    assert made.values("evasions") == [["pgd", "fgsm"]]


def test_an_exclusion_means_what_its_cells_do() -> None:
    """Equal numbers of users, and the last round alone, have one form in every cell, whichever numbers they are."""
    styles = ["digits-domain", "digits-domain(style=shifted)"]
    users = {"domains": styles, "model": "domains-cnn", "clients": 6}

    def left(name: str, cell: dict[str, Any], rule: Any) -> list[Any]:
        made = Scenario.of({"name": "s", "cell": {**cell, "seed": [0]}, "exclude": [{name: rule}]})
        return [(c.rounds, c.users if name == "domain_users" else sorted(c.forgetting_rounds)) for c in expand(made)]

    numbers = {**users, "domain_users": [[2, 4], [3, 3]], "rounds": 2}
    assert left("domain_users", numbers, [2, 2]) == [(2, (2, 4)), (2, (3, 3))]
    assert left("domain_users", numbers, [3, 3]) == [(2, (2, 4))]
    assert left("domain_users", numbers, [2, 4]) == [(2, (3, 3))]
    rounds = {"rounds": [2, 3], "forgetting": [[2], [1]], "validation": 0.2}
    assert left("forgetting", rounds, [2]) == [(2, [1]), (3, [1])]
    assert left("forgetting", {**rounds, "rounds": 3}, [3]) == [(3, [2]), (3, [1])]
    assert left("forgetting", {**rounds, "rounds": 2, "forgetting": [True, False]}, True) == [(2, [])]
