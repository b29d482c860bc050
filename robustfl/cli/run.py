"""``robustfl run``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from robustfl.cli.grid import load, load_plugins
from robustfl.cli.printing import as_json, console, percent, say, table
from robustfl.cli.progress import execution_of

if TYPE_CHECKING:
    from robustfl.records import CellResult


def run(
    scenario: str | None, *, out: str | None, settings: tuple[str, ...], plugins: tuple[str, ...], form: str, **how: Any
) -> int:
    """Run one cell and print its record; 1 unless it is done. ``how`` is of ``Execution``."""
    from robustfl.scenarios.ranks import rank
    from robustfl.scenarios.single import run_one
    from robustfl.scenarios.spec import apply_settings

    if scenario is None:
        load_plugins(plugins)
        chosen = apply_settings({"name": "run"}, settings)
    else:
        chosen = load(scenario, settings, plugins)
    screen = console(err=True)
    quiet = not screen.is_terminal or form == "json" or rank() > 0
    with Progress(
        TextColumn("round"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"), console=screen, transient=True, disable=quiet,
    ) as bar:  # fmt: skip
        task = bar.add_task("rounds", total=None, loss="")
        execution = execution_of(
            on_round=lambda r, total, loss: bar.update(task, completed=r, total=total, loss=f"loss {loss:.3f}"), **how
        )
        record = run_one(chosen, execution, out=out)
    _tell(record, form, rank())
    return 0 if record.status == "done" else 1


def _tell(record: CellResult, form: str, process: int) -> None:
    """Print the record; processes beside the first one speak of failures only."""
    if process > 0:
        if record.status == "failed":
            say(f"process {process}: {record.reason}", err=True)
    elif form == "json":
        as_json(record.model_dump(mode="json"))
    else:
        _print(record)


def _print(record: Any) -> None:
    from robustfl.reports.published.board import forgotten

    screen = console()
    labels = record.labels
    shown = ["dataset", "partition", "model", "norm", "algorithm", "attack", "defense", "f", "clients", "seed"]
    if labels["statistics_defense"] != "same":
        shown.insert(shown.index("f"), "statistics_defense")
    if labels["domains"]:
        shown[:2] = ["domains"]
    rows = [[k, labels[k]] for k in shown]
    rows.append(["status", record.status])
    if record.metrics is not None:
        rows.append(["SA", f"{percent(record.metrics.sa)} %  ({record.metrics.samples} test images)"])
        rows += [[f"RA {spec}", f"{percent(value)} %"] for spec, value in record.metrics.ra.items()]
        if record.metrics.asr is not None:
            rows.append(["ASR", f"{percent(record.metrics.asr)} %"])
        chosen = record.certificates.get("selection", {}).get("round")
        for group, of_what in (
            ("selected", f"round {chosen}, chosen on validation data"),
            ("tail", f"mean of the last {labels['tail']} rounds"),
        ):
            for metric, value in record.metrics.groups.get(group, {}).items():
                if metric != "ra_worst":
                    name = {"sa": "SA", "asr": "ASR"}.get(metric, f"RA {metric}")
                    rows.append([name, f"{percent(value)} %  ({of_what})"])
    if record.reason:
        rows.append(["reason", record.reason.strip()])
    for round, mean in forgotten(record.certificates.get("forgetting")).items():
        where = f"  (round {round})" if round else ""
        lost = "–" if math.isnan(float(mean)) else f"{100 * float(mean):.1f} points"
        rows.append(["forgetting", f"{lost}, mean over clients and others' data{where}"])
    for name in ("attack_shift", "statistics_shift", "defense_shift", "smallest_variance", "dropped"):
        if record.certificates.get(name) is not None:
            value = float(record.certificates[name])  # infinite and NaN are texts in a record
            rows.append([name.replace("_", " "), f"{value:.4g}"])
    rows.append(["time", f"{record.timing.seconds:.1f} s, peak {record.timing.peak_memory_bytes / 2**20:.0f} MiB"])
    rows.append(["key", record.key])
    screen.print(table(["", ""], rows))
    for warning in record.certificates.get("warnings", []):
        say(f"warning: {warning}", err=True)
