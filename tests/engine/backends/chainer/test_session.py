import numpy as np
import pytest
from training import run_step, small_session

from tcbench.core.errors import DataError, TrainingError
from tcbench.core.record import Input, MeasureSettings, TrainSettings
from tcbench.engine.accelerators.cpu import threads
from tcbench.engine.measure import loop
from tcbench.engine.models.resnet import ResNet


def test_the_seed_decides_the_weights_and_the_first_loss():
    def first(seed: int) -> tuple[bytes, float]:
        with small_session("fp32", seed) as session:
            return session.step.model.stem.w.array.tobytes(), run_step(session)

    seed_0, seed_0_again, seed_1 = map(first, (0, 0, 1))
    assert seed_0 == seed_0_again
    assert seed_0[0] != seed_1[0] and seed_0[1] != seed_1[1]


def test_facts_name_the_model_and_its_memory():
    with small_session("fp32") as session:
        run_step(session)
        facts = session.facts()
    assert facts.parameters == sum(p.size for p in session.step.model.params())
    assert facts.peak_memory_of == "process"
    assert facts.peak_memory_bytes > 50 * 2**20
    assert facts.prefetch_depth == 0


def test_a_network_that_is_not_what_its_stages_say_does_not_train():
    """This happens when a field of a stage is passed on but never used."""

    class Grouped(ResNet):
        def parameters(self, n_classes):
            return super().parameters(n_classes) - 1000

    with (
        pytest.raises(TrainingError, match=r"built thin with .+ parameters, expected the .+ of its stages"),
        small_session("fp32", geometry=Grouped("thin", blocks_per_stage=(1,))),
    ):
        pass


def test_a_loss_scale_that_overflows_fails_the_trial_in_words():
    settings = MeasureSettings(max_time_s=0.01)
    with (
        small_session("fp16+batched", train=TrainSettings(loss_scale=1e9)) as session,
        np.errstate(all="ignore"),
        pytest.raises(TrainingError, match=r"gradients overflowed at a loss scale of 1e\+09: lower train\.loss_scale"),
    ):
        loop.measure(session, settings)


def test_a_data_folder_that_vanished_is_a_data_error(tmp_path):
    gone = Input(kind="folder", path=str(tmp_path / "gone"))
    with pytest.raises(DataError, match="does not exist"), small_session("fp32", input=gone):
        pass


def test_closing_gives_the_library_its_state_back():
    before = threads.get_threads()
    with small_session("fp32", threads=before + 1):
        assert threads.get_threads() == before + 1
    assert threads.get_threads() == before
