"""Golden cases of §1.3-1.11, §2.8-2.14, §4.18: algorithms, objectives, the later norms, propagation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from golden_cases import Arithmetic, Case
from torch import Tensor, nn

import robustfl
from robustfl.contracts import LocalWork, ServerWork, StatisticsSlices
from robustfl.defenses import parse_propagation
from robustfl.defenses.aggregation import PlainMean
from robustfl.engine.statistics import begin, collect, collecting, lockstep
from robustfl.evaluation import forgetting, traffic
from robustfl.layout import Layout, layout_of
from robustfl.norms.normalizer_free import GAMMA, clipped_by_unit, feature_norm, standardised
from robustfl.objectives.adversarial import shorten
from robustfl.registry import create
from tests.passes import shared_gradients

# --- §1: algorithms --------------------------------------------------------------------------------------------------


def _fedprox(case: Case, on: Arithmetic) -> dict[str, Any]:
    local, received, gradient = (on.tensor(case.inputs[k]) for k in ("theta_local", "theta_global", "grad"))
    work = LocalWork(received, lr=0.1, steps=1, gradient=lambda theta: gradient)
    return {"grad": create("algorithm", "fedprox", mu=case.params["mu"]).corrected(gradient, local, work)}


def _fedavgm(case: Case, on: Arithmetic) -> dict[str, Any]:
    method = create(
        "algorithm", "fedavgm", server_momentum=case.params["beta"], server_lr=case.params.get("server_lr", 1.0)
    )
    theta, momentum, delta = (on.tensor(case.inputs[k]) for k in ("theta", "momentum", "delta"))
    theta, state = method.server_step(ServerWork(theta, delta, 0.1, {"momentum": momentum}))
    return {"theta": theta, "momentum": state["momentum"]}


def _fedadam(case: Case, on: Arithmetic) -> dict[str, Any]:
    method = create("algorithm", "fedadam", **case.params)
    theta, m, v, delta = (on.tensor(case.inputs[k]) for k in ("theta", "m", "v", "delta"))
    theta, state = method.server_step(ServerWork(theta, delta, 0.1, {"first": m, "second": v}))
    return {"theta": theta, "m": state["first"], "v": state["second"]}


def _fedacg(case: Case, on: Arithmetic) -> dict[str, Any]:
    method = create("algorithm", "fedacg", server_momentum=case.params["lambda"])
    theta, momentum, local = (on.tensor(case.inputs[k]) for k in ("theta", "momentum", "local"))
    sent = method.broadcast(theta, {"momentum": momentum})
    aggregate = robustfl.defense("mean")(local - sent, f=0, weights=case.inputs["n"])
    theta, state = method.server_step(ServerWork(theta, aggregate, 0.1, {"momentum": momentum}))
    return {"sent": sent, "theta": theta, "momentum": state["momentum"]}


def _scaffold(case: Case, on: Arithmetic) -> dict[str, Any]:
    A, b, theta = (on.tensor(case.inputs[k]) for k in ("A", "b", "x0"))
    lr, steps, clients = case.params["lr"], case.params["K"], case.params["N"]
    method = create("algorithm", "scaffold", server_lr=case.params["server_lr"])
    server, memory = method.server_state(theta), torch.zeros_like(b)
    rounds = []
    for wanted in case.expected["rounds"]:
        ids, messages = wanted["participants"], []
        for k in ids:
            work = LocalWork(
                theta[None], lr=lr, steps=steps, gradient=lambda at, k=k: ((at @ A[k].T - b[k]) @ A[k]),
                memory=memory[k : k + 1].clone(), server=server,
            )  # fmt: skip
            message, kept = method.local(work)
            memory[k] = kept[0]
            messages.append(message)
        stack = torch.cat(messages)
        mean, given = robustfl.defense("mean"), (stack, server)
        work = ServerWork(
            theta, mean(stack, f=0), lr, server, lambda make, given=given, mean=mean: mean(make(*given), f=0),
            [steps] * len(ids), clients,
        )  # fmt: skip
        theta, server = method.server_step(work)
        rounds.append({"participants": ids, "x": theta, "c_server": server["variate"], "c_clients": memory.clone()})
    return {"rounds": rounds}


def _fedsam(case: Case, on: Arithmetic) -> dict[str, Any]:
    A, b, theta = (on.tensor(case.inputs[k]) for k in ("A", "b", "x0"))

    def gradient(at: Tensor) -> Tensor:
        return (at @ A.T - b) @ A

    method = create("algorithm", "fedsam", rho=case.params["rho"])
    work = LocalWork(theta[None], lr=case.params["lr"], steps=3, gradient=gradient, again=gradient)
    return {"x": theta + method.local(work)[0][0]}


def _moon(case: Case, on: Arithmetic) -> dict[str, Any]:
    method = create("algorithm", "moon", mu=1.0, temperature=case.params["tau"])
    return {"loss_mean": method.term(*(on.tensor(case.inputs[k]) for k in ("z", "z_global", "z_prev"))).mean()}


def _wsm(case: Case, on: Arithmetic) -> dict[str, Any]:
    logits, y = on.tensor(case.inputs["logits"]).requires_grad_(), torch.tensor(case.inputs["y"], device=on.device)
    classes = logits.shape[1]
    alpha = on.tensor(case.inputs["alpha"]) if "alpha" in case.inputs else logits.new_full((classes,), 1 / classes)
    per_sample = create("objective", "wsm").per_sample(logits, y, alpha)
    (gradient,) = torch.autograd.grad(per_sample.mean(), logits)
    plain = create("objective", "ce").per_sample(logits, y, alpha).mean()
    return {
        "per_sample": per_sample.detach(),
        "sum": per_sample.detach().sum(),
        "mean": per_sample.detach().mean(),
        "grad_mean": gradient,
        "ce_mean": plain.detach(),
        "difference_ce_minus_wsm": (plain - per_sample.mean()).detach(),
    }


def _forgetting(case: Case, on: Arithmetic) -> dict[str, Any]:
    found = forgetting(case.inputs["acc_global"], case.inputs["acc_local_model_by_dataset"])
    return {"F": found.matrix, "F_by_model": found.by_model, "F_by_dataset": found.by_dataset, "mean": found.mean}


# --- §2.8: FedTAN ----------------------------------------------------------------------------------------------------


def _network(case: Case, on: Arithmetic, norm: str) -> nn.Sequential:
    """``x W1 -> BN -> tanh -> W2 -> BN -> tanh -> W3 + c3`` with the case's parameters."""
    p = {k: on.tensor(v) for k, v in case.inputs["params"].items()}
    made, layers = create("norm", norm, eps=case.params["eps"]), []
    for i in (1, 2):
        linear = nn.Linear(*p[f"W{i}"].shape, bias=False, dtype=on.dtype, device=on.device)
        bn = made.layer(p[f"W{i}"].shape[1]).to(dtype=on.dtype, device=on.device)
        linear.weight.data, bn.weight.data, bn.bias.data = p[f"W{i}"].T.contiguous(), p[f"g{i}"], p[f"b{i}"]
        layers += [linear, bn, nn.Tanh()]
    last = nn.Linear(*p["W3"].shape, dtype=on.dtype, device=on.device)
    last.weight.data, last.bias.data = p["W3"].T.contiguous(), p["c3"]
    return nn.Sequential(*layers, last)


def _by_name(row: Tensor, layout: Layout) -> dict[str, Tensor]:
    parts = {slot.name: row[slot.start : slot.stop].view(slot.shape) for slot in layout.update}
    names = {"0.weight": "W1", "1.weight": "g1", "1.bias": "b1", "3.weight": "W2", "4.weight": "g2", "4.bias": "b2",
             "6.weight": "W3", "6.bias": "c3"}  # fmt: skip
    return {new: parts[old].T if new.startswith("W") else parts[old] for old, new in names.items()}


def _fedtan(case: Case, on: Arithmetic) -> dict[str, Any]:
    parts = [on.tensor(x) for x in case.inputs["X"]]
    sizes, x = [len(part) for part in parts], torch.cat(parts)
    y = torch.cat([torch.tensor(labels, device=on.device) for labels in case.inputs["y"]])
    shares = on.tensor(case.params["weights"])
    found: dict[str, Any] = {}
    exchanged: list[tuple[str, Tensor, Tensor]] = []

    def reducer(kind: str, rows: Tensor) -> Tensor:
        made = shares.to(rows.dtype) @ rows
        exchanged.append((kind, rows, made))
        return made

    names = (("grad_fedtan", "fedtan"), ("grad_fedavg_algorithm2", "fedavg-alg2"), ("grad_naive_bn", "naive-bn"))
    for key, norm in names:
        model, exchanged[:] = _network(case, on, norm), []
        layout = layout_of(model)
        rows = torch.empty(len(sizes), layout.d, dtype=on.dtype, device=on.device)
        with lockstep(model, reducer):
            done = shared_gradients(model, layout, x, y, sizes, out=rows)
        found[key] = _by_name(shares @ rows, layout)
        if key == "grad_fedtan":
            found["loss"] = shares @ done.losses
            forward = [made for kind, _, made in exchanged if "gradient" not in kind]
            found["stats"] = [{"mean": forward[i], "var_biased": forward[i + 1]} for i in (0, 2)]
            backward = [(rows, made) for kind, rows, made in exchanged if "gradient" in kind]
            names_of = ("mu2", "va2", "mu1", "va1")
            found["aggregated_stat_gradients"] = {
                f"G_{name}": made for name, (_, made) in zip(names_of, backward, strict=True)
            }
            found["client_stat_gradients"] = [
                {name: sent[k] for name, (sent, _) in zip(names_of, backward, strict=True)} for k in range(len(sizes))
            ]
    central = create("norm", "centralised-bn", eps=case.params["eps"])
    model = _network(case, on, central.name)
    layout = layout_of(model)
    rows = torch.empty(len(sizes), layout.d, dtype=on.dtype, device=on.device)
    shared_gradients(model, layout, x, y, sizes, out=rows)
    found["grad_centralised"] = _by_name(rows[0], layout)
    found["relative_error"] = {
        name: _relative(found[key], found["grad_centralised"])
        for name, key in (
            ("fedtan", "grad_fedtan"), ("fedavg_algorithm2", "grad_fedavg_algorithm2"), ("naive_bn", "grad_naive_bn")
        )
    }  # fmt: skip
    return found


def _relative(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The distance of two gradients, relative to the second."""
    a, b = (torch.cat([part.flatten() for part in g.values()]) for g in (one, other))
    return float((a - b).norm() / b.norm())


def _communication(case: Case, on: Arithmetic) -> dict[str, Any]:
    channels, clients, size = (case.inputs[k] for k in ("channels", "clients", "bytes"))
    layers, start = [], 0
    for c in channels:
        layers.append(StatisticsSlices("", slice(start, start + c), slice(start + c, start + 2 * c)))
        start += 2 * c
    layout = SimpleNamespace(d=case.inputs["params_trainable"], s=start, layers=layers, update=())
    per_round = {name: traffic(create("norm", name), layout) for name in ("gn", "naive-bn", "fedtan")}
    total = {name: t.mebibytes(clients, bytes_per_number=size) for name, t in per_round.items()}
    extra = per_round["fedtan"].exchanges - 1
    first, rounds = 1000, 10_000
    switched = create("norm", "fedtan-ii", switch_round=first)
    phases = [(traffic(switched, layout, round=r, rounds=rounds), n) for r, n in ((0, first), (first, rounds - first))]
    mebibytes = sum(t.mebibytes(clients, bytes_per_number=size) * n for t, n in phases)
    exchanges = sum(t.exchanges * n for t, n in phases)
    return {
        "stat_numbers": per_round["naive-bn"].statistics,
        "params_with_stats": per_round["naive-bn"].each_way,
        "fedavg_gn_MiB": total["gn"],
        "fedavg_bn_MiB": total["naive-bn"],
        "fedtan_MiB": total["fedtan"],
        "extra_rounds_per_iteration": extra,
        "extra_round_share": extra / per_round["fedtan"].exchanges,
        "fedtan2_T1_1000": {
            "GiB": mebibytes / 1024,
            "round_share": extra * first / exchanges,
            "bit_share": (total["fedtan"] - total["naive-bn"]) * first / mebibytes,
        },
    }


# --- §2.12: HBN ------------------------------------------------------------------------------------------------------


def _pass(model: nn.Module, inputs: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The clients' reports of a statistics pass: rows and counts."""
    reports = []
    for x in inputs:
        begin(model, None)
        with collecting(model.eval()), torch.no_grad():
            model(x)
        reports.append(collect(model, layout_of(model)))
    return torch.cat([r.rows for r in reports]), torch.cat([r.counts for r in reports])


def _union(model: nn.Module, inputs: list[Tensor], on: Arithmetic) -> tuple[Tensor, Tensor]:
    rows, counts = _pass(model, inputs)
    layout = layout_of(model)
    previous = layout.initial_statistics(rows[0])
    return rows, create("norm", "hbn", lambda_first=1.0).merge(rows, counts, previous, layout.layers, PlainMean())


def _hbn_merge(case: Case, on: Arithmetic) -> dict[str, Any]:
    inputs = [on.tensor(x) for x in case.inputs["X"]]
    channels = inputs[0].shape[1]
    model = nn.Sequential(create("norm", "hbn").layer(channels)).to(dtype=on.dtype, device=on.device)
    rows, union = _union(model, inputs, on)
    values = torch.tensor([x.numel() / channels for x in inputs], dtype=torch.float64)
    layout, total = layout_of(model), float(values.sum())
    previous, counts = layout.initial_statistics(rows[0]), values.long()[:, None].to(on.device)
    naive = create("norm", "naive-bn").merge(rows, counts, previous, layout.layers, PlainMean(values.to(on.device)))
    return {
        "client_mean": rows[:, :channels],
        "client_var_biased": rows[:, channels:],
        "mean": union[:channels],
        "var": union[channels:],
        "var_elements": union[channels:],
        "naive_var": naive[channels:],
        "bias_of_naive": naive[channels:] - union[channels:] * (total - 1) / total,
    }


def _hbn_ema(case: Case, on: Arithmetic) -> dict[str, Any]:
    old = torch.cat([on.tensor(case.inputs["old_mean"]), on.tensor(case.inputs["old_var"])])
    mean, variance = on.tensor(case.inputs["new_mean"]), on.tensor(case.inputs["new_var"])
    c = len(mean)
    # One client with two values per channel: their union variance is twice the biased one.
    row = torch.cat([mean, variance / 2])[None]
    norm = create("norm", "hbn", lam=case.params["lambda"])
    layers = [StatisticsSlices("bn", slice(0, c), slice(c, 2 * c))]
    moved = norm.merge(row, torch.tensor([[2]], device=on.device), old, layers, PlainMean(round=1))
    return {"mean": moved[:c], "var": moved[c:]}


def _hbn_layer(case: Case, on: Arithmetic) -> dict[str, Any]:
    x = on.tensor(case.inputs["x"]).requires_grad_()
    layer = create("norm", "hbn", eps=case.params["eps"]).layer(x.shape[1]).to(dtype=on.dtype, device=on.device)
    for name, key in (("factor", "alpha"), ("weight", "gamma"), ("bias", "beta")):
        getattr(layer, name).data = on.tensor(case.inputs[key])
    layer.running_mean, layer.running_var = (on.tensor(case.inputs[k]) for k in ("global_mean", "global_var"))
    layer.hybrid_reports = layer.collects = True
    begin(layer, None)
    y = layer(x)
    y.backward(on.tensor(case.inputs["upstream"]))
    mean, variance, _ = layer.report()
    return {
        "y": y.detach(),
        "mu_hat": mean[0],
        "var_hat": variance[0],
        "grad_x": x.grad,
        "grad_alpha": layer.factor.grad,
        "grad_gamma": layer.weight.grad,
        "grad_beta": layer.bias.grad,
    }


def _hbn_two_layers(case: Case, on: Arithmetic) -> dict[str, Any]:
    W = on.tensor(case.inputs["W"])
    norm = create("norm", "hbn", eps=case.params["eps"])
    linear = nn.Linear(*W.shape, bias=False)
    model = nn.Sequential(norm.layer(W.shape[0]), nn.ReLU(), linear, norm.layer(W.shape[1]))
    model = model.to(dtype=on.dtype, device=on.device)
    linear.weight.data = W.T.contiguous()
    model[0].running_mean, model[0].running_var = (
        on.tensor(case.inputs[k]) for k in ("layer1_global_mean", "layer1_global_var")
    )
    inputs = [on.tensor(x) for x in case.inputs["X"]]
    _, union = _union(model, inputs, on)
    start, c = 2 * W.shape[0], W.shape[1]
    own = create("norm", "naive-bn", momentum=1.0, eps=case.params["eps"])
    local = nn.Sequential(own.layer(W.shape[0]), nn.ReLU(), linear, own.layer(c)).to(dtype=on.dtype, device=on.device)
    means = []
    for x in inputs:
        begin(local.train(), None)
        local(x)
        means.append(collect(local, layout_of(local)).rows[0, start : start + c])
    shares = on.tensor([len(x) for x in inputs]) / sum(len(x) for x in inputs)
    return {
        "layer2_mean": union[start : start + c],
        "layer2_var": union[start + c :],
        "layer2_mean_if_local_norm": shares @ torch.stack(means),
    }


# --- §2.13, §2.14 ----------------------------------------------------------------------------------------------------


def _feature_norm(case: Case, on: Arithmetic) -> dict[str, Any]:
    f = on.tensor(case.inputs["f"])
    return {"unit": feature_norm(f), "scaled_sqrt_d": feature_norm(f, f.shape[1] ** 0.5)}


def _standardised(case: Case, on: Arithmetic) -> dict[str, Any]:
    W = on.tensor(case.inputs["W"])
    return {"W_hat": standardised(W), "gain": GAMMA, "fan_in": W[0].numel()}


def _clipping(case: Case, on: Arithmetic) -> dict[str, Any]:
    w, g = on.tensor(case.inputs["w"]), on.tensor(case.inputs["g"])
    return {"g": clipped_by_unit(g, w, case.params["lambda"], case.params.get("eps", 1e-3))}


# --- §4.18: FedRBN ---------------------------------------------------------------------------------------------------


def _row(clean: Any, adversarial: Any, on: Arithmetic) -> tuple[Tensor, list[StatisticsSlices], list[StatisticsSlices]]:
    """A statistics row of both branches, layer by layer, and where the branches lie."""
    parts: list[Tensor] = []
    layers: dict[str, list[StatisticsSlices]] = {"clean": [], "adversarial": []}
    start = 0
    for i in range(len(adversarial["mean"])):
        for branch, given in (("clean", clean), ("adversarial", adversarial)):
            mean, variance = on.tensor(given["mean"][i]), on.tensor(given["var"][i])
            c = len(mean)
            layers[branch].append(
                StatisticsSlices(f"bn{i}", slice(start, start + c), slice(start + c, start + 2 * c), branch)
            )
            parts += [mean, variance]
            start += 2 * c
    return torch.cat(parts), layers["clean"], layers["adversarial"]


def _propagate(case: Case, on: Arithmetic) -> dict[str, Any]:
    adversarial = case.inputs["source_adv"]
    clean = case.inputs.get("source_clean", adversarial)
    rows = [_row(c, a, on) for c, a in zip(clean, adversarial, strict=True)]
    sources, (_, at, into) = torch.stack([row for row, _, _ in rows]), rows[0]
    target = _row(case.inputs.get("target_clean", clean[0]), adversarial[0], on)[0]
    similarity = "cos" if "target_clean" in case.inputs else "uniform"
    temperature = case.params.get("T", case.params.get("temperature"))
    spec = f"fedrbn(similarity={similarity}" + ("" if temperature is None else f", temperature={temperature}") + ")"
    propagate = parse_propagation(spec)
    made = propagate(sources, target[None], clean=at, adversarial=into)[0]
    means, variances, start = [], [], 0
    for layer in into:
        c = layer.mean.stop - layer.mean.start
        means.append(made[start : start + c])
        variances.append(made[start + c : start + 2 * c])
        start += 2 * c
    method = propagate.propagation
    return {
        "adv_mean": means,
        "adv_var": variances,
        "alpha": method.weights(sources, target, at),
        "similarity": method.similarities(sources, target, at),
        # Equation 3 as printed also divides by the number of sources, which is why it is not followed.
        "paper_literal_adv_mean_layer0": means[0] / len(sources),
    }


def _pnc(case: Case, on: Arithmetic) -> dict[str, Any]:
    clean, noisy = on.tensor(case.inputs["grad_clean_unscaled"]), on.tensor(case.inputs["grad_pnc_unscaled"])
    lam, clip = case.params["lambda"], case.params.get("clip")
    second = lam * noisy
    before = second.norm()
    if clip is not None:
        shorten([second], clip)
    return {"grad": (1 - lam) * clean + second, "norm_before": before}


DRIVERS = {
    ("1.3", "fedprox"): _fedprox,
    ("1.4", "scaffold"): _scaffold,
    ("1.5", "fedavgm"): _fedavgm,
    ("1.6", "fedadam"): _fedadam,
    ("1.7", "moon"): _moon,
    ("1.8", "fedsam"): _fedsam,
    ("1.9", "fedacg"): _fedacg,
    ("1.10", ""): _wsm,
    ("1.11", ""): _forgetting,
    ("2.8", "equal_batches"): _fedtan,
    ("2.8", "unequal_batches"): _fedtan,
    ("2.8", "communication"): _communication,
    ("2.12", "server_merge"): _hbn_merge,
    ("2.12", "conv_counts"): _hbn_merge,
    ("2.12", "server_ema"): _hbn_ema,
    ("2.12", "hybrid"): _hbn_layer,
    ("2.12", "two_layer"): _hbn_two_layers,
    ("2.13", "feature_norm"): _feature_norm,
    ("2.14", "scaled_weight"): _standardised,
    ("2.14", "adaptive"): _clipping,
    ("4.18", "propagate"): _propagate,
    ("4.18", "pnc"): _pnc,
}
