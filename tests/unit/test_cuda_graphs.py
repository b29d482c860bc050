"""Passes that are recorded and replayed: the same numbers as passes that run, whatever layers and streams do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.federations import federation
from robustfl.engine import clients, train
from robustfl.engine.cuda_graphs import GraphCache, Results
from robustfl.registry import create
from tests.pretend import DEVICE, HOST, Pretend


class Repeater:
    """A recorder for any device: it runs the computation anew, and moves what comes out to where it was at first."""

    def __init__(self) -> None:
        self.recorded, self.replayed = 0, 0

    def __call__(self, run: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
        self.recorded += 1
        first = run()

        def again() -> None:
            self.replayed += 1
            for old, new in zip(first, run(), strict=True):
                old.copy_(new)

        return again, first


class Tape(TorchDispatchMode):
    """A recorder like a graph: operations on the tensors they had, of which nothing is run but themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded, self.replayed = 0, 0
        self._taped: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if not func.is_view and "empty" not in func.overloadpacket.__name__:
            self._taped.append((func, args, kwargs or {}, made))
        return made

    def __call__(self, run: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
        self.recorded += 1
        with self:
            found = run()
        taped, self._taped = self._taped, []

        def again() -> None:
            self.replayed += 1
            with torch._C._AutoDispatchBelowAutograd():
                for func, args, kwargs, before in taped:
                    for old, new in zip(tree_leaves(before), tree_leaves(func(*args, **kwargs)), strict=True):
                        if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                            old.copy_(new)

        return again, found


def trained(
    model: str, norm: str, algorithm: str, recorder: Repeater | Tape | None, device: torch.device = HOST
) -> list[Tensor]:
    """Model and statistics of every round."""
    with mock.patch.object(clients, "recorded_on", return_value=recorder):
        experiment = federation(
            model, (1, 8, 8), n=5, f=1, batch=3, rounds=9 if "dsgd" in algorithm else 5, norm=norm, device=device,
            algorithm=algorithm, defense="nnm+median",
        )  # fmt: skip
        rounds = [record.state for record in train(experiment)]
    return [torch.cat([state.theta.cpu(), state.statistics.cpu()]).clone() for state in rounds]


NORMS = ("naive-bn", "fbn", "fbn-hbn-repo", "hbn", "hbn(collection=training, eval_stats=ema)", "fixbn", "gn",
         "fedbn", "none")  # fmt: skip


CASES = [
    *[(norm, "fedavg(local_steps=3)") for norm in (*NORMS, "fedtan")],
    ("naive-bn", "dsgd(momentum=0.9)"),
    ("hbn", "fedsam(local_steps=2)"),
    ("fbn", "scaffold"),
]


@pytest.mark.parametrize(("norm", "algorithm"), CASES)
@pytest.mark.parametrize("kind", [pytest.param(Repeater, marks=pytest.mark.slow), Tape])
def test_replayed_passes_train_as_others_do(kind: type[Repeater | Tape], norm: str, algorithm: str) -> None:
    recorder = kind()
    expected = trained("digits-cnn", norm, algorithm, None)
    found = trained("digits-cnn", norm, algorithm, recorder)
    assert recorder.replayed > 0
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("algorithm", ["dsgd", "fedavg(local_steps=3)"])
def test_masks_are_drawn_from_the_clients_streams(algorithm: str) -> None:
    recorder = Repeater()
    expected = trained("fbn-cnn", "fbn", algorithm, None)
    found = trained("fbn-cnn", "fbn", algorithm, recorder)
    assert recorder.replayed > 0
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["fedtan", "fedavg-alg2", "fedbn", "silobn"])
def test_clients_with_statistics_of_their_own_are_replayed_together(norm: str) -> None:
    recorder = Repeater()
    with Pretend():
        expected = trained("digits-cnn", norm, "fedavg(local_steps=3)", None, DEVICE)
        found = trained("digits-cnn", norm, "fedavg(local_steps=3)", recorder, DEVICE)
    assert recorder.recorded <= 3  # not anew for rows that lie somewhere else
    assert recorder.replayed > 2 * recorder.recorded
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)


def test_a_device_that_takes_no_recording_is_told_of_and_trains_on() -> None:
    def refusing(run: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    told: list[str] = []
    with mock.patch.object(clients, "recorded_on", return_value=refusing):
        rounds = train(
            federation("digits-cnn", (1, 8, 8), n=3, f=0, batch=3, rounds=6, defense="mean"), warn=told.append
        )
        assert len(list(rounds)) == 6
    assert told == [
        "passes are launched operation by operation; recording them failed (operation not permitted when stream is "
        "capturing)"
    ]


class Doubling(nn.Module):
    """A layer of somebody else, without parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def hooked() -> nn.Module:
    """A layer that is known, with something that is not."""
    layer = nn.Tanh()
    layer.register_forward_hook(lambda layer, inputs, out: 2 * out)
    return layer


@pytest.mark.parametrize(("layer", "expected"), [(Doubling(), 0), (hooked(), 0), (nn.Tanh(), 1)])
def test_only_layers_that_are_known_are_recorded(layer: nn.Module, expected: int) -> None:
    model, recorder, x = nn.Sequential(nn.Linear(2, 2), layer), Repeater(), torch.ones(3, 2)
    replays = GraphCache(model, recorder, print)
    for _ in range(5):
        replays.run("kind", lambda x, out: (out.copy_(model(x).detach()),), (x,), torch.empty(3, 2))
    assert recorder.recorded == expected


def test_kinds_are_told_apart_and_rare_ones_run() -> None:
    recorder, out = Repeater(), torch.empty(2)
    replays = GraphCache(nn.Linear(2, 2), recorder, print)

    def halved(x: Tensor, out: Tensor) -> Results:
        out.copy_(x[0] / 2)
        return (x.sum(0),)

    def run(kind: object, x: Tensor, *, room: bool = True) -> list[float]:
        (total,) = replays.run(kind, halved, (x,), out, room=lambda: room)
        assert torch.equal(out, x[0] / 2)
        return total.tolist()  # type: ignore[no-any-return]

    for rows in (1, 2, 3):
        x = torch.arange(2.0 * rows).view(rows, 2)
        for _ in range(2):
            run("a", x)
            run(None, x)
        run("a", x, room=False)
    assert recorder.recorded == 0
    ones = torch.ones(1, 2)
    for k in range(4):
        assert run("a", k * ones) == [k, k]
        assert run("b", ones[:, :1].expand(1, 2)) == [1, 1]
        assert run("c", (k * ones[0]).expand(4, 2)) == [4 * k, 4 * k]
    assert recorder.recorded == 3
    assert recorder.replayed == 5  # "a" was seen before


def test_results_are_not_what_the_next_replay_writes_to() -> None:
    replays, out = GraphCache(nn.Linear(2, 2), Repeater(), print), torch.empty(2)
    found = [
        replays.run("kind", lambda x, out: (out.copy_(x), x + 1), (torch.full((2,), float(k)),), out)[1]
        for k in range(6)
    ]
    assert [row.tolist() for row in found] == [[k + 1, k + 1] for k in range(6)]


@pytest.mark.parametrize("limit", ["MAX_GRAPHS", "BYTES"])
def test_nothing_is_recorded_beyond_a_limit_and_nothing_twice(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"robustfl.engine.cuda_graphs.{limit}", 2 if limit == "MAX_GRAPHS" else 2 * 16 - 1)
    recorder, out = Repeater(), torch.empty(2)
    replays = GraphCache(nn.Linear(2, 2), recorder, print)
    for _ in range(9):
        for kind in ("a", "b", "c"):
            replays.run(kind, lambda x, out: (out.copy_(x),), (torch.ones(2),), out)
    assert (recorder.recorded, recorder.replayed) == (2, 2 * 6)


def test_an_error_without_words_is_named() -> None:
    def refusing(run: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
        raise NotImplementedError

    told: list[str] = []
    replays = GraphCache(nn.Linear(2, 2), refusing, told.append)
    for _ in range(4):
        replays.run("kind", lambda x, out: (out.copy_(x),), (torch.ones(2),), torch.empty(2))
    assert told == ["passes are launched operation by operation; recording them failed (NotImplementedError)"]


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["ce", "wsm"])
@pytest.mark.parametrize("norm", [*NORMS, "ln", "fedwon", "fedfn", "dual-bn"])
def test_nothing_that_is_recorded_waits_for_a_value(norm: str, objective: str) -> None:
    class Waiting(Repeater):
        def __call__(self, run: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
            before = device.waits.total(), device.copies.total()
            made = super().__call__(run)
            assert (device.waits.total(), device.copies.total()) == before
            return made

    recorder = Waiting()
    with Pretend() as device, mock.patch.object(clients, "recorded_on", return_value=recorder):
        for algorithm in ("dsgd", "fedavg(epochs=2)"):
            e = federation("digits-cnn", (1, 8, 8), n=4, f=0, batch=3, rounds=8, norm=norm, attack="none",
                           defense="mean", algorithm=algorithm, device=DEVICE)  # fmt: skip
            e = replace(e, objective=create("objective", objective), parts=(e.parts[0][:5], *e.parts[1:]))
            device.start()
            list(train(e))
    assert recorder.recorded > 1
