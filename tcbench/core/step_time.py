"""A step's time by its parts: the one formula behind every prediction."""

import msgspec

from tcbench.core.record import PhaseSeconds


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds per step: of the work that is launched (`device_s`), of the program that launches it (`host_s`), of
    making a batch (`input_s`), in threads of its own where `overlapped`. `on_host`: the processor that runs the program
    does the rest as well, one after the other; else the parts run beside each other, and the longest decides. `lost`:
    the share of the processor time that others had while it was timed."""

    device_s: PhaseSeconds
    host_s: PhaseSeconds = 0.0
    input_s: PhaseSeconds = 0.0
    overlapped: bool = False
    on_host: bool = False
    lost: float = 0.0

    @property
    def step_s(self) -> float:
        if self.on_host:
            return self.device_s + self.host_s + self.input_s
        beside_s, before_s = (self.input_s, 0.0) if self.overlapped else (0.0, self.input_s)
        return max(before_s + self.host_s, self.device_s, beside_s)


Told = StepTime | str
"""What is known of a cell's step: its parts, or why they are not."""
