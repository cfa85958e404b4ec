"""LossScaleOptimizer: a thin adapter from Keras to the scale's state and a backend's kernel."""

import warnings
from typing import Any

import keras
from keras import ops

from keras_mp.scaling import arguments, checkpoint
from keras_mp.scaling.binding import BindsAModel
from keras_mp.scaling.device_state import DeviceState
from keras_mp.scaling.forwarding import ForwardsToInner, check_inner, check_scaled_once
from keras_mp.scaling.kernels import kernel_for
from keras_mp.scaling.masters import Masters, masters_for
from keras_mp.scaling.observing import KerasNames, TellsTheHost
from keras_mp.scaling.presets import resolve
from keras_mp.scaling.saving import SavedLikeTheInner
from keras_mp.scaling.state import ScaleConfig


@keras.saving.register_keras_serializable(package="keras_mp")
class LossScaleOptimizer(
    BindsAModel,
    TellsTheHost,
    KerasNames,
    SavedLikeTheInner,
    ForwardsToInner,
    keras.optimizers.LossScaleOptimizer,
):
    """Wraps any Keras optimizer: scales the loss, skips overflowed steps, moves the scale.

    The algorithm (``keras_mp.scaling.state.update`` is its reference):

    ```
    if every gradient is finite:                    # Micikevicius et al. 2018, 3.2
        inner_optimizer.apply(gradients / scale)
        good_steps += 1
        if good_steps == growth_interval:
            scale = min(scale * growth_factor, max_scale)
            good_steps = 0
    else:                                           # overflow: nothing but the scale changes
        good_steps = 0
        hysteresis_left -= 1
        if hysteresis_left <= 0:
            scale = max(scale * backoff_factor, min_scale)
    ```

    Args:
        inner_optimizer: A Keras optimizer, its name, or its config.
        scale: "dynamic"; a number (a static scale); a preset ("keras", "torch", "apex",
            "megatron", "deepspeed", "flax", "paper"); or a ``ScaleConfig``. Defaults to "dynamic".
        initial_scale, growth_interval, growth_factor, backoff_factor, hysteresis, min_scale,
            max_scale, on_exhausted: Replace the preset's field of that name (see ``ScaleConfig``).
            The defaults of "dynamic": 2**15, 2000, 2, 0.5, 1, 2**-14, 2**24, "warn".
            ``on_exhausted="raise"`` ends the step with LossScaleExhaustedError. From inside a
            compiled step no class of ours comes out: in a graph of TensorFlow it is
            tf.errors.UnknownError, with the same words; under XLA and on jax the class itself
            comes when the host looks (``keras_mp.Monitor``, a report, the end of ``fit``).
        attribution: Keep which variables were not finite. Defaults to True.
        model: Bind this model: see ``bind``. Defaults to None.
        master_weights: Keep float32 masters of variables in float16 or bfloat16 (see ``masters``).
            "auto", the default, warns where it cannot; True raises there; False keeps none.
        name: Name of the optimizer.
        dynamic_growth_steps, dynamic: The names that Keras and tf.keras use for
            ``growth_interval`` and for a static scale (``dynamic=False``).

    Raises:
        ValueError, TypeError: For an argument out of range, naming it.
    """

    def __init__(
        self,
        inner_optimizer: Any,
        scale: Any = "dynamic",
        initial_scale: float | None = None,
        growth_interval: int | None = None,
        growth_factor: float | None = None,
        backoff_factor: float | None = None,
        hysteresis: int | None = None,
        min_scale: float | None = None,
        max_scale: float | None = None,
        on_exhausted: str | None = None,
        attribution: bool = True,
        master_weights: bool | str = "auto",
        model: Any = None,
        name: str | None = None,
        dynamic_growth_steps: int | None = None,
        dynamic: bool | None = None,
        **kwargs: Any,
    ):
        given = arguments.optimizer_from(inner_optimizer)
        inner_optimizer = arguments.unwrapped(given)
        if dynamic_growth_steps is not None:
            growth_interval = arguments.the_same(
                "growth_interval", growth_interval, dynamic_growth_steps
            )
        if dynamic is not None:
            moving = scale, initial_scale, growth_interval
            scale, initial_scale, growth_interval = arguments.moving_or_not(dynamic, *moving)
        scale = arguments.take_over_fixed_scale(scale, inner_optimizer.loss_scale_factor)
        preset, config = resolve(
            scale,
            initial_scale=initial_scale,
            growth_interval=growth_interval,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            hysteresis=hysteresis,
            min_scale=min_scale,
            max_scale=max_scale,
            on_exhausted=on_exhausted,
        )
        super().__init__(
            inner_optimizer,
            initial_scale=config.initial_scale,
            dynamic_growth_steps=config.growth_interval,
            name=name,
            **kwargs,
        )
        self.preset = preset
        self.config: ScaleConfig = config
        self.attribution = arguments.yes_or_no("attribution", attribution)
        self.master_weights = arguments.wanted_masters(master_weights)
        # Past attribute tracking: what Keras tracks on an optimizer lands in checkpoints.
        hidden: dict[str, Any] = {
            **dict.fromkeys(("_state", "_kernel", "_masters", "_binding")),
            **dict.fromkeys(("_scaled", "_in_flight", "_bind_later"), False),
            **dict.fromkeys(("_ring_rows", "_headroom_every"), 0),
            "_distances": {},
            "_unscaled_from": (),
            "_warned": set(),
            "_waiting": checkpoint.Waiting(),
            "scaler_state": checkpoint.ScalerState(self),
        }
        for key, value in hidden.items():
            object.__setattr__(self, key, value)
        checkpoint.take_over(self, given)
        if model is not None:
            self.bind(model)

    built: bool

    def build(self, variables: Any) -> None:
        """Create the scaler's variables and build the inner optimizer on ``variables``."""
        if self.built:
            return
        variables = list(variables)
        object.__setattr__(self, "_trainable_variables", variables)
        masters: Masters | None = masters_for(self, variables, self.master_weights)
        object.__setattr__(self, "_masters", masters)
        object.__setattr__(self, "_targets", variables if masters is None else masters.targets)
        if masters is not None:
            # Tracked by Keras, for tf.train.Checkpoint, which finds variables by itself.
            self._master_variables = masters.variables
        if not self.inner_optimizer.built:
            self.inner_optimizer.build(self._targets)
        check_inner(self.inner_optimizer, self._targets)
        for i, (variable, target) in enumerate(zip(variables, self._targets, strict=True)):
            self._trainable_variables_indices[self._var_key(variable)] = i
            self._trainable_variables_indices[self._var_key(target)] = i
        object.__setattr__(self, "_state", DeviceState(self, self.config))
        object.__setattr__(self, "_kernel", kernel_for(self))
        if self._ring_rows:
            self._kernel.allocate_ring(self._ring_rows)
        if self._headroom_every:
            self._kernel.measure_headroom(self._headroom_every)
        self.built = True
        if self._binding is not None and not self._bind_later:
            self._take_binding()
        checkpoint.finish_build(self)

    @property
    def variables(self) -> list[Any]:
        """The scaler's variables, the inner optimizer's, what the kernel carries, the masters."""
        own = [] if self._state is None else self._state.variables
        carried = [] if self._kernel is None else self._kernel.carried
        masters = [] if self._masters is None else self._masters.variables
        return [*own, *self.inner_optimizer.variables, *carried, *masters]

    # The step.

    def scale_loss(self, loss: Any) -> Any:
        """The loss multiplied by the current scale (a scalar tensor of the loss' dtype)."""
        object.__setattr__(self, "_scaled", True)
        object.__setattr__(self, "_unscaled_from", ())
        if self._state is None:
            object.__setattr__(self, "_in_flight", True)
            return ops.multiply(loss, self._first_scale())
        scaled = self._kernel.scale_loss(
            loss if ops.is_tensor(loss) else ops.convert_to_tensor(loss)
        )
        object.__setattr__(self, "_in_flight", not self._kernel.is_tracing())
        return scaled

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Unscale the gradients and update the variables; skip the step if one is not finite.

        Args:
            grads: Gradients of the scaled loss, one a variable; None where there is none.
            trainable_variables: The variables. Defaults to those the optimizer was built with.
        """
        grads = list(grads)
        if not grads:
            return
        if not self.built:
            if trainable_variables is None:
                raise ValueError(
                    "`apply` needs `trainable_variables` on its first call, or a call of "
                    "`optimizer.build(trainable_variables)` before it. "
                    "Received: trainable_variables=None"
                )
            # In no name scope of ours: the slots get the paths that they get without a wrapper.
            self.build(trainable_variables)
        variables = self._trainable_variables if trainable_variables is None else None
        if variables is None:
            variables = list(trainable_variables)
        if len(grads) != len(variables):
            raise ValueError(
                "`grads` must hold one gradient (or None) a variable. "
                f"Received: {len(grads)} gradients for {len(variables)} variables"
            )
        check_scaled_once(self.inner_optimizer)
        self._check_scaled()
        try:
            self._step(self._scaled_again(grads, self._state.scale), variables)
        except KeyError:
            # Asked only here: a look at every variable costs as much as a step does.
            self._check_variables_are_known(variables)
            raise

    def _step(self, grads: list[Any], variables: list[Any]) -> None:
        masters = self._masters
        if masters is None:
            self._kernel.apply(grads, variables)
        else:
            masters.before()
            self._kernel.apply(masters.gradients(grads, variables), masters.targets_of(variables))
            masters.after()
        object.__setattr__(self, "_in_flight", False)
        if self._bind_later:
            object.__setattr__(self, "_bind_later", False)
            self._take_binding()

    def _check_scaled(self) -> None:
        """Say it once when a step comes without ``scale_loss``: it would be divided for nothing."""
        if self._scaled:
            object.__setattr__(self, "_scaled", False)
        elif "unscaled" not in self._warned:
            self._warned.add("unscaled")
            warnings.warn(
                "`apply` was called, but neither `scale_loss` nor `loss_scale` was used since the "
                "last step. The gradients are divided by the loss scale all the same: compute them "
                "from `optimizer.scale_loss(loss)`, or updates will be too small by that factor.",
                stacklevel=3,
            )

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        """``apply`` on (gradient, variable) pairs; returns ``iterations``, as tf.keras does."""
        grads, variables = zip(*grads_and_vars, strict=True)
        self.apply(list(grads), list(variables))
        return self.iterations

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> tuple[list[Any], list[Any]]:
        """``apply`` without side effects: (new trainable values, new optimizer values)."""
        if not self.built:
            raise ValueError(
                f"To call `stateless_apply`, {type(self).__name__} must be built: call "
                "`optimizer.build(trainable_variables)` first."
            )
        if len(optimizer_variables) != len(self.variables):
            raise ValueError(
                "`optimizer_variables` must hold one tensor for each of `optimizer.variables` "
                f"({len(self.variables)}). Received: {len(optimizer_variables)} tensors"
            )
        count = len(self._trainable_variables)
        if not len(grads) == len(trainable_variables) == count:
            raise ValueError(
                f"The optimizer was built with {count} variables, and a step must give a gradient "
                "and a value for each. After layers were frozen or unfrozen, compile with a new "
                "wrapper around a new optimizer; initial_scale=old_optimizer.loss_scale keeps the "
                f"scale. Received: {len(trainable_variables)} values, {len(grads)} gradients"
            )
        check_scaled_once(self.inner_optimizer)
        grads = self._scaled_again(list(grads), optimizer_variables[0])
        arguments = list(optimizer_variables), grads, list(trainable_variables)
        if self._masters is None:
            return self._kernel.stateless_apply(*arguments)
        return self._masters.stateless(self._kernel.stateless_apply, *arguments)

    def finalize_variable_values(self, var_list: Any) -> None:
        """The end of a training: with EMA, the averages become the variables' values."""
        if self._kernel is not None:
            self._kernel.look()
        if self._masters is None:
            self.inner_optimizer.finalize_variable_values(var_list)
        elif self.use_ema:
            self._masters.before()
            self.inner_optimizer.finalize_variable_values(self._masters.targets_of(var_list))
            self._masters.after()
        if self._kernel is not None and self.use_ema:
            self._kernel.part_from_averages(self._targets)
