"""The error tree. Every message names the node or value, what was expected, what was found, and what to do next.

The examples below share a model that keeps its last values in a cache of 8 positions, and a sound call of it:

Examples:
    >>> import numpy as np
    >>> import onnx
    >>> from tenonnx import ModelProto, Session, TenonnxError, structs, writable
    >>> from tenonnx.schema.messages import from_onnx
    >>> parsed = onnx.parser.parse_model('''
    ...     <ir_version: 12, opset_import: ["": 24, "tenonnx": 1]>
    ...     keep (float[1, 8, 4] cache, float[1, n, 4] values, int64 position) => (float[1, 8, 4] updated)
    ...     { updated = tenonnx.CacheUpdate (cache, values, position) }''')
    >>> model = from_onnx(parsed)
    >>> model.graph.input[0].access = 1  # READ_WRITE
    >>> alias = model.graph.node[0].output_alias.add(output_index=0, input_index=0, kind=1)  # MUST_ALIAS
    >>> model.graph.output[0].alias_of = "cache"
    >>> session = Session(model)
    >>> cache, values = np.zeros((1, 8, 4), np.float32), np.ones((1, 2, 4), np.float32)
    >>> feeds = {"cache": writable(cache), "values": values, "position": 0}
    >>> session.run(feeds)["updated"] is cache
    True
"""

from __future__ import annotations


class TenonnxError(Exception):
    """Base of every error that Tenonnx raises on purpose.

    Catching it catches them all. Python's own errors are left for a call of the wrong form, such as a missing argument, for
    memory that the system refuses, and for Ctrl-C.

    Way out: catch the class that you can do something about, and let the message reach a reader otherwise.

    Examples:
        >>> try:
        ...     session.run(feeds | {"position": -1})
        ... except TenonnxError as error:
        ...     print(type(error).__name__)
        CapacityError
    """


class CheckError(TenonnxError):
    """A model breaks a rule of its specification; ``tenonnx check`` lists every finding.

    Raised when a model is loaded into a session, planned or converted. The rule stands in brackets behind its finding.

    Way out: mend the model at the place that is named, or convert its source again.

    Examples:
        >>> broken = ModelProto.FromString(model.SerializeToString())
        >>> broken.graph.input[0].access = 0  # READ_ONLY
        >>> Session(broken)
        Traceback (most recent call last):
        tenonnx.errors.CheckError: error: node #0 (CacheUpdate) of graph: output 'updated' must share the storage of 'cache',
            which is a READ_ONLY input; expected a graph input with access READ_WRITE [alias-root]
    """


class PayloadError(TenonnxError):
    """Bytes are missing, too many, out of their file, or not what their type says.

    Files are read and written under this error too: one that is missing, cut off, altered or of another kind, a folder that
    cannot be written, a full disk. What would have been replaced is as it was.

    Way out: fetch or make the file again, or name another; for a value of your own, give the bytes that its type takes.

    Examples:
        >>> structs.view(bytes(17), structs.catalogue["Q4_0"].block_type)
        Traceback (most recent call last):
        tenonnx.errors.PayloadError: value: its type takes 18 bytes, found 17; the payload is truncated or of another type
    """


class ShapeError(TenonnxError):
    """Element types, ranks or dimensions do not fit.

    Those of a value given to a run and of its input, those that operators need of each other, or those of aliased names.

    Way out: convert or reshape the value; where a model's own shapes disagree, mend what declares them.

    Examples:
        >>> session.run(feeds | {"values": np.ones((1, 2, 5), np.float32)})
        Traceback (most recent call last):
        tenonnx.errors.ShapeError: input 'values': expected FLOAT[1, n, 4], found shape [1, 2, 5]
    """


class AliasError(TenonnxError):
    """Storage that the model declares shared is not, or cannot be.

    An output with ``alias_of`` is its input's storage, and takes no other; an alias that the graph cannot have is refused when
    it is declared. A kernel or engine that gave another address would be caught here as well.

    Way out: bind the cache as input alone, and take the output from the result.

    Examples:
        >>> session.run(feeds, out={"updated": np.zeros_like(cache)})
        Traceback (most recent call last):
        tenonnx.errors.AliasError: out['updated']: this output has the storage of the cache bound as its input; leave it out
    """


class BindingError(TenonnxError):
    """A value given to a run cannot stand for the input or output it names.

    A name is missing or unknown, a value is no array, a cache is one of another model, or an array could only be written
    through a copy, as it is not contiguous or not aligned.

    Way out: feed the inputs that the message lists; ``session.inputs`` has their types.

    Examples:
        >>> session.run({"cache": writable(cache), "values": values})
        Traceback (most recent call last):
        tenonnx.errors.BindingError: missing inputs: position; the model takes cache, values, position
    """


class ImmutableStorageError(BindingError):
    """Storage that must not change was given where the run would write.

    A plain array where the caller has to opt in, a read-only one, or the storage of an initializer.

    Way out: say that the run may change it, with ``writable(array)``, or let ``session.new_cache()`` allocate.

    Examples:
        >>> session.run(feeds | {"cache": cache})
        Traceback (most recent call last):
        tenonnx.errors.ImmutableStorageError: input 'cache': the model declares it READ_WRITE and the run would change it;
            found a plain ndarray: pass writable(array), or a Cache
    """


class SharedStorageError(BindingError):
    """Two bindings of one run overlap, and one of them is written.

    One array bound to two caches, or an input that is a view of a cache.

    Way out: give each cache storage of its own, and pass a copy of what is read.

    Examples:
        >>> session.run(feeds | {"values": cache[:, :2]})
        Traceback (most recent call last):
        tenonnx.errors.SharedStorageError: 'values' overlaps the storage of 'cache', which the run writes; pass a copy of it
    """


class ConcurrentUseError(BindingError):
    """The storage is bound as writable by another call that is still running.

    A cache belongs to one call at a time, whichever session or thread asks. Here ``owned`` holds it, as a running call does.

    Way out: wait for the other call, or give each sequence a cache of its own; ``cache.fork()`` makes one.

    Examples:
        >>> from tenonnx.cache import extent, owned
        >>> with owned([extent("cache", cache)], []):
        ...     session.run(feeds)
        Traceback (most recent call last):
        tenonnx.errors.ConcurrentUseError: input 'cache': another call that is still running has bound this storage as writable;
            wait for it, or give each call a cache of its own
    """


class CapacityError(TenonnxError):
    """A write would start before a cache or end past its capacity.

    Or a cache would take more than the limit given for it. No cache is grown by copying it, and nothing was written.

    Way out: allocate a longer cache, ``truncate`` this one, or use a paged cache, which grows.

    Examples:
        >>> session.run(feeds | {"position": 7})
        Traceback (most recent call last):
        tenonnx.errors.CapacityError: updated (CacheUpdate): position 7 + 2 new rows of batch row 0 passes the cache's capacity
            of 8; allocate a longer cache, or truncate it. Nothing was written
    """


class PageError(TenonnxError):
    """A page id, type or owner does not allow what was asked of a paged cache.

    An id that the table has not, a format that the model does not admit, a page that another sequence holds too, a sequence
    that was freed.

    Way out: let ``PagedCache`` keep the ids; call ``prepare()`` before writing to pages that a fork shares.

    Examples:
        >>> from tenonnx.cache import PageSpec, PageTable
        >>> table = PageTable(PageSpec(10, (2, 3, 16, 64)))  # FLOAT16
        >>> page = table.create(0, "INT8_PAGE")
        >>> table[3]
        Traceback (most recent call last):
        tenonnx.errors.PageError: page 3: the table has no such page; its ids are 0 to 0, freed ones excepted
    """


class UnsupportedError(TenonnxError):
    """Valid input that this version or this host has no way to run.

    An operator that no engine here has, a GGUF architecture or tensor type that is not converted, an unknown name of a format.

    Way out: use one that the message lists; for an operator of your own, write it with those of ONNX, as a local function.

    Examples:
        >>> Session(model, engine="gpu")
        Traceback (most recent call last):
        tenonnx.errors.UnsupportedError: engine='gpu': expected one of auto, native, onnxruntime
    """


class OptionError(TenonnxError, ValueError):
    """An option's value is outside its range; the command line calls it a usage error.

    It is a ValueError too, for callers who know nothing of this package.

    Way out: give a value in the range that the message states.

    Examples:
        >>> from tenonnx.text import Sampling
        >>> Sampling(top_p=2)
        Traceback (most recent call last):
        tenonnx.errors.OptionError: top_p is 2; expected over 0 and at most 1
    """
