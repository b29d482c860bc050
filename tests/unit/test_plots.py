"""Figures on demand: every kind, what it shows, and what is said where there is nothing to draw."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from fake_store import grid, record, stored
from matplotlib.text import Text

from robustfl.errors import UsageError
from robustfl.records import CellResult
from robustfl.reports.figures.clients import bn_pca_figures, forgetting_maps, statistics_of
from robustfl.reports.figures.curves import _seeds_of
from robustfl.reports.figures.layout import titled
from robustfl.reports.figures.plots import KINDS, caption_of, figures_of, plot
from robustfl.reports.figures.summaries import breakdown_figures, pareto_figures
from robustfl.reports.frame import frame
from robustfl.reports.ranking import rank_board

SIGNATURES = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}


def with_statistics(made: CellResult, **changed: Any) -> CellResult:
    """The record with a certificate as a run leaves it: four clients of two domains."""
    known: dict[str, Any] = {
        "points": [[-1.0, 0.1], [-0.9, 0.0], [1.0, 0.2], [0.9, -0.3]], "shares": [0.8, 0.1], "clients": [0, 1, 2, 3],
        "branches": ["clean"] * 4, "groups": ["mnist · AT", "mnist · ST", "usps · AT", "usps · ST"], "entries": 64,
    }  # fmt: skip
    told = {"bn_statistics": known | changed, "representations": known | changed}
    return made.model_copy(update={"certificates": {**made.certificates, **told}})


def forgot(made: CellResult) -> CellResult:
    square = [[0.0, 0.5], [0.25, 0.0]]
    facts = {"clients": [0, 1], "matrix": square, "after": square, "by_model": [0.5, 0.25], "by_dataset": [0.25, 0.5],
             "mean": 0.375}  # fmt: skip
    return made.model_copy(update={"certificates": {**made.certificates, "forgetting": facts}})


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that has data for every kind of figure."""
    folder = tmp_path_factory.mktemp("study")
    some = [
        forgot(with_statistics(r)) for r in grid(points=3)
        if r.labels["attack"] in ("none", "sf") and r.labels["norm"] != "gn" and "nnm+t" not in r.labels["defense"]
    ]  # fmt: skip
    stored(folder, some)
    return folder


@pytest.mark.filterwarnings("ignore:The set_bad function:PendingDeprecationWarning")  # seaborn's heatmap calls it
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn_into_the_named_file_or_numbered_ones(kind: str, study: Path, tmp_path: Path) -> None:
    one = {"attack": "sf", "defense": "median", "norm": "fbn"}
    by_cell = kind in ("bn-pca", "forgetting", "representations")
    files = plot(study, kind, tmp_path / "x.png", where=one if by_cell else {})
    names = ["x.png"] if len(files) == 1 else [f"x-{i}.png" for i in range(1, len(files) + 1)]
    assert [f.name for f in files] == names
    assert {f.read_bytes()[:4] for f in files} == {SIGNATURES["png"]}


@pytest.mark.parametrize("form", SIGNATURES)
def test_the_ending_says_the_format_and_the_bytes_do_not_change(form: str, study: Path, tmp_path: Path) -> None:
    first, second = (plot(study, "labels", tmp_path / f"{n}.{form}")[0].read_bytes() for n in "ab")
    assert first == second
    assert first.startswith(SIGNATURES[form])


def test_the_legend_of_curves_tells_who_has_fewer_seeds() -> None:
    runs = {
        ("iid", "fbn", d): [record(defense=d, seed=s) for s in seeds] for d, seeds in (("krum", [0]), ("mean", [0, 1]))
    }
    assert [_seeds_of(runs, d) for d in ("krum", "mean")] == [" (1/2 seeds)", ""]


def test_a_metric_keeps_its_figures_only(study: Path, tmp_path: Path) -> None:
    both = plot(study, "heatmap", tmp_path / "x.svg")
    assert len(plot(study, "heatmap", tmp_path / "y.svg", metric="sa")) == len(both) // 2
    assert len(plot(study, "curves", tmp_path / "z.svg", metric="ra", where={"attack": "sf"})) == 1


@pytest.mark.parametrize(
    ("kind", "save", "choice", "words"),
    [
        ("curvse", "x.png", {}, "did you mean 'curves'"),
        ("curves", "x.gif", {}, "must end in .pdf, .png, .svg"),
        ("curves", "x", {}, "must end in"),
        ("curves", "x.png", {"where": {"atack": "sf"}}, "did you mean 'attack'"),
        ("curves", "x.png", {"where": {"attack": "foe"}}, "no cell matches; attack has none, sf"),
        ("curves", "x.png", {"metric": "f1"}, "must be sa or ra"),
        ("labels", "x.png", {"metric": "sa"}, "has no metric to choose"),
        ("heatmap", "x.png", {"metric": "rr"}, "rr"),
    ],
)
def test_a_wrong_choice_says_what_is_allowed_and_writes_nothing(
    kind: str, save: str, choice: dict[str, Any], words: str, study: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        plot(study, kind, tmp_path / save, **choice)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("curves", "no record holds a curve"),
        ("breakdown", "make one of them an axis"),
        ("ranks", "needs three to forty contestants"),
        ("pareto", "fewer than two rows"),
        ("forgetting", "give the grid forgetting = true"),
        ("bn-pca", "certificates.'bn_statistics'."),
        ("representations", "give the grid representations = 20"),
    ],
)
def test_one_cell_lacks_what_most_kinds_need_and_the_error_says_what(kind: str, words: str, tmp_path: Path) -> None:
    stored(tmp_path / "s", [record()])
    with pytest.raises(UsageError, match=words):
        plot(tmp_path / "s", kind, tmp_path / "x.png")


@pytest.mark.filterwarnings("ignore:The set_bad function:PendingDeprecationWarning")  # seaborn's heatmap calls it
def test_curves_without_robust_accuracy_name_the_setting_that_measures_it(tmp_path: Path) -> None:
    made = record(curve=[0.1, 0.3])
    store = stored(
        tmp_path / "s", [made.model_copy(update={"curve": [p.model_copy(update={"ra": None}) for p in made.curve]})]
    )
    plot(store.folder, "curves", tmp_path / "sa.png", metric="sa")
    with pytest.raises(UsageError, match="give the grid evaluate_ra = true"):
        plot(store.folder, "curves", tmp_path / "ra.png", metric="ra")
    assert not (tmp_path / "ra.png").exists()


def test_forgetting_of_listed_rounds_is_one_figure_each_in_their_order() -> None:
    last = forgot(record())
    facts = last.certificates["forgetting"]
    rounds = {str(r): facts | {"mean": r / 10000} for r in (2800, 1, 400)}
    listed = last.model_copy(update={"certificates": {"forgetting": rounds}})
    titles = [title for title, _ in forgetting_maps([listed])]
    assert [title.rpartition(", ")[2] for title in titles] == ["round 1", "round 400", "round 2800"]
    ((title, _),) = forgetting_maps([last])
    assert "round" not in title
    assert frame([listed])["certificates.forgetting.2800.mean"].tolist() == [0.28]


# --- print -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["breakdown", "pareto", "ranks", "forgetting", "labels", "bn-pca", "heatmap", "curves"]
)
@pytest.mark.parametrize(("width", "inches"), [("column", 3.4), ("page", 7.0)])
def test_a_figure_is_as_wide_as_a_column_or_a_page(kind: str, width: str, inches: float) -> None:
    some = [forgot(with_statistics(r)) for r in grid(points=2, seeds=1) if r.labels["norm"] == "fbn"]
    where = {"attack": "sf", "defense": "median"} if kind in ("forgetting", "bn-pca") else {}
    few = [r.model_copy(update={"label_counts": [row[:5] for row in (r.label_counts or [])[:5]]}) for r in some]
    figures = figures_of(few, kind, where=where, width=width)
    assert {float(figure.get_size_inches()[0]) for figure in figures} == {inches}
    sizes = [t.get_fontsize() for figure in figures for t in figure.findobj(Text) if t.get_text()]
    assert min(sizes) >= 5


def test_a_figure_too_wide_for_a_column_says_what_to_do(study: Path, tmp_path: Path) -> None:
    many = stored(tmp_path / "many", [record(attack=f"attack-{i}", sa=0.5, ra={}) for i in range(14)]).folder
    with pytest.raises(UsageError, match=r"inches wide, .* use --width page, or --where LABEL=VALUE"):
        plot(many, "heatmap", tmp_path / "x.png", width="column")
    assert [p.name for p in tmp_path.iterdir()] == ["many"]


@pytest.mark.parametrize(("kind", "per_row"), [("heatmap", 1), ("curves", 1)])
def test_panels_that_have_no_room_in_a_column_stand_below_each_other(kind: str, per_row: int) -> None:
    some = [r for r in grid(points=2, seeds=1) if r.labels["attack"] in ("none", "sf")]
    metric = "sa" if kind == "heatmap" else None
    in_column, whole = (figures_of(some, kind, metric=metric, width=w)[0] for w in ("column", None))
    shape = in_column.axes[0].get_subplotspec().get_gridspec()
    assert shape.ncols == per_row
    assert [a.get_title() for a in in_column.axes] == [a.get_title() for a in whole.axes]


def test_the_figures_of_a_store_are_of_the_board_that_its_report_prints(tmp_path: Path) -> None:
    """A benchmark's store knows what its column AutoByz is made of."""
    store = stored(tmp_path / "s", [record(attack=a, sa=0.5, ra={}) for a in ("sf", "alie")])
    store.describe({"name": "s", "autobyz": {"version": 1}})
    (drawn,) = plot(store.folder, "heatmap", tmp_path / "x.svg", metric="sa")
    assert "<!-- AutoByz -->" in drawn.read_text(encoding="utf-8")  # matplotlib's comment beside the letters' paths


def test_a_breakdown_names_six_lines_with_their_markers_and_greys_the_rest() -> None:
    cells = [
        record(partition=f"gamma(gamma={g})", defense=d, sa=0.1 + 0.08 * i, ra={})
        for g in (0.0, 0.5) for i, d in enumerate(("mean", "median", "krum", "mda", "cge", "rfa", "monna", "phocas"))
    ]  # fmt: skip
    ((_, figure),) = breakdown_figures(rank_board(frame(cells)), "column")
    (axes,) = figure.axes
    named = [t.get_text() for t in axes.get_legend().get_texts()]
    assert [name.split(" ")[0] for name in named] == ["phocas", "monna", "rfa", "cge", "mda", "krum"]
    assert len({line.get_marker() for line in axes.lines} - {"None", ""}) == 6
    ends = {name: line.get_ydata()[0] for name, line in zip(named, axes.get_legend_handles_labels()[0], strict=True)}
    assert [round(end) for end in ends.values()] == [66, 58, 50, 42, 34, 26]
    assert axes.get_title("left") == "grey: 2 others, lower on average over their own points"


def test_a_breakdown_is_as_high_as_its_legend() -> None:
    """Else the layout warns that its axes have no room."""
    rules = ["nnm+" * 20 + name for name in ("mean", "median", "krum", "mda", "cge", "rfa")]
    cells = [record(partition=f"gamma(gamma={g})", defense=rule, ra={}) for g in (0.0, 0.5) for rule in rules]
    ((_, figure),) = titled(breakdown_figures(rank_board(frame(cells)), "column"))
    assert figure.axes[0].get_position().height > 0.5


def test_norms_differ_in_marker_and_rows_on_the_front_are_numbered_and_named() -> None:
    cells = [
        record(norm=n, defense=d, attack=a, sa=sa, ra={"pgd": ra})
        for n, d, sa, ra in (("fbn", "mean", 0.9, 0.1), ("gn", "mean", 0.5, 0.5), ("gn", "median", 0.4, 0.4))
        for a in ("none", "sf")
    ]
    ((_, figure),) = pareto_figures(rank_board(frame(cells)))
    (axes,) = figure.axes
    paths = {group.get_paths()[0].vertices.tobytes() for group in axes.collections}
    assert len(paths) == 2
    assert [t.get_text() for t in axes.texts[:2]] == ["1", "2"]
    assert axes.texts[2].get_text().splitlines()[1:] == ["1  mean · gn", "2  mean · fbn"]


@pytest.mark.parametrize(("apart", "wide"), [(0.001, 5.0), (0.2, 20.0)])
def test_rows_that_hardly_differ_do_not_look_far_apart(apart: float, wide: float) -> None:
    cells = [
        record(defense=d, attack=a, sa=0.5 + apart * i, ra={"pgd": 0.4 - apart * i})
        for i, d in enumerate(("mean", "median")) for a in ("none", "sf")
    ]  # fmt: skip
    ((_, figure),) = pareto_figures(rank_board(frame(cells)))
    for low, high in (figure.axes[0].get_xlim(), figure.axes[0].get_ylim()):
        assert wide - 1e-6 <= high - low <= 1.3 * wide


def test_the_scale_of_forgetting_fits_what_was_measured() -> None:
    ((_, figure),) = forgetting_maps([forgot(record())])
    lost = figure.axes[0].collections[0]
    assert lost.get_clim() == (0.0, 50.0)


def test_forgetting_of_a_client_without_validation_data_is_drawn_as_nothing() -> None:
    made = forgot(record())
    facts = made.certificates["forgetting"]
    holes = {name: [["nan", *row[1:]] for row in facts[name]] for name in ("matrix", "after")}
    ((_, figure),) = forgetting_maps(
        [made.model_copy(update={"certificates": {"forgetting": facts | holes | {"mean": "nan"}}})]
    )
    assert [t.get_text() for t in figure.axes[0].texts].count("–") == len(facts["clients"])
    nothing = {name: [["nan" for _ in row] for row in facts[name]] for name in ("matrix", "after")}
    ((_, figure),) = forgetting_maps([made.model_copy(update={"certificates": {"forgetting": facts | nothing}})])
    assert {t.get_text() for t in figure.axes[0].texts} == {"–"}


def test_norms_can_be_the_lines_of_a_panel() -> None:
    figures = figures_of(grid(points=3, seeds=1), "curves", metric="sa", where={"attack": "sf"}, lines="norm")
    (figure,) = figures
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["fbn", "gn", "naive-bn"]
    with pytest.raises(UsageError, match="no lines 'nrom'; did you mean 'norm'"):
        figures_of(grid(points=3, seeds=1), "curves", lines="nrom")


def test_a_caption_is_one_sentence_with_the_settings_of_all_cells() -> None:
    said = caption_of(grid(points=2), "breakdown")
    assert said.startswith(
        "Worst-case accuracy, mean over seeds and its interval, or the range of fewer than five; ✕: diverged ("
    )
    assert "dataset digits" in said
    assert "2 seeds" in said
    assert said.count(". ") == 0
    assert "clients = 10" in said
    fewer = caption_of(grid(points=2), "breakdown", {"clients": 10, "scope": "both", "dataset": "digits"})
    assert "clients" not in fewer
    assert "dataset digits" in fewer  # data set and model are always named


def test_captions_of_boards_say_which_round_counts_and_what_rules_were_told() -> None:
    chosen = [record(metrics={"groups": {"selected": {"sa": 0.5}}})]
    assert "of the round with the best accuracy on validation data" in caption_of(chosen, "heatmap")
    assert "validation" not in caption_of(chosen, "curves")
    told = caption_of([record(), record(attack="none", f=0, f_declared=0)], "heatmap")
    assert told.endswith(" none: the rule was told f_declared = 0 (1 cell).")


# --- breakdown -------------------------------------------------------------------------------------------------------


def test_a_breakdown_line_has_the_worst_case_per_f_and_a_cross_where_it_diverged() -> None:
    cells = [
        record(f=f, f_declared=f, attack=a, sa=v, ra={})
        for f, attacks in {1: {"sf": 0.8, "foe": 0.6}, 2: {"sf": 0.5, "foe": 0.7}}.items()
        for a, v in attacks.items()
    ]
    broken = record(f=3, f_declared=3, attack="sf", status="diverged", reason="x", round=2)
    ((title, figure),) = breakdown_figures(rank_board(frame([*cells, broken])))
    line, cross = figure.axes[0].lines
    assert title == "breakdown sa f"
    assert [float(x) for x in line.get_xdata()] == [1, 2, 3]
    assert [round(float(y), 6) for y in line.get_ydata()[:2]] == [60.0, 50.0]
    assert math.isnan(line.get_ydata()[2])
    assert (cross.get_marker(), cross.get_xydata().tolist()) == ("X", [[3.0, 0.0]])


@pytest.mark.parametrize(("seeds", "ends"), [(2, (50, 60)), (5, None)])
def test_a_breakdown_shows_the_interval_or_the_seeds_of_every_number(seeds: int, ends: tuple[int, int] | None) -> None:
    each = {s: 0.5 + 0.1 * s / (seeds - 1) for s in range(seeds)}
    cells = [record(f=f, f_declared=f, seed=s, sa=sa, ra={}) for f in (1, 2) for s, sa in each.items()]
    board = rank_board(frame(cells))
    ((_, figure),) = breakdown_figures(board)
    wanted = [ends or tuple(100 * v for v in row.worst.interval or ()) for row in board.rows[1:]]
    assert [line.get_ydata() for line in figure.axes[0].lines[1:]] == [pytest.approx(pair) for pair in wanted]


def test_a_breakdown_line_that_ends_early_says_where() -> None:
    cells = [
        record(f=f, f_declared=f, defense=d, attack="sf", sa=0.5, ra={})
        for d, most in (("mean", 3), ("krum", 2)) for f in range(1, most + 1)
    ]  # fmt: skip
    ((_, figure),) = breakdown_figures(rank_board(frame(cells)))
    named = {t.get_text().split(" ")[0]: t.get_text() for t in figure.axes[0].get_legend().get_texts()}
    assert named["krum"].endswith("(to 2)")
    assert "(to" not in named["mean"]


# --- batch-norm statistics -------------------------------------------------------------------------------------------


def test_the_statistics_are_drawn_where_the_record_says_with_a_legend_of_domains_and_roles() -> None:
    ((title, figure),) = bn_pca_figures([with_statistics(record(seed=1)), with_statistics(record(seed=0))])
    (axes,) = figure.axes
    drawn = sorted(tuple(map(float, point)) for group in axes.collections for point in group.get_offsets())
    assert title == "bn-pca fbn"
    assert drawn == [(-1.0, 0.1), (-0.9, 0.0), (0.9, -0.3), (1.0, 0.2)]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("component 1 (80 % of variance)", "component 2 (10 %)")
    assert "seed 0" in figure.get_suptitle()
    roles = ["mnist · AT", "mnist · ST", "usps · AT", "usps · ST"]
    assert [t.get_text() for t in figure.legends[0].get_texts()] == roles
    shapes = {p.get_paths()[0].vertices.tobytes() for p in axes.collections}
    assert len(shapes) == 4  # told apart without colour


@pytest.mark.parametrize(
    "changed",
    [
        {"points": [[0.0, 1.0]] * 3}, {"points": [[0.0]] * 4}, {"points": [["nan", 0.0]] * 4}, {"shares": None},
        {"clients": None}, {"points": 3},
    ],
)  # fmt: skip
def test_a_certificate_of_another_shape_is_no_figure(changed: dict[str, Any]) -> None:
    assert statistics_of(with_statistics(record()))
    assert not statistics_of(with_statistics(record(), **changed))
    assert list(bn_pca_figures([with_statistics(record(), **changed)])) == []
