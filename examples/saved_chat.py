"""A chat that ends and goes on another day: messages and caches lie in one file, and what they hold is not run again.

    python examples/saved_chat.py [MODEL]

MODEL is a GGUF, an .onnx file or a known name; smollm2-135m, the default, is fetched on first use.
"""

import sys
import tempfile
from pathlib import Path

from tenonnx import text

model = text.load_model(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m")
options = {"context": 512, "temperature": 0.0}


def ask(talk, question):
    print(f"> {question}")
    for piece in talk.reply(question, max_tokens=40):
        print(piece, end="", flush=True)
    print()


with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "ada.chat")

    today = text.Conversation(model, system="You are a helpful assistant. Answer in one sentence.", **options)
    ask(today, "My name is Ada. What is the capital of France?")
    today.save(file)
    print(f"saved {len(today.context.tokens)} tokens, {file.stat().st_size:,} bytes")

    tomorrow = text.Conversation(model, **options)  # in another process as well
    tomorrow.load(file)
    held = len(tomorrow.context.tokens)
    ask(tomorrow, "And of Italy?")
    print(f"{held} tokens were restored, {len(tomorrow.context.tokens) - held} are new")
