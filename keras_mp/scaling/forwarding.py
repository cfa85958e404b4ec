"""What the wrapper hands on to the optimizer inside it: all that Keras' optimizers offer publicly.

A setting that landed on the wrapper alone would do nothing, silently.
"""

from typing import Any


def _value(name: str) -> property:
    def get(self: Any) -> Any:
        return getattr(self.inner_optimizer, name)

    def set(self: Any, value: Any) -> None:
        # Keras' base constructor sets its defaults before there is an inner optimizer.
        if "inner_optimizer" in self.__dict__:
            setattr(self.inner_optimizer, name, value)

    return property(get, set, doc=f"``{name}`` of the inner optimizer.")


def _method(name: str) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.inner_optimizer, name)(*args, **kwargs)

    call.__name__ = name
    call.__doc__ = f"``{name}`` of the inner optimizer."
    return call


class ForwardsToInner:
    """The public names of ``keras.optimizers.Optimizer`` that belong to ``inner_optimizer``."""

    weight_decay = _value("weight_decay")
    clipnorm = _value("clipnorm")
    global_clipnorm = _value("global_clipnorm")
    clipvalue = _value("clipvalue")
    use_ema = _value("use_ema")
    ema_momentum = _value("ema_momentum")
    ema_overwrite_frequency = _value("ema_overwrite_frequency")
    gradient_accumulation_steps = _value("gradient_accumulation_steps")
    optimizers = _value("optimizers")  # of a MultiOptimizer; the saver walks into them

    add_variable = _method("add_variable")
    add_variable_from_reference = _method("add_variable_from_reference")
    add_optimizer_variables = _method("add_optimizer_variables")
    exclude_from_weight_decay = _method("exclude_from_weight_decay")
    update_step = _method("update_step")

    @property
    def loss_scale_factor(self) -> None:
        """None: the wrapper scales by ``loss_scale``, and the inner optimizer does not scale."""
        return None

    @loss_scale_factor.setter
    def loss_scale_factor(self, value: Any) -> None:
        if value is not None:
            raise ValueError(
                "`loss_scale_factor` cannot be set here: a fixed scale is the argument `scale` of "
                f"LossScaleOptimizer. Received: loss_scale_factor={value!r}"
            )


def check_inner(inner: Any, variables: list[Any]) -> None:
    """Refuse a built inner optimizer that cannot do what is asked of it.

    Raises:
        ValueError: With what to do instead.
    """
    _check_accumulation(inner)
    _check_variables(inner, variables)


def _check_accumulation(inner: Any) -> None:
    """Refuse optimizers in a MultiOptimizer that accumulate: each would count updates its way."""
    for one in getattr(inner, "optimizers", ()):
        if one.gradient_accumulation_steps:
            raise ValueError(
                "`gradient_accumulation_steps` of an optimizer in a MultiOptimizer is not "
                "supported under LossScaleOptimizer, which could not tell updates from "
                f"micro-batches. Received: {type(one).__name__}(gradient_accumulation_steps="
                f"{one.gradient_accumulation_steps!r})"
            )


def _check_variables(inner: Any, variables: list[Any]) -> None:
    """Refuse an inner optimizer that was built without some of the variables it is to update."""
    for variable in variables:
        try:
            inner._get_variable_index(variable)
        except KeyError:
            raise ValueError(
                "The inner optimizer is built already, for other variables than these: it has no "
                f"slots for {getattr(variable, 'path', variable.name)!r}. After layers were frozen "
                "or unfrozen, compile with a new wrapper around a new optimizer; "
                "initial_scale=old_optimizer.loss_scale keeps the scale. "
                f"Received: inner_optimizer={type(inner).__name__}, built; {len(variables)} "
                "variables"
            ) from None


def check_scaled_once(inner: Any) -> None:
    """Refuse an inner optimizer that was given a fixed scale of its own after it was wrapped."""
    if inner.loss_scale_factor is not None:
        raise ValueError(
            "The inner optimizer's `loss_scale_factor` would divide the gradients a second time: "
            "set it to None; a fixed scale is the argument `scale` of LossScaleOptimizer. "
            f"Received: inner_optimizer.loss_scale_factor={inner.loss_scale_factor!r}"
        )
