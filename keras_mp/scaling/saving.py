"""How the optimizer is saved and loaded, with Keras' methods for it; see ``checkpoint``."""

from typing import Any

import keras

from keras_mp.scaling import checkpoint
from keras_mp.scaling.state import ScaleConfig


class SavedLikeTheInner:
    """Mixed into LossScaleOptimizer: its files are those of the optimizer inside, and more."""

    name: str
    inner_optimizer: Any
    preset: str
    config: ScaleConfig
    attribution: bool
    master_weights: bool | str

    def save_own_variables(self, store: Any) -> None:
        """Write the inner optimizer's variables, in its own layout."""
        checkpoint.save(self, store)

    def load_own_variables(self, store: Any) -> None:
        """Read a checkpoint of this optimizer, of the plain inner one, or of Keras' wrapper."""
        checkpoint.load(self, store)

    def set_weights(self, weights: Any) -> None:
        """Assign values to all of ``variables``; raises ValueError for another number of them."""
        checkpoint.set_weights(self, weights)

    def __dir__(self) -> list[str]:
        return checkpoint.seen_by_the_saver(self, super().__dir__())

    def get_config(self) -> dict[str, Any]:
        config = self.config.as_dict()
        return {
            "name": self.name,
            "inner_optimizer": keras.saving.serialize_keras_object(self.inner_optimizer),
            "scale": {"preset": self.preset, **config},
            "attribution": self.attribution,
            "master_weights": self.master_weights,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        config = checkpoint.widest(config)
        inner = keras.saving.deserialize_keras_object(
            config.pop("inner_optimizer"), custom_objects=custom_objects
        )
        scale = config.pop("scale", "dynamic")
        preset = None
        if isinstance(scale, dict):
            scale = dict(scale)
            preset = scale.pop("preset", None)
            scale = ScaleConfig(**scale)
        make: Any = cls
        optimizer = make(inner, scale=scale, **config)
        if preset is not None:
            optimizer.preset = preset
        return optimizer
