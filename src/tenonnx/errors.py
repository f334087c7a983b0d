"""The error tree. Every message names the node or value, what was expected, what was found, and what to do next."""

from __future__ import annotations


class TenonnxError(Exception):
    """Base of every error that Tenonnx raises on purpose."""


class CheckError(TenonnxError):
    """A model breaks a rule of its specification; ``tenonnx check`` lists every finding."""


class PayloadError(TenonnxError):
    """Bytes are missing, too many, out of their file, or not what their type says."""


class ShapeError(TenonnxError):
    """Element types, ranks or dimensions do not fit."""


class AliasError(TenonnxError):
    """Storage that the model declares shared is not, or cannot be."""


class BindingError(TenonnxError):
    """A value given to a run cannot stand for the input or output it names."""


class ImmutableStorageError(BindingError):
    """Storage that must not change was given where the run would write."""


class SharedStorageError(BindingError):
    """Two bindings of one run overlap, and one of them is written."""


class ConcurrentUseError(BindingError):
    """The storage is bound as writable by another call that is still running."""


class CapacityError(TenonnxError):
    """A write would start before a cache or end past its capacity."""


class PageError(TenonnxError):
    """A page id, type or owner does not allow what was asked of a paged cache."""


class UnsupportedError(TenonnxError):
    """Valid input that this version or this host has no way to run."""


class OptionError(TenonnxError, ValueError):
    """An option's value is outside its range; the command line calls it a usage error."""
