"""Running decoders and encoders: known formats natively or by their formula, any other by its declared function."""

from tenonnx.codecs.decode import Decoder, decode
from tenonnx.codecs.encode import encode

__all__ = ["Decoder", "decode", "encode"]
