"""Documents of `tcbench numerics` for tests: techniques whose losses and accuracies are planted."""

from collections.abc import Mapping, Sequence
from typing import Any

import factories
import msgspec
import numpy as np

from tcbench.core.numerics import (
    KINDS,
    RANKS_TECHNIQUES,
    TECHNIQUES,
    Document,
    Gradients,
    LayerGradients,
    Run,
    StepGradients,
    TrainingSetting,
)
from tcbench.engine.numerics.gradients import count

SETTING = TrainingSetting(
    scenario="cpu",
    model="small-resnet",
    variant="v1",
    image_size=16,
    n_classes=10,
    batch_size=32,
    steps=48,
    learning_rate=0.001,
    momentum=0.9,
    weight_decay=1e-4,
    global_batch=131072,
    loss_divisor=32768.0,
    growth_interval=6,
    train_images=64,
    test_images=64,
    device="cpu",
    threads=1,
    rungs=("batched",),
    noise=1.0,
)


def make_gradients(exponent: float = -26.0) -> Gradients:
    """Log-normal gradients about 2^exponent in three layers."""
    layers, steps = [], []
    for place, layer in enumerate(("stem", "block1.a", "head")):
        values = np.random.default_rng(place).standard_normal(2000) * 2.0 ** (exponent + place)
        layers += [LayerGradients(kind=kind, layer=layer, magnitudes=count(values)) for kind in KINDS]
        steps += [StepGradients(kind=k, step=place, loss=2.0, magnitudes=count(values)) for k in KINDS]
    return Gradients(seed=0, layers=tuple(layers), steps=tuple(steps))


def make_run(technique: str, seed: int, worse: float = 0.0, **changes: Any) -> Run:
    """`worse`: by how much its losses are above fp32's, and its accuracy below, as a share."""
    wobble = 0.001 * ((seed * 7 + len(technique)) % 5 - 2)
    factor = 1 + worse + (wobble if technique != "fp32" else 0.0)
    losses = tuple((2.3 - 0.02 * step + 0.1 * seed) * factor for step in range(SETTING.steps))
    facts = {
        "losses": losses,
        "test_loss": (1.1 + 0.1 * seed) * factor,
        "accuracy": 0.8 - 0.02 * seed - worse,
        "train_time_s": 8.0 if technique == "fp32" else 10.0,
        "peak_memory_bytes": 2**27,
        **changes,
    }
    return Run(technique=technique, seed=seed, **{"status": "ok", **facts})  # type: ignore[arg-type]


def make_document(
    worse: Mapping[str, float] | None = None, seeds: Sequence[int] = range(5), extra: Sequence[Run] = (), **changes: Any
) -> Document:
    """All techniques but those that `extra` brings its own runs of."""
    amounts = {"neither": 0.3, "scaling": 0.1, "masters": 0.2, **(worse or {})}
    extra_techniques = {run.technique for run in extra}
    runs = [
        make_run(name, seed, amounts.get(name, 0.0))
        for seed in seeds
        for name in TECHNIQUES
        if name not in extra_techniques
    ]
    facts = {
        "created_at": "2025-01-02T03:04:05+00:00",
        "setting": SETTING,
        "gradients": make_gradients(),
        "runs": (*runs, *extra),
        "static_scale": 2.0**16,
        "static_scale_chosen": True,
        "duration_s": 100.0,
        "environment": factories.make_environment(),
    }
    return Document(**{**facts, **changes})


def make_ranks_document(worse: Mapping[str, float] | None = None, seeds: Sequence[int] = range(5)) -> Document:
    """Return a document of four ranks: without a warm-up they end worse, and one rank at its own batch size better."""
    amounts = {"no-warm-up": 0.4, "unscaled": 0.2, "own-batch": -0.2, **(worse or {})}
    runs = [make_run(name, seed, amounts.get(name, 0.0)) for seed in seeds for name in RANKS_TECHNIQUES]
    setting = msgspec.structs.replace(SETTING, ranks=4, batch_size=64, global_batch=64, loss_divisor=1.0)
    gradients = Gradients(seed=0, layers=(), steps=())
    return make_document(setting=setting, gradients=gradients, runs=tuple(runs), static_scale=1.0)
