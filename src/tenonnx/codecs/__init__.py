"""Running decoders: a known format by its formula, any other by its declared decoder."""

from tenonnx.codecs.decode import Decoder, decode

__all__ = ["Decoder", "decode"]
