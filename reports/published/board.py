"""A published board: the cells themselves, the environment they ran in, the protocol, the tolerance that is claimed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from robustfl.errors import UsageError
from robustfl.file_io import shown
from robustfl.provenance import UNKNOWN
from robustfl.records import LATER, CellResult, Commit, completed, labels_of, misnamed

from ..validation import fault, first_fault

TOLERANCE = 0.01
"""One percentage point: what another machine may change in an accuracy after hundreds of rounds."""
LEFT_IN_THE_STORE = ("per_class", "per_client", "per_user")
"""Metrics that boards do not carry."""
SURROUNDINGS = ("device", "threads", "versions", "source")
"""Certificates of where a cell ran, which it has however it ended."""

Software = Literal["robustfl", "torch", "numpy", "python"]
Version = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]{0,63}$")]
"""A version as a line of requirements may name it."""
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Distance = Amount | Literal["inf", "nan"]
"""A distance; one beyond all bounds is written as a text."""


class Published(BaseModel):
    """Base of what a board file holds; unknown fields and values of another type are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Environment(Published):
    """Software and machine that the cells ran with; several values where cells differ."""

    versions: dict[Software, list[Version]] = Field(description="software and its versions")
    devices: list[str] = Field(description="cpu or cuda")
    threads: list[int] = Field(description="threads per cell")
    commits: list[Commit] = Field(default_factory=list, description="of robustfl's own code; none: not written down")
    processors: list[str] = Field(default_factory=list, description="names of processors or GPUs")


class Forgetting(Published):
    """The mean accuracy that clients forgot in one round, and what their models have more of it on their own data."""

    mean: Annotated[float, Field(ge=-1, le=1)] | Literal["nan"]
    own: Annotated[float, Field(ge=-1, le=1)] | Literal["nan"] | None = None


class Certificates(Published):
    """The certificates that boards carry of a record."""

    device: str | None = None
    threads: Annotated[int, Field(ge=1, le=2**16)] | None = None
    versions: dict[Software, Version] | None = None
    source: str | None = None
    unreliable: str | list[str] | None = None
    evaluation: str | None = None
    model: dict[str, Any] | None = None
    traffic: dict[Literal["numbers_each_way", "exchanges", "mebibytes"], Amount] | None = None
    equal_samples: Amount | None = None
    attack_shift: Distance | None = None
    statistics: Amount | None = None
    statistics_shift: Distance | None = None
    dropped: Amount | None = None
    no_effect: bool | None = None
    forgetting: Forgetting | dict[Annotated[str, Field(pattern=r"^[0-9]+$")], Forgetting] | None = None


class AutobyzFacts(Published):
    """The attacks that count as AutoByz; of earlier boards also members that did not run to the end."""

    version: Any = None
    scope: Any = None
    cheap: Any = None
    dropped: Any = None
    seed: Any = None


class Search(Published):
    """A contestant's search for its settings in a benchmark."""

    knowledge: Any = None
    chosen: Any = None
    search: Any = None
    reason: Any = None
    key: Any = None


class Beaten(Published):
    """An attack beside AutoByz that was run on a row, and who brought it."""

    contestant: str
    attack: str
    scope: str
    by: str = ""


class BenchmarkFacts(Published):
    """The benchmark that a board follows; what its values must be is the benchmark's to say."""

    tier: Any = None
    title: Any = None
    version: Any = None
    changed: Any = None
    autobyz: Any = None
    budget: Any = None
    tuning: Any = None
    statistic: Any = None
    contestants: dict[str, Search] = {}
    near: list[str] = []
    beaten: list[Beaten] = []


class Protocol(Published):
    """The parts of a store's description that its boards carry: how to count attacks, the benchmark it follows."""

    autobyz: AutobyzFacts = AutobyzFacts()
    benchmark: BenchmarkFacts = BenchmarkFacts()


@dataclass(frozen=True)
class Board:
    """A published board; ``cells`` are its records in the order of their keys, with what boards carry of a record.

    ``defaults`` are the labels of a cell that sets nothing, which captions leave out. ``protocol`` says which attacks
    count as AutoByz and, of a benchmark, its version and every search. ``digest`` is the one that a file claims.
    """

    name: str
    cells: tuple[CellResult, ...]
    environment: Environment
    tolerance: float = TOLERANCE
    description: str = ""
    protocol: dict[str, Any] | None = None
    defaults: dict[str, Any] = field(default_factory=dict)
    digest: str = ""

    @property
    def has_curves(self) -> bool:
        return any(record.curve for record in self.cells)

    def records(self) -> list[CellResult]:
        return list(self.cells)


def carried(description: Mapping[str, Any]) -> dict[str, Any]:
    """The protocol that boards of a store with this description carry; empty if it follows none."""
    return {name: description[name] for name in Protocol.model_fields if isinstance(description.get(name), Mapping)}


def described_cells(results: Sequence[CellResult], described: Mapping[str, Any]) -> Sequence[CellResult]:
    """The records of a store that its description speaks of: of a benchmark's store the cells of its last run.

    What earlier runs left belongs to searches that are not said. A store that was merged has no last run.
    """
    planned = described.get("cells")
    if "benchmark" in carried(described) and "scenario" in described and isinstance(planned, Mapping):
        return [r for r in results if r.key in planned]
    return results


def faults_of(board: Board) -> list[str]:
    """Faults of a board but for its digest, found without running anything."""

    def of(record: CellResult) -> str | None:
        return misnamed(record) or fault(record) or misshaped(Certificates, "certificates", record.certificates)

    wrong = [f"cell {r.key}: {words}" for r in board.cells if (words := of(r))]
    wrong += filter(None, [misshaped(Protocol, "protocol", board.protocol or {})])
    wrong += [f"duplicate cell {key}: {n} times" for key, n in Counter(r.key for r in board.cells).items() if n > 1]
    return wrong


def misshaped(form: type[Published], name: str, table: Any) -> str | None:
    """The first thing in ``table``, called ``name``, that is not as ``form`` has it."""
    try:
        form.model_validate(table)
    except ValidationError as error:
        return f"{name}.{first_fault(error)}"
    return None


def forgotten(certificate: Any) -> dict[str, Any]:
    """The mean of what was forgotten by round, or under ``""`` where only the last round was looked at."""
    if not isinstance(certificate, Mapping):
        return {}
    rounds = {"": certificate} if "mean" in certificate else certificate
    return {round: found["mean"] for round, found in rounds.items() if isinstance(found, Mapping) and "mean" in found}


def derived_labels(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The labels of a cell with these settings, those of settings that came later included."""
    return labels_of(completed(settings, LATER))


def environment_of(results: Sequence[CellResult]) -> Environment:
    """The environment in which the records ran. Raises ``UsageError`` for malformed versions."""
    versions: dict[str, set[str]] = {}
    for record in results:
        found = record.certificates.get("versions")
        for name, version in found.items() if isinstance(found, Mapping) else ():
            versions.setdefault(str(name), set()).add(str(version))
    told = any(r.timing.commits for r in results)
    commits = {c for r in results for c in r.timing.commits or [UNKNOWN]} if told else set[str]()
    found = {
        "versions": {n: sorted(v) for n, v in sorted(versions.items())},
        "devices": sorted({str(d) for r in results if (d := r.certificates.get("device"))}),
        "threads": sorted({t for r in results if type(t := r.certificates.get("threads")) is int}),
        "commits": sorted(commits),
        "processors": sorted({shown(r.timing.device) for r in results if r.timing.device}),
    }
    try:
        return Environment.model_validate(found)
    except ValidationError as error:
        raise UsageError(f"environment.{first_fault(error)}") from None
