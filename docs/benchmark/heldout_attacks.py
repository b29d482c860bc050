# ruff: noqa: ARG002, E501
"""Twelve held-out Byzantine attacks, by an author who had seen neither the members nor the candidates of AutoByz 3.

They judge the set and are no members. ``robustfl bench beat ROW --from BOARD --attack held-12 --plugin heldout_attacks.py``
runs one on a row.
"""

from dataclasses import dataclass

import torch

from robustfl.contracts import Attack, Forged
from robustfl.registry import register

REACH = (0.3, 1.0, 4.0, 100.0)  # how far beyond the honest rows, in ranges
SCALES = (0.15, 0.3, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 4.0, 100.0)  # lengths of a shift, in honest distances


def valid(view, row):
    """Variances stay positive."""
    if view.variance is None:
        return row
    floor = view.honest.min(0).values.clamp(min=1e-6) * 1e-2
    return torch.where(view.variance.to(torch.bool), torch.maximum(row, floor), row)


def outcome(view, rows):
    rows = rows if rows.dim() == 2 else rows.expand(view.f, -1)
    return view.aggregate(torch.cat([view.honest, rows]))


def best(view, rows, weights):
    """Of candidate rows, the one whose result has the smallest inner product with ``weights``."""
    scores = torch.stack([(outcome(view, row).double() @ weights.double()).reshape(()) for row in rows])
    return rows[int(torch.nan_to_num(scores, nan=float("inf")).argmin())].clone()


def ladder(view, sign):
    """Honest order statistics on the side of ``sign``, from the middle outwards and beyond."""
    up, order = sign > 0, view.honest.sort(0).values
    h = len(order)
    rows = [torch.where(up, order[h - 1 - k], order[k]) for k in range((h + 1) // 2)]
    wide = torch.where(up, 1.0, -1.0).to(order.dtype) * (order[-1] - order[0])
    return [valid(view, row) for row in rows + [rows[0] + reach * wide for reach in REACH]]


def climb(view, sign, weights, extra=()):
    """The best of the ladder, of its best rung entry by entry, and of ``extra``; ``weights`` points against ``sign``."""
    rungs = ladder(view, sign)
    gains = torch.stack([outcome(view, row) for row in rungs]) * torch.where(sign > 0, 1.0, -1.0).to(sign.dtype)
    gains = torch.nan_to_num(gains, nan=-1e30)
    mixed = torch.stack(rungs).gather(0, gains.argmax(0, keepdim=True))[0]
    return best(view, [*rungs, mixed, *extra], weights)


def unit(v):
    return v / v.norm().clamp(min=1e-12)


def radius(view):
    """The median distance of honest rows from their mean."""
    return (view.honest - view.honest.mean(0)).norm(dim=1).median()


def shifts(view, direction, scales=SCALES):
    """The honest mean, shifted along a direction by multiples of the radius."""
    mean, step = view.honest.mean(0), radius(view) * unit(direction)
    return [valid(view, mean + scale * step) for scale in scales]


def spread(view):
    return view.honest.std(0, unbiased=False) + 1e-3 * view.honest.abs().mean(0) + 1e-12


def numb(view, means=1.0, variances=-1.0):
    """Statistics: all means to one side and all variances to one side, as far as the server lets it."""
    h = view.honest
    var = torch.zeros_like(h[0], dtype=torch.bool) if view.variance is None else view.variance.to(torch.bool)
    sign = torch.where(var, variances, means).to(h.dtype)
    return climb(view, sign, -sign / spread(view)).expand(view.f, -1).clone()


def total(view):
    """All that the server has done so far on this channel, with the honest mean of this round: minus the way from the start."""
    mean = view.honest.mean(0)
    past = view.state.get("sum", torch.zeros_like(mean))
    return past + (torch.zeros_like(mean) if view.previous is None else view.previous), mean


def places(view):
    """Slices of the tensors in an update, in order, with their shapes."""
    start, out = 0, []
    for shape in view.tensors.values():
        size = int(torch.Size(shape).numel())
        out.append((slice(start, start + size), tuple(shape)))
        start += size
    return out if start == view.honest.shape[1] and out else [(slice(0, view.honest.shape[1]), (view.honest.shape[1],))]


def head(view):
    """Slices of the classifier's weight and bias, and its shape; ``None`` where there is none."""
    where = places(view)
    matrices = [i for i, (_, shape) in enumerate(where) if len(shape) == 2]
    if not matrices:
        return None
    i = matrices[-1]
    bias = where[i + 1][0] if i + 1 < len(where) and where[i + 1][1] == where[i][1][:1] else None
    return where[i][0], bias, where[i][1]


@register("held-1", version=1)
@dataclass(frozen=True)
class Held1(Attack):
    """Climbs, entry by entry, the rung of the honest order statistics that turns the server most against the honest mean.

    Reference: ours.
    """

    knowledge = "defense"

    def forge(self, view, *, generator):
        if view.channel == "statistics":
            return numb(view)
        mean = view.honest.mean(0)
        return climb(view, -mean, mean, shifts(view, -mean)).expand(view.f, -1).clone()


@register("held-2", version=1)
@dataclass(frozen=True)
class Held2(Attack):
    """Rewinds training: pulls every entry back along the sum of all past results; statistics back to those of the start.

    Reference: ours.
    """

    knowledge = "defense"

    def forge(self, view, *, generator):
        past, mean = total(view)
        if view.channel == "statistics":
            first = view.state.get("first", mean)
            sign = torch.where(first >= mean, 1.0, -1.0).to(mean.dtype)
            row = climb(view, sign, -sign / spread(view))
            return Forged(row.expand(view.f, -1).clone(), {"first": first.clone()})
        way = unit(past) + 0.5 * unit(mean)
        row = climb(view, -way, way, shifts(view, -way))
        return Forged(row.expand(view.f, -1).clone(), {"sum": past.clone()})


@register("held-3", version=1)
@dataclass(frozen=True)
class Held3(Attack):
    """Kills units: pushes gains and biases of hidden layers down until ReLUs are silent, reverses the rest; means up, variances down.

    Reference: ours.
    """

    knowledge = "defense"

    def forge(self, view, *, generator):
        if view.channel == "statistics":
            return numb(view, 1.0, -1.0)
        mean = view.honest.mean(0)
        way, where = unit(mean) * 0.5, places(view)
        for place, shape in where[:-1]:
            if len(shape) == 1:
                way[place] = -1.0 / mean[place].numel() ** 0.5
        return climb(view, -way, way, shifts(view, -way)).expand(view.f, -1).clone()


@register("held-4", version=1)
@dataclass(frozen=True)
class Held4(Attack):
    """One-class collapse: spends the whole distance on the classifier, one class up and the others down, always the same class.

    Reference: ours.
    """

    knowledge = "defense"

    def forge(self, view, *, generator):
        if view.channel == "statistics":
            return numb(view, -1.0, -1.0)
        mean, found = view.honest.mean(0), head(view)
        if found is None:
            return climb(view, -mean, mean).expand(view.f, -1).clone()
        weight, bias, (classes, width) = found
        column = torch.full((classes,), 1.0 / max(classes - 1, 1), dtype=mean.dtype, device=mean.device)
        column[0] = -1.0
        pull = torch.zeros_like(mean)
        pull[weight] = column.repeat_interleave(width)
        if bias is not None:
            pull[bias] = 4.0 * column
        on = pull != 0
        extra = [torch.where(on, row, mean) for row in ladder(view, pull)] + shifts(view, pull)
        return best(view, extra, -unit(pull) + 0.3 * unit(mean)).expand(view.f, -1).clone()


@register("held-5", version=1)
@dataclass(frozen=True)
class Held5(Attack):
    """Exaggerates the honest client that has disagreed most with the others so far, away from their mean.

    Reference: ours.
    """

    knowledge = "defense"

    def forge(self, view, *, generator):
        mean, h = view.honest.mean(0), len(view.honest)
        lengths = (view.honest - mean).norm(dim=1)
        against = (view.honest - mean) @ unit(mean) / lengths.clamp(min=1e-12)
        seen = view.state.get("against", torch.zeros_like(against))
        seen = 0.9 * (seen if len(seen) == h else torch.zeros_like(against)) + against
        away = view.honest[int(seen.argmin())] - mean
        if view.channel == "statistics":
            weights = -away / spread(view).square()
            row = climb(view, away, weights, shifts(view, away))
        else:
            way = unit(away) - unit(mean)
            row = best(view, shifts(view, away) + shifts(view, way), -way)
        return Forged(row.expand(view.f, -1).clone(), {"against": seen})


@register("held-6", version=1)
@dataclass(frozen=True)
class Held6(Attack):
    """Drifts along the direction in which honest clients differ most, always to the same side, where a shift is hardest to see.

    Reference: ours.
    """

    knowledge = "defense"

    def forge(self, view, *, generator):
        mean = view.honest.mean(0)
        rest = view.honest - mean
        v = view.state.get("v", -mean)
        for _ in range(3):
            v = unit(rest.T @ (rest @ v)) + 1e-3 * unit(v)
        if view.channel == "update" and not view.state and v @ mean > 0:
            v = -v
        keep = unit(0.7 * unit(view.state.get("v", v)) + 0.3 * unit(v))
        way = unit(keep - 0.7 * unit(mean)) if view.channel == "update" else keep
        weights = -way if view.channel == "update" else -way / spread(view)
        return Forged(climb(view, way, weights, shifts(view, way)).expand(view.f, -1).clone(), {"v": keep})


@register("held-7", version=1)
@dataclass(frozen=True)
class Held7(Attack):
    """Drifts to a random side, the same for all weights of a round and all rounds, in units of the honest deviation.

    Reference: ours.
    """

    knowledge = "defense"

    def forge(self, view, *, generator):
        mean = view.honest.mean(0)
        side = view.state.get("side")
        if side is None:
            draw = torch.rand(mean.shape, generator=generator, dtype=mean.dtype, device=generator.device).to(
                mean.device
            )
            side = torch.where(draw < 0.5, -1.0, 1.0).to(mean.dtype)
        way = side * spread(view)
        weights = -side / spread(view) if view.channel == "statistics" else -side
        row = climb(view, way, weights, shifts(view, way))
        return Forged(row.expand(view.f, -1).clone(), {"side": side.clone()})


@register("held-8", version=1)
@dataclass(frozen=True)
class Held8(Attack):
    """Speaks for the minority: the mean of the honest rows that agree least with their mean, stretched to an honest length.

    Reference: ours.
    """

    knowledge = "omniscient"

    def forge(self, view, *, generator):
        mean = view.honest.mean(0)
        order = ((view.honest - mean) @ mean).argsort()
        k = max(1, len(view.honest) // 4)
        away = view.honest[order[:k]].mean(0) - mean
        away = unit(away) - 0.7 * unit(mean) if view.channel == "update" else away
        return valid(view, mean + 0.95 * radius(view) * unit(away)).expand(view.f, -1).clone()


@register("held-9", version=1)
@dataclass(frozen=True)
class Held9(Attack):
    """Teaches shifted classes: the honest mean with the classifier's rows moved on by one class, as loud as the server lets it.

    Reference: ours.
    """

    knowledge = "defense"

    def forge(self, view, *, generator):
        if view.channel == "statistics":
            return numb(view, 1.0, 1.0)
        mean, found = view.honest.mean(0), head(view)
        if found is None:
            return best(view, shifts(view, -mean), mean).expand(view.f, -1).clone()
        weight, bias, shape = found
        taught = mean.clone()
        taught[weight] = mean[weight].reshape(shape).roll(1, 0).reshape(-1)
        if bias is not None:
            taught[bias] = mean[bias].roll(1, 0)
        way = unit(view.state.get("way", torch.zeros_like(mean)) * 0.8 + unit(taught - mean))
        aim = unit(way - 0.4 * unit(mean))
        row = best(view, shifts(view, aim) + ladder(view, aim), -aim)
        return Forged(row.expand(view.f, -1).clone(), {"way": way})


@register("held-10", version=1)
@dataclass(frozen=True)
class Held10(Attack):
    """Reverses every tensor by the same share of its own honest distance, so that no layer escapes; variances up, means down.

    Reference: ours.
    """

    knowledge = "defense"

    def forge(self, view, *, generator):
        if view.channel == "statistics":
            return numb(view, -1.0, 1.0)
        mean = view.honest.mean(0)
        away, way = torch.zeros_like(mean), view.state.get("way", torch.zeros_like(mean)) * 0.8 + mean
        for place, _ in places(view):
            away[place] = -unit(way[place]) * (view.honest[:, place] - mean[place]).norm(dim=1).median()
        rows = [mean + scale * away for scale in SCALES]
        return Forged(climb(view, away, -away, rows).expand(view.f, -1).clone(), {"way": way})


@register("held-11", version=1)
@dataclass(frozen=True)
class Held11(Attack):
    """Good neighbours: the longest step against the honest drift that leaves attackers nearer to honest rows than these to each other.

    Reference: ours.
    """

    knowledge = "omniscient"

    def forge(self, view, *, generator):
        h, mean = view.honest, view.honest.mean(0)
        way = view.state.get("way", torch.zeros_like(mean)) * 0.9 + mean
        far = torch.cdist(h.double(), h.double()).sort(1).values
        limit = far[:, max(len(h) - view.f - 1, 0)].median()  # how far the last neighbour that a rule keeps may be
        sign = -unit(way) if view.channel == "update" else -spread(view) * torch.where(way > 0, 1.0, -1.0)
        step, low, high = unit(sign), 0.0, float(4.0 * limit + 1e-12)
        for _ in range(20):
            middle = (low + high) / 2
            inside = (h - mean - middle * step).norm(dim=1).median() <= limit
            low, high = (middle, high) if inside else (low, middle)
        return Forged(valid(view, mean + low * step).expand(view.f, -1).clone(), {"way": way})


@register("held-12", version=1)
@dataclass(frozen=True)
class Held12(Attack):
    """Chooses tensor by tensor, with the server's rule at hand, between reversal, rewinding and the honest extremes.

    Reference: ours.
    """

    knowledge = "defense"

    def forge(self, view, *, generator):
        past, mean = total(view)
        if view.channel == "statistics":  # of four corners the one that moves the server farthest
            rows = [numb(view, a, b)[0] for a in (-1.0, 1.0) for b in (-1.0, 1.0)]
            origin = mean if view.origin is None else view.origin
            moved = [((outcome(view, row) - origin) / spread(view)).norm() for row in rows]
            return rows[int(torch.nan_to_num(torch.stack(moved), nan=-1.0).argmax())].expand(view.f, -1).clone()
        way = unit(mean) + 0.5 * unit(past)
        options = [ladder(view, -way)[0], *shifts(view, -way, (0.7, 1.5)), *shifts(view, -past, (1.0,))]
        row = best(view, [climb(view, -way, way), *shifts(view, -way)], way)
        for place, _ in sorted(places(view), key=lambda item: item[0].start - item[0].stop):
            tries = [row]
            for option in options:
                tries.append(row.clone())
                tries[-1][place] = option[place]
            row = best(view, tries, way)
        return Forged(row.expand(view.f, -1).clone(), {"sum": past.clone()})
