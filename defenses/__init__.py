"""Defenses: pre-aggregation steps and aggregation rules, and the pipeline that runs them on the server."""

from . import aggregators as aggregators
from . import preaggregators as preaggregators
from .pipeline import Pipeline, parse_pipeline
from .rows import Mixed, MixedRule, Stack

__all__ = ["Mixed", "MixedRule", "Pipeline", "Stack", "parse_pipeline"]
