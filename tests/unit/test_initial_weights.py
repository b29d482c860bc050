"""Initial weights from a file: torchvision's names, errors that name entries, the file's digest in the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from robustfl.cli import invoke
from robustfl.contracts import Model
from robustfl.engine import initial_state, train
from robustfl.errors import DataMissing, Refused
from robustfl.models import Weights
from robustfl.registry import create
from robustfl.scenarios import run_cell
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.expand import fingerprints, key_of, resolve

SMALL: dict[str, Any] = {
    "dataset": "digits(limit=100, test_limit=40)", "model": "digits-cnn", "clients": 2, "rounds": 1, "evasions": [],
}  # fmt: skip


def network(model: str, norm: str = "naive-bn", *, seed: int = 0, classes: int = 10, side: int = 32) -> torch.nn.Module:
    architecture = create("model", model)
    assert isinstance(architecture, Model)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = architecture.build(create("norm", norm), shape=(3, side, side), classes=classes)
    generator = torch.Generator().manual_seed(seed)
    for tensor in (*made.parameters(), *made.buffers()):
        tensor.data.uniform_(0.5, 1.5, generator=generator)
    return made


@pytest.mark.parametrize(
    ("model", "made"),
    [
        ("tv-resnet18", lambda m: m.resnet18()),
        ("mobilenetv2", lambda m: m.mobilenet_v2()),
        pytest.param("vgg11", lambda m: m.vgg11_bn(init_weights=False), marks=pytest.mark.slow),
    ],
)
def test_torchvisions_weights_give_torchvisions_network(model: str, made: Any, tmp_path: Path) -> None:
    from torchvision import models

    with torch.random.fork_rng():
        torch.manual_seed(1)
        theirs = made(models).double().eval()
    for name, tensor in theirs.state_dict().items():
        if name.endswith(("running_mean", "running_var")):
            tensor.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(len(name)))
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    ours = network(model, classes=1000).double().eval()
    Weights(path="w.pth").load(ours, tmp_path)
    x = torch.rand(1, 3, 224, 224, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-8, atol=1e-8)


def test_a_head_of_another_width_is_drawn_anew_only_if_asked_for(tmp_path: Path) -> None:
    torch.save(network("simple-cnn", classes=7).state_dict(), tmp_path / "w.pth")
    target = network("simple-cnn", seed=1)
    with pytest.raises(Refused, match=r"15.weight is \(7, 128\), not \(10, 128\).*head=new draws the last layer anew"):
        Weights(path="w.pth").load(target, tmp_path)
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    Weights(path="w.pth", head="new").load(target, tmp_path)
    after = target.state_dict()
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == {"15.weight", "15.bias"}


def test_group_norm_takes_scales_and_shifts_and_leaves_statistics(tmp_path: Path) -> None:
    source = network("simple-cnn")
    torch.save({"state_dict": source.state_dict()}, tmp_path / "w.pth")
    target = network("simple-cnn", "gn(groups=2)", seed=1)
    Weights(path="w.pth").load(target, tmp_path)
    assert torch.equal(target.state_dict()["1.weight"], source.state_dict()["1.weight"])
    factors = network("simple-cnn", "hbn", seed=1)
    Weights(path="w.pth").load(factors, tmp_path)
    assert torch.equal(factors.state_dict()["1.running_var"], source.state_dict()["1.running_var"])
    assert torch.equal(factors.state_dict()["1.factor"], network("simple-cnn", "hbn", seed=1).state_dict()["1.factor"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (lambda s: {n: v for n, v in s.items() if n != "4.weight"}, "it lacks: 4.weight"),
        (lambda s: {**s, "14.weight": torch.ones(1)}, "the network has no: 14.weight"),
        (lambda s: {**s, "0.bias": torch.ones(3)}, r"of another shape: 0.bias is \(3,\), not \(16,\)"),
        (lambda s: {**s, "0.bias": s["0.bias"] * float("nan")}, "not finite: 0.bias"),
        (lambda s: [1, 2], "is no state_dict"),
        (lambda s: {"a": 1}, "is no state_dict"),
        (lambda s: {"model": s, "optimizer": {}}, "is no state_dict.*it holds model, optimizer"),
        (lambda s: {}, "it lacks: 0.weight, 0.bias, 1.weight, 1.bias, 1.running_mean and 17 more"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name(content: Any, said: str, tmp_path: Path) -> None:
    torch.save(content(network("simple-cnn").state_dict()), tmp_path / "w.pth")
    target = network("simple-cnn", seed=1)
    before = target.state_dict()["4.weight"].clone()
    with pytest.raises(Refused, match=said):
        Weights(path="w.pth").load(target, tmp_path)
    assert torch.equal(target.state_dict()["4.weight"], before)


class Code:
    """What a pickle would run."""

    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('this code ran')",))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weights_keep_the_digits_that_the_cell_has(dtype: str, tmp_path: Path) -> None:
    start = build(Cell.of({**SMALL, "dtype": "float64"})).experiment.model[1]  # type: ignore[index]
    with torch.no_grad():
        for parameter in start.parameters():
            parameter.mul_(1 + 1e-12)
    torch.save(start.state_dict(), tmp_path / "w.pth")
    cell = Cell.of({**SMALL, "init": f"weights(path={tmp_path}/w.pth)", "dtype": dtype})
    loaded = build(cell).experiment.model[1]  # type: ignore[index]
    for one, other in zip(loaded.parameters(), start.parameters(), strict=True):
        assert torch.equal(one, other.to(one.dtype))


@pytest.mark.parametrize("kind", ["code", "text"])
def test_nothing_in_the_file_is_run(kind: str, tmp_path: Path) -> None:
    if kind == "code":
        torch.save(Code(), tmp_path / "w.pth")
    else:
        (tmp_path / "w.pth").write_text("no weights")
    with pytest.raises(Refused, match="cannot be read as weights"):
        Weights(path="w.pth").load(network("simple-cnn"), tmp_path)


def test_training_starts_from_the_file_with_its_statistics_and_its_digest_is_in_the_key(tmp_path: Path) -> None:
    start = build(Cell.of(SMALL)).experiment
    *_, last = train(start)
    torch.save(start.model[1].state_dict(), tmp_path / "w.pth")  # type: ignore[index]
    cell = Cell.of({**SMALL, "init": f"weights(path={tmp_path}/w.pth)"})
    e = build(cell).experiment
    state = initial_state(e)
    assert torch.equal(state.theta, last.state.theta)
    assert torch.equal(state.statistics, last.state.statistics)
    assert not torch.equal(state.statistics, start.layout.initial_statistics(state.theta))
    before = key_of(resolve(cell, fingerprints([cell], None)[cell]))
    assert run_cell(cell, fingerprint="x").status == "done"
    torch.save(build(Cell.of(SMALL)).experiment.model[1].state_dict(), tmp_path / "w.pth")  # type: ignore[index]
    assert key_of(resolve(cell, fingerprints([cell], None)[cell])) != before
    (tmp_path / "w.pth").unlink()
    with pytest.raises(DataMissing, match="no file of weights"):
        fingerprints([cell], None)


def test_a_dry_run_says_which_file_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "dataset=digits", "--set", "partition=iid"]
    assert invoke(["grid", "hbn-table5", *settings, "--dry-run", "--data-root", str(tmp_path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "No estimate: init: there is no file of weights" in told
    assert "mobilenet_v2" in told


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "module._orig_mod."])
def test_prefixes_of_wrappers_are_left_out(prefix: str, tmp_path: Path) -> None:
    source, target = network("simple-cnn"), network("simple-cnn", seed=1)
    torch.save({prefix + name: tensor for name, tensor in source.state_dict().items()}, tmp_path / "w.pth")
    Weights(path="w.pth").load(target, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(target.parameters(), source.parameters(), strict=True))


def test_a_prefix_that_only_some_names_have_is_named(tmp_path: Path) -> None:
    state = network("simple-cnn").state_dict()
    torch.save({"module." * (k > 0) + name: t for k, (name, t) in enumerate(state.items())}, tmp_path / "w.pth")
    with pytest.raises(Refused, match=r"the network has no: module\.0\.bias.* take these with prefix=module\.$"):
        Weights(path="w.pth").load(network("simple-cnn"), tmp_path)


@pytest.mark.parametrize("prefix", ["net.", "student.backbone."])
def test_a_prefix_is_left_out_on_demand_and_so_are_entries_without_it(prefix: str, tmp_path: Path) -> None:
    source, target = network("simple-cnn"), network("simple-cnn", seed=1)
    state = {prefix + name: tensor for name, tensor in source.state_dict().items()}
    torch.save({**state, "criterion.weight": torch.ones(2)}, tmp_path / "w.pth")
    found = f"{len(state)} of its {len(state) + 1} names are the network's after '{prefix}': take .* prefix={prefix}$"
    with pytest.raises(Refused, match=found):
        Weights(path="w.pth").load(target, tmp_path)
    Weights(path="w.pth", prefix=prefix).load(target, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(target.parameters(), source.parameters(), strict=True))
    with pytest.raises(Refused, match=r"no name in .* begins with prefix='other\.'; it holds "):
        Weights(path="w.pth", prefix="other.").load(target, tmp_path)


def test_variances_below_0_are_refused(tmp_path: Path) -> None:
    state = network("simple-cnn").state_dict()
    name = next(name for name in state if name.endswith("running_var"))
    state[name][0] = -1e-6
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(Refused, match=f"holds variances below 0: {name}; they must be ≥ 0"):
        Weights(path="w.pth").load(network("simple-cnn"), tmp_path)
