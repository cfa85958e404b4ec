"""torch: the fused update where it can, any Keras optimizer where not; selection when compiled."""

import operator
import weakref
from typing import Any

import numpy as np
import torch

from keras_mp import _keras_internals
from keras_mp.scaling.device_state import Values
from keras_mp.scaling.kernels.common import OWN, Kernel, keep_overwrites
from keras_mp.scaling.kernels.torch_distributed import agree
from keras_mp.scaling.kernels.torch_forward import ForwardWatch
from keras_mp.scaling.kernels.torch_fused import (
    FusedUpdate,
    fused_update_for,
    global_norm,
    is_plain_sgd,
)
from keras_mp.scaling.kernels.torch_general import unscale_and_check
from keras_mp.scaling.kernels.torch_graph import LossGraphs
from keras_mp.scaling.kernels.torch_guard import TorchGuard, TorchLossGuard
from keras_mp.scaling.kernels.torch_ops import dense, norms
from keras_mp.scaling.kernels.torch_ring import TorchRing
from keras_mp.scaling.kernels.torch_select import select_apply
from keras_mp.scaling.kernels.torch_state import RUN, TorchState
from keras_mp.scaling.kernels.torch_told import LOOK_EVERY, TorchTold

_GRAD = operator.attrgetter("grad")
_DTYPE = operator.attrgetter("dtype")
_SPARSE = operator.attrgetter("is_sparse")


class TorchKernel(Kernel):
    """See the module.

    Attributes:
        follow_device: Look at the state only every ``LOOK_EVERY`` steps, as on an accelerator.
            False on a CPU, where the host sees the same memory for nothing. Tests set it.
    """

    def __init__(self, optimizer: Any):
        super().__init__(optimizer)
        self.variables = list(optimizer._targets)
        self.targets = list(optimizer._targets)  # masters instead of half-precision variables
        self.ids = [id(v) for v in self.targets]
        self.linked: TorchState | None = None
        self.fused: FusedUpdate | None = None
        self.ring: TorchRing | None = None
        self.guard: TorchGuard | None = None
        self.loss_guard: TorchLossGuard | None = None
        self.trackers: list[Any] = []  # whose sums and counts the loss guard spares
        self.binding: Any = None
        self.hooks: list[Any] = []
        self.forward: ForwardWatch | None = None
        self.told = TorchTold(self)
        self.place: int | None = None
        self.graphs = LossGraphs(optimizer)
        self.plain_sgd = is_plain_sgd(self.inner, self.variables)
        self.headroom_every = 0
        self.largest: Any = None
        self.follow_device = self.state.scale.value.device.type != "cpu"
        if self.follow_device and optimizer.attribution:
            self.allocate_ring(LOOK_EVERY)

    # The loss.

    def is_tracing(self) -> bool:
        return torch.compiler.is_compiling()

    def scale_loss(self, loss: Any) -> Any:
        compiling = torch.compiler.is_compiling()
        if not compiling and getattr(loss, "grad_fn", None) is not None:
            self.graphs.see(loss)
        # The gradients of a loss that is no scalar are those of its sum.
        seen = loss.detach() if loss.ndim == 0 else loss.detach().sum()
        if self.loss_guard is not None:
            self.loss_guard.settle(torch.isfinite(seen))
        if self.loss is None or compiling:
            self.loss = seen
        else:  # micro-batches of a loop by hand: one that was not finite stays, till a step
            self.loss = torch.where(torch.isfinite(self.loss), seen, self.loss)
        if self.forward is not None and not compiling:
            self._look_forward(self.forward)
        return loss * self.state.scale.value.to(loss.dtype)

    @property
    def watches_forward(self) -> bool:
        """Whether a loss that overflows is traced to a layer: it costs a host read a step. So on a
        CPU always, and on an accelerator for some time after the host saw such a loss."""
        steps = 0 if self.linked is None else self.linked.steps
        return self.optimizer.attribution and (
            not self.follow_device or steps < self.told.watch_until
        )

    def _look_forward(self, forward: ForwardWatch) -> None:
        if self.place is None and self.watches_forward and not torch.isfinite(self.loss):
            layer = forward.first_overflow()
            self.place = None if layer is None else self.place_of(layer)
        forward.forget()

    def bind(self, binding: Any, protected: list[Any]) -> None:
        model = binding.model
        self.binding = binding
        self.guard = TorchGuard(protected)
        for hook in self.hooks:
            hook.remove()
        # Weakly: the model's hooks must not keep a replaced optimizer alive.
        kernel = weakref.ref(self)

        # Outside of a compiled step's graphs, of which it would be one more.
        @torch.compiler.disable
        def before_forward(_model: Any, inputs: Any) -> None:
            alive = kernel()
            if alive is not None and torch.is_grad_enabled():  # and is no prediction
                with torch.no_grad():
                    alive.begin(inputs)

        def after_forward(_model: Any, _inputs: Any, _outputs: Any) -> None:
            alive = kernel()
            if alive is None or torch.compiler.is_compiling() or not torch.is_grad_enabled():
                return
            if alive.guard is not None:
                alive.guard.passed()

        self.hooks = [
            model.register_forward_pre_hook(before_forward),
            model.register_forward_hook(after_forward),
        ]
        if self.forward is not None:
            self.forward.remove()
        self.forward = ForwardWatch(model, self)
        self.refresh()

    def refresh(self) -> None:
        """A change from outside makes the copies anew."""
        model = None if self.binding is None else self.binding.model
        if model is not None and model.jit_compile:
            self._part()
        if self.guard is not None:
            self.guard.refresh()
        trackers = [] if self.binding is None else self.binding.loss_trackers()
        if self.loss_guard is None or trackers != self.trackers:
            self.loss_guard, self.trackers = TorchLossGuard(trackers), trackers

    def begin(self, inputs: Any) -> None:
        """Before each forward pass of the bound model that trains."""
        self.refresh()
        if self.loss_guard is not None:
            self.loss_guard.begin()
        if self.forward is not None and not self.binding.model.jit_compile:
            self.forward.begin(inputs)

    # The step.

    def apply(self, grads: list[Any], variables: list[Any]) -> None:
        with torch.no_grad():
            if torch.compiler.is_compiling():
                select_apply(self, grads, variables)
            else:
                self._apply(grads, variables)
            self.loss = self.place = None

    def _apply(self, grads: list[Any], variables: list[Any]) -> None:
        state = self.linked or self._link()
        changed = state.notice_changes()
        ring = self.ring
        if ring is not None:
            ring.start(state, changed)
        scale = float("nan") if self.follow_device else float(state.host_scale_found[0])
        each = self._norms(grads, variables) if ring and self.follow_device else None
        measure = ring is not None and each is None
        if self.headroom_every and (state.steps + 1) % self.headroom_every == 0:
            torch.stack(self._norms(grads, variables, float("inf")), out=self.largest)
        fused = self.fused
        if fused is not None and fused.layout.has_changed():
            fused = self.fused = fused_update_for(self.inner, self.targets, state)
        # A variable's own .grad may be unscaled in place, as GradScaler does; others may not.
        owned = fused is not None and all(map(operator.is_, map(_GRAD, fused.parameters), grads))
        if fused is not None and self._fusible(fused, grads, variables, owned):
            state.ready_for_fused()
            norm = fused.apply(grads, owned, agree, measure)
            if self.follow_device or state.follows_torch:
                state.device_update(self.advance)
            else:
                state.fused_update_seen()
        else:
            norm = self._apply_general(state, grads, variables, measure)
        if self.guard is not None:
            self.guard.settle(state.ok)
        noted: tuple[int, ...] | None = None
        if not self.follow_device:
            skipped = bool(state.host_integers[RUN])
            noted = self.told.who(grads, variables) if skipped else ()
        if ring is not None:
            ring.write(state, self.loss, norm, each, noted, self.place)
        if noted is not None:
            self.told.step(state, scale, noted)
        elif state.steps % LOOK_EVERY == 0:
            self.told.look()

    def _link(self) -> TorchState:
        """Join the state's storage, at the first eager step: a compiled one leaves it apart."""
        iterations = _keras_internals.raw_iterations(self.inner)
        self.linked = TorchState(self.state, iterations)
        self.fused = fused_update_for(self.inner, self.targets, self.linked)
        return self.linked

    def _part(self) -> None:
        """Undo ``_link``: a compiled step refuses variables that share storage."""
        for parameter in self.linked.parameters if self.linked else ():
            parameter.data = parameter.data.clone()
        self.linked = self.fused = None

    def _fusible(
        self, fused: FusedUpdate, grads: list[Any], variables: list[Any], owned: bool
    ) -> bool:
        try:
            # A tensor's own gradient has its dtype.
            float32 = owned or set(map(_DTYPE, grads)) == {torch.float32}
            usual = float32 and not any(map(_SPARSE, grads))
        except AttributeError:  # None: a variable without a gradient
            return False
        return usual and list(map(id, variables)) == self.ids and fused.allows(self.inner)

    def _apply_general(
        self, state: TorchState, grads: list[Any], variables: list[Any], measure: bool
    ) -> Any:
        unscaled, finite = unscale_and_check(grads, state.scale, state.found, agree, variables)
        unscaled = keep_overwrites(unscaled, grads, variables)
        steps = self.inner.gradient_accumulation_steps
        updated = not steps or (state.host_iterations + 1) % steps == 0
        norm = None
        if measure:
            norm = global_norm([dense(g) for g in unscaled if g is not None])
        if finite:
            self.inner.apply(unscaled, variables)
            state.expect_update()
        else:
            state.found.zero_()
        if self.guard is not None:
            state.ok.fill_(finite)
        state.host_update(finite, updated)
        return norm

    def stateless_apply(
        self, optimizer_values: list[Any], grads: list[Any], trainable_values: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        with torch.no_grad():
            own, inner = Values(*optimizer_values[:OWN]), list(optimizer_values[OWN:])
            found = torch.zeros_like(own.scale)
            unscaled, finite = unscale_and_check(grads, own.scale, found, agree, self.targets)
            unscaled = keep_overwrites(unscaled, grads, self.targets)
            iterations = _keras_internals.raw_iterations(self.inner)
            index = [v is iterations for v in self.inner.variables].index(True)
            new_own = self.advance(own, found == 0, self.is_update(inner[index]))
            trainable = list(trainable_values)
            if finite:
                # Keras' multi-tensor updates write in place: into copies, not the caller's.
                trainable, inner = self.inner.stateless_apply(
                    [t.clone() for t in inner], unscaled, [t.clone() for t in trainable]
                )
            return list(trainable), [*new_own, *inner]

    # What happened.

    def allocate_ring(self, rows: int) -> None:
        if self.ring is None or self.ring.rows <= rows:
            device = self.state.scale.value.device
            self.ring = TorchRing(rows, len(self.variables), device)

    def read_ring(self) -> np.ndarray | None:
        if self.ring is None:
            return None
        ring = self.ring.read()
        self.told.count(ring)
        return ring

    def measure_headroom(self, every: int) -> None:
        self.headroom_every = every
        if self.largest is None:
            scale = self.state.scale.value
            self.largest = scale.new_full((len(self.variables),), float("nan"))

    def largest_gradients(self) -> np.ndarray | None:
        return None if self.largest is None else self.largest.cpu().numpy()

    def overflow_counts(self) -> np.ndarray:
        self.told.look()
        return self.overflows

    def look(self) -> None:
        self.told.look()

    def _norms(self, grads: list[Any], variables: list[Any], order: float = 2.0) -> list[Any]:
        """Norm of each variable's scaled gradient, in the optimizer's order; 0 where none is."""
        if list(map(id, variables)) != self.ids:
            index = self.optimizer._get_variable_index
            given = {index(v): g for g, v in zip(grads, variables, strict=True)}
            grads = [given.get(i) for i in range(len(self.variables))]
        return norms(grads, order)
