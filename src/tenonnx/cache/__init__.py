"""Caches, and who may write them."""

from tenonnx.cache.dense import Cache, CacheSpec, planned_bytes
from tenonnx.cache.ownership import Extent, Writable, address, extent, owned, writable

__all__ = ["Cache", "CacheSpec", "Extent", "Writable", "address", "extent", "owned", "planned_bytes", "writable"]
