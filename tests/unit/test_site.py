"""The site: what its pages say, that they are safe, self-contained and always the same bytes."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fake_store import grid, record, stored

from robustfl.records import CellResult
from robustfl.reports import rank_board, report
from robustfl.reports.frame import frame
from robustfl.reports.site.pages import unreliable
from robustfl.reports.site.writing import write_site

HOSTILE = '<script>alert("x")</script> \'" & 🦊 ' + "long" * 50


class Page(HTMLParser):
    """The text, tags and links of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text, self.tags, self.links = "", set[str](), list[str]()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.text += " " + " ".join(data.split())


def site(folder: Path, *records: CellResult) -> Path:
    """The site of these records, in a new folder."""
    write_site(rank_board(frame(records)), records, folder)
    return folder


def table(page: Path) -> list[list[str]]:
    """The first table's rows as texts, headings first."""
    body = re.search(r"<table class=\"listing\">.*?</table>", page.read_text(encoding="utf-8"), re.S)
    assert body is not None
    rows = re.findall(r"<tr.*?</tr>", body[0], re.S)
    cells = [re.findall(r"<t[hd][ >].*?</t[hd]>", row, re.S) for row in rows]
    return [[" ".join(re.sub(r"<[^>]*>", "", c).split()) for c in row] for row in cells]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return site(tmp_path_factory.mktemp("site"), *grid(points=3))


def test_every_link_leads_to_a_file_of_the_site(whole: Path) -> None:
    pages = sorted(whole.rglob("*.html"))
    assert len(pages) == 6 + 15
    for page in pages:
        for link in Page(page).links:
            assert link == "data:," or link.startswith("#") or (page.parent / link).is_file(), f"{page}: {link}"


def test_nothing_is_fetched_from_elsewhere(whole: Path) -> None:
    for file in whole.rglob("*"):
        if file.suffix in (".html", ".css", ".js"):
            text = file.read_text(encoding="utf-8")
            assert not re.search(r"(?:src|href)=\"(?:https?:)?//|@import|url\(|fetch\(|XMLHttpRequest", text), file


def test_the_leaderboard_shows_clean_and_worst_case_and_cost_side_by_side(tmp_path: Path) -> None:
    cells = [record(defense="median", attack=a, sa=v, ra={"pgd": v / 2}) for a, v in (("none", 0.9), ("sf", 0.6))]
    head, row = table(site(tmp_path, *cells) / "index.html")
    shown = dict(zip(head, row, strict=True))
    assert shown["#"] == "1"
    assert shown["defense"] == "median"
    assert (shown["SA, no attack"], shown["SA, attacked"], shown["RA pgd, attacked"]) == ("90.0", "60.0", "30.0")
    assert (shown["seeds"], shown["s/round"], shown["peak MiB"]) == ("1", "0.010", "200")


def test_all_results_show_sa_and_ra_of_each_attack_with_intervals(tmp_path: Path) -> None:
    cells = [record(attack="sf", seed=i, sa=v, ra={"pgd": 0.25}) for i, v in enumerate((0.8, 0.9))]
    head, row = table(site(tmp_path, *cells) / "results.html")
    shown = dict(zip(head, row, strict=True))
    assert (shown["attack"], shown["SA"], shown["RA pgd"]) == ("sf", "85.0 (80.0–90.0)", "25.0 (25.0–25.0)")
    assert 'title="seed 0: 80.0, seed 1: 90.0; test set: ±3.7"' in (tmp_path / "results.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("refused", "nnm: too few clients for f=3"),
        ("diverged", "an update became non-finite in round 7"),
        ("failed", "ValueError: boom"),
    ],
)
def test_a_state_has_its_reason_on_the_badge_and_in_text(tmp_path: Path, status: str, reason: str) -> None:
    round_ = 7 if status == "diverged" else None
    made = site(tmp_path, record(attack="none"), record(status=status, reason=reason, round=round_))
    for name in ("index", "results"):
        source = (made / f"{name}.html").read_text(encoding="utf-8")
        badge = re.search(rf'<span class="badge {status}" title="([^"]*)">', source)
        assert badge is not None
        assert reason in badge[1]
        assert reason in Page(made / f"{name}.html").text


def test_an_attack_without_effect_has_a_badge_with_what_was_measured(tmp_path: Path) -> None:
    quiet = record(attack="alie", sa=0.5, certificates={"no_effect": True})
    head, *rows = table(
        site(tmp_path, record(attack="none", sa=0.5), record(attack="sf", sa=0.4), quiet) / "results.html"
    )
    shown = {row[head.index("attack")]: row[head.index("SA")] for row in rows}
    assert shown == {"none": "50.0", "sf": "40.0", "alie": "no effect"}
    assert "it is ignored in the worst case; seed 0: 50.0" in (tmp_path / "results.html").read_text("utf-8")


def test_the_first_page_holds_one_ranking_per_task_the_mean_first(tmp_path: Path) -> None:
    cells = [record(defense=d, f=f, f_declared=f, sa=v) for d, f, v in
             (("mean", 1, 0.9), ("mean", 3, 0.1), ("median", 1, 0.8), ("median", 3, 0.7))]  # fmt: skip
    head, *rows = table(site(tmp_path, *cells) / "index.html")
    assert head.count("#") == 1
    by_task: dict[str, list[str]] = {}
    for row in rows:
        by_task.setdefault(row[head.index("task")], []).append(row[1])
    assert by_task == {"overall": ["median", "mean"], "f = 1": ["mean", "median"], "f = 3": ["median", "mean"]}


def test_an_unreliable_number_stays_a_number_and_says_why(tmp_path: Path) -> None:
    why = "gradients may be masked: square wins"
    doubtful = record(sa=0.6, ra={"pgd": 0.5}, certificates={"unreliable": why})
    head, row = table(site(tmp_path, doubtful) / "results.html")
    shown = dict(zip(head, row, strict=True))
    assert shown["RA pgd"] == "50.0"
    assert shown["state and reason"] == f"unreliable {why}"


@pytest.mark.parametrize(
    ("certificates", "why"),
    [
        ({"warnings": ["gradients may be masked: square wins", "clients run one after another"]},
         "gradients may be masked: square wins"),
        ({"unreliable": ["a", "b"], "warnings": ["gradients may be masked: c"]}, "a; b; gradients may be masked: c"),
        ({"warnings": ["clients run one after another"]}, ""),
    ],
)  # fmt: skip
def test_a_warning_of_masked_gradients_makes_a_number_unreliable(certificates: dict[str, Any], why: str) -> None:
    assert unreliable(record(certificates=certificates)) == why


def test_cells_not_run_and_unreadable_files_are_marked_rows(tmp_path: Path) -> None:
    store = stored(tmp_path / "s", [record(attack="none"), record(attack="sf", sa=0.5)])
    gone = record(attack="foe")
    store.describe({"name": "s", "cells": {gone.key: gone.labels}})
    (store.folder / "cells" / "broken.json").write_text("{", encoding="utf-8")
    report(store.folder, tmp_path / "r", figures=False, site=tmp_path / "site")
    states = {row[0]: row[-1] for row in table(tmp_path / "site" / "results.html")}
    assert states["unreadable"].startswith("not counted, broken.json: ")
    assert "not run planned, and not run yet" in Page(tmp_path / "site" / "results.html").text


def test_a_store_of_refused_cells_has_a_site(tmp_path: Path) -> None:
    made = site(tmp_path, *(record(defense=d, status="refused", reason="no") for d in ("mean", "median")))
    assert [row[0] for row in table(made / "index.html")[1:]] == ["–", "–"]
    assert "No paper is known" in Page(next((made / "contestants").iterdir())).text


def test_hostile_names_are_text_on_every_page(tmp_path: Path) -> None:
    cells = [record(defense=d, attack=a, norm=HOSTILE, partition=p, status=s, reason=HOSTILE)
             for d in ("mean", HOSTILE) for a in ("none", HOSTILE) for p in ("iid", HOSTILE)
             for s in (("failed",) if d == a == HOSTILE else ("done",))]  # fmt: skip
    board = rank_board(frame(cells))
    write_site(board, cells, tmp_path, description=HOSTILE, papers={f"defense {HOSTILE}": HOSTILE})
    pages = sorted(tmp_path.rglob("*.html"))
    assert all(len(p.name) < 100 for p in pages)
    for path in pages:
        assert "<script>alert" not in path.read_text(encoding="utf-8")
        page = Page(path)
        if path.stem not in ("statistics", "plots"):  # one seed, nothing to compare; pictures
            assert '<script>alert("x")</script>' in page.text
        assert page.tags <= {
            "html", "head", "meta", "title", "link", "script", "body", "header", "nav", "main", "footer", "section",
            "h1", "h2", "h3", "a", "p", "div", "span", "sup", "small", "strong", "i", "code", "pre", "button", "label",
            "select", "option", "input", "details", "summary", "ul", "ol", "li", "dl", "dt", "dd", "table", "caption",
            "thead", "tbody", "tr", "th", "td", "img",
        }  # fmt: skip


def test_names_that_differ_only_in_signs_have_pages_of_their_own(tmp_path: Path) -> None:
    made = site(tmp_path, *(record(defense=d) for d in ("a+b", "a-b", "A b", "…", "·")))
    assert len(list((made / "contestants").glob("*.html"))) == 5


def test_a_thousand_cells_make_less_than_five_megabytes(tmp_path: Path) -> None:
    cells = [r for p in range(5) for r in grid(partitions=[f"gamma(gamma={p / 4})"], seeds=4, points=21)]
    assert len(cells) >= 1000
    made = site(tmp_path, *cells)
    assert sum(p.stat().st_size for p in made.rglob("*") if p.is_file()) < 5e6
