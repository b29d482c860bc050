"""Byzantine attacks on messages or training data: a file for each, or for a family of them."""

from . import adaptive as adaptive
from . import alie as alie
from . import backdoors as backdoors
from . import baseline as baseline
from . import fang as fang
from . import fitted as fitted
from . import foe as foe
from . import history as history
from . import mimic as mimic
from . import min_max as min_max
from . import opt as opt
from . import opt_drift as opt_drift
from . import poisoning as poisoning
from . import wrapping as wrapping
