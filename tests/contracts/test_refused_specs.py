"""Specs that no method can be made of: the error says what is wrong, and what is near."""

from __future__ import annotations

import pytest

import robustfl
from robustfl.errors import UsageError

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
]


@pytest.mark.parametrize(("kind", "spec", "words"), REFUSED)
def test_a_wrong_spec_is_refused_with_what_is_wrong(kind: str, spec: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        getattr(robustfl, kind)(spec)
    assert words in str(caught.value)
