"""Partitions: on small labels, extreme sizes, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robustfl.data import partitions
from robustfl.data.partitions import (
    Dirichlet,
    Gamma,
    Iid,
    KClasses,
    class_fractions,
    dirichlet_counts,
    label_counts,
    sorted_by_class,
    train_validation,
)
from robustfl.errors import Refused, UsageError
from robustfl.registry import identity
from robustfl.scenarios import Cell
from robustfl.scenarios.build import build


def rng(seed=0):
    return np.random.default_rng(seed)


def split(partition, labels, clients, classes=None, seed=0):
    labels = np.asarray(labels)
    return partition.split(labels, clients=clients, classes=classes or int(labels.max()) + 1, generator=rng(seed))


BALANCED = np.arange(200) % 10


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 4), max_size=40),
    clients=st.integers(1, 12),
    partition=st.sampled_from(
        [Iid(), Gamma(gamma=0), Gamma(gamma=0.3), Gamma(gamma=1), Dirichlet(alpha=0.3, min_size=0), KClasses(k=5)]
        + [Dirichlet(alpha=a, mode="equal", min_size=0) for a in (1e-8, 0.1, 100.0)]
    ),
)
def test_parts_are_disjoint_and_complete(labels, clients, partition):
    labels = np.array(labels, dtype=np.int64)
    try:
        parts = partition.split(labels, clients=clients, classes=5, generator=rng())
    except Refused:
        assert isinstance(partition, KClasses)
        assert clients % 5
        assert 5 % clients
        return
    assert len(parts) == clients
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    unused = len(labels) % clients if getattr(partition, "mode", "") == "equal" else 0
    assert len(together) == len(labels) - unused


def test_sorting_by_class_keeps_the_order_of_ties_and_takes_labels_of_any_size():
    labels = np.array([1, 2**16 + 1, 0, 1, 2**16])
    assert sorted_by_class(labels, np.array([4, 3, 2, 1, 0])).tolist() == [2, 3, 0, 4, 1]


def test_gamma_one_client_and_more_clients_than_samples():
    assert sorted(split(Gamma(gamma=0.5), [1, 0, 2], 1)[0]) == [0, 1, 2]
    assert sum(len(p) == 0 for p in split(Gamma(gamma=0), [0, 1], 5)) == 3


def test_gamma_zero_sorts_and_gamma_one_mixes():
    assert all(len(set(BALANCED[p])) == 1 for p in split(Gamma(gamma=0), BALANCED, 10))
    assert all(len(set(BALANCED[p])) > 5 for p in split(Gamma(gamma=1), BALANCED, 10))


def test_gamma_sets_random_samples_aside_not_the_first():
    first = {tuple(sorted(p[:2])) for s in range(5) for p in split(Gamma(gamma=0.1), BALANCED, 10, seed=s)}
    assert max(max(pair) for pair in first) > 100


def test_dirichlet_cuts_lose_no_sample_to_rounding():
    p = np.full((1, 10), 0.1)
    assert np.cumsum(p)[-1] < 1  # the float sum that would drop the last sample
    assert dirichlet_counts(p, [10]).sum() == 10
    assert dirichlet_counts([[0.5, 0.500_004, 0.0]], [10**6]).tolist() == [[500_000, 500_000, 0]]  # nor win one


def test_dirichlet_redraws_until_min_size():
    def smallest(min_size, seed):
        return min(len(p) for p in split(Dirichlet(alpha=0.3, min_size=min_size), BALANCED, 10, seed=seed))

    assert min(smallest(8, seed) for seed in range(10)) >= 8
    assert min(smallest(0, seed) for seed in range(10)) < 8


def test_dirichlet_refuses_an_unreachable_min_size():
    with pytest.raises(Refused, match="200 samples cannot give 300 clients"):
        split(Dirichlet(alpha=1.0), BALANCED, 300)
    assert [len(p) for p in split(Dirichlet(alpha=1.0, mode="equal"), [0, 1, 2], 3)] == [1, 1, 1]
    with pytest.raises(Refused, match="alpha=1e-06 left a client with fewer than min_size=1"):
        split(Dirichlet(alpha=1e-6), BALANCED, 100)


def test_equal_mode_uses_up_remaining_classes_when_the_drawn_ones_are_exhausted():
    counts = np.array(label_counts(BALANCED, split(Dirichlet(alpha=1e-8, mode="equal"), BALANCED, 4), 10))
    assert counts.sum(1).tolist() == [50] * 4
    assert counts.sum(0).tolist() == [20] * 10


def test_what_is_left_is_drawn_in_proportion_when_the_drawn_classes_are_exhausted():
    take = partitions._draw(np.array([1.0, 0.0, 0.0]), np.array([5, 9000, 1000]), 1005, rng())
    assert (take[0], take.sum()) == (5, 1005)
    assert take[1] / 1000 == pytest.approx(0.9, abs=0.05)  # five standard deviations


@pytest.mark.parametrize(("base", "each"), [("prior", 0.05), ("ones", 0.5)])
def test_equal_mode_multiplies_the_prior_or_ones_by_alpha(base, each):
    """A client of n samples lacks a class of q ~ Beta(a, 9a) with probability E[(1-q)^n] = B(a, 9a + n) / B(a, 9a)."""
    labels = np.repeat(np.arange(10), 5000)
    found = []
    for seed in range(5):
        parts = split(Dirichlet(alpha=0.5, mode="equal", base=base), labels, 100, seed=seed)
        found += [len(np.unique(labels[p])) for p in parts[:40]]  # later ones may find a class used up
    lacks = math.lgamma(9 * each + 500) - math.lgamma(9 * each) + math.lgamma(10 * each) - math.lgamma(10 * each + 500)
    assert np.mean(found) == pytest.approx(10 * (1 - math.exp(lacks)), abs=0.5)


def test_a_base_belongs_to_equal_mode():
    with pytest.raises(UsageError, match="belongs to mode='equal'"):
        Dirichlet(alpha=0.5, base="ones")
    params = identity(Dirichlet(alpha=0.5, mode="equal", base="ones"))["params"]
    assert params == {"alpha": 0.5, "mode": "equal", "min_size": 1, "base": "ones"}


def test_k_classes_leftovers_go_to_the_lowest_client():
    counts = np.array(label_counts(np.arange(70) % 10, split(KClasses(k=6), np.arange(70) % 10, 5), 10))
    holders = np.flatnonzero(class_fractions(5, 10, 6)[:, 0])
    assert counts[holders, 0].tolist() == [3, 2, 2]


def test_k_classes_generalises_to_blocks_and_to_many_clients():
    hundred = class_fractions(5, 100, 20)
    assert [np.flatnonzero(row).tolist() for row in hundred] == [list(range(20 * i, 20 * i + 20)) for i in range(5)]
    many = class_fractions(20, 10, 3)
    assert (many > 0).sum(0).tolist() == [6] * 10


def test_k_classes_gives_neighbours_among_many_clients_the_same_class():
    parts = split(KClasses(k=1), BALANCED, 20)
    assert [set(BALANCED[part].tolist()) for part in parts] == [{i // 2} for i in range(20)]


def test_validation_is_held_out_at_random_and_never_everything():
    indices = np.arange(100, 200)
    train, validation = train_validation(indices, 0.1, rng())
    assert len(validation) == 10
    assert len(train_validation(indices[:18], 0.1, rng())[1]) == 2
    assert validation.tolist() != list(range(100, 110))
    assert sorted([*train, *validation]) == indices.tolist()
    assert [len(p) for p in train_validation(indices[:1], 0.9, rng())] == [1, 0]
    assert [len(p) for p in train_validation(indices[:0], 0.5, rng())] == [0, 0]
    with pytest.raises(UsageError, match="fraction=1"):
        train_validation(indices, 1.0, rng())


def test_label_counts_count_absent_classes_and_empty_clients():
    assert label_counts(np.array([2, 2, 0]), [np.array([0, 2]), np.array([], int)], 4) == [[1, 0, 1, 0], [0, 0, 0, 0]]


# --- attackers that hold copies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", ["iid", "gamma(gamma=0)"])
def test_where_attackers_hold_copies_the_honest_clients_share_everything(partition: str) -> None:
    told = {"partition": partition, "clients": 9, "f": 4, "attack": "sf", "evasions": [], "validation": 0.2, "seed": 3}
    built = build(Cell.of({**told, "attackers_data": "copied"}))
    byzantine = built.experiment.byzantine
    whole = [set(t.tolist()) | set(v.tolist()) for t, v in zip(built.experiment.parts, built.validation, strict=True)]
    honest = [whole[k] for k in range(9) if k not in byzantine]
    assert sum(map(len, honest)) == len(set().union(*honest)) == len(built.experiment.train)
    copies = [honest.index(whole[k]) for k in sorted(byzantine)]
    assert copies == [0, 1, 2, 3], "each of another one, in order, so that no honest client stands twice"
    shared = build(Cell.of(told)).experiment
    assert sum(len(shared.parts[k]) for k in range(9) if k not in byzantine) < 0.7 * len(shared.train)
    alone = build(Cell.of({**told, "clients": 5, "f": 0, "attack": "none"})).experiment
    assert len(alone.parts[0]) == len(built.experiment.parts[next(k for k in range(9) if k not in byzantine)])


def test_domains_have_no_partition_to_leave_attackers_out_of() -> None:
    domains = ["digits-domain(style=clean)", "digits-domain(style=textured)"]
    with pytest.raises(UsageError, match="attackers_data='copied' is for a partition, and domains have none"):
        Cell.of({"domains": domains, "clients": 4, "f": 1, "attackers_data": "copied"})
