"""Passes that are recorded and replayed: the same numbers as passes that run, whatever layers and streams do."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch import Tensor

from robustfl.federation import clients, train
from robustfl.replay import Results
from tests.bench.federations import federation
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


def trained(
    model: str, norm: str, algorithm: str, recorder: Repeater | None, device: torch.device = HOST
) -> list[Tensor]:
    """Model and statistics of every round."""
    with mock.patch.object(clients, "recorded_on", return_value=recorder):
        experiment = federation(
            model, (1, 8, 8), n=5, f=1, batch=3, rounds=9, norm=norm, algorithm=algorithm, defense="nnm+median",
            device=device,
        )  # fmt: skip
        rounds = [record.state for record in train(experiment)]
    return [torch.cat([state.theta.cpu(), state.statistics.cpu()]).clone() for state in rounds]


NORMS = ("naive-bn", "fbn", "fbn-hbn-repo", "hbn", "hbn(collection=training, eval_stats=ema)", "fixbn", "gn",
         "fedbn", "none")  # fmt: skip


CASES = [
    *[(norm, algorithm) for norm in NORMS for algorithm in ("dsgd(momentum=0.9)", "fedsam(local_steps=2)")],
    *[(norm, "fedavg(local_steps=3)") for norm in (*NORMS, "fedtan")],
    ("fbn", "scaffold"),
    ("naive-bn", "fedacg(local_steps=2)"),
]


@pytest.mark.parametrize(("norm", "algorithm"), CASES)
def test_replayed_passes_train_as_others_do(norm: str, algorithm: str) -> None:
    recorder = Repeater()
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


@pytest.mark.parametrize("norm", ["fedtan", "fedavg-alg2", "fedbn", "silobn"])
def test_clients_with_statistics_of_their_own_are_replayed_together(norm: str) -> None:
    recorder = Repeater()
    with Pretend():
        expected = trained("digits-cnn", norm, "fedavg(local_steps=3)", None, DEVICE)
        found = trained("digits-cnn", norm, "fedavg(local_steps=3)", recorder, DEVICE)
    assert recorder.recorded <= 3  # not anew for rows that lie somewhere else
    assert recorder.replayed > 10
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)
