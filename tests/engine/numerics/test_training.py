"""Training runs, on the host and on the path of a GPU with NumPy in its place. Tiny: a few steps of 8-pixel images."""

import msgspec
import numpy as np
import pytest
from training import numpys_processor, on_numpy

from tcbench.commands.numerics import plan
from tcbench.commands.numerics.loss_scales import shares
from tcbench.core.errors import DataError
from tcbench.core.numerics import KINDS, TrainingFinished, total_magnitudes
from tcbench.engine.accelerators.device import host_device
from tcbench.engine.feeds import dataset, generated
from tcbench.engine.numerics import training, worker
from tcbench.engine.numerics.folder import split
from tcbench.engine.numerics.gradients import count
from tcbench.engine.numerics.training import DivergedError, train
from tcbench.run.scenario import load

STEPS = 6


def setting(**changes):
    request = plan.NumericsRequest(steps=STEPS, batch_size=8, image_size=8)
    training = plan.training_setting(load("cpu"), host_device(), request, 1, None)
    return msgspec.structs.replace(training, **{"train_images": 64, "test_images": 32, **changes})


def job(technique: str, scale: float = 2.0**20, training=None):
    return next(j for j in plan.training_jobs(training or setting(), 1, scale) if j.technique.name == technique)


def test_the_divisor_of_the_loss_changes_no_bit_of_fp32s_training():
    alone, shared = (train(job("fp32", training=setting(loss_divisor=d)), numpys_processor()) for d in (1.0, 2.0**15))
    assert alone.losses == shared.losses
    assert (alone.test_loss, alone.accuracy) == (shared.test_loss, shared.accuracy)


@pytest.mark.long
def test_both_techniques_follow_fp32_where_neither_does_not():
    training = setting(steps=12, batch_size=16, image_size=16, growth_interval=3)
    fp32, neither, both = (
        train(job(technique, training=training), numpys_processor()) for technique in ("fp32", "neither", "both")
    )
    dynamic = train(msgspec.structs.replace(job("dynamic", training=training), loss_scale=2.0**20), numpys_processor())
    off = {name: np.abs(np.subtract(run.losses, fp32.losses)).max() for name, run in (("both", both), ("dyn", dynamic))}
    assert max(off.values()) < 0.02, off
    assert np.abs(np.subtract(neither.losses, fp32.losses)).max() > 2 * max(off.values())


@pytest.mark.parametrize("site", [numpys_processor, on_numpy])
def test_a_static_scale_that_overflows_is_named_with_the_step_by_which_it_did(site):
    with pytest.raises(
        DivergedError, match=r"diverged by step 5: gradients overflowed float16 at a static loss scale of 2\^50"
    ):
        train(job("both", 2.0**50), site())


@pytest.mark.parametrize("site", [numpys_processor, on_numpy])
def test_a_loss_that_is_not_finite_ends_a_run_with_the_finite_losses_before_it(site):
    training = setting(learning_rate=1e4)
    with pytest.raises(DivergedError, match=r"diverged at step [1-5]: the loss is (nan|inf)") as raised:
        train(job("neither", training=training), site())
    assert 0 < len(raised.value.losses) < STEPS
    assert np.isfinite(raised.value.losses).all()


def test_a_run_that_diverged_is_told_with_its_losses():
    finished = worker.run(job("neither", training=setting(learning_rate=1e4)), lambda _: None)
    assert (finished.run.status, finished.run.losses != ()) == ("diverged", True)
    assert msgspec.json.decode(msgspec.json.encode(finished), type=TrainingFinished) == finished


def test_a_run_whose_test_loss_is_not_finite_diverged(monkeypatch):
    monkeypatch.setattr(training, "_test", lambda session: (float("nan"), 0.1))
    with pytest.raises(DivergedError, match=f"the test loss is nan after {STEPS} steps") as raised:
        train(job("fp32"), numpys_processor())
    assert len(raised.value.losses) == STEPS


def test_a_dynamic_scale_that_begins_too_high_finds_its_way_down():
    begun = msgspec.structs.replace(job("dynamic"), loss_scale=2.0**45)
    trained = train(begun, numpys_processor())
    assert trained.skipped_steps > 0
    assert trained.last_scale < 2.0**45
    assert np.isfinite(trained.losses).all()


def test_gradients_are_handed_over_as_the_divided_loss_leaves_them():
    seen: dict[float, dict[str, list]] = {}
    for divisor in (1.0, 2.0**15):
        gradients = seen.setdefault(divisor, {kind: [] for kind in KINDS})
        layers = set()

        def receive(name, layer, values, gradients=gradients, layers=layers):
            gradients[name].append(np.array(values))
            layers.add((name, layer))

        def observe(step, loss, hand_over, receive=receive):
            hand_over(receive)

        train(
            msgspec.structs.replace(job("fp32", training=setting(loss_divisor=divisor)), observe_at=(2,)),
            numpys_processor(),
            observe,
        )
        assert {("activations", "stem"), ("activations", "head"), ("weights", "block3.c")} <= layers
    for kind in KINDS:
        for undivided, divided in zip(seen[1.0][kind], seen[2.0**15][kind], strict=True):
            np.testing.assert_array_equal(undivided, divided * np.float32(2**15))
    lost = [shares(total_magnitudes(map(count, seen[d]["activations"])), 0).zero for d in (1.0, 2.0**15)]
    assert lost[1] > 0.3 > 0.05 > lost[0]


@pytest.mark.long
@pytest.mark.parametrize("technique", ["fp32", "scaling", "dynamic", "bf16"])  # each optimizer, each dtype
def test_each_technique_trains_and_tests_on_a_gpus_path_as_on_the_host(technique):
    on_processor, device = train(job(technique), numpys_processor()), train(job(technique), on_numpy())
    # A bfloat16 has three bits of fraction less than a float16.
    allowed = {"fp32": 1e-5, "bf16": 0.06}.get(technique, 0.02)
    np.testing.assert_allclose(device.losses, on_processor.losses, rtol=allowed)
    assert device.test_loss == pytest.approx(on_processor.test_loss, rel=3 * allowed)


def test_a_folder_of_images_trains_by_the_same_code(tmp_path, thin_network):
    folder = generated.generate(tmp_path / "images", n_files=20, workers=1)
    for label in range(20):  # ten files a class, so that one is kept
        (tmp_path / "many" / f"c{label % 2}").mkdir(parents=True, exist_ok=True)
        (tmp_path / "many" / f"c{label % 2}" / f"{label}.jpg").write_bytes(folder.files[label][0].read_bytes())
    request = plan.NumericsRequest(steps=1, batch_size=2, image_size=32, data=tmp_path / "many", threads=1)
    training = plan.training_setting(load("cpu"), host_device(), request, 1, split(dataset.scan(tmp_path / "many")))
    assert (training.model, training.n_classes, training.train_images, training.test_images) == ("resnet50", 2, 18, 2)
    trained = train(job("fp32", training=msgspec.structs.replace(training, model="thin")), numpys_processor())
    assert np.isfinite(trained.losses).all() and trained.accuracy in (0.0, 0.5, 1.0)


def test_a_folder_without_enough_images_for_a_test_says_so(tmp_path):
    generated.generate(tmp_path / "images", n_files=16, workers=1)
    with pytest.raises(DataError, match="expected at least 10 images per class"):
        split(dataset.scan(tmp_path / "images"))


def test_losses_are_told_up_to_the_first_that_json_cannot_say():
    assert worker._rounded((1.23456789, float("nan"), 2.0)) == (1.23457,)
