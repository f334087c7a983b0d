"""``python -m tenonnx``: the command line."""

from tenonnx.cli import main

main()
