"""What does mixed precision gain? Trials of a user's model, and the arithmetic of hours.

Imports no backend. ``keras_mp.bench.trial`` is the function; its module, of the same name, is
found by ``from keras_mp.bench.trial import ...``.
"""

from keras_mp.bench.results import Trial
from keras_mp.bench.trial import trial

__all__ = ["Trial", "trial"]
