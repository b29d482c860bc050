"""The benchmark's site, of boards that nobody had to train: SA beside RA, several tasks, who has no number."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_store import record
from small_bench import RULES, VERSION, shrink

from robustfl.cli import invoke
from robustfl.errors import UsageError
from robustfl.records import CellResult
from robustfl.reports.benchmark.data import Measured, measured
from robustfl.reports.benchmark.drawing import TOP, pareto_svg
from robustfl.reports.benchmark.front import _sure
from robustfl.reports.benchmark.method import About
from robustfl.reports.benchmark.tier import changed_words
from robustfl.reports.benchmark.writing import MARK, Shown, write_benchmark
from robustfl.reports.published import publish, read_board, write_board

BOARDS = Path(__file__).parents[2] / "boards"
BOARD = next(BOARDS.glob("bench-p.json*"))
"""The smallest of the committed boards; reading that of tier d takes half a minute."""
TIERS = {"d": "digits", "m": "MNIST", "p": "propagation"}
STRENGTH = {"mean": 0.1, "median": 0.8, "nnm+median": 0.7, "foolsgold": 0.5}
ROBUST = {"mean": 0.0, "median": 0.2, "nnm+median": 0.4, "foolsgold": 0.3}
KNOWS = {"nnm+median": "f declared"}
METHODS: dict[str, Any] = {"algorithm": {"name": "dsgd"}, "objective": {"name": "ce"}}


def cell(defense: str, norm: str, attack: str, f: int, partition: str, seed: int, robust: bool) -> CellResult:
    told: dict[str, Any] = {
        "defense": defense, "norm": norm, "attack": attack, "f": f, "f_declared": f, "partition": partition,
        "seed": seed, "scope": "both", "schedule": "constant(lr=0.1)", "rounds": 30, "clients": 20,
    }  # fmt: skip
    if defense == "foolsgold" and norm == "naive-bn":
        made = record(status="refused", reason="on statistics, foolsgold cannot be", **told)
    elif defense == "mean" and attack == "sf" and f == 4:
        made = record(status="diverged", reason="the model became non-finite", round=7, **told)
    else:
        sa = 0.95 if attack == "none" else STRENGTH[defense] - 0.01 * f - 0.01 * seed - 0.1 * (attack == "sf")
        ra = {"autoattack(eps=0.1)": max(0.0, ROBUST[defense] - 0.01 * seed)} if robust else {}
        made = record(sa=max(sa, 0.0), ra=ra, seconds_per_round=0.01 * len(defense), **told)
    steps = [{"name": step} for step in defense.split("+")]
    methods = {**METHODS, "defense": steps, "norm": {"name": norm}, "attack": {"name": attack}}
    certificates = {**made.certificates, "statistics": 160 * (norm == "naive-bn"), "traffic": {"mebibytes": 75.0}}
    return made.model_copy(update={"cell": {**made.cell, "methods": methods}, "certificates": certificates})


def searches() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for defense, norm in itertools.product(STRENGTH, ("naive-bn", "gn")):
        settings = {"defense": defense, "norm": norm, "algorithm": "dsgd"}
        tried = [
            {**settings, "schedule": f"constant(lr={lr})", "validation": {"sf": v}, "worst": v}
            for lr, v in ((0.05, 0.2), (0.1, 0.5))
        ]
        entry = {"knowledge": KNOWS.get(defense, "none"), "chosen": 1, "search": tried}
        found[f"{defense} · {norm} · dsgd"] = entry
    return found


def made_up(
    tier: str = "m", *, robust: bool = True, lower: float = 0.0, propagated: bool = False, **facts: Any
) -> Measured:
    """A board with two f, two partitions, two norms and four defenses, of which one is refused and one diverges.

    With ``propagated`` every defense comes with a propagation of its own.
    """
    cells = [
        cell(defense, norm, attack, f, partition, seed, robust)
        for defense, norm, attack, f, partition, seed in itertools.product(
            STRENGTH, ("naive-bn", "gn"), ("none", "sf", "zero"), (2, 4), ("gamma(gamma=0.5)", "iid"), (0, 1, 2)
        )
    ]
    for k, one in enumerate(cells):
        if propagated:
            settings = {**one.labels, "propagation": f"fedrbn+{one.labels['defense']}"}
            cells[k] = one = one.model_copy(update={"labels": settings, "cell": {**one.cell, "cell": settings}})
        if one.metrics is not None:
            cells[k] = one.model_copy(update={"metrics": one.metrics.model_copy(update={"sa": one.metrics.sa - lower})})
    said = {
        "tier": tier, "title": TIERS[tier], "version": RULES.version, "changed": [], "autobyz": VERSION, "budget": 2,
        "tuning": {"attack": ["sf"], "seed": 1000}, "contestants": searches(), **facts,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, ("sf", "zero"))
        made = publish(cells, name=f"bench-{tier}", protocol={"autobyz": {"version": VERSION}, "benchmark": said})
        return measured(made, made.records())


def about(kind: str, name: str) -> About | None:
    return None if name == "foolsgold" else About("It does.\n\n    y = x", "@wu2018group", {"version": "1"})


@pytest.fixture(scope="module")
def both() -> tuple[Measured, Measured]:
    return made_up("m"), made_up("p", robust=False, changed=["rounds=30"])


def written(folder: Path, *boards: Measured, **more: Any) -> Mapping[str, str]:
    files = write_benchmark([*map(Shown, boards)], folder, tiers=TIERS, about=about, **more)
    assert files[0] == folder / "index.md"
    return {
        f.relative_to(folder).as_posix(): f.read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")
        for f in files
    }


@pytest.fixture(scope="module")
def pages(both: tuple[Measured, Measured], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    return written(tmp_path_factory.mktemp("site"), *both)


def line(page: str, start: str) -> str:
    return next(text for text in page.splitlines() if text.startswith(start))


def test_the_front_page_answers_with_the_first_that_has_batch_statistics(pages: Mapping[str, str]) -> None:
    """The median has the highest SA and nnm+median the highest RA, both pairs are shown; seeds 0-2, f 2 and 4."""
    front = pages["index.md"]
    answer = line(front, "| [MNIST](m.md), f = 2 and 4 of 20 clients, γ = 0.5 and iid |")
    assert "**[median · naive-bn](m/median-naive-bn-" in answer
    # per seed: 0.8 - 0.03 (mean over f) - 0.01 * seed - 0.1
    assert "| 66.0 % (65.0–67.0) | 95.0 % | 19.0 % (18.0–20.0) | 1.5 × mean |" in answer
    assert re.search(r"rank 1[–\d]* of 8; not told from \d others?\b", answer)  # nothing is told by three seeds
    first_by_ra = line(front, "| naive-bn | [nnm+median](m/nnm-median-naive-bn-")
    assert "(first by RA)" in first_by_ra
    assert "39.0 % (38.0–40.0)" in first_by_ra
    lost = line(front, "Norms with batch statistics: `naive-bn`.")
    assert "(diverged 6/12)" in lost
    assert re.search(r"\[foolsgold · naive-bn\]\([^)]*\) \(refused\)", lost)
    assert "f = 2 and 4 of 20 clients, γ = 0.5 and iid, 30 rounds, 3 seeds, RA by autoattack(eps=0.1)." in front
    assert "| d | digits | – | not run yet |" in front
    assert (
        "| [p](p.md) | propagation (not the whole protocol) | 8 | [bench-p.json](boards/bench-p.json), digest" in front
    )
    assert "not measured" in line(front, "| [propagation](p.md), f = 2 and 4 of 20 clients, γ = 0.5 and iid |")
    assert "Only a part of the protocol has run: propagation." in front
    assert "@software{robustfl," in front


def test_rows_that_a_careful_test_does_not_tell_apart_are_near_only_if_their_intervals_meet() -> None:
    board = made_up("m")
    first, *others = [r for r in board.rows if r.worst.is_number]
    near, apart = board.rivals(first)
    assert {r.labels for r in (*near, *apart)} == set(board.alike[first.labels])
    low, _ = first.worst.interval or first.worst.seeds or (0, 0)
    far = [r for r in others if (r.worst.interval or r.worst.seeds or (0, 0))[1] < low]
    assert far
    vars(board)["alike"] = {first.labels: tuple(r.labels for r in others)}
    near, apart = board.rivals(first)
    assert apart == far
    assert len(near) == len(others) - len(far)


def test_times_are_relative_to_the_mean_with_the_same_norm() -> None:
    board = made_up("m")
    times = {("mean", "gn"): 0.02, ("mean", "naive-bn"): 0.05, ("median", "gn"): 0.03, ("median", "naive-bn"): 0.1}
    who = [tuple(board.of(r, name) for name in ("defense", "norm")) for r in board.rows]
    rows = [replace(r, seconds_per_round=times.get(w)) for r, w in zip(board.rows, who, strict=True)]
    vars(board)["rows"] = tuple(rows)
    found = {w: board.relative(r) for w, r in zip(who, rows, strict=True) if w in times}
    assert found == {
        ("mean", "gn"): "1.0", ("mean", "naive-bn"): "1.0", ("median", "gn"): "1.5", ("median", "naive-bn"): "2.0"
    }  # fmt: skip
    vars(board)["yardstick"] = "fastest"
    vars(board)["rows"] = tuple(r for w, r in zip(who, rows, strict=True) if w[0] == "median" or w[1] == "gn")
    slow = next(r for w, r in zip(who, rows, strict=True) if w == ("median", "naive-bn"))
    assert board.relative(slow) == "1.0"


def test_a_row_that_is_but_a_bound_is_on_no_front() -> None:
    board = made_up("m")
    best, *others = board.rows
    bound = replace(best, worst=replace(best.worst, bound=True), seconds_per_round=1e-6)
    vars(board)["rows"] = (bound, *others)
    assert bound not in board.timed
    assert all(row.worst.exact for row in board.pareto)
    fronts = [(row.seconds_per_round or 0.0, row.worst.mean or 0.0) for row in board.pareto]
    assert fronts == sorted(fronts)  # who is slower is better
    for row in board.timed:
        time, sa = row.seconds_per_round or 0.0, row.worst.mean or 0.0
        beaten = any(t <= time and a >= sa and (t, a) != (time, sa) for t, a in fronts)
        assert beaten != (row in board.pareto)


def test_a_single_contestant_is_told_from_nobody() -> None:
    board = made_up("m")
    row = board.rows[0]
    vars(board)["rows"] = (row,)
    vars(board)["alike"] = {row.labels: ()}
    assert _sure(board, row).endswith("nothing to compare with")


def test_of_contestants_with_equal_ra_the_first_by_sa_is_first(tmp_path: Path) -> None:
    board = made_up("m")
    one = next(r.worst for r in board.robust_rows.values() if r.worst.is_number)
    vars(board)["robust_rows"] = {labels: replace(r, worst=one) for labels, r in board.robust_rows.items()}
    assert "(first by RA)" not in written(tmp_path, board)["index.md"]


def test_nobody_is_first_by_ra_where_it_tells_no_rows_apart(tmp_path: Path) -> None:
    board = made_up("m")
    assert any(row.ranks != (1, 5) for row in board.robust_rows.values() if row.worst.exact)
    vars(board)["robust_rows"] = {
        labels: replace(row, ranks=(1, 5)) if row.worst.exact else row for labels, row in board.robust_rows.items()
    }
    assert "(first by RA)" not in written(tmp_path, board)["index.md"]


def test_a_tier_shows_every_task_and_ranks_last_who_has_no_number(pages: Mapping[str, str]) -> None:
    page = pages["m.md"]
    table = [text for text in page.split("## Task by task")[0].splitlines() if "](m/" in text]
    assert [re.findall(r"\[(.*?)\]", text)[0] for text in table[-3:]] == [
        "mean · gn", "mean · naive-bn", "foolsgold · naive-bn",
    ]  # fmt: skip
    assert len(table) == 8
    assert all(text.endswith(" 2.50 |") for text in table[:5])  # 75 MiB in 30 rounds
    tasks = page.split("## Task by task")[1].split("## Accuracy")[0]
    assert "| contestant | γ = 0.5 · f = 2 | γ = 0.5 · f = 4 | iid · f = 2 | iid · f = 4 |" in tasks
    assert "67.0 / 19.0 | 65.0 / 19.0 |" in line(tasks, "| [median · gn]")
    assert "diverged / diverged" in line(tasks, "| [mean · gn]")
    assert "refused / refused" in line(tasks, "| [foolsgold · naive-bn]")
    assert "SA under AutoByz / RA" not in pages["p.md"]


def test_a_contestant_shows_every_attack_of_every_task_its_search_and_what_it_is_told(
    pages: Mapping[str, str],
) -> None:
    page = next(text for name, text in pages.items() if name.startswith("m/nnm-median-gn-"))
    assert page.count("### ") == 5  # the mean over tasks, and four tasks
    for text in ("| none | 95.0", "| **AutoByz** | 57.0", "| sf (member) |", "| zero (member) |"):
        assert text in page
    assert "- is told: f declared" in page
    assert "| **nnm+median lr=0.1** | 50.0 | 50.0 |" in page
    assert "[defense `nnm`](../methods/defense-nnm.md), [defense `median`](../methods/defense-median.md)" in page
    assert "- worst member: sf" in page


def test_where_nothing_could_be_chosen_no_configuration_is_marked_as_chosen(tmp_path: Path) -> None:
    found = searches()
    lost = found["median · gn · dsgd"]
    tried = [{**one, "validation": {"sf": None}, "worst": None} for one in lost["search"]]
    lost |= {"chosen": 1, "search": tried, "reason": "median: f=2 needs more clients"}
    made = written(tmp_path, made_up("m", contestants=found))
    page = next(text for name, text in made.items() if name.startswith("m/median-gn-"))
    assert "| median lr=0.1 | – | – |" in page
    assert "Nothing could be chosen, since none has a number under every attack" in page
    assert "- learning rate: 0.1 (the first tried: nothing could be chosen)" in page
    other = next(text for name, text in made.items() if name.startswith("m/mean-gn-"))
    assert "| **mean lr=0.1** |" in other
    assert "; lr=0.1: – (median: f=2 needs more clients)" in line(made["m.md"], "| median · gn · dsgd |")


def test_where_propagations_compete_nothing_is_said_of_what_their_server_is_told(
    pages: Mapping[str, str], tmp_path: Path
) -> None:
    """The searches say what the *defense* is told; a propagation's own rule is told f whatever that is."""
    other = written(tmp_path, made_up("p", propagated=True))
    assert "is told" in pages["p.md"]
    assert not any("is told" in text for name, text in other.items() if name.startswith("p"))


def test_numbers_and_legend_of_the_drawing_do_not_lie_on_each_other(both: tuple[Measured, Measured]) -> None:
    found = both[0]
    rows = [r for r in found.rows if r.worst.is_number]
    near = [replace(r, seconds_per_round=0.05 + 1e-5 * k) for k, r in enumerate(rows)]
    board = measured(found.published, found.records)
    vars(board)["rows"] = tuple(near)
    vars(board)["pareto"] = tuple(near)
    drawn = pareto_svg(board)
    numbers = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*font-weight="bold"', drawn)
    assert len(numbers) == len(near) > 2
    spots = [(float(x), float(y)) for x, y in numbers]
    assert all(abs(a - c) > 8 or abs(b - d) > 10 for (a, b), (c, d) in itertools.combinations(spots, 2))
    legend = re.findall(r'y="([\d.]+)"[^>]*>(?:naive-bn|gn)</text>', drawn)
    assert all(float(y) < TOP for y in legend)
    assert len(legend) == 2


def test_a_method_shows_its_paper_and_its_results_on_every_board(pages: Mapping[str, str]) -> None:
    page = pages["methods/defense-median.md"]
    assert "    y = x" in page
    assert "@inproceedings{wu2018group," in page
    for tier in ("m", "p"):
        assert sum(text.startswith(f"| [{tier}](../{tier}.md)") for text in page.splitlines()) == 4  # alone, after nnm
    attack = pages["methods/attack-sf.md"]
    assert "| sf | [median · gn](../m/median-gn-" in attack
    assert "| 12/12 |" in line(attack, "| [m](../m.md) | sf | [median · gn]")
    assert "not installed where this page was written" in pages["methods/defense-foolsgold.md"]


def test_every_link_of_the_site_leads_somewhere(pages: Mapping[str, str]) -> None:
    by_hand = {"protocol.md", "autobyz.md", "study.md", "study-1.md", "heldout.md"}
    for name, text in pages.items():
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            path = os.path.normpath(os.path.join(os.path.dirname(name), target))
            assert path in {*pages, *by_hand} or path.startswith(".."), f"{name}: {target}"


def test_a_later_board_takes_the_place_beside_what_people_say_and_own(both: Any, tmp_path: Path) -> None:
    written(tmp_path, *both)
    (tmp_path / "methods" / "mine.md").write_text("# Mine\n")
    (tmp_path / "methods" / "defense-gone.md").write_text(MARK + "# Gone\n")
    (tmp_path / "interpretation.md").write_text("People say: *hm*.\n")
    (tmp_path / "interpretation-m.md").write_text("On m: *oh*.\n")
    later = made_up("m", lower=0.05)
    pages = written(tmp_path, later, both[1], left_out=["old.json, tier m: protocol version 0"])
    assert "People say: *hm*." in pages["index.md"]
    assert [name for name, text in pages.items() if "## What it says\n\nOn m: *oh*." in text] == ["m.md"]
    assert "- Not shown: old.json, tier m: protocol version 0" in pages["index.md"]
    (row,) = [text for text in pages["m.md"].split("## Task by task")[0].splitlines() if "[foolsgold · gn](m/" in text]
    assert "| 31.0 (" in row  # 36.0 before
    assert (tmp_path / "methods" / "mine.md").is_file()
    assert not (tmp_path / "methods" / "defense-gone.md").exists()
    with pytest.raises(UsageError, match="two boards of tier m that changed the protocol alike"):
        written(tmp_path, later, both[0])
    assert (
        written(tmp_path, later, both[1], left_out=["old.json, tier m: protocol version 0"]) == pages
    )  # the same bytes


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_the_site_offers_a_copy_of_the_file_that_a_board_was_read_from(both: Any, tmp_path: Path, suffix: str) -> None:
    source = tmp_path / f"mine{suffix}"
    source.write_bytes(b"as it was read")
    written_files = write_benchmark([Shown(both[0], source)], tmp_path / "site", tiers=TIERS, about=about)
    assert written_files[-1] == tmp_path / "site" / "boards" / f"bench-m{suffix}"
    assert written_files[-1].read_bytes() == b"as it was read"
    link = f"[bench-m{suffix}](boards/bench-m{suffix}), digest `{both[0].published.digest[:12]}`"
    for name in ("index.md", "m.md"):
        assert link in (tmp_path / "site" / name).read_text(encoding="utf-8")


def test_boards_of_one_tier_that_changed_the_protocol_differently_stand_side_by_side(tmp_path: Path) -> None:
    short = made_up("m", changed=["rounds=30"], lower=0.2)
    pages = written(tmp_path, made_up("m"), short, made_up("p", propagated=True))
    front = pages["index.md"]
    for name in ("m", "m-2"):
        where = f"[MNIST]({name}.md), f = 2 and 4 of 20 clients, γ = 0.5 and iid"
        assert line(front, f"| {where} | **[median · naive-bn]({name}/median-naive-bn-")
    assert "## Tier M: MNIST" in front
    assert "## Tier M, board 2: MNIST" in front
    assert line(front, "| [m-2](m-2.md) | MNIST (not the whole protocol) | 8 | [bench-m-2.json](boards/bench-m-2.json)")
    second = next(text for name, text in pages.items() if name.startswith("m-2/median-gn-"))
    assert "(../m-2.md)" in second
    assert "(../boards/bench-m-2.json)" in second
    assert "46.0" in second
    assert "66.0" in next(text for name, text in pages.items() if name.startswith("m/median-gn-"))
    method = pages["methods/defense-median.md"]
    assert method.count("| [m](../m.md)") == method.count("| [m-2](../m-2.md)") == 4
    written(tmp_path, made_up("m", lower=0.05))
    assert not list(tmp_path.glob("m-2*.md"))
    assert not list((tmp_path / "m-2").glob("*.md"))


def test_a_tier_of_an_older_protocol_is_shown_as_such(tmp_path: Path) -> None:
    front = written(tmp_path, made_up("m"), made_up("p", version=RULES.version - 1, autobyz=7))["index.md"]
    assert line(front, "| [propagation](p.md), f = 2 and 4 of 20 clients, γ = 0.5 and iid, an older protocol |")
    assert line(front, "| [MNIST](m.md), f = 2 and 4 of 20 clients, γ = 0.5 and iid |")
    assert front.count("later attacks may lower") == 1
    assert f"**Protocol version {RULES.version - 1}**, which counts AutoByz version 7: later attacks may lower" in front


def test_what_a_board_says_it_changed_is_text_wherever_it_is_shown() -> None:
    changed = ["init=`<script>alert(1)</script> {: onclick=x }`"]
    text = r"<code>init=\`&lt;script&gt;alert(1)&lt;/script&gt; \{: onclick=x \}\`</code>"
    assert changed_words({"changed": changed}) == f"**Not the whole protocol**: this run changed {text}. "


# --- what the command refuses --------------------------------------------------------------------------------


def changed(folder: Path, **facts: Any) -> Path:
    """The committed board with other words on the benchmark, under a digest of its own."""
    board, _ = read_board(BOARD)
    protocol = json.loads(json.dumps(board.protocol))
    protocol["benchmark"] |= facts
    return write_board(replace(board, protocol=protocol), folder / "other.json")


def test_a_board_of_another_version_is_named_and_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = changed(tmp_path, version=0)
    page = tmp_path / "pages"
    assert invoke(["bench", "site", "--from", str(other), "--page", str(page)]) == 2
    words = "other.json, tier p: protocol version 0 is not known here; known: 1, 2, 3"
    assert words in capsys.readouterr().err.replace("\n", " ")
    assert not page.exists()
    assert invoke(["bench", "site", "--from", str(BOARD), "--from", str(other), "--page", str(page)]) == 0
    assert words in capsys.readouterr().err.replace("\n", " ")
    assert f"- Not shown: {words}" in (page / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bench", "sitee"], "did you mean 'site'"),
        (["bench", "site"], "bench site needs --page FOLDER and --from BOARD, once per board"),
        (["bench", "site", "--set", "f=1", "--page", "p"], "bench site takes no --set"),
        (["bench", "d", "--from", "a.json", "--from", "b.json"], "bench d takes one --from, not 2"),
        (["bench", "d", "--from", "a.json", "--list"], "bench d --from takes no --list"),
        (["bench", "d", "--from", "a.json", "--board", "b.json"], "bench d --from takes no --board"),
        (["bench", "d", "--from", "a.json", "--set", "f=1"], "bench d --from takes no --set"),
        (["bench", "d", "--from", "a.json", "--contestant", "mean"], "bench d --from takes no --contestant"),
        (["bench", "d", "--list", "--board", "b.json"], "bench d --list takes no --board"),
        (["bench", "d", "--list", "--page", "p"], "bench d --list takes no --page"),
        (["bench", "site", "--list"], "bench site takes no --list"),
        (["bench", "site", "--board", "b.json"], "bench site takes no --board"),
        (["bench", "study", "--plugin", "a.py"], "bench study takes no --plugin"),
        (["bench", "heldout", "--contestant", "mean"], "bench heldout takes no --contestant"),
        (["bench", "heldout", "--from", "a.csv", "--from", "b.csv"], "bench heldout takes one --from, not 2"),
        (["bench", "m", "--from", str(BOARD)], "no board of tier m of the benchmark; its tier: p"),
        (
            ["bench", "site", "--page", "p", "--from", str(next(BOARDS.glob("reproduction-wsm.json*")))],
            "no board of the benchmark",
        ),
    ],
)
def test_what_the_site_cannot_be_made_of_ends_with_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(arguments) == 2
    assert said in re.sub(r"\s+", " ", capsys.readouterr().err)


def test_a_board_that_leaves_its_protocol_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = changed(tmp_path, changed=[])
    assert invoke(["bench", "site", "--from", str(other), "--page", str(tmp_path / "pages")]) == 2
    assert "it does not follow its protocol: it lacks" in re.sub(r"\s+", " ", capsys.readouterr().err)


def test_a_board_that_says_so_counts_the_last_rounds() -> None:
    said = {"statistic": "tail"}
    final, tail = (made_up(**facts) for facts in ({}, said))
    assert not any("last 1 round" in note for note in final.board.notes)
    assert any("last 1 round" in note for note in tail.board.notes)
