"""The scaler's state on torch: Keras' variables as views of two vectors, so that one operator does.

``scale_found`` (float32): the loss scale, and the flag that an overflow was found.
``integers`` (int32): good steps, the four counters, and the inner optimizer's iterations.

The Keras variables stay what they were (names, shapes, checkpoints); only their storage is shared.
A change from outside (a checkpoint, ``assign``) shows in a variable's version counter; what the
host believes is then read again.
"""

from dataclasses import replace
from typing import Any

import torch

from keras_mp.scaling.device_state import COUNTERS, DeviceState, Values
from keras_mp.scaling.kernels import torch_ops
from keras_mp.scaling.state import COUNTER_MAX, ScaleConfig, ScaleState, update

GOOD = 0
LEFT, SKIPPED, APPLIED, RUN = (1 + row for row in range(COUNTERS))
ITERATIONS = 1 + COUNTERS
NEXT_ITERATION = ITERATIONS + 1  # t of Adam's bias correction: kept, so that no operator adds 1


class TorchState:
    """Shared storage of a DeviceState and an iterations variable, with a mirror on the host.

    Attributes:
        scale, found: float32 views, shape (); the next step's loss scale, and whether this step
            overflowed. ok: bool, shape (): the opposite of ``found``, once it is known.
        good, left, iterations, run: int32 views, shape ().
        host: ScaleState as the host knows it; None where only the device does.
        steps: Attempted steps, as far as the host counted.
        config: The settings in force: with limits (1, 1) where scaling serves nothing.
    """

    def __init__(self, state: DeviceState, iterations: Any):
        self.settings = state.config
        self.config: ScaleConfig = state.config
        self.parameters = [v.value for v in (*state.variables, iterations)]
        scale, good, counters, limits, updates = self.parameters
        device = scale.device
        with torch.no_grad():
            self.scale_found = torch.stack([scale.detach(), torch.zeros_like(scale)])
            ones = updates.reshape(1)
            self.integers = torch.cat([good.reshape(1), counters, ones, ones + 1]).int()
            # Rows: smallest and largest [scale, found]; clamping the flag to 0 resets it.
            self.bounds = torch.stack([limits.detach(), torch.zeros_like(limits)], dim=1)
            scale.data, good.data = self.scale_found[0], self.integers[GOOD]
            counters.data, limits.data = self.integers[LEFT:ITERATIONS], self.bounds[:, 0]
            updates.data = self.integers[ITERATIONS]
        self.scale, self.found = self.scale_found[0], self.scale_found[1]
        self.good, self.iterations = self.integers[GOOD], self.integers[ITERATIONS]
        self.next_iteration = self.integers[NEXT_ITERATION]
        self.counters = self.integers[LEFT:ITERATIONS]
        self.left, self.run = self.integers[LEFT], self.integers[RUN]
        self.own_integers = self.integers[:ITERATIONS]
        self.limits, self.low, self.high = self.bounds[:, 0], self.bounds[0], self.bounds[1]
        self.ok = torch.zeros((), dtype=torch.bool, device=device)
        int32 = {"dtype": torch.int32, "device": device}
        # integers' = integers * factor + term for [good, left, skipped, applied, run, iterations,
        # next iteration]; update_scale_ sees to the good steps.
        self.on_finite = torch.tensor([[1, 1, 1, 1, 0, 1, 1], [0, 0, 0, 1, 0, 1, 1]], **int32)
        self.on_overflow = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 0, 1, 0, 0]], **int32)
        self.chosen = torch.empty_like(self.on_finite)
        self.factors, self.terms = self.chosen[0], self.chosen[1]
        self.clean_update = torch.tensor([1, 0, 0, 1, 0], **int32)
        self.clean_micro_batch = torch.tensor([0, 0, 0, 1, 0], **int32)
        # On a CPU the host looks at the same memory: reading it costs no operator and no copy.
        on_host = device.type == "cpu"
        self.host_integers: Any = self.integers.numpy() if on_host else None
        self.host_scale_found: Any = self.scale_found.numpy() if on_host else None
        self.host: ScaleState | None = None
        self.host_iterations = 0
        self._next_is_stale = False
        self.steps = 0
        self._versions: tuple[int, ...] = ()
        self.notice_changes()

    def notice_changes(self) -> bool:
        """Read the state anew if somebody else wrote to it. True if so."""
        versions = tuple(p._version for p in self.parameters)
        if versions == self._versions:
            return False
        self._versions = versions
        self.read()
        return True

    def read(self) -> ScaleState:
        """The host's mirror, read from the device."""
        good, left, skipped, applied, run, done, following = self.integers.tolist()
        self.host_iterations = done
        if following != done + 1:
            self.next_iteration.fill_(done + 1)
        low, high = self.limits.tolist()
        if (low, high) != (self.config.min_scale, self.config.max_scale):
            self.config = self.settings.within(low, high)
        last = self.config.growth_interval - 1
        if self.config.dynamic and good > last:
            # torch's operator grows when the count meets the interval, and never if it is past it
            # (a checkpoint from a longer interval).
            self.good.fill_(last)
            good = last
        scale = self.scale.item()
        if not 0 < scale < float("inf"):
            # Somebody assigned it. Any other scale outside the limits comes back after the step,
            # whose gradients were computed with it.
            scale = low
            self.scale.fill_(low)
        self.host = ScaleState(scale, good, left, skipped, applied, run)
        self.steps = skipped + applied
        return self.host

    @property
    def host_sees_scale_from_one(self) -> bool:
        """Whether the host knows, without asking the device, that the scale is at least 1."""
        return self.host_scale_found is not None and bool(self.host_scale_found[0] >= 1)

    def expect_update(self) -> None:
        """The inner optimizer has just counted one step: no change from outside."""
        self.host_iterations += 1
        self._next_is_stale = True
        self._versions = tuple(p._version for p in self.parameters)

    def ready_for_fused(self) -> None:
        """Before a fused update: the general one counts iterations, but not the next."""
        if self._next_is_stale:
            self.next_iteration.copy_(self.iterations + 1)
            self._next_is_stale = False

    @property
    def values(self) -> Values:
        return Values(self.scale, self.good, self.counters, self.limits)

    def host_update(self, finite: bool, updated: bool) -> ScaleState:
        """Move on by the reference itself, on the host; the device follows, with one operator."""
        before = self.host or self.read()
        after = update(before, finite, self.config, updated=updated)
        self.host, self.steps = after, after.skipped + after.applied
        counts = self.config.dynamic and (updated or self.config.counts == "micro_batches")
        usual = replace(
            before,
            good_steps=before.good_steps + int(counts),
            applied=before.applied + 1,
        )
        if after == usual:
            step = self.clean_update if counts else self.clean_micro_batch
            self.own_integers.add_(step)
            return after
        self.own_integers.copy_(
            torch.tensor(
                [
                    after.good_steps,
                    after.hysteresis_left,
                    after.skipped,
                    after.applied,
                    after.consecutive_skips,
                ],
                dtype=torch.int32,
            )
        )
        if after.scale != before.scale:
            self.scale.fill_(after.scale)
        return after

    def fused_update_seen(self) -> None:
        """After a fused update on a CPU, where the host sees the flag: move on by the reference."""
        finite = bool(self.host_scale_found[1] == 0)
        if finite:
            self.integers[ITERATIONS:].add_(1)
            self.host_iterations += 1
        else:
            self.found.zero_()
        self.host_update(finite, True)

    def device_update(self, advance: Any) -> None:
        """Move on by ``self.ok``, without the host knowing. Resets ``found``.

        Args:
            advance: ``Kernel.advance``, for settings that torch's own operator cannot follow.
        """
        self.host = None
        self.steps += 1
        config = self.config
        if not self.follows_torch or self.steps >= COUNTER_MAX:
            after = advance(self.values, self.ok, True)
            for target, value in zip(self.values, after, strict=True):
                target.copy_(value)
            self.integers[ITERATIONS:].add_(self.ok)
            self.found.zero_()
            return
        if config.dynamic:
            torch_ops.update_scale_(
                self.scale,
                self.good,
                self.found,
                config.growth_factor,
                config.backoff_factor,
                config.growth_interval,
            )
        torch.clamp(self.scale_found, self.low, self.high, out=self.scale_found)
        torch.where(self.ok, self.on_finite, self.on_overflow, out=self.chosen)
        torch.addcmul(self.terms, self.integers, self.factors, out=self.integers)

    @property
    def follows_torch(self) -> bool:
        """Whether torch's own scale update moves the state as the settings ask."""
        config = self.config
        if not config.dynamic:
            return True
        return (
            config.hysteresis == 1
            and config.growth_delay == "none"
            and config.max_scale * config.growth_factor < torch.finfo(torch.float32).max
            and "scale" in torch_ops.probe(self.scale.device)
        )
