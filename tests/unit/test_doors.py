"""Members of plug-ins that return the wrong kind of thing: each is named, with what is wanted instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from robustfl import registry
from robustfl.contracts import (
    Aggregated,
    Aggregator,
    Algorithm,
    Attack,
    Context,
    Dataset,
    Evasion,
    Forged,
    LocalWork,
    Model,
    Norm,
    Objective,
    Partition,
    Propagation,
    Reports,
    ServerWork,
    Step,
    View,
)  # fmt: skip
from robustfl.data import data_root, dataset_from_spec
from robustfl.doors import opened
from robustfl.errors import RobustflError, UsageError
from robustfl.federation.statistics import collect
from robustfl.norms.layers import ServerBatchNorm
from robustfl.scenarios import submission
from robustfl.testing import check
from robustfl.vectors import layout_of

pytestmark = pytest.mark.usefixtures("clean_registry")
NAN = float("nan")
X = torch.ones(5, 4)
DRAW = torch.Generator()
PIXELS, LABELS = torch.rand(3, 1, 8, 8), torch.arange(3)


def registered(base: type, **members: Any) -> Any:
    """An instance of a class of that contract with these members."""
    space = {"__doc__": "A method.", "__module__": __name__, **members}
    cls = dataclass(frozen=True)(type("Odd", (base,), space))
    registry._entries[cls.kind].pop("odd-by-hand", None)  # of the case before
    return registry.register("odd-by-hand")(cls)()


def member(value: Any) -> Any:
    return lambda self, *args, **kwargs: value() if callable(value) else value


def fact(value: Any) -> property:
    return property(member(value))


def rule(**members: Any) -> Any:
    known = {"aggregate": member(lambda: X[0].clone()), "min_clients": member(1)}
    return registered(Aggregator, **{**known, **members})


def aggregated(made: Any) -> Any:
    return lambda: rule(aggregate=member(lambda: made)).aggregate(X, f=1, context=Context())


def forged(made: Any) -> Any:
    return lambda: registered(Attack, forge=member(lambda: made)).forge(View(5, 1, honest=X), generator=DRAW)


def attack(**members: Any) -> Any:
    return registered(Attack, forge=member(None), **members)


def poisoned(*made: Any) -> Any:
    return lambda: attack(poison=member(lambda: made)).poison(PIXELS, LABELS, classes=3, generator=DRAW)


def mixed(made: Any, **members: Any) -> Any:
    known = {"mix": member(lambda: made), "min_clients": member(1), **members}
    return lambda: registered(Step, **known).mix(X @ X.T, f=1, context=Context())


def algorithm(**members: Any) -> Any:
    known = {"steps": member(1), "local": member(lambda: (X, None)), "server": member(lambda: X[0])}
    return registered(Algorithm, **{**known, **members})


def norm(**members: Any) -> Any:
    return registered(Norm, **{"layer": member(lambda: nn.Identity()), **members})


def built(made: Any) -> Any:
    known = {"build": member(lambda: made)}
    return lambda: registered(Model, **known).build(norm(), shape=(1, 8, 8), classes=3)


def shared(made: Any) -> Any:
    return lambda: registered(Propagation, weights=member(lambda: made)).weights(X, X[0], ())


def split(made: Any) -> Any:
    draw = np.random.default_rng(0)
    return lambda: registered(Partition, split=member(made)).split(np.arange(6), clients=2, classes=6, generator=draw)


def served(state: Any) -> Any:
    work = ServerWork(X[0], X[0], 0.1, {"m": X[0]})
    known = {"server_state": member(dict), "server_step": member(lambda: (X[0].clone(), state))}
    return lambda: algorithm(**known).server_step(work)


WRONG: list[tuple[Any, str]] = [
    (lambda: rule(min_clients=member(2.5)).min_clients(1), r"min_clients\(\) returned 2.5; the least number"),
    (lambda: rule(min_clients=member(None)).min_clients(1), r"min_clients\(\) returned None"),
    (lambda: rule(refuses=member(False)).refuses(5, 1), r"refuses\(\) returned False; the reason as a text, or None"),
    (lambda: rule(weighted=fact("yes")).weighted, "weighted returned 'yes'; True or False is wanted"),
    (aggregated(X[0].clone().requires_grad_(True)), "that requires a gradient; .* return it with .detach()"),
    (aggregated(X[0].to_sparse()), "torch.sparse_coo; the aggregate .* as a dense tensor"),
    (aggregated(Aggregated(X[0], {"a": np.ones(3)})), "the state of a Aggregated is a mapping"),  # type: ignore[dict-item]
    (aggregated(Aggregated(X[0], {}, None)), "the facts of an Aggregated are a mapping"),  # type: ignore[arg-type]
    (aggregated(Aggregated(X[0], {}, {"attack_shift": 0.0})), "'attack_shift' is measured and not claimed"),
    (forged(Forged(X[:1], {3: X})), "the state of a Forged is a mapping"),  # type: ignore[dict-item]
    (forged(X[:1].clone().requires_grad_(True)), "that requires a gradient"),
    (lambda: attack(certificate=member({"no_effect": True})).certificate(5, 1),
     "'no_effect' is measured and not claimed"),
    (lambda: attack(certificate=member({"a": X})).certificate(5, 1), "names to numbers"),
    (lambda: attack(target=fact("cat")).target, "target returned 'cat'"),
    (poisoned(PIXELS), "a pair is wanted"),
    (poisoned(PIXELS[:-1], LABELS), r"images as a tensor \(3, 1, 8, 8\)"),
    (poisoned(PIXELS * NAN, LABELS), "pixels are finite and lie in"),
    (poisoned(PIXELS, LABELS + 100), "labels lie from 0 to 2"),
    (lambda: attack(triggers=True, trigger=member(lambda: PIXELS[:-1])).trigger(PIXELS),
     r"trigger\(\) returned a tensor \(2, 1, 8, 8\)"),
    (lambda: attack(constrain=member(3.0)).constrain(X[0], X[0]), "a gradient"),
    (lambda: registered(Evasion, perturb=member(lambda: PIXELS + 5)).perturb(nn.Identity(), PIXELS, LABELS), "pixels"),
    (mixed(None), r"mix\(\) returned None; finite coefficients \(5, 5\)"),
    (mixed(torch.eye(5)[:-1]), r"mix\(\) returned a tensor \(4, 5\)"),
    (mixed(torch.eye(5) * NAN), "finite coefficients"),
    (mixed(torch.eye(5), rows_after=member("3")), r"rows_after\(\) returned '3'; the number of rows"),
    (shared(None), r"weights\(\) returned None; weights \(5,\) of torch.float32 are wanted, at least 0, that sum"),
    (shared(torch.full((4,), 0.25)), "at least 0, that sum to one"),
    (shared(torch.full((5,), 0.25)), "at least 0, that sum to one"),
    (shared(torch.tensor([1.5, -0.5, 0.0, 0.0, 0.0])), "at least 0, that sum to one"),
    (shared(torch.full((5,), 0.2, dtype=torch.float64)), "of torch.float32 are wanted"),
    (lambda: registered(Propagation, weights=member(None), every_round=fact(1)).every_round, "every_round returned 1"),
    (lambda: registered(Propagation, weights=member(None), compares=fact(0)).compares, "compares returned 0"),
    (lambda: algorithm(steps=member(0)).steps(5, 1), r"steps\(\) returned 0; the number of batches"),
    (lambda: algorithm(asks=fact("again")).asks, "asks returned 'again'; a set is wanted, of one_batch, again"),
    (lambda: algorithm(asks=fact({"gain"})).asks, "asks returned a set; a set is wanted, of one_batch, again"),
    (lambda: algorithm(remembers=fact(True)).local(None), r"what clients keep missing: remembers is True"),
    (lambda: algorithm(broadcast=member(3.0)).broadcast(X[0], {}), "the model that clients receive, a tensor"),
    (lambda: algorithm(server_state=member(lambda: {"m": X}), server_step=member(None)).server_state(X[0]), "each"),
    (served({}), "with m in it, are wanted"),
    (served({"m": X}), r"state\['m'\] is a tensor \(5, 4\) of torch.float32, and not like theta"),
    (lambda: registered(Objective, replays=fact(0)).replays, "replays returned 0"),
    (lambda: registered(Objective, per_sample=member(lambda: X[0])).per_sample(X, LABELS, X[0]), "one loss per sample"),
    (lambda: registered(Objective, backward=member(None)).backward(nn.Identity(), X, LABELS, None), "the mean loss of"),
    (lambda: norm(private=fact({"mean"})).private, "a set of robustfl.contracts.Tag"),
    (lambda: norm(frozen=member(None)).frozen(0, 1), r"frozen\(\) returned None; True or False"),
    (lambda: norm(statistics_pass=fact(True)).statistics_pass, "a StatisticsPass is wanted"),
    (lambda: norm(layer=member(lambda: nn.BatchNorm2d(3))).layer(3), "nobody asks BatchNorm2d"),
    (lambda: norm(merge=member(None)).layer(3), "the scheme overrides merge, so a layer with statistics is wanted"),
    (lambda: norm(messages=member(lambda: X[:1])).messages(Reports(X, X), X[0], ()), "what honest clients send"),
    (built(None), r"build\(\) returned None; a module is wanted"),
    (built(nn.Flatten()), "a network with parameters that can be trained"),
    (built(nn.Sequential(nn.Flatten(), nn.Linear(64, 4))), r"logits \[b, 3\] are wanted, and of two"),
    (built(nn.Sequential(nn.Flatten(), nn.Linear(63, 3))), r"a network that takes images \[b, 1, 8, 8\] is wanted"),
    (split(lambda: (np.arange(3), np.arange(3, 6))), "a list of 2 index arrays"),
    (split(lambda: [np.arange(3), np.arange(2, 6)]), "a sample is given out twice"),
    (split(lambda: [np.arange(3), np.arange(3, 7)]), "indices of client 1 reach from 3 to 6; there are 6 samples"),
]  # fmt: skip


def test_a_wrong_kind_is_named_with_the_method_and_what_is_wanted() -> None:
    for ask, words in WRONG:
        with pytest.raises(RobustflError, match=words) as caught:
            ask()
        assert " 'odd-by-hand' (" in str(caught.value)


def test_what_is_shown_must_not_be_written_to() -> None:
    writes = registered(Evasion, perturb=lambda self, model, x, y, *, generator=None: x.mul_(0.5))
    with pytest.raises(RobustflError, match=r"perturb\(\) wrote to what it was shown; it must work on a copy"):
        writes.perturb(nn.Identity(), PIXELS.clone(), LABELS)


def test_what_a_view_or_a_context_does_not_hold_is_said_where_it_is_missed() -> None:
    def forge(self: Attack, view: View, *, generator: torch.Generator) -> Tensor:
        assert view.own is not None
        return view.own + view.honest.mean(0)  # type: ignore[union-attr]

    blind = registered(Attack, forge=forge)
    with pytest.raises(
        RobustflError, match=r"forge\(\): .*NoneType.*; with knowledge='.*' the view holds n, f, own only"
    ):
        blind.forge(View(n=5, f=2, own=X[:2]), generator=DRAW)


def unseeded() -> Callable[[int], Any]:
    """The call, in a round, of an attack that draws from a generator of its own."""

    def forge(self: Attack, view: View, *, generator: torch.Generator) -> Tensor:
        own = torch.Generator()
        own.seed()
        return torch.randn(2, 4, generator=own)

    made = registered(Attack, forge=forge)
    return lambda round: made.forge(View(n=5, f=2, round=round, honest=X[:3]), generator=DRAW)


def test_randomness_of_a_methods_own_is_seen_by_calling_twice_in_more_and_more_distant_rounds() -> None:
    call = unseeded()
    for round in (0, 1, 3, 7, 15):
        with pytest.raises(RobustflError, match=r"forge\(\) made two things of the same input and draws"):
            call(round)
    assert all(call(round).shape == (2, 4) for round in (2, 4, 5, 6, 8))


def test_a_rule_that_counts_its_calls_is_seen() -> None:
    calls: list[Tensor] = []

    def counted(self: Aggregator, X: Tensor, *, f: int, context: Context) -> Aggregated:
        calls.append(X)
        return Aggregated(torch.zeros(4), state={"calls": torch.tensor(float(len(calls)))})

    with pytest.raises(RobustflError, match=r"aggregate\(\) made two things of the same input"):
        rule(aggregate=counted).aggregate(X, f=1, context=Context())


def evasion_that(writes: Callable[[nn.Module, Tensor], Any]) -> tuple[Callable[[], Any], Tensor, Tensor]:
    """A call of an evasion that writes to the model or the images, and both."""

    def perturb(self: Evasion, model: nn.Module, x: Tensor, y: Tensor, *, generator: Any = None) -> Tensor:
        writes(model, x)
        return x.clone()

    model, x, made = nn.Linear(2, 2), PIXELS.clone(), registered(Evasion, perturb=perturb)
    return lambda: made.perturb(model, x, LABELS), model.weight.data, x


def weights_zeroed() -> tuple[Callable[[], Any], Any]:
    return evasion_that(lambda model, x: [p.data.zero_() for p in model.parameters()])[:2]


def images_filled() -> tuple[Callable[[], Any], Any]:
    call, _, images = evasion_that(lambda model, x: x.numpy().fill(0))
    return call, images


def model_of_the_context_filled() -> tuple[Callable[[], Any], Any]:
    def aggregate(self: Aggregator, X: Any, *, f: int, context: Context) -> Tensor:
        assert context.model is not None
        context.model.numpy().fill(7)
        return torch.zeros(4)

    held = torch.ones(4)
    return lambda: rule(aggregate=aggregate).aggregate(X, f=1, context=Context(model=held)), held


def labels_sorted() -> tuple[Callable[[], Any], Any]:
    def split(self: Partition, labels: np.ndarray, *, clients: int, classes: int, generator: Any) -> list[np.ndarray]:
        labels.sort()
        return [np.arange(3), np.arange(3, 6)]

    labels, parted = np.array([2, 0, 1, 1, 0, 2]), registered(Partition, split=split)
    return lambda: parted.split(labels, clients=2, classes=3, generator=np.random.default_rng(0)), labels


def model_of_a_client_moved() -> tuple[Callable[[], Any], Any]:
    def local(self: Algorithm, work: LocalWork) -> tuple[Tensor, None]:
        work.theta.data.add_(1)
        return work.theta.clone(), None

    theta = torch.zeros(2, 3)
    work = LocalWork(theta=theta, gradient=lambda at: at, again=lambda at: at, steps=1, lr=0.1, server={}, memory=None)
    made = registered(Algorithm, local=local, steps=member(1), server=member(theta))
    return lambda: made.local(work), theta


@pytest.mark.parametrize(
    "made", [weights_zeroed, images_filled, model_of_the_context_filled, labels_sorted, model_of_a_client_moved]
)
def test_writes_that_leave_no_trace_in_versions_are_seen_and_undone(made: Callable[[], tuple[Any, Any]]) -> None:
    call, shown = made()
    before = shown.tolist()
    with pytest.raises(RobustflError, match="wrote to what it was shown; it must work on a copy"):
        call()
    assert shown.tolist() == before


def test_a_data_set_has_the_fingerprint_that_it_tells() -> None:
    digits = dataset_from_spec("digits")
    arrays = digits.load(data_root())
    other = registered(Dataset, load=member(lambda: arrays), fingerprint=member("another"))
    with pytest.raises(RobustflError, match=r"fingerprint\(\) says 'another', and these arrays"):
        other.load(data_root())


def test_facts_are_errors_of_usage_and_laws_see_what_comes() -> None:
    made = rule(min_clients=member(2.5))
    with pytest.raises(UsageError):
        made.min_clients(1)
    with opened():
        assert made.min_clients(1) == 2.5


def test_a_report_of_another_form_names_its_layer() -> None:
    class Short(ServerBatchNorm):
        def report(self) -> Any:
            mean, variance, counts = super().report()
            return mean[:-1], variance, counts

    network = nn.Sequential(Short(4, eps=1e-5))
    with pytest.raises(RobustflError, match=r"Short.report\(\) returned \(Tensor, Tensor, Tensor\); mean \[n C\]"):
        collect(network, layout_of(network))


# --- what a bundle brings --------------------------------------------------------------------------------------------


Findings = list[tuple[str, bool | None, str]]


def noted(step: Any, *given: Any) -> Findings:
    """What one step of a submission's check finds."""
    found: Findings = []
    step(*given, lambda *finding: found.append(finding))
    return found


def ran(verdict: str, agrees: bool, detail: str = "") -> Any:
    return SimpleNamespace(verdict=verdict, agrees=agrees, detail=detail, key="0123456789abcdef")


@pytest.mark.parametrize(
    ("passed", "accepted"), [([True], True), ([True, None], False), ([True, False], False), ([None, False], False)]
)
def test_a_submission_is_accepted_where_every_step_was_made_and_passed(
    passed: list[bool | None], accepted: bool
) -> None:
    found: Any = submission.Submission(None, tuple(submission.Finding("x", p, "") for p in passed))  # type: ignore[arg-type]
    assert found.accepted is accepted
    assert (len(found.refused), len(found.undecided)) == (passed.count(False), passed.count(None))


# --- laws ------------------------------------------------------------------------------------------------------------


def remembering(by_client: bool) -> Any:
    """The mean of rows averaged with what was sent last, by client or by place."""

    def aggregate(self: Any, X: Tensor, *, f: int, context: Context) -> Aggregated:
        ids = context.clients if by_client and context.clients is not None else torch.arange(len(X))
        before = context.state.get("rows", torch.zeros_like(X))[ids]
        kept = torch.zeros_like(X)
        kept[ids] = X
        weights = 1 / (1 + (X - before).norm(dim=1, keepdim=True))
        return Aggregated((weights * X).sum(0) / weights.sum(), {"rows": kept})

    return rule(aggregate=aggregate)


@pytest.mark.parametrize("by_client", [True, False])
def test_who_remembers_rows_by_their_place_is_told(by_client: bool) -> None:
    broken = {c.name: c.reason for c in check(remembering(by_client)) if not c.passed}
    assert ("clients remembered" in broken) is not by_client
    assert by_client or "it remembers rows by their place" in broken["clients remembered"]


class Noted(ServerBatchNorm):
    """It pools whatever it sees."""

    def normalised(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if self.training:
            self.look(x, self.sizes_of(x, len(weight)))
        return self.by_server(x, weight, bias, self.sizes_of(x, len(weight)))


def test_a_layer_that_reports_what_it_is_not_to_see_is_told() -> None:
    scheme = norm(
        layer=lambda self, channels: Noted(channels, eps=1e-5),
        merge=lambda self, messages, counts, previous, layers, defense: defense.mixed(messages)(messages),
    )
    broken = {c.name: c.reason for c in check(scheme) if not c.passed}
    assert "while unseen is set a training forward changes the report" in broken["unseen"]
