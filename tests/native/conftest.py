"""Examples are many and small; a busy machine must not fail one for its time."""

from hypothesis import settings

settings.register_profile("native", deadline=None, max_examples=60)
settings.load_profile("native")
