"""The benchmark: who competes, what each may try, what is chosen, and what boards carry of it; the study of AutoByz."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_store import record
from small_bench import RULES as FEW
from small_bench import SMALL, run_bench, shrink

from robustfl.autobyz import TITLE, ensembles, latest
from robustfl.cli import invoke
from robustfl.cli.bench import STUDY, _publish
from robustfl.defenses import parse_pipeline
from robustfl.errors import RobustflError, UsageError
from robustfl.reports.benchmark.data import measured
from robustfl.reports.benchmark.study import Study, Tried, about, read_study, study_of, study_page
from robustfl.reports.loading import board_of
from robustfl.reports.published import publish_described
from robustfl.reports.published.merge import merge, read_sources, write_merge
from robustfl.reports.store import Store
from robustfl.scenarios import RunOptions, Scenario
from robustfl.scenarios.bench import (
    Contestant,
    Search,
    bench,
    configurations,
    contestants,
    final_scenario,
    searches,
    tuning_scenario,
)
from robustfl.scenarios.expand import expand
from robustfl.scenarios.grid import run_grid
from robustfl.scenarios.protocol import Tier, protocol, protocol_of, scenario_to_run
from robustfl.scenarios.protocol_check import apart_from_protocol

BOARDS = Path(__file__).parents[2] / "boards"
RULES = protocol()


# --- who competes and what they try ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(RULES.tiers))
def test_every_contestant_of_a_tier_tries_equally_many_configurations(name: str) -> None:
    scenario = RULES.tier(name).scenario()
    found = contestants(scenario)
    tried = [configurations(contestant, RULES) for contestant in found]
    assert len(found) == len({c.name for c in found}) >= 4
    assert {len({str(c) for c in each}) for each in tried} == {RULES.budget}
    tuning = tuning_scenario(RULES.tier(name), scenario, found[:1], RULES).cell
    assert tuning["seed"] not in scenario.cell["seed"]  # what tuning saw is no final seed
    assert tuning["validation"] > 0


@pytest.mark.parametrize("name", sorted(RULES.tiers))
def test_a_tier_counts_the_autobyz_of_its_version_and_the_preset_that_of_the_latest(name: str) -> None:
    for version in (1, 2) if name in protocol_of(1).tiers else ():
        older = protocol_of(version).tier(name)
        assert older.scenario().cell["attack"] == ["none", f"autobyz(version={version})"]
        assert (older.preset, older.statistic) == (f"{name}-2", "final")
    assert RULES.tier(name).scenario() == Scenario.load(f"bench/{name}")
    assert protocol_of(RULES.version) == RULES
    with pytest.raises(UsageError, match="protocol version None is not known here; known: 1, 2, 3"):
        protocol_of(None)


def test_a_rule_with_parameters_of_its_own_tries_them_at_fewer_rates() -> None:
    scenario = RULES.tier("d").scenario()
    plain, own = (
        configurations(contestants(scenario, [wish])[0], RULES) for wish in ("median/gn", "clipping+median/gn")
    )
    assert [c["schedule"]["lr"] for c in plain] == list(RULES.rates)
    assert {c["defense"] for c in own} == {"clipping(c=0.5)+median", "clipping+median"}
    assert {c["schedule"]["lr"] for c in own} == set(RULES.coarse)


@pytest.mark.parametrize(
    ("wish", "found"),
    [
        ("krum/gn", ["krum · gn · dsgd"]),
        ("*/gn/dsgd", len(RULES.tier("d").scenario().cell["defense"])),
        ("nnm+krum/silobn", ["nnm+krum · silobn · dsgd"]),
        ("median/gn/fedavg", ["median · gn · fedavg"]),
    ],
)
def test_a_contestant_is_one_of_the_tier_or_a_new_one(wish: str, found: Any) -> None:
    names = [c.name for c in contestants(RULES.tier("d").scenario(), [wish])]
    assert (len(names) if isinstance(found, int) else names) == found


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bench", "studdy-3"], "did you mean 'study-3'"),
        (["bench", "d", "--contestant", "nmm+median"], "did you mean 'nnm+median'"),
        (["bench", "d", "--contestant", "krum/fbm"], "did you mean 'fbn'"),
        (["bench", "d", "--contestant", "a/b/c/d"], "must be DEFENSE, DEFENSE/NORM or DEFENSE/NORM/ALGORITHM"),
        (["bench", "study-3", "--list"], "bench study-3 takes no --list"),
    ],
)
def test_what_is_unknown_is_named_with_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(arguments) == 2
    assert any(part in capsys.readouterr().err.replace("\n", " ") for part in said.split("|"))


@pytest.mark.parametrize(
    ("defense", "told"),
    [
        ("mean", "none"), ("geometric-median", "none"), ("krum", "f declared"), ("nnm+median", "f declared"),
        ("fltrust", "clean server data"), ("monna(pivot=3)", "f declared, an honest client"),
        ("bucketing+monna", "f declared"), ("nnm+monna", "f declared"), ("rlr", "f declared"), ("rlr(theta=3)", "none"),
    ],
)  # fmt: skip
def test_what_a_defense_is_told_follows_from_its_parts(defense: str, told: str) -> None:
    assert parse_pipeline(defense).knowledge == told


# --- tuning ----------------------------------------------------------------------------------------------------------


def search(*scores: dict[str, float | None]) -> Search:
    tried = tuple(
        ({"defense": "mean", "schedule": {"kind": "constant", "lr": 0.1 * i}}, s) for i, s in enumerate(scores)
    )
    return Search(Contestant((("defense", "mean"),)), "none", tried)


def test_the_highest_worst_case_is_chosen_and_of_equal_ones_the_first() -> None:
    assert search({"a": 0.9, "b": 0.1}, {"a": 0.4, "b": 0.3}, {"a": 0.3, "b": 0.9}).best == 1
    assert search({"a": None, "b": 0.9}, {"a": 0.1, "b": 0.1}).best == 1
    assert search({"a": None}, {"a": None}).best == 0
    assert search({"a": None, "b": 0.9}).as_dict()["search"][0]["worst"] is None


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Tier:
    return shrink(monkeypatch)


def test_a_tier_from_tuning_to_page_and_again(tmp_path: Path, tiny: Tier) -> None:
    computed: list[int] = []
    wanted = ["mean/naive-bn", "foolsgold/naive-bn"]
    with pytest.raises(KeyboardInterrupt):  # an interrupted tuning resumes
        run_bench(tiny, tmp_path, *wanted, stop_after=3)
    found = run_bench(tiny, tmp_path, *wanted, computed=computed)
    again = run_bench(tiny, tmp_path, *wanted, computed=computed)
    assert (computed[0], computed[2:]) == (8 - 3, [0])  # the searches stand in the store
    assert again.searches == found.searches

    tuned = found.searches["mean · naive-bn · dsgd"]
    assert all(0 < value < 1 for _, scores in tuned.tried for value in scores.values() if value is not None)
    refused = found.searches["foolsgold · naive-bn · dsgd"]
    assert refused.reason.startswith("on statistics, foolsgold")

    store = Store(found.results.folder)
    facts = store.description()["benchmark"]
    assert (facts["tier"], facts["version"], facts["changed"]) == ("d", RULES.version, ["rounds=3", *SMALL])
    assert facts["contestants"]["mean · naive-bn · dsgd"]["chosen"] == tuned.best
    chosen = tuned.tried[tuned.best][0]["schedule"]["lr"]
    ran = {r.labels["schedule"] for r in store.load().results if r.labels["defense"] == "mean"}
    assert ran == {f"constant(lr={chosen:g})"}

    board = board_of(store, keys=found.results.keys)
    last = board.sections[0].rows[-1]
    assert (last.labels[0], last.worst.status) == ("foolsgold", "refused")  # shown, and last
    _publish(found.results, tmp_path / "b.json", tmp_path / "pages", "table")
    page = (tmp_path / "pages" / "d.md").read_text(encoding="utf-8")
    assert "**Not the whole protocol**: this run changed <code>rounds=3</code>" in page
    assert re.search(r"\| – \| foolsgold · naive-bn \| refused <sup>a</sup> \| – \| refused", page)
    assert (tmp_path / "pages" / "boards" / "bench-d.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_a_board_goes_on_elsewhere_without_another_search(tmp_path: Path, tiny: Tier) -> None:
    found = run_bench(tiny, tmp_path / "here", "mean/naive-bn")
    _publish(found.results, tmp_path / "b.json", None, "table")
    sources = read_sources([tmp_path / "b.json"])
    write_merge(merge(sources, tolerance=0.0), sources, tmp_path / "there" / "bench-d")
    computed: list[int] = []
    assert run_bench(tiny, tmp_path / "there", "mean/naive-bn", computed=computed).searches == found.searches
    assert computed == [0]
    run_bench(tiny, tmp_path / "there", "mean/naive-bn", rounds=2, computed=computed)  # other trainings: tuned again
    assert computed[1] == 4


def test_tuning_reads_validation_data_and_never_test_accuracy(tmp_path: Path, tiny: Tier) -> None:
    scenario = tiny.scenario(["rounds=3", *SMALL])
    chosen = contestants(scenario, ["mean/naive-bn"])
    tuning = tuning_scenario(tiny, scenario, chosen, FEW)
    results = run_grid(tuning, RunOptions(jobs=0), out=tmp_path)
    store = Store(results.folder)
    before = searches(tiny, scenario, chosen, FEW, out=tmp_path)
    for r in store.load().results:
        assert r.metrics is not None
        byzantine = r.certificates["byzantine"]
        assert len(byzantine) == 2
        own = [0.0 if k in byzantine else v for k, v in enumerate(r.metrics.per_client["sa"])]  # nor that of attackers
        changed = r.metrics.model_copy(update={"sa": 0.0, "per_client": {"sa": own}})
        curve = [p.model_copy(update={"sa": 0.0}) for p in r.curve]
        store.commit(r.model_copy(update={"metrics": changed, "curve": curve}))
    assert searches(tiny, scenario, chosen, FEW, out=tmp_path) == before


CHANGED = ["rounds=3", *SMALL]


def test_nothing_is_chosen_by_trainings_that_failed_and_the_same_command_runs_them_again(
    tmp_path: Path, tiny: Tier
) -> None:
    scenario = tiny.scenario(CHANGED)
    chosen = contestants(scenario, ["mean/naive-bn"])
    store = Store(run_grid(tuning_scenario(tiny, scenario, chosen, FEW), RunOptions(jobs=0), out=tmp_path).folder)
    first, second, third, _ = store.load().results
    lost = {"status": "failed", "metrics": None, "reason": "MemoryError: no memory today\nTraceback"}
    for r in (first, second):
        store.commit(r.model_copy(update=lost))
    store.commit(third.model_copy(update={**lost, "status": "diverged", "reason": "non-finite", "round": 2}))
    ran: list[str] = []
    with pytest.raises(RobustflError, match="2 of 4 trainings of the tuning failed") as told:
        bench(tiny, lambda cells, **_: ran.append(cells.name), wanted=["mean/naive-bn"], settings=CHANGED, out=tmp_path)
    assert ran == ["bench-d-tuning"]
    assert not isinstance(told.value, UsageError)  # which would be exit code 2
    for r in (first, second):
        assert f"mean · naive-bn · dsgd · {r.labels['schedule']} under {r.labels['attack']}" in str(told.value)
    assert ": MemoryError: no memory today\nThe same command runs them again" in str(told.value)
    computed: list[int] = []
    again = run_bench(tiny, tmp_path, "mean/naive-bn", computed=computed).searches["mean · naive-bn · dsgd"]
    assert computed[0] == 2
    assert [value is None for _, scores in again.tried for value in scores.values()].count(True) == 1  # diverged


def test_trainings_without_validation_data_choose_nothing(tmp_path: Path, tiny: Tier) -> None:
    scenario = tiny.scenario(CHANGED)
    chosen = contestants(scenario, ["mean/gn"])
    store = Store(run_grid(tuning_scenario(tiny, scenario, chosen, FEW), RunOptions(jobs=0), out=tmp_path).folder)
    for r in store.load().results:
        assert r.metrics is not None
        store.commit(r.model_copy(update={"metrics": r.metrics.model_copy(update={"per_client": {}})}))
    with pytest.raises(UsageError, match="no honest client has validation data, so nothing can be chosen"):
        searches(tiny, scenario, chosen, FEW, out=tmp_path)


def test_for_whom_nothing_could_be_chosen_is_told_before_the_final_cells(tmp_path: Path, tiny: Tier) -> None:
    told: list[str] = []

    def run(scenario: Scenario, **more: Any) -> Any:
        told.append(scenario.name)
        return run_grid(scenario, RunOptions(jobs=0), out=tmp_path, **more)

    wanted = ["foolsgold/naive-bn", "foolsgold/fbn"]
    found = bench(tiny, run, wanted=wanted, settings=CHANGED, out=tmp_path, on_note=told.append)
    first, warned, last = told
    assert (first, last) == ("bench-d-tuning", "bench-d")
    assert warned.startswith(
        "warning: nothing could be chosen for foolsgold · naive-bn · dsgd, foolsgold · fbn · dsgd, whose final cells "
        "have the first configuration: on statistics, foolsgold"
    )
    assert all(one.undecided for one in found.searches.values())


def test_rows_that_are_not_told_from_the_first_run_more_seeds(tmp_path: Path, tiny: Tier) -> None:
    """Under eight seeds the mean is far behind under foe; the median and the trimmed mean are alike."""
    tier, notes = replace(tiny, near=10), []
    settings = [s for s in SMALL if not s.startswith("seed")] + ["rounds=12"]

    def run(scenario: Scenario, **more: Any) -> Any:
        return run_grid(scenario, RunOptions(jobs=0), out=tmp_path, **more)

    wanted = [f"{rule}/gn" for rule in ("mean", "median", "trimmed-mean")]
    found = bench(tier, run, wanted=wanted, settings=settings, out=tmp_path, on_note=notes.append)
    store = Store(found.results.folder)
    records = [r for r in store.load().results if r.key in found.results.keys]
    seeds = {rule: {r.labels["seed"] for r in records if r.labels["defense"] == rule} for rule in ("mean", "median")}
    assert seeds == {"mean": {*range(8)}, "median": {*range(10)}}
    assert notes == ["2 of 3 rows are not told from the first and run 2 more seeds"]
    made = publish_described(records, store.description(), name="d")
    facts = (made.protocol or {})["benchmark"]
    assert facts["near"] == ["median · gn · dsgd", "trimmed-mean · gn · dsgd"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("robustfl.scenarios.protocol_check.protocol_of", lambda _: replace(FEW, tiers={"d": tier}))
        assert apart_from_protocol(made) == []
        fewer = [r for r in records if (r.labels["defense"], r.labels["seed"]) != ("median", 9)]
        lacking = publish_described(fewer, {**store.description(), "scenario": None}, name="d")
        assert "it lacks" in apart_from_protocol(lacking)[0]
        forgotten = replace(made, protocol={**(made.protocol or {}), "benchmark": {**facts, "near": []}})
        assert "it has what the tier does not" in apart_from_protocol(forgotten)[0]
    shown = measured(made, records)
    assert [row.worst.exact for row in shown.rows] == [True, True, True]
    assert "8/10" in shown.rows[-1].worst.text()


def test_a_search_that_diverged_everywhere_under_some_attack_decides_nothing() -> None:
    assert search({"a": None, "b": 0.9}, {"a": 0.1, "b": None}).undecided.startswith("every configuration diverged")
    assert search({"a": None, "b": 0.9}, {"a": 0.0, "b": 0.0}).undecided == ""


# --- the study -------------------------------------------------------------------------------------------------------


def study(**rows: dict[str, float]) -> Study:
    """A study from final accuracies by contestant and attack."""
    tried = {
        ("digits", name, "gn", "iid", "2", "0"): [Tried(a, "done", sa) for a, sa in row.items()]
        for name, row in rows.items()
    }
    return Study(tried, {})


def test_known_killers_are_members_whatever_they_attain() -> None:
    found = study(p={"weak": 0.9, "strong": 0.1})
    choice = found.choose({"weak": ("p",)}, 16)
    assert choice.members == ("weak", "strong")
    assert choice.missed == ()


def test_an_attack_within_a_point_attains_the_worst_case() -> None:
    found = study(p={"near": 0.109, "far": 0.111, "least": 0.1})
    assert [found.attained(a) for a in ("near", "far", "least")] == [1, 0, 1]


def test_refused_attacks_and_those_without_effect_do_not_count_and_divergence_is_zero() -> None:
    ran: list[tuple[str, float, dict[str, Any]]] = [
        ("none", 0.9, {}), ("alie", 0.5, {}), ("sf", 0.5, {"status": "refused"}),
        ("foe", 0.5, {"status": "diverged"}), ("zero", 0.0, {"certificates": {"no_effect": True}}),
    ]  # fmt: skip
    found = study_of([record(attack=attack, sa=sa, **more) for attack, sa, more in ran])
    ((who, row),) = found.contestants.items()
    assert {a: t.sa for a, t in row.items()} == {"alie": 0.5, "foe": 0.0}
    assert found.unattacked(who) == 0.9
    assert "zero" in found.attacks


def test_an_attack_below_all_others_counts_whatever_moved_the_mean() -> None:
    who = ("digits", "mean", "gn", "iid", "2", "0")

    def found(idle: float) -> list[str]:
        row = [Tried("sf", "done", 0.3), Tried("quiet", "done", idle, effect=False)]
        return list(Study({who: row}, {who: 0.9}).contestants[who])

    assert (found(0.2), found(0.3), found(0.8)) == (["sf", "quiet"], ["sf"], ["sf"])


def test_a_limited_choice_takes_what_is_missed_most_until_nothing_is() -> None:
    """One attack is 30 points from the worst case of the first contestant, the other 5 from that of the second."""
    found = study(mean={"a": 0.5, "b": 0.2, "c": 0.5, "d": 0.6}, median={"a": 0.5, "b": 0.5, "c": 0.45, "d": 0.7})
    assert found.choose({"a": ("mean",)}, 2).members == ("a", "b")
    assert found.choose({"a": ("mean",)}, 9).members == ("a", "b", "c")
    (missed,) = found.choose({"a": ("mean",)}, 2).missed
    assert missed[1] == pytest.approx(0.05)


def test_tasks_that_advance_together_do_so_in_the_final_cells_and_the_tuning_has_its_own() -> None:
    tier = RULES.tier("d")
    scenario = tier.scenario()
    chosen = contestants(scenario, ["median/gn"])
    tuning = tuning_scenario(tier, scenario, chosen, RULES)
    assert (tuning.cell["f"], tuning.cell["partition"]) == (2, "gamma(gamma=0.5)")
    tried = tuple((settings, {"none": 0.5}) for settings in configurations(chosen[0], RULES))
    final = final_scenario(scenario, {chosen[0].name: Search(chosen[0], "none", tried)})
    cells = expand(final)
    assert {(c.f, c.partition) for c in cells} == {
        (2, "gamma(gamma=0.5)"), (3, "gamma(gamma=0.5)"), (1, "gamma(gamma=0)"),
    }  # fmt: skip
    assert len(cells) == 3 * 8 * (1 + len(latest().members))


def test_the_committed_data_choose_autobyz() -> None:
    file, of = BOARDS / f"{STUDY}.csv.gz", about()
    found = read_study(file)
    choice = found.choose(of.required, of.limit)
    ensemble = ensembles()[of.version]
    assert ensemble == latest()
    assert sorted(choice.members) == sorted(m.label for m in ensemble.members)
    assert found.to_csv() == gzip.decompress(file.read_bytes()).decode()
    covered = f"{TITLE} attains the worst case of {choice.covered} of {choice.total} contestants"
    assert covered in study_page(found, choice, ensemble, of, STUDY)


@pytest.mark.parametrize("pair", [["rounds=3", "rounds = 4"], ["f=1", "f=1"]])
def test_what_a_board_says_it_changed_it_changed_once(pair: list[str]) -> None:
    name = pair[0].partition("=")[0]
    with pytest.raises(UsageError, match=f"--set {name} is given twice, as '{pair[0]}' and '{pair[1]}'"):
        RULES.tier("d").scenario(pair)


@pytest.mark.parametrize("setting", ["batch=[8, 16]", 'model=["digits-cnn", "mlp"]'])
def test_the_tuning_tries_one_value_of_a_setting(setting: str) -> None:
    tier = RULES.tier("d")
    scenario = tier.scenario([setting])
    found = contestants(scenario, ["median/fbn"])
    with pytest.raises(UsageError, match=rf"bench: {setting.partition('=')[0]}=\[.* has several values"):
        tuning_scenario(tier, scenario, found, RULES)


@pytest.mark.parametrize("setting", ["description=`<script>`", "name=x", "zip=[]", "roundz=3"])
def test_a_tier_changes_settings_of_its_cells_alone(setting: str) -> None:
    with pytest.raises(UsageError, match=f"--set {setting.partition('=')[0]}: the tier has no such setting"):
        RULES.tier("d").scenario([setting])


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("schedule.lr=0.3", "the search tries values of schedule"),
        ("schedule={lr=0.3}", "the search tries values of schedule"),
        (
            "defense=krum",
            "every contestant brings its own defense; name those that shall run with --contestant DEFENSE[",
        ),
        ("norm=gn", "--set norm=gn: every contestant brings its own norm"),
        ("algorithm.momentum=0.5", "every contestant brings its own algorithm"),
        ("validation=0", "validation=0: configurations are chosen by accuracy on the clients' validation data"),
        ("validation=[0.2, 0.0]", "validation=0: configurations are chosen"),
        ("seed=1000", "seed=1000 is the seed of tuning, and no final run has that"),
        ("seed=[0, 1000]", "seed=1000 is the seed of tuning, and no final run has that"),
    ],
)
def test_a_change_that_would_do_nothing_or_leave_no_choice_is_refused_before_anything_runs(
    setting: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*_: Any, **__: Any) -> Any:
        raise AssertionError("it ran")

    with pytest.raises(UsageError, match=re.escape(why)):
        bench(RULES.tier("d"), run, settings=[setting], wanted=["median/gn"])
    assert invoke(["bench", "d", "--contestant", "median/gn", "--list", "--set", setting]) == 2
    assert "Error: " in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(RULES.tiers))
def test_what_the_contestants_do_not_bring_may_change(name: str) -> None:
    settings = ["rounds=4", "seed=[7]", "objective=ce", "validation=0.3"]
    assert scenario_to_run(RULES.tier(name), settings) == RULES.tier(name).scenario(settings)


HEAD = "dataset,defense,norm,partition,f,seed,attack,scope,status,sa,effect"


def test_other_data_choose_another_set_and_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "study.csv"
    data.write_text(study(p={"alie": 0.5, "mine": 0.1}).to_csv(), encoding="utf-8")
    assert invoke(["bench", STUDY, "--from", str(data)]) == 1
    assert f"That is not AutoByz version {latest().version}." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["defense,norm", "mean,gn"], "no file of a study (a line has other columns than dataset, defense"),
        ([HEAD], "study: no contestant has a number"),
        ([], "study: no contestant has a number"),
        ([HEAD, "digits,median"], "no file of a study (a line has other columns"),
        ([HEAD, "digits,median,fbn,iid,2,0,alie,,done,nan,"], "no file of a study (nan is no accuracy in [0, 1])"),
        ([HEAD, "digits,median,fbn,iid,2,0,alie,,done,7,"], "no file of a study (7 is no accuracy in [0, 1])"),
    ],
)
def test_a_file_that_is_no_study_is_told(
    lines: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study.csv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    assert invoke(["bench", STUDY, "--from", str(tmp_path / "study.csv")]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    "content", [b"no gzip", gzip.compress(f"{HEAD}\n".encode(), mtime=0)[:-9]], ids=["text", "cut"]
)
def test_a_compressed_file_that_is_broken_is_told(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study.csv.gz").write_bytes(content)
    assert invoke(["bench", STUDY, "--from", str(tmp_path / "study.csv.gz")]) == 2
    assert "study.csv.gz: no file of a study (" in re.sub(r"\s+", " ", capsys.readouterr().err)


def test_an_attack_at_exactly_one_point_from_the_worst_attains_it_by_every_count() -> None:
    found = study(p={"sf": 0.52, "alie": 0.51}, q={"sf": 0.3, "alie": 0.9})
    assert found.attained("sf") == 2
    assert found.choose({}, 1).members == ("sf",)
    assert found.choose({}, 1).missed == ()
