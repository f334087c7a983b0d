"""From a graph to a frozen table of steps and storage. ``tenonnx.plan(model, dims)`` calls ``plan``."""

from tenonnx.callables import make_callable
from tenonnx.plan.builder import Weight
from tenonnx.plan.planner import Planner, plan
from tenonnx.plan.types import (
    CacheWrite,
    ExecutionPlan,
    PageWrite,
    PlannedLoop,
    PlannedStep,
    PlannedValue,
    Slot,
    Storage,
    WeightKey,
)

__all__ = [
    "CacheWrite",
    "ExecutionPlan",
    "PageWrite",
    "PlannedLoop",
    "PlannedStep",
    "PlannedValue",
    "Planner",
    "Slot",
    "Storage",
    "Weight",
    "WeightKey",
    "plan",
]

make_callable(__name__, plan)
