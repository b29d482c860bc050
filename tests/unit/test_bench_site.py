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
from robustfl.reports.benchmark.pages import Shown, changed_words, write_benchmark
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


@pytest.fixture(scope="module")
def both() -> tuple[Measured, Measured]:
    return made_up("m"), made_up("p", robust=False, changed=["rounds=30"])


def written(folder: Path, *boards: Measured, **more: Any) -> Mapping[str, str]:
    files = write_benchmark([*map(Shown, boards)], folder, version=RULES.version, tiers=TIERS, **more)
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


def test_the_front_page_has_the_first_rows_with_bound_loss_time_and_test(pages: Mapping[str, str]) -> None:
    """Per seed the median has 0.8 - 0.03 (mean over f) - 0.01 seed - 0.1; the mean without attack 0.95."""
    front = pages["index.md"]
    shown = front.split("## [Tier M: MNIST](m.md)")[1].split("## ")[0]
    assert "f = 2 and 4 of 20 clients, γ = 0.5 and iid, 30 rounds, 3 seeds, RA by autoattack(eps=0.1). 8 rows." in shown
    first = line(shown, "| median · gn |")
    assert re.match(r"\| median · gn \| 66.0 % \(65.0–67.0\) \| 6[45]\.\d \| 29.0 \| 19.0 % \(18.0–20.0\) \|", first)
    assert first.endswith("| 1.5 × mean, 60 ms | first |")
    assert [text.split(" | ")[0] for text in shown.splitlines() if " · gn |" in text or " · naive-bn |" in text] == [
        f"| {name}" for name in (
            "median · gn", "median · naive-bn", "nnm+median · gn", "nnm+median · naive-bn", "foolsgold · gn"
        )
    ]  # fmt: skip
    assert re.search(r"\| (0\.\d+|1) \|$", line(shown, "| median · naive-bn |"))
    assert "| d | digits | – | not run yet |" in front
    assert "**Not the whole protocol**: this run changed" in front.split("(p.md)")[1]
    assert "@software{robustfl," in front
    assert "Archive" not in front


def test_times_and_losses_are_relative_to_the_mean_with_the_same_norm() -> None:
    board = made_up("m")
    times = {("mean", "gn"): 0.02, ("mean", "naive-bn"): 0.05, ("median", "gn"): 0.03, ("median", "naive-bn"): 0.1}
    who = [tuple(board.of(r, name) for name in ("defense", "norm")) for r in board.rows]
    rows = [replace(r, seconds_per_round=times.get(w)) for r, w in zip(board.rows, who, strict=True)]
    vars(board)["rows"] = tuple(rows)
    found = {w: board.cost(r) for w, r in zip(who, rows, strict=True)}
    assert [found["median", norm] for norm in ("gn", "naive-bn")] == ["1.5 × mean, 30 ms", "2.0 × mean, 100 ms"]
    assert found["foolsgold", "gn"] == "–"
    vars(board)["rows"] = tuple(r for w, r in zip(who, rows, strict=True) if w[0] != "mean")
    assert [board.cost(board.rows[0]), board.lost(board.rows[0])] == ["30 ms", "–"]


def test_a_row_that_is_but_a_bound_is_on_no_front() -> None:
    board = made_up("m")
    best, *others = board.rows
    bound = replace(best, worst=replace(best.worst, bound=True), seconds_per_round=1e-6)
    vars(board)["rows"] = (bound, *others)
    assert all(row.worst.exact for row in board.pareto)
    fronts = [(row.seconds_per_round or 0.0, row.worst.mean or 0.0) for row in board.pareto]
    assert fronts == sorted(fronts)  # who is slower is better
    for row in (r for r in others if r.worst.exact and r.seconds_per_round):
        time, sa = row.seconds_per_round or 0.0, row.worst.mean or 0.0
        beaten = any(t <= time and a >= sa and (t, a) != (time, sa) for t, a in fronts)
        assert beaten != (row in board.pareto)


def test_a_tier_shows_every_task_and_ranks_last_who_has_no_number(pages: Mapping[str, str]) -> None:
    page = pages["m.md"]
    table = [t for t in page.split("## Task by task")[0].splitlines() if " · gn |" in t or " · naive-bn |" in t]
    assert [text.split(" | ")[1] for text in table[-3:]] == [
        "mean · gn", "mean · naive-bn", "foolsgold · naive-bn",
    ]  # fmt: skip
    assert len(table) == 8
    assert all(text.endswith(" 2.50 |") for text in table[:5])  # 75 MiB in 30 rounds
    tasks = page.split("## Task by task")[1].split("## Accuracy")[0]
    assert "| contestant | γ = 0.5 · f = 2 | γ = 0.5 · f = 4 | iid · f = 2 | iid · f = 4 |" in tasks
    assert "67.0 / 19.0 | 65.0 / 19.0 |" in line(tasks, "| median · gn |")
    assert "diverged / diverged" in line(tasks, "| mean · gn |")
    assert "refused / refused" in line(tasks, "| foolsgold · naive-bn |")
    assert "SA under AutoByz / RA" not in pages["p.md"]


def test_where_nothing_could_be_chosen_no_configuration_is_marked_as_chosen(tmp_path: Path) -> None:
    found = searches()
    lost = found["median · gn · dsgd"]
    tried = [{**one, "validation": {"sf": None}, "worst": None} for one in lost["search"]]
    lost |= {"chosen": 1, "search": tried, "reason": "median: f=2 needs more clients"}
    made = written(tmp_path, made_up("m", contestants=found))
    assert "; lr=0.1: – (median: f=2 needs more clients)" in line(made["m.md"], "| median · gn · dsgd |")


def test_where_propagations_compete_nothing_is_said_of_what_their_server_is_told(
    pages: Mapping[str, str], tmp_path: Path
) -> None:
    """The searches say what the *defense* is told; a propagation's own rule is told f whatever that is."""
    other = written(tmp_path, made_up("p", propagated=True))
    assert "is told" in pages["p.md"]
    assert not any("is told" in text for name, text in other.items() if name.startswith("p"))


def test_every_link_of_the_site_leads_somewhere(pages: Mapping[str, str]) -> None:
    by_hand = {"protocol.md", "autobyz.md", "study-3.md"}
    for name, text in pages.items():
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            path = os.path.normpath(os.path.join(os.path.dirname(name), target))
            assert path in {*pages, *by_hand} or path.startswith(".."), f"{name}: {target}"


def test_a_later_board_takes_the_place_beside_what_people_say_and_own(both: Any, tmp_path: Path) -> None:
    written(tmp_path, *both)
    (tmp_path / "interpretation.md").write_text("People say: *hm*.\n")
    (tmp_path / "interpretation-m.md").write_text("On m: *oh*.\n")
    later = made_up("m", lower=0.05)
    pages = written(tmp_path, later, both[1], left_out=["old.json, tier m: protocol version 0"])
    assert "People say: *hm*." in pages["index.md"]
    assert [name for name, text in pages.items() if "## What it says\n\nOn m: *oh*." in text] == ["m.md"]
    assert "- Not shown: old.json, tier m: protocol version 0" in pages["index.md"]
    (row,) = [text for text in pages["m.md"].split("## Task by task")[0].splitlines() if "| foolsgold · gn |" in text]
    assert "| 31.0 (" in row  # 36.0 before
    with pytest.raises(UsageError, match="two boards of tier m that changed the protocol alike"):
        written(tmp_path, later, both[0])
    assert (
        written(tmp_path, later, both[1], left_out=["old.json, tier m: protocol version 0"]) == pages
    )  # the same bytes


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_the_site_offers_a_copy_of_the_file_that_a_board_was_read_from(both: Any, tmp_path: Path, suffix: str) -> None:
    source = tmp_path / f"mine{suffix}"
    source.write_bytes(b"as it was read")
    written_files = write_benchmark([Shown(both[0], source)], tmp_path / "site", version=RULES.version, tiers=TIERS)
    assert written_files[-1] == tmp_path / "site" / "boards" / f"bench-m{suffix}"
    assert written_files[-1].read_bytes() == b"as it was read"
    link = f"[bench-m{suffix}](boards/bench-m{suffix}), digest `{both[0].published.digest[:12]}`"
    for name in ("index.md", "m.md"):
        assert link in (tmp_path / "site" / name).read_text(encoding="utf-8")


def test_boards_of_one_tier_that_changed_the_protocol_differently_stand_side_by_side(tmp_path: Path) -> None:
    short = made_up("m", changed=["rounds=30"], lower=0.2)
    pages = written(tmp_path, made_up("m"), short, made_up("p", propagated=True))
    front = pages["index.md"]
    assert "## [Tier M: MNIST](m.md)" in front
    assert "## [Tier M, board 2: MNIST](m-2.md)" in front
    assert line(front, "| [m-2](m-2.md) | MNIST | 8 | [bench-m-2.json](boards/bench-m-2.json)")
    for name, score in (("m", "66.0 ("), ("m-2", "46.0 (")):
        assert score in line(pages[f"{name}.md"], "| 1")


def test_a_tier_of_an_older_protocol_stands_in_the_archive_with_what_refuted_it(tmp_path: Path) -> None:
    old = {"version": RULES.version - 1, "autobyz": RULES.version - 1}
    front = written(tmp_path / "both", made_up("m"), made_up("p", **old))["index.md"]
    archive = front.split("## Archive")[1].split("## ")[0]
    assert line(archive, f"| [p](p.md) | propagation | {RULES.version - 1} | 8 | [bench-p.json](boards/bench-p.json)")
    assert "are known to be beaten" in archive
    assert "(p.md)" not in front.split("## Archive")[0]
    alone = written(tmp_path / "alone", made_up("p", **old))["index.md"]
    assert f"No board of protocol version {RULES.version} has been run yet." in alone


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
        (["bench", "study-3", "--plugin", "a.py"], "bench study-3 takes no --plugin"),
        (["bench", "study-3", "--contestant", "mean"], "bench study-3 takes no --contestant"),
        (["bench", "study-3", "--from", "a.csv", "--from", "b.csv"], "bench study-3 takes one --from, not 2"),
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
