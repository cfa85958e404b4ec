"""Mixed precision for Keras 3 that is safe, fast and visible.

Public names load on first use (PEP 562), so that ``import keras_mp`` imports neither Keras nor a
backend: the dashboard and the readers of journals start in a fraction of a second.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from keras_mp._version import __version__

if TYPE_CHECKING:
    from keras_mp.numerics.probe import probe
    from keras_mp.numerics.suggest import suggest
    from keras_mp.policies.audit import audit
    from keras_mp.policies.convert import convert
    from keras_mp.policies.objects import Policy, PolicyMap
    from keras_mp.policies.plan import PrecisionPlan, plan
    from keras_mp.policies.policy import (
        EmulatedPrecisionWarning,
        policy_scope,
        recommend,
        set_policy,
    )
    from keras_mp.policies.saving import load_model, save_model
    from keras_mp.policies.tf32 import allow_tf32
    from keras_mp.scaling.jax_training import GuardedTrainStep
    from keras_mp.scaling.optimizer import LossScaleOptimizer
    from keras_mp.scaling.state import ScaleConfig
    from keras_mp.telemetry.monitor import Monitor
    from keras_mp.telemetry.run import Run

# Public name -> the module that defines it. The one list: __all__ and dir() are made from it.
_PUBLIC = {
    "EmulatedPrecisionWarning": "keras_mp.policies.policy",
    "GuardedTrainStep": "keras_mp.scaling.jax_training",
    "LossScaleOptimizer": "keras_mp.scaling.optimizer",
    "Monitor": "keras_mp.telemetry.monitor",
    "Policy": "keras_mp.policies.objects",
    "PolicyMap": "keras_mp.policies.objects",
    "PrecisionPlan": "keras_mp.policies.plan",
    "Run": "keras_mp.telemetry.run",
    "ScaleConfig": "keras_mp.scaling.state",
    "allow_tf32": "keras_mp.policies.tf32",
    "audit": "keras_mp.policies.audit",
    "convert": "keras_mp.policies.convert",
    "load_model": "keras_mp.policies.saving",
    "plan": "keras_mp.policies.plan",
    "policy_scope": "keras_mp.policies.policy",
    "probe": "keras_mp.numerics.probe",
    "recommend": "keras_mp.policies.policy",
    "save_model": "keras_mp.policies.saving",
    "set_policy": "keras_mp.policies.policy",
    "suggest": "keras_mp.numerics.suggest",
}

__all__ = [
    "EmulatedPrecisionWarning",
    "GuardedTrainStep",
    "LossScaleOptimizer",
    "Monitor",
    "Policy",
    "PolicyMap",
    "PrecisionPlan",
    "Run",
    "ScaleConfig",
    "__version__",
    "allow_tf32",
    "audit",
    "convert",
    "load_model",
    "plan",
    "policy_scope",
    "probe",
    "recommend",
    "save_model",
    "set_policy",
    "suggest",
]


# Modules under the package's name, loaded on first use likewise.
_MODULES = ("bench", "layers", "losses", "metrics", "numerics")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"keras_mp.{name}")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'keras_mp' has no attribute {name!r}")
    try:
        module = importlib.import_module(_PUBLIC[name])
    except ModuleNotFoundError as error:
        from keras_mp._backend import translate

        raise translate(error) from error
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


# The modules of the classes that Keras looks up when it reads a model's file, which may be before
# any name above is used. Where Keras is loaded already they cost nothing more.
_SERIALIZABLE = (
    "keras_mp.layers",
    "keras_mp.losses",
    "keras_mp.metrics",
    "keras_mp.scaling.optimizer",
)

if "keras" in sys.modules:
    for _module in _SERIALIZABLE:
        importlib.import_module(_module)
