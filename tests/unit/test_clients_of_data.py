"""Data that say whose each image is: columns, the natural partition, clients' own test images, long tails."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import robustfl
from robustfl.data import Digits, Npz, Resized, data_root
from robustfl.data.partitions import Natural, long_tailed, proportional_tests
from robustfl.errors import Refused, UsageError
from robustfl.records import WORST_CLIENT
from robustfl.reports.board import metric_title
from robustfl.reports.frame import frame
from robustfl.reports.ranking import rank_board
from robustfl.scenarios import Cell
from robustfl.scenarios.build import build

TRAIN, TEST = 24, 12
OWNERS = np.array(["ann", "bob", "cy", "bob"])[np.arange(TRAIN) % 4]  # 6, 12 and 6 images


def archive(folder, name="mine.npz", **changes):
    """Bright images of class 1, dark ones of class 0; ``ann`` has other labels in the test part."""
    draws = np.random.default_rng(0)
    y, test_y = np.arange(TRAIN) // 2 % 2, np.arange(TEST) // 2 % 2
    x, test_x = ((150 * y[:, None, None] + draws.integers(0, 90, (len(y), 4, 4))).astype(np.uint8) for y in (y, test_y))
    tested = np.array(["ann", "bob", "cy"])[np.arange(TEST) % 3]
    good = {"train_x": x, "train_y": y, "test_x": test_x, "test_y": np.where(tested == "ann", 1 - test_y, test_y)}
    good |= {"client": OWNERS, "test_client": tested}
    np.savez(folder / name, **{k: v for k, v in {**good, **changes}.items() if v is not None})
    return Npz(path=str(folder / name))


def cell(dataset, **changes):
    base = {"model": "mlp", "norm": "none", "clients": 3, "batch": 6, "rounds": 12, "evasions": ["fgsm"]}
    return Cell.of({**base, "dataset": f"npz:{dataset.path}", "partition": "natural", **changes})


# --- the columns --------------------------------------------------------------------------------------------------


def test_names_are_numbered_in_their_order_and_numbers_stay(tmp_path):
    named = archive(tmp_path).load(tmp_path)
    assert named.train_client.tolist() == [{"ann": 0, "bob": 1, "cy": 2}[name] for name in OWNERS]
    numbers = np.arange(TRAIN) % 3 * 5
    assert archive(tmp_path, "n.npz", client=numbers, test_client=None).load(tmp_path).train_client.tolist() == [
        *numbers
    ]
    again = archive(tmp_path).load(tmp_path)  # from the cache
    assert np.array_equal(again.test_client, np.arange(TEST) % 3)


def test_the_clients_are_part_of_the_data_and_of_their_digest(tmp_path):
    digests = [
        archive(tmp_path, f"{i}.npz", **change).load(tmp_path).fingerprint
        for i, change in enumerate(({}, {"client": OWNERS[::-1]}, {"test_client": None, "client": None}))
    ]
    assert len(set(digests)) == 3


def test_a_limit_takes_the_clients_along(tmp_path):
    whole = archive(tmp_path).load(tmp_path)
    part = Npz(path=str(tmp_path / "mine.npz"), limit=10, test_limit=5).load(tmp_path)
    known = {image.tobytes(): int(owner) for image, owner in zip(whole.train_x, whole.train_client, strict=True)}
    assert part.train_client.tolist() == [known[image.tobytes()] for image in part.train_x]
    assert len(part.test_client) == 5


def test_resized_images_are_the_same_clients(tmp_path):
    whole = archive(tmp_path).load(tmp_path)
    wide = Resized(dataset=f"npz:{tmp_path}/mine.npz", size=6, channels=1).load(tmp_path)
    assert np.array_equal(wide.train_client, whole.train_client)
    assert np.array_equal(wide.test_client, whole.test_client)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"client": np.where(np.arange(TRAIN) == 5, np.nan, 1.0)}, r"client: image 5 has the client nan \(1 images"),
        ({"client": np.arange(TRAIN) - 2}, r"image 0 has the client -2 \(2 images have none\)"),
        ({"client": np.where(OWNERS == "cy", " ", OWNERS)}, r"image 2 has the client ' ' \(6 images have none\)"),
        ({"client": np.arange(TRAIN) / 2}, r"image 1 has the client 0\.5"),
        ({"client": OWNERS[1:]}, r"client has shape \(23,\); expected the client of each image, \[24\]"),
        ({"client": None}, r"test_client without client"),
        ({"client": np.arange(TRAIN)}, r"client and test_client must both be numbers, or both names"),
        ({"test_client": np.full(TEST, "eve")}, r"1 clients of test_client have no training image, such as eve"),
        ({"train_y": None}, r"no array 'train_y'; expected train_x, train_y"),
    ],
)
def test_a_bad_column_is_named_with_what_is_wrong(tmp_path, change, message):
    with pytest.raises(UsageError, match=message):
        archive(tmp_path, **change).load(tmp_path)


def test_archives_of_medmnist_are_read(tmp_path):
    x, y = np.zeros((6, 5, 5, 3), np.uint8), np.arange(6)[:, None] % 3
    names = ("train_images", "train_labels", "val_images", "val_labels", "test_images", "test_labels")
    np.savez(tmp_path / "bloodmnist.npz", **dict(zip(names, (x, y) * 3, strict=True)))
    found = Npz(path="bloodmnist.npz").load(tmp_path)
    assert (found.train_y.tolist(), found.classes, found.shape) == ([0, 1, 2, 0, 1, 2], 3, (3, 5, 5))
    np.savez(tmp_path / "chestmnist.npz", **dict(zip(names, (x, np.ones((6, 14), int)) * 3, strict=True)))
    with pytest.raises(UsageError, match=r"train_labels has 14 labels for each image; expected one class"):
        Npz(path="chestmnist.npz").load(tmp_path)


# --- who has which ------------------------------------------------------------------------------------------------


def natural(clients, seed=0, **params):
    owners = np.repeat([4, 9, 11, 30], [5, 1, 3, 2])
    draws = np.random.default_rng(seed)
    parts = Natural(**params).split(owners, clients=clients, classes=31, generator=draws)
    return [set(owners[part].tolist()) for part in parts], [len(part) for part in parts]


def test_a_client_has_all_images_of_one_owner():
    assert natural(4) == ([{4}, {9}, {11}, {30}], [5, 1, 3, 2])
    assert natural(3, min_size=2) == ([{4}, {11}, {30}], [5, 3, 2])


def test_fewer_clients_are_drawn_by_the_seed_each_as_likely():
    drawn = [frozenset.union(*map(frozenset, natural(2, seed)[0])) for seed in range(300)]
    assert natural(2, 1) == natural(2, 1)
    shares = [sum(owner in chosen for chosen in drawn) / 300 for owner in (4, 9, 11, 30)]
    assert all(0.4 < share < 0.6 for share in shares)


def test_more_clients_than_there_are_are_refused():
    with pytest.raises(
        Refused, match=r"clients=4 are more than the 3 clients with at least min_size=2 images, of 4 in"
    ):
        natural(4, min_size=2)


def test_data_without_clients_are_refused():
    with pytest.raises(Refused, match=r"partition='natural': digits does not say whose its images are"):
        build(Cell.of({"partition": "natural"}))


# --- own test images ----------------------------------------------------------------------------------------------


def test_every_client_is_tested_on_the_images_that_are_its_own(tmp_path):
    built = build(cell(archive(tmp_path), tests="own"), root=tmp_path)
    assert [part.tolist() for part in built.tests] == [list(range(k, TEST, 3)) for k in range(3)]
    assert built.doubts == ()
    common = build(cell(archive(tmp_path)), root=tmp_path)
    assert common.tests == ()
    assert any("tests = 'own' tests each on its own" in doubt for doubt in common.doubts)


def test_who_has_no_test_images_takes_no_part(tmp_path):
    data = archive(tmp_path, test_client=np.array(["ann", "cy"])[np.arange(TEST) % 2])
    built = build(cell(data, tests="own", clients=2), root=tmp_path)
    assert built.named == (0, 2)
    assert [len(part) for part in built.experiment.parts] == [6, 6]


def test_means_and_the_worst_client_are_recorded_and_ranked(tmp_path, monkeypatch):
    monkeypatch.setenv("ROBUSTFL_DATA", str(tmp_path))
    record = robustfl.run(cell(archive(tmp_path), tests="own").model_dump(), on_note=print)
    found = record.metrics
    assert record.certificates["data_clients"] == [0, 1, 2]
    assert found.per_user["sa"] == [0.0, 1.0, 1.0]  # the labels of ann's test images are wrong
    assert found.sa == pytest.approx(2 / 3)
    assert found.groups["worst client"]["sa"] == 0.0
    assert found.groups["worst client"]["fgsm"] == min(found.per_user["fgsm"])
    assert frame([record])[WORST_CLIENT].tolist() == [0.0]
    better = found.model_copy(update={"groups": {"worst client": {"sa": 0.5}}})
    other = record.model_copy(update={"labels": {**record.labels, "seed": 1}, "metrics": better})
    board = rank_board(frame([record, other]))
    assert [s.rows[0].worst.mean for s in board.sections if s.metric == WORST_CLIENT] == [0.25]
    assert metric_title(WORST_CLIENT) == "SA worst client"


def test_a_trained_model_is_measured_client_by_client(tmp_path):
    class Bright(torch.nn.Module):
        """Takes bright images for class 1, which is right but for ann."""

        def forward(self, x):
            return torch.stack([0.4 - x.mean((1, 2, 3)), x.mean((1, 2, 3)) - 0.4], dim=1)

    found = robustfl.evaluate(Bright(), archive(tmp_path), ["fgsm(eps=0.001)"], root=tmp_path, ra_limit=4)
    assert found.per_client == {"sa": {"0": 0.0, "1": 1.0, "2": 1.0}, "fgsm(eps=0.001)": {"0": 0.0, "1": 1.0, "2": 1.0}}
    assert "sa by client: mean 66.7 %, lowest 0.0 % (client 0 of 3)" in str(found)
    plain = robustfl.evaluate(Bright(), archive(tmp_path, client=None, test_client=None), [], root=tmp_path)
    assert plain.per_client == {}


def test_test_images_follow_the_clients_classes():
    labels = np.repeat([0, 1, 2], [40, 20, 10])
    parts = proportional_tests(labels, [[30, 0, 0], [10, 5, 0], [0, 15, 0]], np.random.default_rng(0))
    assert [np.bincount(labels[part], minlength=3).tolist() for part in parts] == [[30, 0, 0], [10, 5, 0], [0, 15, 0]]
    assert len(np.unique(np.concatenate(parts))) == 60  # nobody trains on class 2


def test_a_partition_by_label_splits_the_test_images_alike():
    built = build(Cell.of({"partition": "classes(k=2)", "clients": 5, "tests": "own", "f": 1, "attack": "sf"}))
    for part, test in zip(built.experiment.parts, built.tests, strict=True):
        assert set(built.experiment.train.y[part].tolist()) == set(built.test.y[test].tolist())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_client": None}, r"mine\.npz\) does not say whose its test images are; .*or tests='common'"),
        ({"test_client": np.full(TEST, "bob")}, r"clients=3 are more than the 1 clients with at least min_size=1"),
    ],
)
def test_clients_without_test_images_are_refused(tmp_path, changes, message):
    with pytest.raises(Refused, match=message):
        build(cell(archive(tmp_path, **changes), tests="own"), root=tmp_path)


def test_a_client_without_test_images_of_its_classes_is_refused():
    few = {"dataset": "digits(test_limit=4)", "tests": "own", "clients": 8}
    with pytest.raises(Refused, match=r"tests='own' leaves client \d of 8 without test images, of 4 in the data"):
        build(Cell.of(few))


def test_domains_have_tests_of_their_own_and_no_long_tail():
    for name, value in (("tests", "own"), ("imbalance", 10.0)):
        with pytest.raises(UsageError, match=f"{name}=.* is for a partition"):
            Cell.of({"domains": ["digits", "digits"], "clients": 2, name: value})


# --- long tails ---------------------------------------------------------------------------------------------------


def test_classes_shrink_exponentially():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))
    kept = long_tailed(labels, 10, 100, np.random.default_rng(1))
    # as in the released code of Cao et al. (LDAM-DRW), which follows Cui et al.: int(5000 · 0.01^(c/9))
    assert np.bincount(labels[kept]).tolist() == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert long_tailed(np.array([0, 1, 2]), 3, 1e6, np.random.default_rng(1)).tolist() == [0, 1, 2]


def test_a_partition_spreads_what_a_long_tail_leaves():
    built = build(Cell.of({"partition": "dirichlet(alpha=1)", "clients": 4, "imbalance": 10}))
    counts = np.sum(built.label_counts, axis=0)
    assert counts[0] == np.sum(Digits().load(data_root()).train_y == 0)
    assert counts[0] / counts[9] == pytest.approx(10, rel=0.1)
    assert len(built.test) == 355
