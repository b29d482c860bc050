"""What cannot be meant is refused, in words: calls of the library, settings of a cell, and cells that cannot be."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
import torch
from fake_store import record
from torch import nn

import robustfl
from robustfl import kernels
from robustfl.attacks.byzantine.alie import supporters
from robustfl.contracts import Context, ServerWork, View
from robustfl.data import Normalize, domain_split
from robustfl.data.partitions import Iid, class_fractions, dirichlet_counts, gamma_similarity
from robustfl.defenses import parse_pipeline
from robustfl.errors import Refused, RobustflError, UsageError
from robustfl.models import ClientDropout, DigitsNet
from robustfl.norms import GN, IN
from robustfl.randomness import stream
from robustfl.registry import create
from robustfl.reports.frame import frame
from robustfl.reports.published.agreement import agree
from robustfl.reports.ranking import rank_board
from robustfl.reports.store import Store
from robustfl.scenarios import Scenario
from robustfl.scenarios.build import build
from robustfl.scenarios.cell import Cell
from robustfl.scenarios.memory import bytes_of
from robustfl.scenarios.refusals import refusal
from robustfl.scenarios.run_options import check_threads

NAN, INF = float("nan"), float("inf")
rule, forge, evasion, attack = robustfl.defense, robustfl.forge, robustfl.evasion, robustfl.attack


# --- calls -----------------------------------------------------------------------------------------------------------

LAYERS = [torch.ones(2), torch.ones(3)]
ONES, ROWS, HONEST = np.ones((3, 2)), np.arange(14.0).reshape(7, 2), np.arange(12.0).reshape(4, 3)
FOOLSGOLD, LINEAR = rule("foolsgold").stateful, nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False))
nn.init.eye_(LINEAR[1].weight)
IMAGES, LABELS, BALANCED = torch.linspace(0, 0.5, 1920).reshape(10, 3, 8, 8), torch.arange(10), np.arange(200) % 10
WEIGHTS = {"f": 1, "weights": [1, 1, 1, 1, 1, 1, 9], "generator": torch.Generator()}


@cache
def board():
    return rank_board(frame([record()]))


def poison(spec):
    return attack(spec).poison(IMAGES, LABELS, classes=10, generator=stream(0))


CALLS = [
    # rows, weights, clients, states
    (lambda: rule("median")([], f=0), "no rows"),
    (lambda: rule("median")(torch.zeros(0, 3), f=0), "no rows"),
    (lambda: rule("median")(torch.tensor(1.0), f=0), "no rows"),
    (lambda: rule("median")([torch.zeros(2), torch.zeros(3)], f=0), "ragged: row 1 has shape (3,), row 0 has (2,)"),
    (lambda: rule("median")([torch.zeros(2), torch.zeros(2).double()], f=0), "ragged: row 1 has dtype"),
    (lambda: rule("median")([[1.0, 2.0], [[1.0], [2.0, 3.0]]], f=0), "ragged"),
    (lambda: rule("median")([[1, 2], [3, 4], [5]], f=1), "unequal lengths"),
    (lambda: rule("median")([[[1.0, 2.0], [1.0]]] * 3, f=1), "unequal lengths"),
    (lambda: rule("median")(torch.zeros(3, 2, dtype=torch.int64), f=0), "dtype torch.int64"),
    (lambda: rule("median")(np.zeros((3, 2), dtype=np.int32), f=0), "dtype int32"),
    (lambda: rule("median")(torch.zeros(3, 2, dtype=torch.bool), f=0), "dtype torch.bool"),
    (lambda: rule("median")("abc", f=0), "not str"),
    (lambda: rule("mean")(torch.eye(3).to_sparse(), f=0), "to_dense"),
    (lambda: rule("mean")([LAYERS, LAYERS[:1]], f=0), "row 1 has 1 layers, row 0 has 2"),
    (lambda: rule("mean")([LAYERS, LAYERS[::-1]], f=0), "layer 0 of row 1 has shape (3,), row 0 has (2,)"),
    (lambda: rule("median")([[np.zeros(2), np.zeros(1)], [np.zeros(2), np.zeros(3)]], f=0), "layer 1 of row 1 has"),
    (lambda: rule("median")([[np.zeros(2)], [np.zeros(2, dtype=np.float32)]], f=0), "layer 0 of row 1 has dtype"),
    (lambda: rule("median")([[np.zeros(2), np.array(7)]] * 2, f=0), "(counters, as of batch norm"),
    (lambda: rule("median")([np.zeros(2, dtype=np.longdouble)], f=0), "at most 64 bits"),
    (lambda: rule("mean")([{"w": LAYERS[0]}] * 2, f=0), "a row is a dict; a tensor, an array or a list"),
    (lambda: rule("mean")([[np.float64(1), np.ones(2).tolist()]] * 2, f=0), "rows are ragged: setting an"),
    (lambda: rule("mean")(ONES, f=0, weights=[[1], [2, 3], 1]), "weights=[[1], [2, 3], 1] must be a list of numbers"),
    *((lambda w=w: rule("mean")(torch.zeros(3, 1), f=0, weights=w), "weights")
      for w in ([1.0], [1.0, -1.0, 1.0], [0.0, 0.0, 0.0], [1.0, NAN, 1.0])),
    (lambda: rule("mean").run(torch.ones(3, 2), f=0, context=Context(weights=torch.ones(2))), "2 weights for 3 rows"),
    (lambda: rule("mean").run(torch.ones(3, 2), f=0, context=Context(clients=torch.arange(2))), "2 client numbers for"),
    (lambda: rule("geometric-median")(ROWS, **WEIGHTS), "write geometric-median(weighted=true), or leave them out"),
    (lambda: rule("krum")(ROWS, **WEIGHTS), "krum weighs rows alike; take a rule that weighs, such as rfa, or leave"),
    (lambda: rule("gas(rule=median)")(ROWS, **WEIGHTS), "weights change nothing"),
    (lambda: FOOLSGOLD(ONES, f=0, clients=[0, 1, 1]), "clients=[0, 1, 1] must be 3 different whole numbers"),
    (lambda: FOOLSGOLD(ONES, f=0, clients=[0, 1]), "3 different whole numbers"),
    (lambda: FOOLSGOLD(ONES, f=0, clients=[0.0, 1.0, 2.0]), "3 different whole numbers"),
    (lambda: FOOLSGOLD(ONES, f=0, clients=list("abc")), "clients=['a', 'b', 'c'] must be a list of numbers"),
    (lambda: FOOLSGOLD(ONES, f=0, state=3), "foolsgold: state=3 must be what the last call handed back, or None"),
    (lambda: FOOLSGOLD(ONES, f=0, state={"history": 3}), "state={'history': 3} must be what the last call handed back"),
    (lambda: FOOLSGOLD(ONES, f=0, state={"v": torch.ones(2)}), "foolsgold: the state of another rule, with v; it must"),
    (lambda: rule("centered-clipping")(ONES[:, :1], f=1, state={"v": torch.ones(2)}), "2 entries, rows have 1"),
    (lambda: rule("mean", on_nonfinite="keep"), "on_nonfinite='keep' must be 'drop' or 'raise'"),
    (lambda: parse_pipeline("median", on_nonfinite="raise")(np.array([[1], [NAN], [2]]), f=1), "[1] are", Refused),
    (lambda: rule("bucketing(s=2)+median(weighted=True)").min_clients(1), "no number of clients is enough", Refused),
    (lambda: kernels.trimmed_mean_rule(4, 2), "n=4"),
    # what is forged
    (lambda: forge("autobyz", ONES, f=1), "autobyz is a set of attacks that scenarios run in"),
    (lambda: forge(attack("alie", z=1.0), HONEST, f=2, z=3.0), "has its parameters already; z would change nothing"),
    (lambda: forge("sf", HONEST, f=2, own=HONEST[:3]), "own has 3 rows; there are f=2 attackers"),
    (lambda: forge("sf", HONEST, f=2, own=HONEST[:2, :1]), "own must be rows of 3 numbers, not of 1"),
    (lambda: forge("sf", HONEST[:0], f=1), "no rows; give a stack [n d]"),
    (lambda: forge("sf", HONEST[0], f=1), "must be rows [h d], one for each honest client"),
    (lambda: forge("sf", HONEST.astype(int), f=1), "floating-point rows"),
    *((lambda X=X: attack("sf").forge(View(n=4, f=1, honest=X), generator=stream(0)), "needs the honest rows")
      for X in (torch.zeros(0, 3), torch.zeros(3), torch.zeros(3, 3).long())),
    (lambda: forge("opt-foe", HONEST, f=1), "give defense="),
    (lambda: forge("opt(sf)", HONEST, f=1), "give defense="),
    (lambda: attack("opt(sf)").forge(View(n=4, f=1, honest=torch.ones(3, 2)), generator=stream(0)), "needs aggregate"),
    (lambda: forge("label-flip", HONEST, f=1), "own rows"),
    (lambda: forge("mimic", HONEST, f=1, epsilon=7), "epsilon=7 must be < 4"),
    (lambda: attack("badnets").trigger(torch.zeros(3, 4)), "stamps images"),
    (lambda: attack("dba").trigger(torch.zeros(3, 4)), "stamps images"),
    *((lambda s=s: poison(s), "=10 must be < 10, the number of classes", Refused)
      for s in ("label-flip(target=10)", "label-flip(source=10, target=1)", "badnets(target=10)")),
    *((lambda s=s: poison(s), " pixels; the images have 8×8", Refused)
      for s in ("badnets(size=9)", "badnets(margin=6)", "dba(length=4)", "dba(gap=7, length=1)")),
    (lambda: supporters(5, 5), "f=5 attackers of n=5 clients; needs 0 ≤ f < n"),
    # images, networks, data
    (lambda: evasion("pgd(targeted=true, target=2)").perturb(LINEAR, torch.ones(1, 2), LABELS[:1]), "target=2 of 2 cl"),
    *((lambda s=s: evasion(s).perturb(LINEAR, torch.ones(1, 2), LABELS[:1]), "must be images [b C H W]")
      for s in ("square", "lsa")),
    *((lambda m=m, s=s: Normalize(m, s), "must be of one length, std > 0")
      for m, s in (((0.5,), (0.5, 0.5)), ((0.5,), (0.0,)), ((), ()))),
    (lambda: ClientDropout(1.0), "p=1.0 must be ≥ 0, < 1"),
    (lambda: ClientDropout(0.5)(torch.ones(2)), "begin", RobustflError),
    *((lambda n=n, v=v: DigitsNet(**{n: v}), words) for n in ("channels", "hidden")
      for v, words in (((4,), f"{n}=(4,) must be"), ((4, 0, 1), "≥ 1"))),
    (lambda: GN().layer(3), "3 channels are not divisible into 2 groups", Refused),
    (lambda: IN().layer(4)(torch.zeros(2, 4)), "one value per group", Refused),
    (lambda: build(Cell(clients=10**12)), "clients=1000000000000 are more than the 1442 training images", Refused),
    (lambda: gamma_similarity(BALANCED, 2, 0.5, np.arange(3)), "3 entries for 200"),
    *((lambda g=g: gamma_similarity(BALANCED, 2, g, np.arange(200)), "gamma") for g in (-0.1, 1.1, NAN)),
    *((lambda p=p: dirichlet_counts(p, [4]), "proportions") for p in ([[0.5, 0.6]], [[1.5, -0.5]], [0.5, 0.5])),
    (lambda: class_fractions(5, 10, 11), "[1, 10]", Refused),
    (lambda: class_fractions(4, 10, 2), "multiple of the other", Refused),
    (lambda: class_fractions(5, 10, 3), "classes/clients=2", Refused),
    *((lambda n=n: Iid().split(BALANCED, clients=n, classes=10, generator=np.random.default_rng(0)), "clients")
      for n in (0, -1, 1.5, True)),
    *((lambda y=y: Iid().split(np.array(y), clients=1, classes=3, generator=np.random.default_rng(0)), "labels")
      for y in ([0.5], [[1]], [-1], [7])),
    (lambda: domain_split([10, 3], [5, 5], users=4), "users per domain get", Refused),
    (lambda: domain_split([10], [3], users=4), "users per domain get", Refused),
    (lambda: domain_split([9], [9], users=1, share=0.1), "users per domain get", Refused),
    (lambda: domain_split([10], [10], users=0), "must be"),
    (lambda: domain_split([10], [10], users=1, share=0.0), "must be"),
    (lambda: domain_split([10], [10], users=1, validation=1.0), "must be"),
    (lambda: domain_split([10], [10, 10], users=1), "no domains"),
    # algorithms and objectives
    (lambda: create("algorithm", "fednova").server_step(ServerWork(torch.zeros(1), torch.ones(1), 0.1)), "steps=[...]"),
    *((lambda p=p: create("objective", "wsm").per_sample(torch.zeros(1, 2), LABELS[:1], torch.tensor(p)), "class sh")
      for p in ([0.0, 0.0], [-0.1, 1.1], [NAN, 1.0])),
    # other kinds of values
    (lambda: robustfl.grid({"rounds": 1}, jobs=0), "not dict; Scenario.of"),
    (lambda: robustfl.grid("quickstart", jobs=1.5), "jobs=1.5 must be a whole number"),
    (lambda: robustfl.run(None), "not NoneType"),
    (lambda: robustfl.run({"device": "cuda"}), "no cell setting 'device'; it is no part of a cell, but the"),
    (lambda: robustfl.run({"attack": "autobyz(version=2)"}), "; scope: both, "),
    (lambda: rule(None), "not as NoneType"),
    (lambda: rule(rule("median")), "not as Pipeline"),
    (lambda: attack(attack("sf")), "not as SignFlip"),
    (lambda: forge(None, [[1.0]], f=1), "not as NoneType"),
    (lambda: forge("opt-foe", [[1.0]] * 5, f=1, defense=3), "not as int"),
    (lambda: robustfl.verify("b.json", cells=1.5, check_only=True), "cells=1.5 must be a whole number"),
    (lambda: robustfl.verify(None), "not NoneType"),
    (lambda: robustfl.verify(3), "the board is a file's name, not int"),
    (lambda: robustfl.verify("b.json", threads=0), "threads=0 must be a whole number from 1 to"),
    (lambda: robustfl.verify("b.json", device="tpu"), "device 'tpu': use auto, cpu, cuda or cuda:0"),
    (lambda: robustfl.load_model("s", "k", device="tpu"), "load_model: device='tpu' cannot be used here"),
    (lambda: robustfl.evaluate(nn.Linear(1, 1), "digits", seed=-1), "seed=-1 must be a whole number ≥ 0"),
    (lambda: Scenario.load(3), "a preset's name, a TOML file or a Scenario, not int"),
    (lambda: board().select(metric="sb"), "leaderboard: no metric 'sb'"),
    (lambda: rank_board(frame([record()]), compare=["nrm"]), "cannot compare 'nrm'; did you mean 'norm'"),
    (lambda: Store("runs").path("../x"), "must be letters, digits, '_', '-' or '.'"),
    *((lambda t=t: agree(record(), record(), tolerance=t), "tolerance") for t in (NAN, -0.1, 1.5)),
    *((lambda t=t: check_threads(t), "threads=") for t in (0, -1, 100_000, 10**30, True, "2")),
    *((lambda t=t: bytes_of(t), "GiB") for t in ("", "many", "-1", "4 parsec", "i", "4ib")),
]  # fmt: skip


@pytest.mark.parametrize(("call", "words", "error"), [(*row, UsageError)[:3] for row in CALLS])
def test_a_call_that_cannot_be_meant_is_refused_with_what_is_wrong(call, words, error):
    with pytest.raises(error, match=re.escape(words)):
        call()


# --- settings of a cell ----------------------------------------------------------------------------------------------

DOMAINS = [f"digits-domain(style={style})" for style in ("clean", "textured", "shifted")]
TUNED = {
    "model": "domains-cnn", "norm": "naive-bn", "clients": 4, "algorithm": "fedavg", "objective": "at", "rounds": 3,
    "at": "users(ids=(0, 2))",
}  # fmt: skip
SETTINGS = [
    ({"attack": "autobyz"}, "a cell has one; write it in a scenario"),
    ({"stop": 0}, "stop"),
    ({"rounds": 6, "stop": 6}, "stop"),
    ({"rounds": 6, "stop": 7}, "stop"),
    # users and domains
    ({"domains": DOMAINS, "domain_users": [1, 2]}, "2 numbers for 3 domains"),
    ({"domains": DOMAINS, "domain_users": [1, 2, 3], "clients": 7}, "clients=7 must be 6"),
    ({"domains": DOMAINS, "domain_users": [2, 2, 2], "clients": 9}, "clients=9 must be 6"),
    ({"domains": DOMAINS, "domain_users": [3, 3], "clients": 6}, "2 numbers for 3 domains"),
    ({"domains": DOMAINS, "domain_users": [1, 2, 0]}, "list of numbers of users"),
    ({"domains": DOMAINS, "domain_users": [1, 2, True]}, "list of numbers of users"),
    ({"domains": DOMAINS, "clients": 7}, "multiple of the 3 domains"),
    ({"domains": DOMAINS, "clients": 4}, "multiple"),
    ({"domains": DOMAINS, "clients": 6, "user_sizes": "dirichlet(alpha=0)"}, "alpha=0"),
    ({"domains": DOMAINS, "clients": 6, "user_sizes": "dirichlet(beta=1)"}, "no parameter 'beta'"),
    ({"domains": DOMAINS, "clients": 6, "user_sizes": "dirichle"}, "did you mean 'dirichlet'"),
    ({"domains": DOMAINS, "clients": 6, "user_sizes": 3}, "user_sizes=3"),
    ({"domains": DOMAINS, "clients": 6, "dataset": "digits"}, "leave those two out"),
    ({"domains": DOMAINS, "clients": 6, "partition": "gamma(gamma=0)"}, "leave those two out"),
    ({"domains": ["no-such"]}, "no-such"),
    *(({name: value}, "belongs to domains, and there are none")
      for name, value in (("domain_users", [2, 3]), ("domain_users", [2, 2]), ("user_sizes", "dirichlet"))),
    ({"domain_share": 0.5}, "domain_share=0.5 belongs to domains, and there are none"),
    *(({"clients": 8, "at": rule}, "at=") for rule in (
        "every", "users(ids=(8,))", "users(ids=(-1,))", "users", "ratio(rho=0)", "ratio(rho=0.1)", "ratio",
        "domains(first=3)", "domains", "ratio(rho=0.5, domains=0)", "all(rho=1)", "ratio(rho=true)")),
    # rules
    ({"propagation": "median"}, "propagates nothing"),
    ({"defense": "fedrbn"}, "propagation"),
    ({"statistics_defense": 3}, "'same' or a pipeline"),
    ({"statistics_defense": "medain"}, "did you mean 'median'"),
    ({"statistics_defense": "sam"}, "did you mean 'same'"),
    ({"statistics_defense": "nnm"}, "is a step"),
    ({"propagation": "non"}, "did you mean 'none'"),
    ({"propagation": "fedrbm"}, "did you mean 'fedrbn'"),
    ({"attack": "autobiz"}, "did you mean 'autobyz'"),
    ({"attack": "autobyz2(z=1)"}, "did you mean 'autobyz'"),
    ({"finetune": "st"}, "'rounds' is required"),
    ({"finetune": "st(rounds=0)"}, "rounds=0"),
    ({"finetune": "st(rounds=1, frozen=-1)"}, "frozen=-1"),
    ({"finetune": "at(rounds=1)"}, "no such rule"),
    ({"finetune": "st(steps=1)"}, "no parameter 'steps'"),
    ({"init": "weights"}, "'path' is required"),
    ({"init": "weights(path=a, head=old)"}, "head='old'"),
    ({"init": "imagenet"}, "no such rule"),
    ({"precision": "bfloat16"}, "input should be 'full', 'tf32' or 'bf16'"),
    ({"schedule": {"factor": 0.9}}, "factor=0.9 belongs to kind = 'geometric'"),
    ({"schedule": {"kind": "step", "lr": 0.5, "values": [0.1, 0.01], "milestones": [1]}}, "lr=0.5 has no part"),
    ({"schedule": {"milestones": [1]}}, "belong to kind = 'step'"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "words"), SETTINGS)
def test_a_setting_that_cannot_be_meant_is_an_error(settings, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        Cell.of(settings)


# --- cells that cannot be --------------------------------------------------------------------------------------------

LOCAL = "dual-bn(local=true)"
CELLS = [
    ({"f": 5, "clients": 10}, "f=5 of 10 clients"),
    ({"f": 4, "clients": 10, "defense": "krum"}, "krum: f=4 needs at least 11 clients"),
    ({"f": 4, "clients": 10, "defense": "nnm+trimmed-mean", "attack": "sf"}, None),
    ({"norm": "centralised-bn", "f": 1, "attack": "sf"}, "one machine"),
    ({"norm": "gn", "f": 1, "attack": "sf", "scope": "statistics"}, "nothing to forge"),
    ({"norm": "gn", "f": 1, "attack": "none", "scope": "statistics"}, None),
    # users, objectives, propagation
    *(({"algorithm": "fedavg", "norm": LOCAL, "objective": o}, "at=") for o in ("at", "pnc", "free-at", "fedrob")),
    ({"algorithm": "fedavg", "objective": "pnc", "at": "all", "norm": "naive-bn"}, "branches"),
    ({"algorithm": "fedavg", "propagation": "fedrbn", "at": "all", "norm": "naive-bn"}, "branches"),
    ({"algorithm": "fedavg", "propagation": "fedrbn", "norm": LOCAL}, "AT user"),
    *(({"algorithm": "fedavg", "propagation": "fedrbn(temperature=1)", "at": "users(ids=(0, 1))", "norm": LOCAL,
        "objective": objective}, "such as fedrbn(similarity=uniform)") for objective in ("free-at", "fedrob")),
    ({"algorithm": "fedavg", "propagation": "fedrbn+trimmed-mean", "at": "users(ids=(0, 1))", "norm": LOCAL,
      "f_declared": 1}, "2"),
    ({"algorithm": "fedavg", "propagation": "fedrbn", "at": "users(ids=(0,))", "norm": LOCAL, "f": 1,
      "byzantine": "at"}, "honest"),
    ({"algorithm": "fedavg", "f": 2, "byzantine": "at", "at": "users(ids=(0,))"}, "AT users"),
    ({"objective": "free-at", "at": "all", "algorithm": "dsgd"}, "replays"),
    ({"objective": "at", "at": "all", "norm": "centralised-bn", "algorithm": "dsgd"}, "one machine"),
    ({"norm": "hbn", "objective": "pnc", "at": "all"}, "pnc needs a norm with branches"),
    *(({"norm": "fedtan", "algorithm": "fedavg", **other}, "plain pass")
      for other in ({"algorithm": "fedsam"}, {"algorithm": "moon"}, {"objective": "at", "at": "all"})),
    # rules that weigh, trust or remember
    ({"algorithm": "fedavg", "defense": "fltrust"}, "server_samples"),
    ({"algorithm": "fedavg", "defense": "fltrust", "server_samples": 10, "norm": "naive-bn"}, "sends more"),
    ({"algorithm": "scaffold", "defense": "fltrust", "server_samples": 10, "norm": "gn"}, "sends more"),
    ({"defense": "median(weighted=true)"}, "all clients weigh alike with dsgd"),
    ({"defense": "median(weighted=true)", "algorithm": "fedavg(weighting=uniform)"}, "all clients weigh alike"),
    ({"defense": "median(weighted=true)", "algorithm": "fedavg"}, None),
    ({"statistics_defense": "median(weighted=true)"}, None),  # a merge may weigh by values of unequal batches
    ({"statistics_defense": "median(weighted=true)", "norm": "hbn"}, None),
    ({"statistics_defense": "median", "norm": "centralised-bn"}, "nothing to merge: centralised-bn is one machine"),
    ({"norm": "fbn(joint=true)"}, "joint=True changes nothing: mean takes statistics column by column"),
    ({"norm": "fbn(joint=true)", "defense": "nnm+median"}, None),
    ({"norm": "fbn(joint=true)", "defense": "krum"}, None),
    ({"statistics_defense": "bulyan", "clients": 7, "f": 2}, "statistics_defense='bulyan': bulyan: f=2 needs at least"),
    ({"statistics_defense": "fltrust", "server_samples": 20}, "no statistics of its own"),
    ({"statistics_defense": "median", "norm": "gn"}, "gn sends the server no statistics"),
    ({"statistics_defense": "median", "norm": "fedbn"}, "nothing would be defended"),
    # fine-tuning, forgetting, precision
    ({**TUNED, "finetune": "st(rounds=3)"}, "at most 2 can be the others'"),
    *(({**TUNED, "finetune": "st(rounds=2, frozen=1)", **change}, words) for change, words in (
        ({"at": "all"}, "makes 4 of 4 clients AT users"), ({"f": 1}, "without Byzantine clients"),
        ({"participation": 0.5}, "full participation"), ({"algorithm": "dsgd", "objective": "ce"}, "local steps"),
        ({"algorithm": "fedavg(weight_decay=0.1)"}, "would move frozen layers"),
        ({"algorithm": "scaffold"}, "would move frozen layers"), ({"algorithm": "fedadam"}, "would move frozen layers"),
        ({"defense": "krum", "f_declared": 1}, "at least 5 clients"))),
    ({"forgetting": True, "algorithm": "dsgd"}, "it needs validation > 0 and an algorithm with local steps (not dsgd)"),
    *(({"forgetting": True, "algorithm": "fedavg", "validation": 0.2, **change}, words) for change, words in (
        ({"algorithm": "dsgd"}, "it needs an algorithm with local steps (not dsgd)"),
        ({"norm": "fedbn"}, "it needs a common model (not fedbn)"),
        ({"norm": "hbn"}, "it needs statistics of the model itself (not hbn, whose tests collect others)"),
        ({"norm": "hbn(eval_stats=ema)"}, None), ({}, None))),
    ({"precision": "bf16", "dtype": "float64"}, "precision='bf16' shortens float32, not dtype='float64'"),
    ({"precision": "bf16", "norm": "hbn", "dtype": "float64"}, "precision='bf16' shortens float32, not"),
    ({"precision": "bf16", "norm": "centralised-bn", "algorithm": "fedavg"}, "centralised-bn is one machine on all"),
    ({"precision": "bf16", "norm": "fedtan", "algorithm": "moon"}, "fedtan takes its first step in one plain pass of"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "words"), CELLS)
def test_a_cell_that_cannot_be_is_refused_with_the_reason(settings, words):
    reason = refusal(Cell.of(settings))
    assert (reason is None) if words is None else (words in reason)


BUILT = [
    ({"defense": "fltrust", "norm": "gn", "server_samples": 100_000}, "server_samples=100000 leaves clients nothing"),
    ({"partition": "dirichlet(alpha=0.01, min_size=0)", "clients": 99}, r"leaves client \d+ of 99 without training"),
    ({"domains": ["digits", DOMAINS[0]], "clients": 4}, "resized"),
    *(({"model": "mlp(hidden=())", "norm": norm, "algorithm": "fedavg(local_steps=2)"}, "no normalization layers")
      for norm in (LOCAL, "naive-bn", "fbn", "hbn", "gn", "fedtan")),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "words"), BUILT)
def test_what_data_and_model_do_not_allow_is_refused_before_training(settings, words):
    with pytest.raises(Refused, match=words):
        build(Cell.of(settings))
