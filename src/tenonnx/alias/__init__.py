"""Alias roots and chains."""

from tenonnx.alias.resolver import Alias, AliasMap, declared

__all__ = ["Alias", "AliasMap", "declared"]
