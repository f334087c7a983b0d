"""Text in and out of a model: known models, tokenizer, chat template, sampling and the generation loop."""

from tenonnx.text.conversation import Conversation
from tenonnx.text.generation import Generation, TextStream, generate, stream
from tenonnx.text.loading import TextModel, load_model, read_model
from tenonnx.text.perplexity import Perplexity, perplexity
from tenonnx.text.registry import KNOWN, KnownModel, known, pull
from tenonnx.text.sampling import Sampler, Sampling
from tenonnx.text.speed import Speed, speed
from tenonnx.text.tokenizer import Tokenizer

__all__ = [
    "KNOWN",
    "Conversation",
    "Generation",
    "KnownModel",
    "Perplexity",
    "Sampler",
    "Sampling",
    "Speed",
    "TextModel",
    "TextStream",
    "Tokenizer",
    "generate",
    "known",
    "load_model",
    "perplexity",
    "pull",
    "read_model",
    "speed",
    "stream",
]
