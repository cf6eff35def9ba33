"""What a config that was not run is expected to reach: from its step's parts, and from a config of the same results
that was. Pure functions.

Two steps of one machine are compared by the model, and the measured one gives the scale: what the machine was doing
then, and what the model does not know, slows both. docs/method.md has the errors.
"""

from tcbench.analysis.bottleneck import Bottleneck
from tcbench.analysis.stats import Interval
from tcbench.core.step_time import StepTime

ON_HOST = 0.29
"""Nine of ten predictions of a step whose works were timed here lie within this share (docs/method.md)."""
BY_TABLE = 0.25
"""The same of a step by the table: as far apart as the virtual GPU and published rates are (docs/virtual.md)."""


def images_per_s(images: int, parts: StepTime) -> Interval:
    """The rate of steps with these parts, and the limits within which nine of ten lie."""
    rate, error = images / parts.step_s, ON_HOST if parts.on_host else BY_TABLE
    return Interval(rate, rate * (1 - error), rate * (1 + error))


def in_place_of(measured: Bottleneck, own: StepTime, other: StepTime) -> Interval:
    """The rate of another config on the device of a measured one; `own` are the measured one's parts by the model.

    On a host that computes all parts add up, and the whole step is in proportion. Beside a GPU each stage is in
    proportion to its own part, and the longest decides again."""
    if own.on_host:
        return images_per_s(measured.images_per_step, other) * (own.step_s / measured.step_s)
    needs = measured.needs
    gpu_s = own.device_s if needs.gpu_s is None else needs.gpu_s
    scaled = StepTime(
        device_s=gpu_s * other.device_s / own.device_s + needs.network_s,
        host_s=needs.host_s * other.host_s / own.host_s,
        input_s=needs.input_s or 0.0,
        overlapped=needs.overlapped or other.overlapped,
    )
    return images_per_s(measured.images_per_step, scaled)
