"""A round as an accelerator would see it: few operations, as many for many clients as for few, two values waited for.

And one graph for ``torch.compile`` of a pass and of every rule that decides nothing by values.

What is counted, and how, says ``tests.pretend``: operations that compute or copy on the device, without views.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from benchmarks.operations import SHAPES, round_of
from robustfl.contracts import Aggregator, Context, Step
from robustfl.defenses import parse_pipeline
from robustfl.defenses.rows import Mixed, Stack
from robustfl.engine.statistics import begin, collect
from robustfl.gradients import Plan, channels_last, client_means, differentiated, serving
from robustfl.layout import Layout, flatten_parameters, layout_of
from robustfl.randomness import stream
from robustfl.registry import create, entries
from tests.pretend import DEVICE, HOST, Pretend

compiles = pytest.mark.skipif(torch.__version__ < (2, 7), reason="the compiler of torch 2.6 follows no dataclass")


def prepared(model: str, norm: str) -> tuple[nn.Module, Layout, Tensor]:
    architecture = create("model", model)
    network = architecture.build(create("norm", norm), shape=SHAPES[model], classes=10)
    architecture.initialise(network, stream(0, "init"))
    layout = layout_of(network.train())
    return network, layout, flatten_parameters(network, layout).clone()


def a_pass(
    model: str, norm: str, n: int, *, own: bool, dtype: torch.dtype = torch.float32, device: torch.device = HOST
) -> tuple[
    Callable[[list[Tensor], Tensor], tuple[Tensor, Tensor]], Callable[..., object], Tensor
]:  # fmt: skip
    """A pass of ``n`` clients with four samples each; what makes the model serve them; room for the gradients."""
    network, layout, theta = prepared(model, norm)
    network, theta, sizes = network.to(device, dtype), theta.to(device, dtype), (4,) * n
    draw = torch.Generator().manual_seed(0)
    x = channels_last(torch.rand((4 * n, *SHAPES[model]), generator=draw, dtype=dtype))
    y = torch.randint(10, (4 * n,), generator=draw)
    x, y = x.to(device), y.to(device)
    moved = theta + 0.01 * torch.randn((n, layout.d), generator=draw, dtype=dtype).to(device)
    thetas = moved if own else theta.expand(n, -1)

    plan = Plan(network, layout)

    def run(leaves: list[Tensor], out: Tensor) -> tuple[Tensor, Tensor]:
        begin(network, sizes)

        def losses() -> Tensor:
            return client_means(nn.functional.cross_entropy(network(x), y, reduction="none"), sizes)

        found = differentiated(plan, leaves, losses, out)
        return found, collect(network, layout, clients=n).rows

    return run, lambda: serving(plan, thetas, sizes), torch.zeros((n, layout.d), dtype=dtype, device=device)


def operations(model: str, norm: str, n: int, *, own: bool) -> Pretend:
    with Pretend() as device:
        run, serve, out = a_pass(model, norm, n, own=own, device=DEVICE)
        with serve() as leaves:  # type: ignore[attr-defined]
            device.start()
            run(leaves, out)
    return device


@pytest.mark.parametrize("own", [False, True], ids=["one model", "own models"])
@pytest.mark.parametrize("norm", ["fbn", "naive-bn"])
def test_a_pass_issues_few_operations_whose_number_does_not_grow_with_clients(norm: str, own: bool) -> None:
    few, many = (operations("mnist-cnn", norm, n, own=own) for n in (5, 20))
    assert few.issued.total() == many.issued.total() <= 160, many.issued.most_common()
    assert not many.waits


@pytest.mark.parametrize(
    ("algorithm", "steps"),
    [("dsgd(momentum=0.9)", 1), pytest.param("fedavg(local_steps=2)", 2, marks=pytest.mark.slow)],
)
def test_a_round_issues_few_operations_and_waits_for_two_values(algorithm: str, steps: int) -> None:
    few, many = (round_of("mnist-cnn", n, algorithm=algorithm, batch=2) for n in (10, 40))
    for found in (few, many):
        assert found.issued.total() <= 200 * steps, found.issued.most_common()
        assert found.waits.total() <= 2, found.waits
    assert many.issued.total() <= 1.1 * few.issued.total()
    assert many.copies == few.copies


@pytest.mark.parametrize(
    "algorithm", [pytest.param("dsgd(momentum=0.9)", marks=pytest.mark.slow), "fedavg(local_steps=2)"]
)
@pytest.mark.parametrize("norm", [
    "naive-bn", "gn", "ln", "hbn", "hbn(stats_mode=eval)", "fedtan", "fedavg-alg2", "fedbn", "silobn", "singlenet",
    "dual-bn(local=true)", "fedwon",
])  # fmt: skip
def test_a_round_issues_as_many_operations_for_many_clients_as_for_few_with_every_kind_of_norm(norm, algorithm):
    few, many = (round_of("digits-cnn", n, norm=norm, algorithm=algorithm, batch=2) for n in (5, 20))
    assert many.issued.total() <= 1.1 * few.issued.total(), (many.issued - few.issued).most_common(5)
    assert many.copies.total() <= 1.1 * few.copies.total()
    assert many.waits == few.waits


@pytest.mark.parametrize("norm", ["naive-bn", "gn"])
@pytest.mark.parametrize("defense", ["mean", "median", "multi-krum", "arc+trimmed-mean", "centered-clipping", "meamed"])
def test_two_values_are_enough_for_every_rule_that_decides_nothing_on_the_way(norm: str, defense: str) -> None:
    found = round_of("digits-cnn", 7, norm=norm, defense=defense)
    assert found.waits.total() <= 2, found.waits


@pytest.mark.slow
@compiles
@pytest.mark.parametrize(("norm", "own", "backend"), [
    ("fbn", False, "aot_eager"), ("fbn", True, "eager"), ("naive-bn", False, "eager"), ("gn", True, "eager"),
])  # fmt: skip
def test_torch_compiles_a_pass_as_one_graph(norm: str, own: bool, backend: str) -> None:
    run, serve, out = a_pass("digits-cnn", norm, 3, own=own, dtype=torch.float64)
    again = torch.zeros_like(out)
    with serve() as leaves, torch._dynamo.config.patch(trace_autograd_ops=True):  # type: ignore[attr-defined]
        plain = run(leaves, out)
        torch._dynamo.reset()
        compiled = torch.compile(run, fullgraph=True, backend=backend)(leaves, again)
    torch.testing.assert_close((again, *compiled), (out, *plain), rtol=1e-10, atol=1e-12)


def rules(*, on_host: bool) -> list[str]:
    """The registered rules and steps that decide by values on the host, or those that do not, as pipelines."""
    found = [e for e in entries("defense") if issubclass(e.cls, (Aggregator, Step)) and bool(e.cls.on_host) == on_host]
    return [e.name if issubclass(e.cls, Aggregator) else f"{e.name}+mean" for e in found]


def captured(spec: str, X: Tensor) -> Tensor:
    """What ``torch.compile`` of a rule makes of the rows ``X``."""
    rule = parse_pipeline(spec)

    def run(X: Tensor, reference: Tensor) -> Tensor:
        rows, context = Mixed(Stack(X)), Context(reference=reference)
        for step in rule.steps:
            rows = rows.after(step, f=2, context=context)
        return rule._reduce(rows, 2, context).vector

    torch._dynamo.reset()
    return torch.compile(run, fullgraph=True, backend="eager")(X, X.mean(0))


@pytest.fixture
def rows() -> Tensor:
    return torch.randn((11, 40), dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
@compiles
@pytest.mark.slow
@pytest.mark.parametrize("spec", [*rules(on_host=False), "centered-clipping(L=3)", "nnm+trimmed-mean", "arc+nnm+krum"])
def test_torch_compiles_a_rule_as_one_graph(spec: str, rows: Tensor) -> None:
    plain = parse_pipeline(spec).run(rows, f=2, context=Context(reference=rows.mean(0))).vector
    torch.testing.assert_close(captured(spec, rows), plain, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("spec", rules(on_host=True))
def test_rules_that_say_they_decide_on_the_host_do(spec: str, rows: Tensor) -> None:
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        captured(spec, rows)


def test_the_pretended_device_counts_and_refuses_what_a_gpu_would() -> None:
    with Pretend() as device:
        x, there = torch.rand(6, 3), torch.zeros(6, 3, device=DEVICE)
        y = x.to(DEVICE)
        assert (y.device, x.device, y.cpu().device) == (DEVICE, HOST, HOST)
        device.start()
        assert {part.sum().device for part in y.split(1)} == {DEVICE}
        assert device.issued == {"sum": 6}
        device.start()
        assert float(y.sum()) == bool(y.any()) + float(y.sum()) - 1
        _, _ = y[y > 0.5], y.tolist()
        assert device.waits == {"_local_scalar_dense": 3, "index": 1, "tolist": 1}
        device.start()
        _ = y.view(3, 6)[1:], 2 * torch.tensor(1.0), x.index_select(0, torch.tensor([1]))
        there.copy_(x)
        assert not device.issued
        assert device.copies == {"copy_": 1}
        assert y.requires_grad_().sigmoid().sum().backward() is None
        assert y.grad.device == DEVICE
        for mixed in (
            lambda: x + there,
            lambda: torch.cat([x, there]),
            lambda: x[there[0].long()],
            lambda: there @ x.T,
        ):
            with pytest.raises(RuntimeError, match="mixes tensors"):
                mixed()
        with pytest.raises(RuntimeError, match="generator"):
            torch.rand(2, generator=stream(0, "x", device=DEVICE))
        with pytest.raises(TypeError, match="not on the CPU"):
            there.numpy()
    assert there.device == HOST
