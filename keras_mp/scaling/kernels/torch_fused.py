"""torch: Keras' Adam, AdamW and SGD by one fused operator that leaves everything be on overflow.

Nothing is read by the host and no scalar is copied from it; the operators a step are counted in
``benchmarks/scaler.py``. The formulas and slots are Keras' own (epsilon outside the bias
correction, velocities that carry the learning rate), so checkpoints stay exchangeable with the
plain optimizer.
"""

from typing import Any

import keras
import numpy as np
import torch

from keras_mp import _keras_internals
from keras_mp.scaling.kernels import torch_ops
from keras_mp.scaling.kernels.torch_layout import Layout, is_dense, lay_out_like
from keras_mp.scaling.kernels.torch_state import TorchState

# Variables of fewer elements than this on average are gathered in one tensor first, on a CPU: from
# here on the memory's speed and not the call decides.
_SHORT = 2**14


def fused_update_for(inner: Any, variables: list[Any], state: TorchState) -> "FusedUpdate | None":
    """The fused update of an optimizer, or None where an option or a variable rules it out."""
    rules: dict[type, type[FusedUpdate]] = {
        _concrete(keras.optimizers.Adam): FusedAdam,
        _concrete(keras.optimizers.AdamW): FusedAdam,
        _concrete(keras.optimizers.SGD): FusedSGD,
    }
    rule = rules.get(type(inner))
    if rule is None or rule.operator not in torch_ops.probe(state.scale.device):
        return None
    usable = all(
        v.value.dtype == torch.float32
        and v.value.device == state.scale.device
        and is_dense(v.value)
        and v.constraint is None
        and not getattr(v, "overwrite_with_gradient", False)
        for v in variables
    )
    return rule(inner, variables, state) if usable and rule.allows(inner) else None


def is_plain_sgd(inner: Any, variables: list[Any]) -> bool:
    """Whether this is Keras' SGD with no option but momentum and weight decay."""
    return (
        type(inner) is _concrete(keras.optimizers.SGD)
        and FusedUpdate.allows(inner)
        and all(v.constraint is None for v in variables)
    )


def _concrete(optimizer: type) -> type:
    """The class that Keras really makes for one of its optimizers (a torch subclass of it)."""
    return type(optimizer())


class FusedUpdate:
    """What the two rules share: unscale, check, decay.

    Args:
        inner: The optimizer. variables: Those it was built with. state: The scaler's.
    """

    operator = ""

    def __init__(self, inner: Any, variables: list[Any], state: TorchState):
        self.inner = inner
        self.state = state
        self.parameters = [v.value for v in variables]
        self.layout = Layout(self.parameters)
        self.decayed = [v.value for v in variables if _keras_internals.uses_weight_decay(inner, v)]
        device = state.scale.device
        # On a CPU fresh memory costs more than the whole update (page faults), so copies of the
        # gradients are kept; an accelerator's allocator has some at hand. And one operator on one
        # long tensor beats one on many short ones.
        self.keeps_copies = device.type == "cpu"
        sizes = [p.numel() for p in self.parameters]
        self.short = self.keeps_copies and sum(sizes) < _SHORT * len(sizes)
        self.flat: Any = None
        self.copies: list[Any] = []
        # Like the scale: float32, whatever torch.set_default_dtype says.
        self.one = torch.ones_like(state.scale)
        self.decay = torch.empty_like(self.one)
        self.norm = torch.zeros_like(self.one)
        self.host_norm = self.norm.numpy() if device.type == "cpu" else None
        # What decay leaves of a weight, for the rate (tensor, version) and amount it was made for.
        self.kept = self.one
        self.kept_of: tuple[Any, int, float] | None = None

    @staticmethod
    def allows(inner: Any) -> bool:
        """Whether the optimizer's options leave the update to the operator alone."""
        return not (
            inner.clipnorm
            or inner.global_clipnorm
            or inner.clipvalue
            or inner.use_ema
            or inner.gradient_accumulation_steps
            or inner.loss_scale_factor is not None
        )

    def slots(self, variables: list[Any]) -> list[Any]:
        """Tensors of slots (none, or one a parameter), stored as their parameters are."""
        return [lay_out_like(v.value, p) for v, p in zip(variables, self.parameters, strict=False)]

    def learning_rate(self) -> Any:
        rate = self.inner.learning_rate
        rate = rate.value if isinstance(rate, keras.Variable) else rate
        return torch.as_tensor(rate, dtype=torch.float32, device=self.one.device)

    def apply_decay(self, rate: Any) -> None:
        """Keras' decoupled weight decay: w *= 1 - decay * rate, or exactly 1 on overflow."""
        amount = self.inner.weight_decay
        if amount is None:
            return
        known = (rate, rate._version, amount)
        if self.kept_of is None or self.kept_of[0] is not rate or self.kept_of[1:] != known[1:]:
            self.kept_of = known
            self.kept = 1 - amount * rate
        torch.where(self.state.ok, self.kept, self.one, out=self.decay)
        torch._foreach_mul_(self.decayed, self.decay)

    def copied(self, gradients: list[Any]) -> tuple[list[Any], list[Any]]:
        """Copies that may be written to.

        Returns:
            (one tensor a variable, the same numbers in as few tensors as they are stored in).
        """
        if not self.keeps_copies:
            copies = [torch.empty_like(p) for p in self.parameters]
            torch._foreach_copy_(copies, gradients)
            return copies, copies
        if self.flat is None:
            self.flat = self.one.new_empty(sum(p.numel() for p in self.parameters))
            self.copies = self.layout.views(self.flat)
        torch._foreach_copy_(self.copies, gradients)
        return self.copies, [self.flat]

    def unscale(self, gradients: list[Any], owned: bool) -> tuple[list[Any], list[Any]]:
        """gradients / scale, in place where they are owned.

        Returns:
            As ``copied``.
        """
        scale = self.state.scale
        if owned:
            torch._foreach_div_(gradients, scale)
            return gradients, gradients
        if not self.keeps_copies and self.layout.is_that_of(gradients):
            quotients = list(torch._foreach_div(gradients, scale))
            return quotients, quotients
        copies, tensors = self.copied(gradients)
        torch._foreach_div_(tensors, scale)
        return copies, tensors

    def check(self, tensors: list[Any], agree: Any, norm: bool) -> Any:
        """Set the state's ``found`` and ``ok``; the tensors keep their values.

        Args:
            tensors: Checked after unscaling. agree, norm: As for ``apply``.

        Returns:
            Their global L2 norm, or None. Where the host sees it for nothing (a CPU), a finite norm
            tells that all of them are finite, and the check itself is spared: reading is cheaper
            than reading and writing.
        """
        measured = None
        if norm or (self.host_norm is not None and len(tensors) == 1):
            measured = global_norm(tensors, self.norm)
        if measured is None or self.host_norm is None or not np.isfinite(self.host_norm):
            torch_ops.check_and_unscale_(tensors, self.state.found, self.one)
        agree(self.state.found)
        torch.eq(self.state.found, 0, out=self.state.ok)
        return measured

    def apply(self, gradients: list[Any], owned: bool, agree: Any, norm: bool) -> Any:
        """Update the variables, or nothing where a gradient is not finite.

        Args:
            gradients: Of the scaled loss, one a variable.
            owned: They may be written to. agree: Makes all processes see the same ``found``.
            norm: Whether to measure.

        Returns:
            Global L2 norm of the unscaled gradients (float32, shape ()), or None.
        """
        raise NotImplementedError


def global_norm(tensors: list[Any], out: Any = None) -> Any:
    """L2 norm over all elements of all tensors; float32, shape ()."""
    if len(tensors) == 1:
        return torch.linalg.vector_norm(tensors[0], out=out)
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)), out=out)


class FusedAdam(FusedUpdate):
    operator = "adam"

    @staticmethod
    def allows(inner: Any) -> bool:
        return FusedUpdate.allows(inner) and not inner.amsgrad

    def __init__(self, inner: Any, variables: list[Any], state: TorchState):
        super().__init__(inner, variables, state)
        self.momentums, self.velocities = map(self.slots, _keras_internals.adam_slots(inner))
        device = state.scale.device
        self.steps = torch_ops.adam_steps(len(variables), device)
        # float32, as Keras computes it: 1 - b2 ** t cancels, and another precision would part ways.
        self.ones = self.one.new_ones(2)
        self.exponents = self.one.new_tensor([-1.0, 0.5])
        self.powers = torch.empty_like(self.ones)
        self.product = torch.empty_like(self.one)
        self.rate = torch.empty_like(self.one)
        # The operator decays all weights or none, by a number that the host must know.
        decays_all = len(self.decayed) == len(self.parameters)
        self.host_product = self.product.numpy() if self.keeps_copies and decays_all else None
        self.betas_of: tuple[float, float] | None = None

    def corrected_rate(self, rate: Any) -> Any:
        """rate * sqrt(1 - b2 ** t) / (1 - b1 ** t) with t = iterations + 1, on the device."""
        betas = (self.inner.beta_1, self.inner.beta_2)
        if betas != self.betas_of:
            self.betas_of = betas
            self.betas = self.ones.new_tensor(betas)
        torch.pow(self.betas, self.state.next_iteration, out=self.powers)
        torch.sub(self.ones, self.powers, out=self.powers)
        torch.pow(self.powers, self.exponents, out=self.powers)
        torch.prod(self.powers, dim=0, out=self.product)
        return torch.mul(self.product, rate, out=self.rate)

    def apply(self, gradients: list[Any], owned: bool, agree: Any, norm: bool) -> Any:
        state = self.state
        # The operator can unscale by itself, but gradients that were checked before may overflow
        # when a scale below 1 makes them larger: only where the host sees that it is not.
        owned = owned and not self.short and self.layout.is_that_of(gradients)
        by_operator = owned and state.host_sees_scale_from_one
        tensors = gradients
        if not by_operator:
            gradients, tensors = self.unscale(gradients, owned)
        measured = self.check(tensors, agree, norm)
        if norm and by_operator:
            measured = measured / state.scale
        rate = self.learning_rate()
        corrected = self.corrected_rate(rate)
        decay, known = self.inner.weight_decay or 0.0, self.host_product
        if known is not None and 0 < known < float("inf"):
            decay = decay / float(known)  # the operator multiplies it by the corrected rate
        else:
            self.apply_decay(rate)
            decay = 0.0
        torch_ops.fused_adam_(
            self.parameters,
            gradients,
            self.momentums,
            self.velocities,
            self.steps,
            rate=corrected,
            beta_1=self.inner.beta_1,
            beta_2=self.inner.beta_2,
            epsilon=self.inner.epsilon,
            decay=decay,
            grad_scale=state.scale if by_operator else None,
            found=state.found,
        )
        return measured


class FusedSGD(FusedUpdate):
    operator = "sgd"

    def __init__(self, inner: Any, variables: list[Any], state: TorchState):
        super().__init__(inner, variables, state)
        self.momentums = self.slots(_keras_internals.sgd_slots(inner))
        self.factor = torch.empty_like(self.one)

    def apply(self, gradients: list[Any], owned: bool, agree: Any, norm: bool) -> Any:
        # Copies, even where the gradients are ours: the operator would leave them multiplied by the
        # learning rate. It unscales by itself, where the host sees that this cannot overflow.
        state = self.state
        by_operator = state.host_sees_scale_from_one
        if by_operator:
            gradients, tensors = self.copied(gradients)
        else:
            gradients, tensors = self.unscale(gradients, owned=False)
        measured = self.check(tensors, agree, norm)
        if norm and by_operator:
            measured = measured / state.scale
        rate = self.learning_rate()
        self.apply_decay(rate)
        divisor = state.scale if by_operator else self.one
        torch.div(divisor, rate, out=self.factor)
        torch.neg(self.factor, out=self.factor)
        torch_ops.fused_sgd_(
            self.parameters,
            gradients,
            self.momentums,
            momentum=self.inner.momentum,
            nesterov=self.inner.nesterov,
            grad_scale=self.factor,
            found=state.found,
        )
        return measured
