"""Small networks made of the same bottlenecks as ResNet-50. They are not meant for measuring throughput."""

from tcbench.engine.models.geometry import Conv
from tcbench.engine.models.resnet import ResNet

SMALL_RESNET = ResNet("small-resnet", stem=Conv(3, 16, 3), blocks_per_stage=(1, 1, 1), width=8)
"""A network that a CPU can train completely in seconds. The stem keeps the image's size; max pooling and three stages
of one bottleneck follow. Only `tcbench numerics` uses it."""

WELL_CONDITIONED = ResNet("two-stage ResNet-50", blocks_per_stage=(2, 1))
"""The first two stages of ResNet-50, cut to two bottlenecks and one. The tolerances of rungs refer to this network,
with images of 32x32 and batches of 8. The complete ResNet-50 is chaotic at such sizes: its last batch normalisations
see few values, and after 5 steps at a learning rate of 0.01 even float32 is several per cent away from float64."""
