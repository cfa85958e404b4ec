"""What the commands share that read a saved model."""

import os
import re
import zipfile
from typing import Any

WRONG_USE = 2


def load(path: str, **kwargs: Any) -> Any:
    """The model in a ``.keras`` file, with its plan put on.

    Args:
        path: The file.
        **kwargs: As ``keras_mp.load_model`` takes them.

    Raises:
        ValueError: There is no such file, or it holds no model that Keras can read.
        ImportError: There is no backend; the message says what to install.
    """
    if not os.path.isfile(path):
        raise ValueError(f"Expected a .keras file. Received: {path!r}, which is no file")
    if not zipfile.is_zipfile(path):  # Keras would say that it is not there
        raise ValueError(f"Keras cannot read {path!r}: it is no archive, as .keras files are")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras_mp

    try:
        return keras_mp.load_model(path, **kwargs)
    except ImportError:
        raise
    except Exception as error:  # Keras raises what its parts raise: zip, JSON, h5, custom objects
        said = str(error).strip() or type(error).__name__
        # Keras tells it at the end of a page, behind what it was about to make of the file.
        unknown = re.search(r"Could not locate \w+ '[^']+'", said)
        first = unknown[0] if unknown else said.splitlines()[0]
        raise ValueError(f"Keras cannot read {path!r}: {first}") from error
