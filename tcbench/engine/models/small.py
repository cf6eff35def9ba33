"""Small networks out of the same bottlenecks as ResNet-50. They are no models to measure throughput with."""

from tcbench.engine.models.geometry import Conv
from tcbench.engine.models.resnet import ResNet

SMALL_RESNET = ResNet("small-resnet", stem=Conv(3, 16, 3), blocks_per_stage=(1, 1, 1), width=8)
"""For training to an end on a processor in seconds. The stem keeps the image's size; then come max pooling and stages
of one bottleneck each. Known to `tcbench numerics` alone."""

WELL_CONDITIONED = ResNet("two-stage ResNet-50", blocks_per_stage=(2, 1))
"""ResNet-50's first two stages, cut to two bottlenecks and one: what rungs' tolerances are declared on, with images of
32x32 and batches of 8. ResNet-50 whole is chaotic at such sizes: its last batch normalisations see few values, and
after 5 steps at a learning rate of 0.01 float32 itself is several per cent from float64."""
