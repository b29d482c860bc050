"""Federated training in a loop of one's own: plain torch, with robustfl's attack, defense and evaluation.

Data, draws and the initial model are those of the cell that CELL describes, so that both give the same numbers.
"""

import torch
from torch import nn

import robustfl
from robustfl.data import Normalize, channel_statistics, data_root, dataset_from_spec
from robustfl.initialisation import torch_default
from robustfl.randomness import numpy_stream, stream
from robustfl.registry import create

CLIENTS, F, ROUNDS, BATCH, LR, SEED = 10, 2, 60, 16, 0.2, 0
CELL = {
    "dataset": "digits", "partition": "dirichlet(alpha=1)", "model": "mlp", "norm": "none", "algorithm": "dsgd",
    "clients": CLIENTS, "f": F, "rounds": ROUNDS, "batch": BATCH, "seed": SEED, "schedule": {"lr": LR},
    "attack": "alie(z=1.5)", "defense": "nnm+trimmed-mean", "dtype": "float64",
    "evasions": ["fgsm(eps=0.1)", "pgd(eps=0.1)"],
}  # fmt: skip

digits = dataset_from_spec("digits").load(data_root())
X = torch.tensor(digits.train_x).permute(0, 3, 1, 2).double() / 255
y = torch.tensor(digits.train_y)
parts = create("partition", "dirichlet(alpha=1)").split(
    digits.train_y, clients=CLIENTS, classes=10, generator=numpy_stream(SEED, "partition")
)
attackers = set(numpy_stream(SEED, "byzantine").permutation(CLIENTS)[:F])
honest = [k for k in range(CLIENTS) if k not in attackers]

scaling = Normalize(*channel_statistics(digits))
model = nn.Sequential(scaling, nn.Flatten(), nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 10))
torch_default(model, stream(SEED, "init"))
model.double()


def batch(client, round):
    """The samples of a client in a round: every epoch walks through its data in a new order."""
    epoch, place = divmod(round, len(parts[client]) // BATCH)
    order = numpy_stream(SEED, "batch", client, epoch).permutation(len(parts[client]))
    return parts[client][order[place * BATCH : (place + 1) * BATCH]]


weights = list(model.parameters())
momenta = {k: [torch.zeros_like(w) for w in weights] for k in honest}
rule = robustfl.defense("nnm+trimmed-mean")
for round in range(ROUNDS):
    for k in honest:
        index = batch(k, round)
        loss = nn.functional.cross_entropy(model(X[index]), y[index])
        gradient = torch.autograd.grad(loss, weights)
        momenta[k] = [0.9 * m + 0.1 * g for m, g in zip(momenta[k], gradient, strict=True)]
    rows = list(momenta.values())  # one list of layers per client
    rows += robustfl.forge("alie", rows, f=F, z=1.5)
    for w, change in zip(weights, rule(rows, f=F), strict=True):
        w.data -= LR * change

print(robustfl.evaluate(model, "digits", evasions=["fgsm(eps=0.1)", "pgd(eps=0.1)"], seed=SEED))
