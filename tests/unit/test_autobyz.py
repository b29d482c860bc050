"""AutoByz: one attack of a scenario that stands for several, and the column that is the worst of them per seed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_store import record

from robustfl import autobyz
from robustfl.autobyz import TITLE, Asked, Ensemble, Member, asked_of, ensembles, named
from robustfl.errors import UsageError
from robustfl.records import CellResult, Timing, digest
from robustfl.registry import create
from robustfl.reports.board import Board, Row
from robustfl.reports.frame import frame
from robustfl.reports.published import publish, read_board, write_board
from robustfl.reports.published.merge import Source, joined_protocol
from robustfl.reports.ranking import attack_columns, rank_board
from robustfl.reports.table_cell import member_text
from robustfl.reports.tables import to_csv, to_json, to_latex, to_markdown, to_text
from robustfl.scenarios import Cell, Scenario, expand
from robustfl.scenarios.expand import asked

SMALL = Ensemble(1, (Member("alie"), Member("sf"), Member("foe(eta=10)", "statistics")))
SPECS = {name: (name, "both") for name in ("none", "alie", "sf")} | {"own": ("foe(eta=10)", "statistics")}
LABEL = "foe(eta=10) [statistics]"
LATEST = max(ensembles())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Ensemble:
    """Three members, whatever the study chose."""
    monkeypatch.setattr(autobyz, "ensembles", lambda: {1: SMALL})
    return SMALL


def scenario(exclude: tuple[dict[str, Any], ...] = (), zip: Any = (), **cell: Any) -> Scenario:
    return Scenario.of({"name": "s", "cell": {"f": 3, "evasions": [], **cell}, "exclude": exclude, "zip": zip})


def attacks(made: Scenario) -> list[tuple[str, str, str]]:
    return [(c.attack, c.scope, c.defense) for c in expand(made)]


# --- in a scenario ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_members_are_ordinary_cells() -> None:
    found = expand(scenario(attack=["none", "autobyz"]))
    assert [(c.attack, c.scope) for c in found] == [
        ("none", "both"), ("alie", "both"), ("sf", "both"), ("foe(eta=10)", "statistics"),
    ]  # fmt: skip
    assert found[1] == Cell.of({"attack": "alie", "f": 3, "evasions": ()})


@pytest.mark.usefixtures("small")
def test_a_member_that_is_listed_too_is_one_cell() -> None:
    assert len(expand(scenario(attack=["alie", "autobyz(version=1)"]))) == 3
    assert len(expand(scenario(attack=["alie", {"name": "autobyz", "version": 1}]))) == 3


@pytest.mark.usefixtures("small")
def test_where_one_channel_is_open_members_forge_that_one() -> None:
    assert {(a, s) for a, s, _ in attacks(scenario(attack="autobyz", scope="statistics"))} == {
        ("alie", "statistics"), ("sf", "statistics"), ("foe(eta=10)", "statistics"),
    }  # fmt: skip


@pytest.mark.usefixtures("small")
def test_an_exclusion_of_autobyz_keeps_what_is_listed_beside_it() -> None:
    rule = {"attack": "autobyz", "defense": "mean"}
    found = attacks(scenario((rule,), attack=["sf", "autobyz"], defense=["mean", "median"]))
    assert [a for a, _, d in found if d == "mean"] == ["sf"]
    assert len([a for a, _, d in found if d == "median"]) == 3


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("rule", ["autobyz(version=1)", "autobyz"])
def test_an_exclusion_may_name_the_version_of_autobyz(rule: str) -> None:
    found = attacks(scenario(({"attack": rule},), attack=["none", "autobyz(version=1)"]))
    assert [a for a, _, _ in found] == ["none"]


@pytest.mark.usefixtures("small")
def test_autobyz_advances_with_other_axes_as_one_value() -> None:
    found = attacks(scenario(attack=["none", "autobyz"], defense=["mean", "median"], zip=[["attack", "defense"]]))
    assert {d for a, _, d in found if a != "none"} == {"median"}


@pytest.mark.parametrize(
    ("attack", "version"),
    [
        ("alie", None), ({"name": "alie", "z": [1, 2]}, None), (["none", "autobyz"], LATEST),
        (["autobyz", "none"], LATEST), ({"name": "autobyz"}, LATEST), (["none", {"name": "autobyz"}], LATEST),
        ({"name": "autobyz", "version": 1}, 1),
        ([{"name": "autobyz", "version": [1]}, "autobyz(version=1)"], 1),
    ],
)  # fmt: skip
def test_a_scenario_counts_the_autobyz_that_it_names_in_whatever_form(attack: Any, version: int | None) -> None:
    made = scenario(attack=attack)
    found = asked(made)
    assert (None if found is None else found.version) == version
    members = set() if found is None else {member.attack for member in found.members}
    assert members <= {cell.attack for cell in expand(made)}


def test_where_one_channel_is_open_members_that_forge_none_are_no_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    members = (Member("alie", "update"), Member("label-flip", poisons=True), Member("sf"))
    monkeypatch.setattr(autobyz, "ensembles", lambda: {1: Ensemble(1, members)})
    assert [(a, s) for a, s, _ in attacks(scenario(attack="autobyz", scope="statistics"))] == [
        ("alie", "statistics"), ("sf", "statistics"),
    ]  # fmt: skip


def test_a_scope_varies_where_no_member_forges_one_of_its_own() -> None:
    assert {s for _, s, _ in attacks(scenario(attack="alie", scope=["both", "update"]))} == {"both", "update"}


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ({"attack": ["autobyz(version=1)", "autobyz(version=2)"]}, "in 2 versions; a scenario takes one"),
        ({"attack": {"name": "autobyz", "version": [1, 2]}}, "in 2 versions; a scenario takes one"),
        ({"attack": {"name": "autobyz", "version": [1], "z": 2}}, "takes version, a whole number, and nothing else"),
        ({"attack": "autobyz(version=9)"}, "version=9 is not known here; known: 1, 2, 3"),
        ({"attack": "autobyz(z=1)"}, "takes version, a whole number, and nothing else"),
        ({"attack": {"name": "autobyz", "z": 1}}, "takes version, a whole number, and nothing else"),
        ({"attack": "autobyz", "scope": ["both", "update"]}, "one value"),
    ],
)
def test_what_autobyz_does_not_take(cell: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        expand(scenario(**cell))


def test_the_data_file_names_every_member_as_cells_do_and_says_why() -> None:
    for version, ensemble in ensembles().items():
        assert len({m.label for m in ensemble.members}) == len(ensemble.members)
        cells = expand(scenario(attack=f"autobyz(version={version})"))
        assert [(c.attack, c.scope) for c in cells] == [(m.attack, m.scope or "both") for m in ensemble.members]
        assert all(len(m.reason) > 20 for m in ensemble.members)
    assert named("autobyz") == ensembles()[max(ensembles())]


# --- on a board ------------------------------------------------------------------------------------------------------


def cells(defense: str = "mean", **values: list[Any]) -> list[CellResult]:
    """Records by attack: a number per seed, or a status."""
    made = []
    for name, seeds in values.items():
        attack, scope = SPECS[name]
        for seed, value in enumerate(seeds):
            number = {"sa": value} if isinstance(value, float) else {"status": value, "reason": "why"}
            made.append(record(defense=defense, attack=attack, scope=scope, seed=seed, ra={}, **number))
    return made


def row_of(records: list[CellResult], asked: Asked | None = None) -> tuple[Board, Row]:
    asked = asked or Asked(SMALL)
    made = rank_board(frame(records), autobyz=asked)
    (section,) = [s for s in made.sections if s.metric == "sa"]
    return made, section.rows[0]


def test_a_spec_may_stand_between_blanks_and_name_any_number() -> None:
    first, newest = named(" autobyz(version=1) "), named("autobyz")
    assert (first, newest) == (ensembles()[1], ensembles()[LATEST])
    with pytest.raises(UsageError, match="version=10 is not known here"):
        named("autobyz(version=10)")


def test_members_are_called_as_their_cells_are_where_one_channel_is_open() -> None:
    ensemble = Ensemble(1, (Member("alie"), Member("alie", "update"), Member("label-flip", poisons=True)))
    cells: list[dict[Any, Any]] = [{"attack": "alie", "scope": "update"}, {"attack": "sf", "scope": "update"}]
    one, both = Asked(ensemble, "update"), Asked(ensemble)
    assert (one.members, both.members) == (("alie",), ("alie", "alie [update]", "label-flip"))
    assert one.renamed(cells) == cells
    assert both.renamed(cells) == [{"attack": "alie [update]", "scope": "both"}, cells[1]]


def test_what_counts_as_autobyz_is_read_as_it_was_said() -> None:
    assert asked_of({"autobyz": {"version": 1, "scope": "update"}}) == Asked(ensembles()[1], "update")
    assert asked_of({"autobyz": {"version": 1}}) == Asked(ensembles()[1], "both")
    earlier = {"version": 1, "cheap": "So.", "dropped": {"k": {"attack": "sf"}}, "seed": 3}
    assert asked_of({"autobyz": earlier}) == Asked(ensembles()[1], "both")
    assert asked_of({}) is None
    for version in (True, "1", 0, 99):
        with pytest.raises(UsageError, match=f"version={version!r} is not known here"):
            asked_of({"autobyz": {"version": version}})


def test_members_that_no_cell_has_are_no_columns() -> None:
    assert attack_columns(["none", "sf"], Asked(SMALL)) == ("none", TITLE, "sf")
    assert attack_columns(["none", "sf"], None) == ("none", "sf")


def test_members_that_are_worst_equally_often_are_named_in_its_order() -> None:
    _, row = row_of(cells(none=[0.9] * 2, alie=[0.7, 0.5], sf=[0.4, 0.7], own=[0.8, 0.8]))
    assert row.members == (("alie", 1), ("sf", 1))
    assert member_text(row.members, row.member_seeds) == "alie, sf 1/2"
    _, row = row_of(cells(none=[0.9] * 3, alie=[0.7, 0.7, 0.5], sf=[0.4, 0.4, 0.7], own=[0.8] * 3))
    assert row.members == (("sf", 2), ("alie", 1))
    _, row = row_of(cells(none=[0.9] * 2, alie=[0.8] * 2, sf=[0.7, 0.4], own=[0.4, 0.7]))
    assert row.members == (("sf", 1), (LABEL, 1))


def test_over_all_tasks_too() -> None:
    """The later member is the worst in the first task."""
    worst = {("a", "alie"): 0.7, ("a", "sf"): 0.4, ("b", "alie"): 0.4, ("b", "sf"): 0.7}
    records = [record(partition=p, attack=a, sa=v, ra={}) for (p, a), v in worst.items()]
    made = rank_board(frame(records), autobyz=Asked(SMALL)).select("sa")
    assert made.sections[0].rows[0].members == (("alie", 1), ("sf", 1))


def test_a_member_that_is_refused_with_one_seed_makes_a_bound() -> None:
    _, row = row_of(cells(none=[0.9, 0.9], alie=[0.5, 0.5], sf=["refused", 0.4], own=[0.8, 0.8]))
    assert row.worst.bound
    assert not row_of(cells(none=[0.9], alie=[0.5], sf=["refused"], own=["refused"]))[1].worst.bound


def test_members_that_are_all_without_effect_count_as_such() -> None:
    attacked = cells(alie=[0.5], sf=[0.7], own=[0.8])
    idle = [r.model_copy(update={"certificates": {"no_effect": True}}) for r in attacked]
    _, row = row_of([*cells(none=[0.5]), *idle])
    assert row.cells[1].idle
    assert (row.cells[1].mean, row.cells[1].shown) == (0.5, None)
    assert row.members == ()
    assert member_text(row.members, row.member_seeds) == "–"


def test_a_row_without_a_number_under_any_member_says_why() -> None:
    for made, status in (
        (cells(none=[0.9]), "missing"),
        (cells(none=[0.9], alie=["failed"]), "failed"),
        (cells(none=[0.9], alie=["refused"], own=["refused"]), "refused"),
    ):
        _, row = row_of(made)
        assert (row.cells[1].status, row.cells[1].bound, row.members) == (status, False, ())


def test_the_worst_member_counts_per_seed() -> None:
    made, row = row_of(cells(none=[0.9, 0.9, 0.9], alie=[0.5, 0.8, 0.6], sf=[0.7, 0.4, 0.7], own=[0.8, 0.8, 0.8]))
    assert made.attacks == ("none", "AutoByz", "alie", "sf", LABEL)
    found = row.cells[1]
    assert [v for _, v in found.values] == [0.5, 0.4, 0.6]
    assert row.worst == found
    assert row.members == (("alie", 2), ("sf", 1))
    assert member_text(row.members, row.member_seeds) == "alie 2/3"
    assert made.task_names == ()  # the channel of a member is no task


def test_refused_members_do_not_count_and_are_named() -> None:
    made, row = row_of(cells(none=[0.9], alie=[0.5], sf=[0.7], own=["refused"]))
    assert (row.cells[1].mean, row.worst.bound, row.rank) == (0.5, False, 1)
    assert f"Refused members are no attacks on a row and do not count in it: {LABEL} (1 row)." in made.notes[-1]
    other = cells(defense="krum", none=[0.9], alie=["refused"], sf=["refused"], own=[0.6])
    made, _ = row_of([*cells(none=[0.9], alie=[0.5], sf=["refused"], own=[0.7]), *other])
    assert made.notes[-1].endswith("alie (1 row), sf (2 rows).")


def test_a_row_whose_members_are_all_refused_is_refused() -> None:
    _, row = row_of(cells(none=["refused"], alie=["refused"], sf=["refused"], own=["refused"]))
    assert row.worst.status == "refused"
    assert row.rank is None


def test_a_missing_or_failed_member_makes_a_bound() -> None:
    assert row_of(cells(none=[0.9], alie=[0.5], sf=[0.7]))[1].worst.bound
    assert row_of(cells(none=[0.9], alie=[0.5], sf=[0.7], own=["failed"]))[1].worst.bound


@pytest.mark.parametrize("gone", [0, 1])
def test_a_member_that_lacks_a_seed_makes_a_bound_by_those_that_are_there(gone: int) -> None:
    """Whichever is missing, the others prove that the worst case is no higher."""
    records = cells(none=[0.9, 0.9], alie=[0.5, 0.1], sf=[0.7, 0.6], own=[0.8, 0.3])
    whole = row_of(records)[1]
    assert (whole.worst.text(), whole.rank) == ("30.0 (10.0–50.0)", 1)
    made, row = row_of([r for r in records if (r.labels["attack"], r.labels["seed"]) != ("sf", gone)])
    assert row.worst.text() == "≤ 30.0 (10.0–50.0)"
    assert (row.worst.status, row.rank) == ("at most", None)
    assert any(note.startswith("≤: an attack or a seed is missing") for note in made.notes)


def test_a_seed_that_no_attack_has_leaves_the_number_of_the_others() -> None:
    records = cells(none=[0.9, 0.9], alie=[0.5], sf=[0.7], own=[0.8])
    found = row_of(records)[1].worst
    assert (found.mean, found.bound) == (0.5, False)


def test_costs_are_those_without_attack_where_the_board_has_such() -> None:
    attacked = cells(alie=[0.5], sf=[0.6], own=[0.7])
    assert not row_of(attacked)[0].calm_costs
    assert row_of(attacked)[1].seconds_per_round is not None
    calm = [c.model_copy(update={"timing": Timing(seconds_per_round=0.5)}) for c in cells("median", none=[0.9])]
    made = row_of([*attacked, *cells("median", alie=[0.8], sf=[0.8], own=[0.8]), *calm])[0]
    assert made.calm_costs
    assert {row.labels[0]: row.seconds_per_round for row in made.rows} == {"median": 0.5, "mean": None}


def test_divergence_under_a_member_is_the_worst() -> None:
    _, row = row_of(cells(none=[0.9, 0.9], alie=[0.5, 0.5], sf=["diverged", 0.7], own=[0.8, 0.8]))
    assert row.worst.status == "diverged 1/2"
    assert row.members == (("sf", 1),)


def test_a_seed_with_several_worst_members_counts_for_each() -> None:
    made, row = row_of(cells(none=[0.9] * 3, alie=[0.5, 0.4, 0.4], sf=[0.5, 0.4, 0.7], own=[0.5, 0.8, 0.4]))
    assert (row.members, row.member_seeds) == ((("alie", 3), ("sf", 2), (LABEL, 2)), 3)
    assert member_text(row.members, row.member_seeds) == "alie"
    _, tied = row_of(cells(none=[0.9] * 2, alie=[0.5, 0.4], sf=[0.5, 0.4], own=[0.5, 0.4]))
    assert member_text(tied.members, tied.member_seeds) == "alie, sf and 1 more"
    assert "in how many of the seeds; one with several worst members counts for each." in made.notes[-1]
    told = json.loads(to_json(made))["tables"][0]["rows"][0]
    assert (told["worst_members"], told["worst_member_seeds"]) == (dict(row.members), 3)


def test_a_seed_that_diverged_under_several_members_counts_for_each() -> None:
    lost = "diverged"
    _, row = row_of(
        cells(none=[0.9] * 4, alie=[lost, 0.5, 0.5, 0.5], sf=[0.7, lost, lost, 0.7], own=[0.8, 0.8, lost, 0.8])
    )
    assert row.worst.status == "diverged 3/4"
    assert (row.members, row.member_seeds) == ((("sf", 2), ("alie", 1), (LABEL, 1)), 3)


def test_a_member_without_effect_does_not_count() -> None:
    records = cells(none=[0.9], alie=[0.75], sf=[0.7], own=[0.8])
    idle = {"certificates": {**records[1].certificates, "no_effect": True}}
    records[1] = records[1].model_copy(update=idle)
    found = row_of(records)[1]
    assert (found.cells[1].mean, found.cells[2].text()) == (0.7, "no effect")
    lower = records[1].model_copy(update={"metrics": cells(none=[0.5])[0].metrics})
    found = row_of([records[0], lower, *records[2:]])[1]
    assert (found.cells[1].mean, found.cells[2].text(), found.members) == (0.5, "50.0", (("alie", 1),))
    as_low = [records[0], records[1].model_copy(update={"metrics": records[2].metrics}), *records[2:]]
    assert row_of(as_low)[1].members == (("sf", 1),)


def test_the_worst_of_the_members_tells_no_more_about_variances_than_they_do() -> None:
    _, row = row_of(cells(none=[0.9, 0.91], alie=[0.5, 0.6], sf=[0.7, 0.6], own=[0.8, 0.7]))
    assert row.worst.prior.pooled == 4


def test_an_attack_beside_autobyz_counts_in_the_worst_case_only() -> None:
    records = [*cells(none=[0.9], alie=[0.5], sf=[0.7], own=[0.8]), record(attack="ipm", sa=0.1)]
    made, row = row_of(records)
    assert (row.cells[1].mean, row.worst.mean) == (0.5, 0.1)
    assert "each seed's worst case over AutoByz and ipm" in made.caption


def test_every_form_names_the_worst_member() -> None:
    made, _ = row_of(cells(none=[0.9], alie=[0.5], sf=[0.7], own=[0.8]))
    for form in (to_markdown, to_latex, to_text):
        assert "worst member" in form(made)
    assert '"worst_members": {\n' in to_json(made)
    assert ",AutoByz,ok,0.5," in to_csv(made)
    assert made.frame()["worst member"].tolist() == ["alie"] * len(made.sections)


def test_a_board_carries_its_protocol_and_one_without_is_as_before(tmp_path: Any) -> None:
    ran = [{**r.cell, "methods": {"norm": {"name": "fbn", "version": 1}}} for r in cells(none=[0.9], alie=[0.5])]
    records = [record(**cell["cell"]).model_copy(update={"cell": cell, "key": digest(cell)}) for cell in ran]
    plain = write_board(publish(records, name="x"), tmp_path / "plain.json")
    assert '"protocol"' not in plain.read_text()
    facts = {"autobyz": {"version": 1, "scope": "both"}}
    made = write_board(publish(records, name="x", protocol=facts), tmp_path / "made.json")
    read, wrong = read_board(made)
    assert (read.protocol, wrong) == (facts, [])
    made.write_text(made.read_text().replace('"version": 1}', '"version": 2}'))
    assert "does not have the digest" in read_board(made)[1][0]


def test_sources_of_different_protocols_are_named_and_not_merged() -> None:
    def source(name: str, **protocol: Any) -> Source:
        return Source(name, (), {}, (), protocol)

    tier = {"tier": "d", "version": 1}
    one = source("one", benchmark={**tier, "contestants": {"a": {"chosen": 0}}}, autobyz={"version": 1})
    two = source("two", benchmark={**tier, "contestants": {"b": {"chosen": 1}}}, autobyz={"version": 1})
    joined = joined_protocol([one, two])
    assert joined["benchmark"]["contestants"] == {"a": {"chosen": 0}, "b": {"chosen": 1}}
    assert joined["autobyz"] == {"version": 1}
    with pytest.raises(UsageError, match=r"one: d 1; short: d 1 \['rounds=3'\]"):
        joined_protocol([one, source("short", benchmark={**tier, "changed": ["rounds=3"]})])
    with pytest.raises(UsageError, match="rival chose another configuration of a"):
        joined_protocol([one, source("rival", benchmark={**tier, "contestants": {"a": {"chosen": 5}}})])


@pytest.mark.parametrize("version", sorted(ensembles()))
def test_members_that_poison_data_are_marked_and_forge_no_channel(version: int) -> None:
    ensemble = ensembles()[version]
    for member in ensemble.members:
        assert create("attack", member.attack).poisons_data == member.poisons, member.attack
    assert not any(create("attack", m.attack).poisons_data for m in ensemble.within("statistics"))


def test_members_told_apart_by_updates_are_none_where_statistics_alone_are_forged() -> None:
    both = Ensemble(9, (Member("opt-drift"), Member("opt-drift(layers=last)", updates=True), Member("sf", "update")))
    assert [m.label for m in both.within("statistics")] == ["opt-drift", "sf"]
    assert [m.label for m in both.within("update")] == ["opt-drift", "opt-drift(layers=last)", "sf"]


def test_an_attack_on_a_row_that_forges_a_channel_of_its_own_is_an_attack_of_that_name() -> None:
    beaten = [{"contestant": "mean", "attack": "edge", "scope": "update"}, {"attack": "foe", "scope": "both"}]
    asked = asked_of({"autobyz": {"version": 3}, "benchmark": {"beaten": beaten}})
    cells = [{"attack": a, "scope": s} for a, s in (("edge", "update"), ("foe", "both"), ("sf", "update"))]
    assert asked.renamed(cells) == [
        {"attack": "edge [update]", "scope": "both"}, {"attack": "foe", "scope": "both"},
        {"attack": "sf", "scope": "update"},
    ]  # fmt: skip
