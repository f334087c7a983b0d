"""Elementwise operators from their definitions, in float64."""

import math
from collections.abc import Callable

import numpy as np

Unary = Callable[[np.ndarray], np.ndarray]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def swish(x: np.ndarray, alpha: float) -> np.ndarray:
    return x * sigmoid(alpha * x)


erf = np.vectorize(math.erf, otypes=[np.float64])
erfc = np.vectorize(math.erfc, otypes=[np.float64])

UNARY: dict[str, Unary] = {
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "reciprocal": lambda x: 1 / x,
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "gelu_tanh": lambda x: x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
    "gelu_erf": lambda x: 0.5 * x * erfc(-x / math.sqrt(2)),
    "relu": lambda x: np.maximum(x, 0),
    "softplus": lambda x: np.logaddexp(0, x),
    "erf": erf,
}
