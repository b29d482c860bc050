"""A pass as an accelerator would see it: few operations, as many for many clients as for few, none waited for, and one
graph for ``torch.compile``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from robustfl import layer_kinds
from robustfl.federation.passes import channels_last, client_means, differentiated, serving
from robustfl.federation.statistics import begin, collect
from robustfl.norms import sums
from robustfl.randomness import stream
from robustfl.registry import create
from robustfl.vectors import Layout, flatten_parameters, layout_of
from tests.bench.operations import Operations, counted

SHAPES = {"mnist-cnn": (1, 28, 28), "digits-cnn": (1, 8, 8)}


@pytest.fixture(autouse=True)
def whole_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """No blocks for the CPU's caches."""
    monkeypatch.setattr(sums, "_PIECE", 1 << 60)
    monkeypatch.setattr(layer_kinds, "SMALL", 1 << 60)


def prepared(model: str, norm: str) -> tuple[nn.Module, Layout, Tensor]:
    architecture = create("model", model)
    network = architecture.build(create("norm", norm), shape=SHAPES[model], classes=10)
    architecture.initialise(network, stream(0, "init"))
    layout = layout_of(network.train())
    return network, layout, flatten_parameters(network, layout).clone()


def a_pass(model: str, norm: str, n: int, *, own: bool, dtype: torch.dtype = torch.float32) -> tuple[
    Callable[[list[tuple[slice, Tensor]], Tensor], tuple[Tensor, Tensor]], Callable[..., object], Tensor
]:  # fmt: skip
    """A pass of ``n`` clients with four samples each; what makes the model serve them; room for the gradients."""
    network, layout, theta = prepared(model, norm)
    network, theta, sizes = network.to(dtype), theta.to(dtype), (4,) * n
    draw = torch.Generator().manual_seed(0)
    x = channels_last(torch.rand((4 * n, *SHAPES[model]), generator=draw, dtype=dtype))
    y = torch.randint(10, (4 * n,), generator=draw)
    moved = theta + 0.01 * torch.randn((n, layout.d), generator=draw, dtype=dtype)
    thetas = moved if own else theta.expand(n, -1)

    def run(leaves: list[tuple[slice, Tensor]], out: Tensor) -> tuple[Tensor, Tensor]:
        begin(network, sizes)

        def losses() -> Tensor:
            return client_means(nn.functional.cross_entropy(network(x), y, reduction="none"), sizes)

        found = differentiated(network, leaves, losses, out)
        return found, collect(network, layout, clients=n).rows

    return run, lambda: serving(network, layout, thetas, sizes), torch.zeros((n, layout.d), dtype=dtype)


def operations(model: str, norm: str, n: int, *, own: bool) -> Operations:
    run, serve, out = a_pass(model, norm, n, own=own)
    with serve() as leaves:  # type: ignore[attr-defined]
        return counted(lambda: run(leaves, out))


@pytest.mark.parametrize("own", [False, True], ids=["one model", "own models"])
@pytest.mark.parametrize("norm", ["fbn", "naive-bn"])
def test_a_pass_issues_few_operations_whose_number_does_not_grow_with_clients(norm: str, own: bool) -> None:
    few, many = (operations("mnist-cnn", norm, n, own=own) for n in (5, 20))
    assert few.issued.total() == many.issued.total() <= 160, many.issued.most_common()
    assert not many.waits


def test_the_count_sees_a_loop_over_clients_and_a_wait() -> None:
    x = torch.rand(6, 3)
    assert counted(lambda: [part.sum() for part in x.split(1)]).issued == {"sum": 6}
    assert counted(lambda: float(x.sum())).waits == {"_local_scalar_dense": 1}
    assert not counted(lambda: x.view(3, 6)[1:]).issued


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
