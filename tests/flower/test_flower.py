"""robustfl in Flower: the same numbers as the engine, whatever clients send; attackers of both kinds."""

from __future__ import annotations

import doctest
import json
import logging
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import robustfl
from robustfl.defenses import Pipeline
from robustfl.defenses.aggregators.coordinatewise import Median
from robustfl.errors import Refused, UsageError
from robustfl.randomness import stream

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
pytest.importorskip("flwr.serverapp", reason="Flower is not installed (extra [flower])")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedMedian, Strategy

from robustfl.flower import Attacked, RobustStrategy, attacker, numbered

pytestmark = pytest.mark.flower
EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_simulation.py"


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that may write messages, as Flower's own are; Flower's log, which has a handler of its own, through
    pytest."""
    with suppress(ImportError):  # older versions of Flower ask for nothing
        from flwr.supercore.task_identity import TaskIdentity

        for name in ("_task_id", "_run_id", "_node_id"):
            monkeypatch.setattr(TaskIdentity, name, 1)
    log = logging.getLogger("flwr")
    handlers, propagate = list(log.handlers), log.propagate
    log.handlers, log.propagate = [], True
    yield
    log.handlers, log.propagate = handlers, propagate


class Nodes:
    """Flower's grid with its nodes in this process; node identifiers are large and in no order."""

    def __init__(self, app: Callable[[Message, Context], Message], clients: int) -> None:
        self.app, self.asked = app, 0
        ids = [int(i) for i in np.random.default_rng(5).permutation(2**63 - 1 - np.arange(clients, dtype=np.int64))]
        self.contexts = {
            node: Context(
                run_id=0, node_id=node, state=RecordDict(), run_config={},
                node_config={"partition-id": k, "num-partitions": clients},
            )
            for k, node in enumerate(ids)
        }  # fmt: skip

    def get_node_ids(self) -> list[int]:
        self.asked += 1
        assert self.asked < 100, "waits for nodes that never come"
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return [self.app(message, self.contexts[message.metadata.dst_node_id]) for message in messages]


def app_of(make: Callable[[int, int, dict[str, np.ndarray[Any, Any]]], Message | RecordDict], *mods: Any) -> ClientApp:
    """A client app whose client ``k`` answers in round ``t`` with what ``make(k, t, arrays)`` returns."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
        made = make(int(context.node_config["partition-id"]), int(message.content["config"]["server-round"]), arrays)
        return made if isinstance(made, Message) else Message(made, reply_to=message)

    return app


def reply(arrays: dict[str, Any], samples: Any = 10, **metrics: float) -> RecordDict:
    record = ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})
    told = {} if samples is None else {"num-examples": samples}
    return RecordDict({"arrays": record, "metrics": MetricRecord(told | metrics)})


def trained(strategy: Strategy, app: Any, clients: int, arrays: Any, rounds: int = 1) -> Any:
    """The result of a training of some rounds."""
    return strategy.start(Nodes(app, clients), arrays, num_rounds=rounds)  # type: ignore[arg-type]


def robust(defense: str, **how: Any) -> RobustStrategy:
    """A strategy that asks for no evaluation."""
    return RobustStrategy(defense, fraction_evaluate=0, **how)


def plain(record: ArrayRecord) -> dict[str, list[float]]:
    return {name: array.numpy().tolist() for name, array in record.items()}


def vector(*values: float) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.array(values))})


# --- the engine and Flower -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE))


CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("alie(z=1.5)", {"defense": "nnm+trimmed-mean"}, {}),
    ("alie(z=1.5)", {"defense": "mean"}, {}),
    ("gaussian", {"defense": "rfa", "statistics_defense": "trimmed-mean"}, {}),
    ("sf", {"defense": "centered-clipping", "statistics_defense": "mean"}, {}),
    ("opt-foe", {"defense": "nnm+median", "rounds": 2}, {}),
    ("random", {"defense": "flame", "statistics_defense": "median"}, {}),
    ("lazy", {"defense": "foolsgold", "statistics_defense": "median"}, {"scope": "update"}),
    ("foe(eta=5)", {"defense": "krum"}, {"scope": "statistics", "target": "both"}),
]


@pytest.mark.parametrize(("attack", "defenses", "how"), CASES, ids=[f"{c[0]} {c[1]['defense']}" for c in CASES])
def test_a_training_in_flower_is_that_of_the_engine(example, attack, defenses, how):
    """Clients in plain torch, aggregation in Flower's strategy; in float64 the loss agrees to rounding."""
    changes = {"attack": attack, **defenses, **how}
    cell = example["CELL"] | changes
    record = robustfl.run(cell)
    assert record.metrics is not None, record.reason
    model = example["network"]()
    clients = cell["clients"]
    rule = RobustStrategy(
        cell["defense"], f=cell["f"], model=model, statistics_defense=cell.get("statistics_defense", "same"),
        min_train_nodes=clients, fraction_evaluate=0,
    )  # fmt: skip
    strategy = Attacked(rule, attack, clients=example["attackers"], **how)
    result = trained(strategy, example["client_app"], clients, ArrayRecord(model.state_dict()), cell["rounds"])
    model.load_state_dict(result.arrays.to_torch_state_dict())
    found = robustfl.evaluate(model, "digits", evasions=cell["evasions"])
    assert found.loss == pytest.approx(record.metrics.loss, rel=1e-7)
    assert found.sa == record.metrics.sa


def test_a_simulation_by_ray_is_that_of_the_engine(example: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed (flwr[simulation])")
    surroundings = os.environ | {"OMP_NUM_THREADS": "1", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    made = subprocess.run(
        [sys.executable, str(EXAMPLE)], cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    found, record = json.loads((tmp_path / "flower.json").read_text()), robustfl.run(example["CELL"])
    assert found["loss"] == pytest.approx(record.metrics.loss, rel=1e-7)
    assert (found["sa"], found["ra"]) == (record.metrics.sa, record.metrics.ra)


def test_the_whole_run_of_the_page_works_as_a_reader_would_start_it(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed (flwr[simulation])")
    text = (EXAMPLE.parents[1] / "docs" / "flower.md").read_text(encoding="utf-8")
    (code,) = re.findall(r'```python title="flower_run.py"\n(.*?)```', text, flags=re.DOTALL)
    file = tmp_path / "flower_run.py"
    file.write_text(code, encoding="utf-8")
    surroundings = os.environ | {"OMP_NUM_THREADS": "1", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    made = subprocess.run(
        [sys.executable, str(file)], cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    shown, printed = (
        [float(found) for found in re.findall(r"^(?:sa|fgsm) +([0-9.]+) %", words, flags=re.MULTILINE)]
        for words in (text, made.stdout)
    )
    assert len(shown) == 4
    assert printed == pytest.approx(shown, abs=8)


def test_what_an_attack_tries_out_is_what_the_server_does() -> None:
    """Also by a rule that draws, with the attackers anywhere among the clients."""
    tried: list[torch.Tensor] = []

    class Tries(robustfl.attack("opt-foe").__class__):  # type: ignore[misc]
        def forge(self, view: Any, *, generator: torch.Generator) -> torch.Tensor:
            rows = torch.full((view.f, view.honest.shape[1]), 7.0, dtype=torch.float64)
            tried.append(view.aggregate(torch.cat([view.honest, rows])))
            return rows

    rule = robust("bucketing+median", f=1, seed=4, weighted=False, min_train_nodes=7)
    app = app_of(lambda k, t, arrays: reply({"w": arrays["w"] + [k, k * k]}), numbered)
    strategy = Attacked(rule, Tries(), clients=[1])
    result = trained(strategy, app, 7, vector(1.0, 2.0))
    assert plain(result.arrays)["w"] == pytest.approx((tried[0] + torch.tensor([1.0, 2.0])).tolist(), abs=1e-12)


@pytest.mark.parametrize("scope", ["both", "statistics"])
def test_what_an_attack_tries_out_on_statistics_is_what_the_server_does(scope: str) -> None:
    """Both rules draw, that of the updates first."""
    tried: dict[str, torch.Tensor] = {}

    class Tries(robustfl.attack("opt-foe").__class__):  # type: ignore[misc]
        def forge(self, view: Any, *, generator: torch.Generator) -> torch.Tensor:
            rows = torch.full((view.f, view.honest.shape[1]), 3.0, dtype=view.honest.dtype)
            tried[view.channel] = view.aggregate(torch.cat([view.honest, rows])).clone()
            return rows

    model = bn_model()
    rule = robust("bucketing+median", f=1, seed=4, weighted=False, min_train_nodes=7, model=model)

    def make(k: int, t: int, arrays: dict[str, np.ndarray[Any, Any]]) -> RecordDict:
        shift = np.array([k, k * k], dtype=np.float32)
        moved = {name: arrays[name] + shift for name in ("0.bias", "1.running_mean", "1.running_var")}
        return reply({**arrays, **moved})

    strategy = Attacked(rule, Tries(), clients=[1], scope=scope, target="both")  # type: ignore[arg-type]
    found = trained(strategy, app_of(make, numbered), 7, ArrayRecord(model.state_dict())).arrays.to_torch_state_dict()
    merged = torch.cat([found["1.running_mean"], found["1.running_var"]])
    torch.testing.assert_close(merged, tried["statistics"].to(merged))
    assert ("update" in tried) == (scope == "both")


def test_an_attack_tries_out_a_rule_that_trusts_the_servers_own_update() -> None:
    asked: list[int] = []

    def own(server_round: int, arrays: ArrayRecord) -> ArrayRecord:
        asked.append(server_round)
        return ArrayRecord({"w": Array(arrays["w"].numpy() + 1.0)})

    rule = robust("fltrust", f=1, reference=own, min_train_nodes=4)
    app = app_of(lambda k, t, arrays: reply({"w": arrays["w"] + [1.0, k]}), numbered)
    strategy = Attacked(rule, "opt-foe(evals=5)", clients=[1])
    result = trained(strategy, app, 4, vector(1.0, 2.0), rounds=2)
    assert np.isfinite(plain(result.arrays)["w"]).all()
    assert asked == [1, 2]  # trained once a round, however often an attack tries


# --- what clients send ------------------------------------------------------------------------------------------------


def test_a_rule_is_about_updates_and_remembers() -> None:
    """Centered clipping at τ = 1 from 0: towards updates of 5 its aggregate is 1, then 2, then 3."""
    app = app_of(lambda k, t, arrays: reply({"w": arrays["w"] + 5.0}))
    strategy = robust("centered-clipping(tau=1)", f=1, min_train_nodes=3)
    assert plain(trained(strategy, app, 3, vector(10.0), rounds=3).arrays) == {"w": [16.0]}
    resumed = robust("centered-clipping(tau=1)", f=1, min_train_nodes=3, state=strategy.state)
    assert plain(trained(resumed, app, 3, vector(10.0)).arrays) == {"w": [14.0]}


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4])
def test_rules_draw_from_the_strategys_seed(seed: int) -> None:
    rows = torch.tensor([[float(k * k)] for k in range(7)], dtype=torch.float64)
    app = app_of(lambda k, t, arrays: reply({"w": arrays["w"] + float(k * k)}), numbered)
    found = trained(robust("bucketing+median", f=1, seed=seed, min_train_nodes=7), app, 7, vector(0.0))
    wanted = robustfl.defense("bucketing+median")(rows, f=1, generator=stream(seed, "defense", 0))
    assert plain(found.arrays)["w"] == wanted.tolist()


def test_foolsgold_knows_its_clients_by_their_nodes() -> None:
    """Clients 1 and 2 send the same round after round; node identifiers are beyond any tensor's index."""
    app = app_of(lambda k, t, arrays: reply({"w": arrays["w"] + [[1.0, 0, 0], [0, 100.0, 0], [0, 100.0, 0]][k]}))
    result = trained(robust("foolsgold", f=1, min_train_nodes=3), app, 3, vector(0.0, 0, 0), rounds=2)
    assert plain(result.arrays)["w"] == [2.0, 0.0, 0.0]


def bn_model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


def test_statistics_and_counters_are_no_part_of_the_update() -> None:
    """Weights move by the mean of updates, statistics become the median of theirs, and counters their lower median."""
    model, means = bn_model(), [1.0, 2.0, 3.0, 400.0]

    def make(k: int, t: int, arrays: dict[str, np.ndarray[Any, Any]]) -> RecordDict:
        changed = dict(arrays)
        changed["0.bias"] = arrays["0.bias"] + np.float32(k)
        changed["1.running_mean"] = np.full(2, means[k], dtype=np.float32)
        changed["1.running_var"] = np.full(2, -8.0 if k == 3 else 1 + k, dtype=np.float32)
        changed["1.num_batches_tracked"] = np.array(10**6 if k == 3 else 5 + k)
        return reply(changed)

    before = {name: value.clone() for name, value in model.state_dict().items()}
    strategy = robust("mean", f=1, model=model, statistics_defense="median", min_train_nodes=4)
    found = trained(strategy, app_of(make), 4, ArrayRecord(model.state_dict())).arrays.to_torch_state_dict()
    assert torch.allclose(found["0.bias"], before["0.bias"] + 1.5)
    assert torch.allclose(found["0.weight"], before["0.weight"])
    assert found["1.running_mean"].tolist() == [2.5, 2.5]
    assert found["1.running_var"].tolist() == [1.5, 1.5]  # 0, 1, 2, 3: a negative variance counts as 0
    assert found["1.num_batches_tracked"].item() == 6
    assert [(v.dtype, v.shape) for v in found.values()] == [(v.dtype, v.shape) for v in before.values()]


def test_samples_weigh_where_a_rule_weighs() -> None:
    app = app_of(lambda k, t, arrays: reply({"w": arrays["w"] + k}, samples=[30, 0, 10][k]))
    assert plain(trained(robust("mean", f=0), app, 3, vector(1.0)).arrays) == {"w": [1.5]}
    assert plain(trained(robust("mean", f=0, weighted=False), app, 3, vector(1.0)).arrays) == {"w": [2.0]}


BROKEN: dict[str, Callable[[], Any]] = {
    "nan": lambda: reply({"w": np.array([np.nan])}),
    "other names": lambda: reply({"v": np.array([1.0])}),
    "other shape": lambda: reply({"w": np.array([1.0, 2.0])}),
    "other dtype": lambda: reply({"w": np.array([1])}),
    "no samples": lambda: reply({"w": np.array([1.0])}, samples=None),
    "negative samples": lambda: reply({"w": np.array([1.0])}, samples=-5),
    "infinite samples": lambda: reply({"w": np.array([1.0])}, samples=float("inf")),
    "samples beyond counting": lambda: reply({"w": np.array([1.0])}, samples=1e308),
    "a list of samples": lambda: reply({"w": np.array([1.0])}, samples=[1, 2]),
    "one array more": lambda: reply({"w": np.array([1.0]), "v": np.array([1.0])}),
    "a length without a square": lambda: reply({"w": np.array([1e200])}),
    "no arrays": lambda: RecordDict({"metrics": MetricRecord({"num-examples": 1})}),
    "no metrics": lambda: RecordDict({"arrays": vector(1.0)}),
    "nonsense": lambda: RecordDict(
        {
            "arrays": ArrayRecord({"w": Array(dtype="float64", shape=(1,), stype="numpy.ndarray", data=b"x")}),
            "metrics": MetricRecord({"num-examples": 1}),
        }
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_does_not_fit_counts_as_byzantine(kind: str) -> None:
    """It is left out and lowers f: of 0, 1, 2, 90 with f = 1 left the trimmed mean is 1.5."""
    app = app_of(lambda k, t, arrays: BROKEN[kind]() if k == 0 else reply({"w": arrays["w"] + [0, 0.0, 1, 2, 90][k]}))
    strategy = robust("trimmed-mean", f=2, min_train_nodes=5)
    result = trained(strategy, app, 5, vector(10.0))
    assert plain(result.arrays) == {"w": [11.5]}
    told = dict(result.train_metrics_clientapp[1])
    assert (told["robustfl-clients"], told["robustfl-dropped"], told["robustfl-unchanged"]) == (5, 1, 0)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: reply({"v": np.array([1.0])}), "'w' is missing and 'v' is none of the model's"),
        (lambda: reply({"w": np.array([1])}), r"array w is int64 (1,), the model's is float64 (1,)"),
        (lambda: reply({"w": np.array([np.inf])}), "an update of length inf"),
        (lambda: reply({"w": np.array([1.0])}, samples=-5), "num-examples=-5 is no number of samples"),
    ],
    ids=["names", "dtype", "infinity", "samples"],
)
def test_the_log_names_the_node_and_what_does_not_fit(made, words, caplog):
    app = app_of(lambda k, t, arrays: made() if k == 0 else reply(arrays))
    nodes = Nodes(app, 3)
    robust("median", f=1, min_train_nodes=3).start(nodes, vector(0.0), num_rounds=1)  # type: ignore[arg-type]
    assert f"node {next(iter(nodes.contexts))} sent what cannot be used: " in caplog.text
    assert words in caplog.text


def test_broken_statistics_cost_a_client_its_whole_vote() -> None:
    """Of updates 0, 1, 2, 3 the trimmed mean is 1.5; the client of the update 0 has NaN in its running mean."""
    model = bn_model()

    def make(k: int, t: int, arrays: dict[str, np.ndarray[Any, Any]]) -> RecordDict:
        broken = {"1.running_mean": np.full(2, np.nan, dtype=np.float32)} if k == 0 else {}
        return reply(arrays | {"0.bias": arrays["0.bias"] + np.float32(k)} | broken)

    before = model.state_dict()["0.bias"].clone()
    strategy = robust("trimmed-mean", f=1, model=model, min_train_nodes=4)
    result = trained(strategy, app_of(make), 4, ArrayRecord(model.state_dict()))
    assert torch.allclose(result.arrays.to_torch_state_dict()["0.bias"], before + 2)
    assert result.train_metrics_clientapp[1]["robustfl-dropped"] == 1


def test_clients_without_samples_count_alike_where_the_others_do_not_fit() -> None:
    """A weighted mean of nothing would end the training."""
    app = app_of(lambda k, t, arrays: reply({"w": arrays["w"] + k}, samples=-1 if k == 3 else 0))
    assert plain(trained(robust("mean", f=1), app, 4, vector(1.0)).arrays) == {"w": [2.0]}


def test_a_model_that_is_not_finite_is_never_sent(caplog: pytest.LogCaptureFixture) -> None:
    """What the rule remembers is NaN: the aggregate is, too."""
    state = {"v": torch.tensor([torch.nan], dtype=torch.float64)}
    app = app_of(lambda k, t, arrays: reply({"w": arrays["w"] + 1.0}))
    strategy = robust("centered-clipping(tau=1)", f=1, min_train_nodes=3, state=state)
    result = trained(strategy, app, 3, vector(0.0))
    assert not result.arrays
    assert result.train_metrics_clientapp[1]["robustfl-unchanged"] == 1
    assert "what it makes of array 'w' is not finite" in caplog.text


@pytest.mark.parametrize("kind", ["bool", "uint8", "uint16", "uint32", "uint64", "int32"])
def test_counters_of_every_dtype_have_a_median(kind: str) -> None:
    model = nn.Linear(1, 1, bias=False)
    model.register_buffer("seen", torch.from_numpy(np.zeros(1, dtype=kind)))
    app = app_of(lambda k, t, arrays: reply(arrays | {"seen": np.full(1, int(k > 0), dtype=kind)}))
    strategy = robust("median", f=1, model=model, min_train_nodes=3)
    found = trained(strategy, app, 3, ArrayRecord(model.state_dict())).arrays["seen"].numpy()
    assert (found.dtype, found.tolist()) == (np.dtype(kind), [1])


def answered(strategy: RobustStrategy, nodes: Nodes, server_round: int = 1) -> list[Message]:
    """The replies of a round before the strategy sees them."""
    sent = strategy.configure_train(server_round, vector(0.0), ConfigRecord(), nodes)  # type: ignore[arg-type]
    for place, message in enumerate(sent):
        message.metadata.__dict__["_message_id"] = f"{server_round}.{place}"  # as Flower's grids do
    return nodes.send_and_receive(sent)


def test_a_node_has_one_vote(caplog: pytest.LogCaptureFixture) -> None:
    """Of 0, 1, 2, 3 and 90 the median is 2, however often the last node answers."""
    nodes = Nodes(app_of(lambda k, t, arrays: reply({"w": arrays["w"] + [0.0, 1, 2, 3, 90][k]}), numbered), 5)
    strategy = robust("median", f=1, min_train_nodes=5)
    replies = answered(strategy, nodes)
    last = [message for message in replies if message.content["robustfl"]["client"] == 4]
    arrays, metrics = strategy.aggregate_train(1, replies + last * 9)
    assert arrays is not None
    assert (plain(arrays), metrics["robustfl-clients"]) == ({"w": [2.0]}, 5)
    assert f"node {last[0].metadata.src_node_id} answered more than once" in caplog.text


def test_replies_nobody_asked_for_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """Those of the last round and of another training's nodes; of 1, 2, 3 and 4 the median is 2.5."""
    nodes = Nodes(app_of(lambda k, t, arrays: reply({"w": arrays["w"] + (k if t == 2 else 90.0)}), numbered), 5)
    strategy = robust("median", f=1, min_train_nodes=5)
    old = answered(strategy, nodes)
    new = [message for message in answered(strategy, nodes, 2) if message.content["robustfl"]["client"] > 0]
    there = {message.metadata.src_node_id for message in new}
    stale = [message for message in old if message.metadata.src_node_id not in there]
    (stranger,) = answered(robust("median", f=0, min_train_nodes=1, min_available_nodes=1), Nodes(nodes.app, 1))
    stranger.metadata.__dict__["_src_node_id"] = 7
    arrays, metrics = strategy.aggregate_train(2, [*stale, stranger, *new])
    assert arrays is not None
    assert (plain(arrays), metrics["robustfl-clients"]) == ({"w": [2.5]}, 4)
    assert f"node {stale[0].metadata.src_node_id} answered message '1." in caplog.text
    assert "node 7 answered without being asked" in caplog.text


def test_a_round_without_replies_tells_so(caplog: pytest.LogCaptureFixture) -> None:
    strategy = robust("median", f=1, min_train_nodes=3)
    answered(strategy, Nodes(app_of(lambda k, t, arrays: reply(arrays)), 3))
    arrays, metrics = strategy.aggregate_train(1, [])
    assert arrays is None
    assert (metrics["robustfl-clients"], metrics["robustfl-unchanged"]) == (0, 1)
    assert "round 1: the model stays as it is: no client answered" in caplog.text


def test_clients_cannot_tell_the_servers_own_facts() -> None:
    """Also where too few answered for the rule."""
    strategy = robust("krum", f=1, min_train_nodes=5)
    forged = {"robustfl-dropped": 99.0, "robustfl-clients": 99.0, "robustfl-unchanged": 99.0}
    replies = answered(strategy, Nodes(app_of(lambda k, t, arrays: reply(arrays, **forged)), 5))
    _, metrics = strategy.aggregate_train(1, replies[1:])
    assert dict(metrics) == {
        "robustfl-clients": 4, "robustfl-failed": 0, "robustfl-dropped": 0, "robustfl-unchanged": 1
    }  # fmt: skip


@pytest.mark.parametrize(
    "told",
    [{}, {"metrics": {"num-examples": -40, "acc": 0.0}}, {"metrics": {"acc": 0.0}}, {"a": {"acc": 0.0}, "b": {}}],
    ids=["nothing", "negative samples", "no samples", "two records"],
)
def test_one_evaluation_that_does_not_fit_does_not_end_the_training(told: dict[str, dict[str, float]]) -> None:
    app = app_of(lambda k, t, arrays: reply({"w": arrays["w"] + k}), numbered)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        made = told if context.node_config["partition-id"] == 0 else {"metrics": {"num-examples": 10, "acc": 0.5}}
        return Message(RecordDict({name: MetricRecord(dict(m)) for name, m in made.items()}), reply_to=message)

    result = trained(RobustStrategy("median", f=1, min_train_nodes=5), app, 5, vector(0.0))
    assert plain(result.arrays) == {"w": [2.0]}
    assert dict(result.evaluate_metrics_clientapp[1]) == {"acc": 0.5}


def test_a_resumed_strategy_knows_the_nodes_again() -> None:
    """Whichever nodes come first: the histories are those of one training without a break."""
    app = app_of(lambda k, t, arrays: reply({"w": arrays["w"] + [1.0, 2, 3][k]}), numbered)
    nodes, whole = Nodes(app, 3), robust("foolsgold", f=1, min_train_nodes=3)
    whole.aggregate_train(1, answered(whole, nodes))
    parted = robust("foolsgold", f=1, min_train_nodes=3, state=whole.state)
    for strategy in (whole, parted):
        replies = answered(strategy, nodes, 2)
        strategy.aggregate_train(2, [message for message in replies if message.content["robustfl"]["client"] > 0])
    assert parted.state.keys() == whole.state.keys()
    assert all(torch.equal(parted.state[name], whole.state[name]) for name in whole.state)


def test_a_state_of_another_rule_is_refused() -> None:
    app = app_of(lambda k, t, arrays: reply({"w": arrays["w"] + 1.0}))
    first = robust("centered-clipping(tau=1)", f=1, min_train_nodes=3)
    trained(first, app, 3, vector(0.0))
    for rule, words in (("median", "it keeps nothing"), ("foolsgold", "it keeps clients, history")):
        with pytest.raises(UsageError, match=rf"state= holds v, which {rule} does not keep \({words}\)"):
            trained(robust(rule, f=1, min_train_nodes=3, state=first.state), app, 3, vector(0.0))


def test_metrics_are_those_of_replies_that_fit() -> None:
    def make(k: int, t: int, arrays: dict[str, np.ndarray[Any, Any]]) -> RecordDict:
        extra = {"loss": float(k)} | ({"more": 1.0} if k == 3 else {})
        return reply(arrays, samples=None if k == 2 else 10, **extra)

    result = trained(robust("median", f=1, min_train_nodes=4), app_of(make), 4, vector(1.0))
    assert result.train_metrics_clientapp[1]["loss"] == 0.5
    assert "more" not in result.train_metrics_clientapp[1]


def test_metrics_that_cannot_be_averaged_cost_no_round(caplog: pytest.LogCaptureFixture) -> None:
    def averaged(contents: list[RecordDict], key: str) -> MetricRecord:
        raise ZeroDivisionError("no samples")

    app = app_of(lambda k, t, arrays: reply({"w": arrays["w"] + k}))
    found = trained(robust("median", f=0, train_metrics_aggr_fn=averaged), app, 3, vector(0.0))
    assert plain(found.arrays) == {"w": [1.0]}
    assert found.train_metrics_clientapp[1]["robustfl-clients"] == 3
    assert "the clients' metrics cannot be averaged: ZeroDivisionError: no samples" in caplog.text


def test_too_few_replies_leave_the_model_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    def make(k: int, t: int, arrays: dict[str, np.ndarray[Any, Any]]) -> RecordDict:
        if t == 2 and k < 3:
            raise RuntimeError("crashed")
        return reply({"w": arrays["w"] + 1.0})

    made = app_of(make)

    def app(message: Message, context: Context) -> Message:
        try:
            return made(message, context)
        except RuntimeError as error:
            return Message(Error(0, str(error)), reply_to=message)

    result = trained(robust("krum", f=1), app, 5, vector(0.0), rounds=3)
    assert plain(result.arrays) == {"w": [2.0]}
    unchanged = [m["robustfl-unchanged"] for m in result.train_metrics_clientapp.values()]
    assert unchanged == [0, 1, 0]
    assert "round 2: the model stays as it is: krum: f=1 needs at least 5 clients" in caplog.text


def test_fltrust_is_handed_the_servers_own_update() -> None:
    """Rows count as much as they point where the server's row points; (0, 1) does not."""
    app = app_of(lambda k, t, arrays: reply({"w": arrays["w"] + [[3.0, 0.0], [0.0, 1.0], [0.0, 9.0]][k]}))

    def reference(server_round: int, arrays: ArrayRecord) -> ArrayRecord:
        return vector(*(arrays["w"].numpy() + np.array([2.0, 0.0])))

    with pytest.raises(UsageError, match="fltrust compares clients with the server's own update; give reference="):
        robust("fltrust", f=1)
    found = trained(robust("fltrust", f=1, reference=reference), app, 3, vector(1.0, 1.0))
    assert plain(found.arrays) == {"w": [3.0, 1.0]}


def test_a_reference_that_returns_something_else_is_told() -> None:
    app = app_of(lambda k, t, arrays: reply({"w": arrays["w"]}))
    wrong = robust("fltrust", f=1, reference=lambda server_round, arrays: ArrayRecord({"v": Array(np.zeros(2))}))
    with pytest.raises(UsageError, match=r"reference= does not return the server's model: .*'w' is missing"):
        trained(wrong, app, 3, vector(1.0, 1.0))


@pytest.mark.parametrize(
    ("arrays", "model", "words"),
    [
        (ArrayRecord(bn_model().state_dict()), None, r"'1.running_mean' looks like .* give model="),
        (ArrayRecord({"steps": Array(np.array(3))}), None, r"'steps' looks like"),
        (ArrayRecord([np.zeros(2)]), bn_model(), "array '0' is none of the model's"),
        (ArrayRecord(nn.Linear(2, 3).state_dict()), nn.Linear(2, 4), r"'weight' has shape \(3, 2\), the model's has"),
        (
            ArrayRecord({k: v for k, v in bn_model().state_dict().items() if k != "1.running_var"}),
            bn_model(),
            "of '1.running_mean' and '1.running_var' one is sent",
        ),
        (ArrayRecord({"w": Array(np.array([1j]))}), None, "array 'w' has dtype complex128; floats of at most 64 bits"),
    ],
)
def test_a_model_that_may_be_misread_is_refused(arrays: ArrayRecord, model: Any, words: str) -> None:
    app = app_of(lambda k, t, sent: reply(sent))
    with pytest.raises(UsageError, match=words):
        trained(robust("median", f=0, model=model), app, 2, arrays)


def test_a_rule_that_makes_no_sense_on_statistics_is_refused() -> None:
    with pytest.raises(Refused, match=r"statistics_defense: centered-clipping: .*'median'"):
        robust("centered-clipping", f=0, model=bn_model())
    assert robust("centered-clipping", f=0, model=bn_model(), statistics_defense="median").f == 0
    assert robust("centered-clipping", f=0, model=nn.Linear(2, 2)).f == 0


def test_a_plug_in_says_itself_that_it_is_unfit_for_statistics() -> None:
    class Unfit(Median):
        unfit_for_statistics: ClassVar[str] = "it changes rows on which all agree"

    with pytest.raises(Refused, match="statistics_defense: median: it changes rows on which all agree"):
        robust(Pipeline((), Unfit()), f=0, model=bn_model())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: robust("krum", f=2, min_train_nodes=6), "min_train_nodes=6: krum: f=2 needs at least 7"),
        (lambda: robust("krumm", f=2), "did you mean 'krum'"),
        (lambda: robust("krum", f=-1), "f=-1 must be"),
        (lambda: robust("krum", f=1, model="resnet"), "model is a str"),  # type: ignore[arg-type]
        (
            lambda: Attacked(FedAvg(fraction_evaluate=0), "opt-foe", clients=[0]),
            "FedAvg does not offer; give a RobustStrategy",
        ),
        (lambda: Attacked(FedAvg(fraction_evaluate=0), "label-flip", clients=[0]), r"call its poison\(x, y"),
        (lambda: Attacked(FedAvg(fraction_evaluate=0), "alie", clients=[-1]), "partition-ids"),
        (lambda: Attacked(FedAvg(fraction_evaluate=0), "alie", clients=[1], scope="all"), "scope='all'"),  # type: ignore[arg-type]
        (
            lambda: Attacked(FedAvg(fraction_evaluate=0), "alie", clients=[1], target="all"),
            "target='all' must be 'mean'",
        ),  # type: ignore[arg-type]
        (lambda: robust("mean", f=0).aggregate_train(1, []), "aggregate_train without configure_train"),
        (lambda: attacker("alie", [0]), r"Attacked\(strategy, 'alie', clients=…\), or take 'partial\(alie\)'"),
        (lambda: attacker("gausian", [0]), "did you mean 'gaussian'"),
        (lambda: robust(3, f=1), "defense=3 must be a defense such as"),  # type: ignore[arg-type]
        (lambda: robust("median", f=1, statistics_defense=3), "statistics_defense=3 must be a defense such as"),
        (lambda: robust("median", f=1, device="cudaa"), "device='cudaa' cannot be used here: "),
        (lambda: robust("median", f=1, weighted="no"), "weighted='no' must be True or False"),
        (lambda: robust("median", f=1, seed=1.5), "seed=1.5 must be a whole number"),
        (lambda: robust("median", f=1, min_train_nodes="5"), "min_train_nodes='5' must be a whole number"),
        (lambda: robust("median", f=1, state=[1]), r"state=\[1\] must be the state of another strategy"),
        (lambda: robust("median", f=1, state={"v": [1.0]}), "must be the state of another strategy"),
        (lambda: Attacked("mean", "sf", clients=[0]), "strategy='mean' must be a strategy"),  # type: ignore[arg-type]
        (lambda: Attacked(robust("median", f=0), 3, clients=[0]), "attack=3 must be an attack"),  # type: ignore[arg-type]
        (lambda: Attacked(robust("median", f=0), "sf", clients=0), "clients=0 must be a list"),  # type: ignore[arg-type]
        (lambda: attacker("gaussian", [0], target="men"), "target='men' must be 'mean'"),  # type: ignore[arg-type]
        (lambda: attacker("gaussian", [0], seed="x"), "attacker: seed='x' must be a whole"),  # type: ignore[arg-type]
        (lambda: attacker("gaussian", [0], model="x"), "attacker: model is a str"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_work_is_refused_at_the_door(make: Callable[[], object], words: str) -> None:
    with pytest.raises((UsageError, Refused), match=words):
        make()


# --- attackers --------------------------------------------------------------------------------------------------------


def test_attackers_in_client_apps_forge_their_own_messages() -> None:
    """Clients 0 and 3 send the opposite of their updates; the others what they computed."""
    app = app_of(lambda k, t, arrays: reply({"w": arrays["w"] + [1.0, k]}), attacker("partial(sf)", [0, 3]))
    nodes = Nodes(app, 4)
    strategy = FedAvg(fraction_evaluate=0)
    sent = strategy.configure_train(1, vector(5.0, 5.0), ConfigRecord(), nodes)  # type: ignore[arg-type]
    replies = [message.content for message in nodes.send_and_receive(sent)]
    rows = {content["robustfl"]["client"]: content["arrays"]["w"].numpy().tolist() for content in replies}
    assert rows == {0: [4.0, 5.0], 1: [6.0, 6.0], 2: [6.0, 7.0], 3: [4.0, 2.0]}


def test_attackers_in_client_apps_remember_and_leave_statistics_plausible() -> None:
    """A lazy client sends its first update again; statistics it sends are those of its first round, too."""
    model = bn_model()

    def make(k: int, t: int, arrays: dict[str, np.ndarray[Any, Any]]) -> RecordDict:
        changed = dict(arrays)
        changed["0.bias"] = arrays["0.bias"] + np.float32(10**t)
        changed["1.running_mean"] = np.full(2, t, dtype=np.float32)
        return reply(changed)

    app = app_of(make, attacker("lazy", [0], model=model))
    strategy = robust("mean", f=0, model=model, min_train_nodes=1, min_available_nodes=1)
    before = model.state_dict()["0.bias"].clone()
    found = trained(strategy, app, 1, ArrayRecord(model.state_dict()), rounds=3).arrays.to_torch_state_dict()
    assert torch.allclose(found["0.bias"], before + 30)
    assert found["1.running_mean"].tolist() == [1.0, 1.0]


def test_flowers_own_strategies_are_attacked_as_well() -> None:
    """Of 1, 2, 3 and a forged -2 the median is 1.5; the mean is 1."""
    app = app_of(lambda k, t, arrays: reply({"w": arrays["w"] + k}), numbered)
    for inner, wanted in ((FedMedian(fraction_evaluate=0), 1.5), (FedAvg(fraction_evaluate=0), 1.0)):
        found = trained(Attacked(inner, "sf", clients=[0]), app, 4, vector(0.0))
        assert plain(found.arrays) == {"w": [wanted]}


def claiming(number: int) -> Callable[..., Message]:
    """A mod by which every client claims one number."""

    def mod(message: Message, context: Context, call: Callable[..., Message]) -> Message:
        made = call(message, context)
        made.content["robustfl"] = ConfigRecord({"client": number})
        return made

    return mod


def test_clients_without_numbers_are_told_of() -> None:
    app = app_of(lambda k, t, arrays: reply({"w": arrays["w"] + k}))
    with pytest.raises(UsageError, match=r"ClientApp\(mods=\[robustfl.flower.numbered\]\)"):
        trained(Attacked(FedAvg(fraction_evaluate=0), "sf", clients=[0]), app, 4, vector(0.0))
    doubled = app_of(lambda k, t, arrays: reply(arrays), claiming(3))
    with pytest.raises(UsageError, match=r"Attacked: nodes \[\d+, .*\] all claim to be client 3"):
        trained(Attacked(FedAvg(fraction_evaluate=0), "sf", clients=[0]), doubled, 4, vector(0.0))
    deployed = Context(run_id=0, node_id=1, node_config={}, state=RecordDict(), run_config={})
    with pytest.raises(UsageError, match="the node has no 'partition-id'"):
        attacker("partial(sf)", [0])(None, deployed, None)  # type: ignore[arg-type]


def test_attackers_who_see_all_need_replies_that_fit(caplog: pytest.LogCaptureFixture) -> None:
    app = app_of(lambda k, t, arrays: reply({"w": arrays["w"] if k else np.zeros(3)}), numbered)
    with pytest.raises(UsageError, match="a client's reply does not fit the model that was sent; see the log"):
        trained(Attacked(FedAvg(fraction_evaluate=0), "sf", clients=[1]), app, 4, vector(0.0))
    assert "sent what cannot be used: array w is float64 (3,)" in caplog.text


def test_robustfl_does_not_need_flower() -> None:
    """Without flwr everything else imports, and robustfl.flower says what to install."""
    code = (
        "import sys, importlib.abc\n"
        "class No(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'flwr': raise ModuleNotFoundError(name)\n"
        "import importlib.util as u\nreal = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name.startswith('flwr') else real(name, *a)\n"
        "sys.meta_path.insert(0, No())\n"
        "import robustfl; robustfl.defense('median')\n"
        "try: import robustfl.flower\nexcept ImportError as error: print(error)\n"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install -e '.[flower]'" in made.stdout


def test_the_page_shows_what_works() -> None:
    text = (EXAMPLE.parents[1] / "docs" / "flower.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    space: dict[str, Any] = {"make_model": bn_model}
    for block in blocks:
        exec(compile(block, "flower.md", "exec", dont_inherit=True), space)
    assert isinstance(space["strategy"], Attacked)
    assert len(blocks) == 3


def test_the_example_of_the_strategy_gives_what_it_says() -> None:
    assert doctest.testmod(sys.modules[RobustStrategy.__module__])._asdict() == {"failed": 0, "attempted": 1}
