"""Specs that no method can be made of: the error says what is wrong, and what is near."""

from __future__ import annotations

from functools import partial

import pytest

import robustfl
from robustfl.errors import UsageError
from robustfl.registry import create

REFUSED = [
    ("attack", "sf(mode=median)", "mode='median'"),
    ("attack", "foe(eta=-1)", "eta=-1"),
    ("attack", "ipm(tau=-0.1)", "tau=-0.1 must be ≥ 0"),
    ("attack", "alie(sign=0)", "sign=0 must be -1 or 1"),
    ("attack", "alie(sign=2)", "sign=2"),
    ("attack", "alie(ddof=2)", "ddof=2"),
    ("attack", "alie(z=-1)", "z=-1"),
    ("attack", "opt-foe(evals=0)", "evals=0"),
    ("attack", "opt-alie(ratio=1)", "ratio=1"),
    ("attack", "opt-alie(delta=0)", "delta=0"),
    ("attack", "gaussian(sigma=-1)", "sigma=-1"),
    ("attack", "alie(tau=1)", "no parameter 'tau'"),
    ("attack", "ailie", "did you mean 'alie'"),
    ("attack", "foe(eat=1)", "did you mean 'eta'"),
    ("attack", "foe(eta=2", "a closing parenthesis is missing"),
    ("attack", "foe(2)", "parameter=value"),
    ("attack", "foe(eta=)", "parameter=value"),
    ("attack", "none, sf", '["none", "sf"]'),
    ("attack", "label-flip(source=1)", "source=1 needs a target"),
    ("attack", "label-flip(source=2, target=2)", "must differ"),
    ("attack", "mimic(variant=other)", "variant='other'"),
    ("attack", "mimic(warm_up=0)", "warm_up=0"),
    ("attack", "min-max(deviation=mean)", "deviation='mean'"),
    ("attack", "fang(b=1)", "b=1"),
    ("attack", "fang(threshold=0)", "threshold=0"),
    ("attack", "fang(against=krumm)", "did you mean 'krum'"),
    ("attack", "rop(location=1.5)", "location=1.5"),
    ("attack", "lazy(period=0)", "period=0"),
    ("attack", "badnets(fraction=0)", "fraction=0"),
    ("attack", "dirty-labels(fraction=1.1)", "fraction=1.1"),
    ("attack", "foe(alie)", "foe takes no bare attack"),
    ("attack", "opt(alie, attack=sf)", "attack is given twice"),
    ("attack", "opt(alie, sf)", "sf' is not parameter=value"),
    ("attack", "opt(alei)", "did you mean 'alie'"),
    ("attack", "opt(foe(eta=-1))", "eta=-1"),
    ("attack", "opt(opt-alie)", "searches against the server already"),
    ("attack", "opt(opt)", "searches against the server already"),
    ("attack", "opt(alie, parameter=zz)", "parameter='zz' is no number of 'alie'"),
    ("attack", "opt(nan, parameter=q)", "parameter='q'"),
    ("attack", "opt(sf, start=5, eta_max=3)", "leave [5, 3] to search"),
    ("attack", "opt(rop, parameter=location, start=2)", "leave [2, 1] to search"),
    ("attack", "opt(sf, eta_max=inf, search=golden)", "needs a finite eta_max"),
    ("attack", "opt(sf, eta_max=inf)", "search=scan needs a finite eta_max"),
    ("attack", "opt-foe(eta_max=inf)", "search=scan needs a finite eta_max"),
    ("attack", "timed(sf, start=3, stop=3)", "stop=3 must be > 3"),
    ("attack", "timed(sf, every=0)", "every=0"),
    ("attack", "partial(gaussian)", "it must be omniscient"),
    ("attack", "partial(opt-foe)", "it must be omniscient"),
    *(("attack", f"{name}({inner})", "must poison data and leave messages alone")
      for name in ("model-replacement", "neurotoxin") for inner in ("sf", "none", "model-replacement")),
    *(("attack", f"{name}(deviation={deviation}, ddof=0)", "ddof=0 changes nothing unless deviation=std")
      for name in ("min-max", "min-sum") for deviation in ("sign", "unit_vec")),
    ("evasion", "pgd(eps=-0.1)", "eps=-0.1 must be ≥ 0"),
    ("evasion", "pgd(steps=0)", "steps=0 must be ≥ 1"),
    ("evasion", "pgd(keep=first)", "best, last"),
    ("evasion", "pgd(restarts=2, random_start=false)", "random_start"),
    ("evasion", "pgd(epsilon=1)", "did you mean 'eps'"),
    ("evasion", "pgd(norm=l1)", "norm='l1' is not allowed"),
    ("evasion", "pgd(eps=inf)", "eps=inf"),
    ("evasion", "mia(decay=-1)", "decay=-1.0 must be ≥ 0"),
    ("evasion", "fgsm(target=1)", "target=1 is ignored unless targeted=True"),
    ("evasion", "pgd(targeted=true, target=-1)", "target=-1 must be ≥ 0"),
    ("evasion", "mia(legacy_digits_clip=true, norm=l2)", "norm='l2' has no counterpart"),
    ("evasion", "worst(of='')", "evasion 'worst': of='' must be evasion attacks joined by '+'"),
    ("evasion", "worst(of='pgd+')", "joined by '+'"),
    ("evasion", "worst(of='pgd+sqare')", "did you mean 'square'"),
    ("evasion", "worst(of='pgd(steps=0)')", "≥ 1"),
    ("defense", "nnm", "'nnm' is a step; end the pipeline with an aggregator such as"),
    ("defense", "median+nnm+mean", "'median' is an aggregator and can only come last"),
    ("defense", "nnm++mean", "empty"),
    ("defense", "", "empty"),
    ("defense", "krumm", "did you mean 'krum'"),
    ("defense", "krum(varient=nf)", "did you mean 'variant'"),
    ("defense", "krum(variant=mine)", "defense 'krum': variant='mine'"),
    ("defense", "multi-krum(m=0)", "m=0 must be ≥ 1"),
    ("defense", "geometric-median(nu=0)", "nu=0.0 must be > 0"),
    ("defense", "krum(variant=nf", "closing parenthesis"),
    ("defense", "signguard(lower=3, upper=1)", "lower=3 > upper=1"),
    ("defense", "gas(rule=nnm)", "not an aggregator"),
    ("defense", "gas(rule=fltrust)", "server's own"),
    ("defense", "gas(rule=gas)", "defense 'gas': rule=gas would split pieces again"),
    ("defense", "gas(rule=medain)", "median"),
    ("defense", "gas(rule=zzz)", "defense 'gas': rule='zzz': unknown defense 'zzz'"),
    ("defense", "gas(rule=centered-clipping)", "from its last rounds"),
    *(("defense", f"gas(rule={rule})", "memory") for rule in ("foolsgold", "fldetector", "flanders")),
    ("norm", "gn(groups=0)", "groups=0"),
    *(("norm", f"{norm}(momentum={m})", "momentum") for norm in ("fbn", "naive-bn", "fixbn") for m in (0.0, -0.1, 1.1)),
    ("norm", "hbn(collection=training)", "use eval_stats='ema'"),
    ("norm", "hbn(collection=training, eval_stats=all)", "use eval_stats='ema'"),
    *(("norm", f"hbn(collection=training, eval_stats=ema, {idle})", f"{said} changes nothing unless collection")
      for idle, said in (("stats_samples=9", "stats_samples=9"), ("stats_mode=repo", "stats_mode='repo'"),
                         ("tolerance=1", "tolerance=1.0"))),
    ("norm", "hbn(tolerance=1)", "norm 'hbn': tolerance=1.0 changes nothing unless stats_mode=eval"),
    ("norm", "hbn(stats_mode=repo, tolerance=1)", "norm 'hbn': tolerance=1.0 changes nothing unless stats_mode=eval"),
    ("norm", "hbn(mixture=fixed)", "mixture='fixed' is not allowed"),
    ("algorithm", "fedavg(keep_momentum=true)", "algorithm 'fedavg': keep_momentum=True needs momentum > 0"),
    ("algorithm", "fedprox(keep_momentum=true)", "algorithm 'fedprox': keep_momentum=True needs momentum > 0"),
    ("algorithm", "fednova(momentum=0.5, keep_momentum=true)", "keep_momentum"),
    *(("partition", f"gamma(gamma={gamma})", "gamma") for gamma in (-0.1, 1.1, "nan")),
    *(("partition", f"dirichlet(alpha={alpha})", "alpha") for alpha in (0.0, -1.0, "inf", "nan")),
    ("partition", "dirichlet(alhpa=0.5)", "no parameter 'alhpa'; did you mean 'alpha'"),
    ("partition", "iid(gamma=0.5)", "partition 'iid': no parameter 'gamma'; gamma has one"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "spec", "words"), REFUSED)
def test_a_wrong_spec_is_refused_with_what_is_wrong(kind: str, spec: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        getattr(robustfl, kind, partial(create, kind))(spec)
    assert words in str(caught.value)
