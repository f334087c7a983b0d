"""The operator domains of Tenonnx, and the version of both that this package writes."""

DOMAIN = "tenonnx"  # operators
FORMATS_DOMAIN = "tenonnx.formats"  # the decoder and encoder functions of block formats
VERSION = 1
