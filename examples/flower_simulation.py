"""A Flower simulation with Byzantine clients, defended by robustfl; plain torch, batch norm, federated averaging.

Data, draws and the initial model are those of the cell that CELL describes, so that both give the same numbers.
Run it with ``python flower_simulation.py``, or put ``server_app`` and ``client_app`` into an app for ``flwr run``.
"""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import nn

import robustfl
from robustfl.data import Normalize, channel_statistics, data_root, dataset_from_spec
from robustfl.flower import Attacked, RobustStrategy, numbered
from robustfl.initialisation import torch_default
from robustfl.randomness import numpy_stream, stream
from robustfl.registry import create

CLIENTS, F, ROUNDS, STEPS, BATCH, LR, SEED = 6, 1, 3, 2, 16, 0.1, 0
CELL = {
    "dataset": "digits", "partition": "dirichlet(alpha=1)", "model": "digits-cnn(hidden=16)", "norm": "naive-bn",
    "algorithm": f"fedavg(local_steps={STEPS})", "clients": CLIENTS, "f": F, "rounds": ROUNDS, "batch": BATCH,
    "seed": SEED, "schedule": {"lr": LR}, "attack": "alie(z=1.5)", "defense": "nnm+trimmed-mean", "dtype": "float64",
    "evasions": ["fgsm(eps=0.1)"],
}  # fmt: skip

digits = dataset_from_spec("digits").load(data_root())
attackers = [int(k) for k in numpy_stream(SEED, "byzantine").permutation(CLIENTS)[:F]]


def network():
    """The model, with its initial weights."""
    layers = nn.Sequential(
        Normalize(*channel_statistics(digits)),
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10)),
    )
    torch_default(layers, stream(SEED, "init"))
    return layers.double()


def samples(client):
    """Which training images a client has."""
    draws = numpy_stream(SEED, "partition")
    parts = create("partition", "dirichlet(alpha=1)").split(
        digits.train_y, clients=CLIENTS, classes=10, generator=draws
    )
    return parts[client]


def batch(part, client, step):
    """Images and labels of a batch: every epoch walks through a client's data in a new order."""
    epoch, place = divmod(step, -(-len(part) // BATCH))
    order = numpy_stream(SEED, "batch", client, epoch).permutation(len(part))
    index = part[order[place * BATCH : (place + 1) * BATCH]]
    return torch.tensor(digits.train_x[index]).permute(0, 3, 1, 2).double() / 255, torch.tensor(digits.train_y[index])


client_app = ClientApp(mods=[numbered])


@client_app.train()
def train(message: Message, context: Context) -> Message:
    client, round = context.node_config["partition-id"], message.content["config"]["server-round"] - 1
    part = samples(client)
    model = network().train()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    sgd = torch.optim.SGD(model.parameters(), lr=LR)
    for step in range(STEPS):
        x, y = batch(part, client, round * STEPS + step)
        sgd.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        sgd.step()
    trained, metrics = ArrayRecord(model.state_dict()), MetricRecord({"num-examples": len(part)})
    return Message(RecordDict({"arrays": trained, "metrics": metrics}), reply_to=message)


server_app = ServerApp()


@server_app.main()
def serve(grid: Grid, context: Context) -> None:  # noqa: ARG001 - Flower hands it over
    model = network()
    defended = RobustStrategy("nnm+trimmed-mean", f=F, model=model, min_train_nodes=CLIENTS, fraction_evaluate=0)
    simulated = Attacked(defended, "alie(z=1.5)", clients=attackers)
    result = simulated.start(grid, ArrayRecord(model.state_dict()), num_rounds=ROUNDS)
    model.load_state_dict(result.arrays.to_torch_state_dict())
    found = robustfl.evaluate(model, "digits", evasions=CELL["evasions"], seed=SEED)
    print(found)
    found.to_json("flower.json")


if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1}}
    run_simulation(server_app, client_app, num_supernodes=CLIENTS, backend_config=resources)
