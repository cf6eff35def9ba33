"""The formula by which all predictions compute a step's time from its parts."""

import msgspec

from tcbench.core.record import PhaseSeconds


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a step's time, in seconds per step.

    - `device_s`: the launched work; `host_s`: the program that launches it; `input_s`: preparing a batch.
    - `overlapped`: separate threads prepare the batch while the step runs.
    - `on_host`: one CPU does everything, so that the parts add up. Otherwise they run in parallel, and the slowest
      determines the step's time.
    - `lost`: the share of CPU time that other processes used while the parts were timed."""

    device_s: PhaseSeconds
    host_s: PhaseSeconds = 0.0
    input_s: PhaseSeconds = 0.0
    overlapped: bool = False
    on_host: bool = False
    lost: float = 0.0

    @property
    def step_s(self) -> float:
        """The predicted time of the whole step."""
        if self.on_host:
            return self.device_s + self.host_s + self.input_s
        if self.overlapped:
            return max(self.host_s, self.device_s, self.input_s)
        return max(self.input_s + self.host_s, self.device_s)


StepTimeOrReason = StepTime | str
"""The parts of a cell's step time, or the reason why they are unknown."""
