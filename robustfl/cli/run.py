"""``robustfl run``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from robustfl.cli.grid import load
from robustfl.cli.printing import as_json, console, percent, say, table
from robustfl.errors import UsageError


def run(
    scenario: str | None,
    *,
    out: str | None,
    settings: tuple[str, ...],
    plugins: tuple[str, ...],
    device: str,
    checkpoint_minutes: float,
    threads: int,
    data_root: str | None,
    track: tuple[str, ...],
    state_memory: str,
    form: str,
) -> int:
    """Run one cell and print its record; 1 unless it is done."""
    from robustfl.records import plain
    from robustfl.registry import load_file
    from robustfl.reports import tracking
    from robustfl.reports.store import RERUN, Store
    from robustfl.scenarios import expand, run_cell
    from robustfl.scenarios.checkpoint import discard
    from robustfl.scenarios.expand import fingerprints, key_of, labels, resolve
    from robustfl.scenarios.memory import bytes_of
    from robustfl.scenarios.ranks import joined
    from robustfl.scenarios.spec import apply_settings

    tracking.check(track)
    if scenario is None:
        for plugin in plugins:
            load_file(plugin)
        chosen = apply_settings({"name": "run"}, settings)
    else:
        chosen = load(scenario, settings, plugins)
    limit = bytes_of(state_memory)
    cells = expand(chosen)
    if len(cells) != 1:
        axes = {k: sorted({str(getattr(c, k)) for c in cells}) for k in chosen.cell}
        open_axes = "; ".join(f"{k}: {', '.join(v)}" for k, v in axes.items() if len(v) > 1)
        raise UsageError(f"run takes one cell, {chosen.name!r} has {len(cells)}; fix these with --set: {open_axes}")
    cell = cells[0]
    folder = Path(out or "runs") / chosen.name
    store = None if out is None else Store(folder)
    screen = console(err=True)
    with (
        joined(device) as (team, where),
        Progress(
            TextColumn("round"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}"), console=screen, transient=True,
            disable=not screen.is_terminal or form == "json" or not team.leads,
        ) as bar,
    ):  # fmt: skip
        # The data are fetched and decoded by one process, while the others wait for the digest.
        known = fingerprints([cell], data_root)[cell] if team.leads else ""
        fingerprint = known if team.size == 1 else team.told(known)
        names = track if team.leads else ()
        followed = tracking.Followed(names, folder, key_of(resolve(cell, fingerprint)), plain(labels(cell)))
        task = bar.add_task("rounds", total=cell.rounds, loss="")
        record = run_cell(
            cell, scenario=chosen.name, fingerprint=fingerprint, root=data_root, device=where, threads=threads,
            on_point=followed.evaluated, team=team, state_memory=limit,
            on_round=lambda r, total, loss: bar.update(task, completed=r, loss=f"loss {loss:.3f}"),
            on_note=lambda note: say(note, err=True),
            store=store.folder if store is not None else None, checkpoint_minutes=checkpoint_minutes,
        )  # fmt: skip
    if not team.leads:
        if record.status == "failed":
            say(f"process {team.rank}: {record.reason}", err=True)
        return 0 if record.status == "done" else 1
    if store is not None:
        store.commit(record)
        if record.status not in RERUN:
            discard(store.folder, record.key)
    followed.finished(record)
    if form == "json":
        as_json(record.model_dump(mode="json"))
    else:
        _print(record)
    return 0 if record.status == "done" else 1


def _print(record: Any) -> None:
    screen = console()
    labels = record.labels
    shown = ["dataset", "partition", "model", "norm", "algorithm", "attack", "defense", "f", "clients", "seed"]
    if labels["statistics_defense"] != "same":
        shown.insert(shown.index("f"), "statistics_defense")
    rows = [[k, labels[k]] for k in shown]
    rows.append(["status", record.status])
    if record.metrics is not None:
        rows.append(["SA", f"{percent(record.metrics.sa)} %  ({record.metrics.samples} test images)"])
        rows += [[f"RA {spec}", f"{percent(value)} %"] for spec, value in record.metrics.ra.items()]
    if record.reason:
        rows.append(["reason", record.reason.strip()])
    for name in ("attack_shift", "defense_shift", "smallest_variance", "dropped"):
        if record.certificates.get(name) is not None:
            rows.append([name.replace("_", " "), f"{record.certificates[name]:.4g}"])
    rows.append(["time", f"{record.timing.seconds:.1f} s, peak {record.timing.peak_memory_bytes / 2**20:.0f} MiB"])
    rows.append(["key", record.key])
    screen.print(table(["", ""], rows))
    for warning in record.certificates.get("warnings", []):
        say(f"warning: {warning}", err=True)
