"""Aggregation rules: a file for each, or for a family of them."""

from . import backdoors as backdoors
from . import centered_clipping as centered_clipping
from . import clusters as clusters
from . import coordinatewise as coordinatewise
from . import deepsight as deepsight
from . import directions as directions
from . import geometric_median as geometric_median
from . import krum as krum
from . import nearest as nearest
from . import pieces as pieces
from . import predictions as predictions
from . import signs as signs
from . import spectral as spectral
from . import subsets as subsets
from . import trust as trust
