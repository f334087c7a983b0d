"""Caches, and who may write them."""

from tenonnx.cache.dense import Cache, CacheSpec, planned_bytes
from tenonnx.cache.ownership import Extent, Writable, address, extent, owned, writable
from tenonnx.cache.paged import PagedCache
from tenonnx.cache.pages import Page, PageSpec, PageTable
from tenonnx.cache.policy import Aged, Budget, Policy, Uniform, parse_policy
from tenonnx.cache.pool import PagePool
from tenonnx.cache.saved import saved_note

__all__ = [
    "Aged",
    "Budget",
    "Cache",
    "CacheSpec",
    "Extent",
    "Page",
    "PagePool",
    "PageSpec",
    "PageTable",
    "PagedCache",
    "Policy",
    "Uniform",
    "Writable",
    "address",
    "extent",
    "owned",
    "parse_policy",
    "planned_bytes",
    "saved_note",
    "writable",
]
