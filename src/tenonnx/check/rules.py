"""The names of all rules, by contract, each with what it asks for. A finding names its rule; the reference pages list them."""

from __future__ import annotations

MUTABLE_CACHES = {
    "alias-ports": "An `output_alias` names an output and an input that the node has.",
    "alias-kind": "The kind of an `output_alias` is `MUST_ALIAS`.",
    "one-alias-per-output": "An output shares the storage of one input.",
    "alias-of-backed": "An `alias_of` is backed by an `output_alias` of the node that makes the value.",
    "alias-of-agrees": "`alias_of` names the input of that `output_alias`, or what this input is itself made from.",
    "alias-cycle": "No value is an alias of itself.",
    "alias-root": "The root of an alias is a graph input that is `READ_WRITE`: no initializer, no intermediate value.",
    "read-write-inputs": "`READ_WRITE` stands on graph inputs without an initializer, and nowhere else.",
    "alias-fork": "Updates of one storage form a chain: no two that may both run are made from the same content.",
    "alias-reader": "What reads the old content does not depend on the updated one.",
    "aliased-outputs": "A graph output that shares an input's storage says so by `alias_of`.",
    "stale-outputs": "A graph output that shares a cache's storage is the last name of its chain.",
    "cache-update-alias": "`CacheUpdate` and `PagedCacheUpdate` alias their cache.",
    "branch-roots": "The branches of an `If` give one output the storage of one cache.",
    "body-alias": "The `output_alias` of a node that calls a function or has a body is what the body does.",
    "formal-inputs": "A `READ_WRITE` input of a function or body is bound to a cache by each call.",
    "loop-carried": "What a loop makes of a cache that it carries has the storage of that cache.",
    "nested-aliases": "Updates stand where this version runs them: in the graph, its functions, branches and loops.",
}
PAGED_CACHES = {
    "quantization-is-sound": "Each entry of `quantizations` has a block type, a block shape and a decoder that agree.",
    "page-keys": "A map of pages has INT64 keys.",
    "page-type": "Pages have an element type of fixed width.",
    "allowed-quantized-type": "`allowed_quantized_type` lists quantizations that decode to the pages' type; pages keep to it.",
    "quantized-type": "A page names a quantization that there is, or carries one.",
    "inline-quantization": "A page that does both carries the one it names.",
    "page-elem-type": "All pages of a container decode to its element type.",
    "page-shape": "All pages of a container have one logical shape.",
    "page-payload": "A page has exactly the bytes of its format and shape.",
}
STRUCTURED_TYPES = {
    "kind-is-set": "A declaration is an array, a packing or a structure; nothing below it leaves its kind open.",
    "root-is-no-reference": "A declaration is more than a reference to another.",
    "only-roots-carry-more": "Only a declaration has a name, a decoder, an encoder or metadata.",
    "reference-exists": "A type index is one of `struct_types`.",
    "references-are-acyclic": "No declaration contains itself.",
    "leaf-is-supported": "A leaf is a tensor of an element type of fixed width.",
    "leaf-shape-is-concrete": "Its dimensions are numbers, 0 or more.",
    "field-has-one-content": "A field has a type or a constant.",
    "field-names-are-unique": "Fields of a structure have names, each its own.",
    "component-names-are-unique": "So have the components of a packing.",
    "component-has-width": "A component is at least one bit wide.",
    "constant-is-inline-and-fixed-width": "A constant holds its bytes inline, in an element type of fixed width.",
    "constant-is-whole": "They are as many as its shape takes.",
    "size-fits-uint64": "No size leaves uint64, not even below a dimension of 0.",
    "type-is-within-limits": "A type is within what this version reads: depth, fields, number of declarations.",
    "root-is-whole-bytes": "What a value may select ends at a byte's edge.",
    "value-selects-one-type": "A value has an index, or -1 and an inline type.",
    "payload-has-one-source": "A value has `raw_data` or `external_data`.",
    "payload-is-exact": "A payload has exactly the bytes that its type says: none missing, none behind them.",
    "value-names-are-unique": "A structured initializer has a name, and no other initializer has it.",
    "decoder-fits-its-leaves": "A decoder takes the leaves by position, constants too, and gives one tensor.",
    "encoder-fits-its-leaves": "An encoder takes the logical value and gives each leaf but the constants.",
    "codec-is-self-contained": "A decoder or encoder keeps no tensor in another file.",
    "static-type-is-bare": "The type of a graph's value names one declaration, or any, and carries nothing of its own.",
    "initializer-is-of-its-declared-type": "A structured initializer has the type that the graph declares for its name.",
}
COMPILED_TENSORS = {
    "devices-are-unique": "No two entries of `devices` describe the same device.",
    "device-index-is-valid": "A pack names one of `devices`.",
    "cache-keys-are-unique": "There is one pack for each source, device and physical type.",
    "source-exists": "The source is one initializer of the main graph.",
    "digest-is-declared": "A digest and its algorithm are given, and the digest has the algorithm's length.",
    "value-is-present": "A pack has a value.",
    "type-is-concrete": "The value's type says what its bytes are: neither open, nor a reference.",
    "metadata-keys-are-unique": "No key of a device's or pack's metadata is repeated.",
}
EVERY_MODEL = {
    "external-file": "Each external file can be opened, as a plain file inside the model's folder.",
    "tensor-is-exact": "A tensor stores what its dims and element type say.",
    "graph-names": "Names are made once, before they are read; functions and bodies can be followed.",
    "operators": "Each operator is one of its domain's, with the inputs and attributes that it takes.",
    "onnx-checker": "Stock onnx's own checker finds the model sound, without what Tenonnx adds.",
    "shapes": "Element types, ranks and dimensions agree, through aliases too.",
}

RULES: dict[str, dict[str, str]] = {
    "mutable caches": MUTABLE_CACHES,
    "paged caches": PAGED_CACHES,
    "structured types": STRUCTURED_TYPES,
    "compiled tensors": COMPILED_TENSORS,
    "every model": EVERY_MODEL,
}
