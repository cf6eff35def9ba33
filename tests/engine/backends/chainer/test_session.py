import numpy as np
import pytest
from training import parameters, run_step, small_session

from tcbench.core.errors import DataError, TrainingError
from tcbench.core.record import Input, MeasureSettings, TrainSettings
from tcbench.engine.measure import loop


def test_training_lowers_the_loss_on_one_batch():
    with small_session("fp32+batched+nhwc+fused", train=TrainSettings(learning_rate=0.02)) as session:
        batch = session.step.feed.next()
        session.step.feed.next = lambda: batch
        losses = [run_step(session) for _ in range(15)]
    assert losses[0] > 1.5
    assert losses[-1] < 0.3 * losses[0]


def test_the_seed_decides_the_weights_and_the_first_loss():
    def first(seed: int) -> tuple[float, dict[str, np.ndarray]]:
        with small_session("fp32", seed) as session:
            weights = parameters(session)
            return run_step(session), weights

    (loss, weights), (again, same), (other, others) = first(0), first(0), first(1)
    assert loss == again != other
    assert all(np.array_equal(weights[name], same[name]) for name in weights)
    assert not np.array_equal(weights["/stem/w"], others["/stem/w"])


def test_facts_name_the_model_and_its_memory():
    with small_session("fp32") as session:
        run_step(session)
        facts = session.facts()
    assert facts.parameters == sum(p.size for p in session.step.model.params())
    assert facts.peak_memory_of == "process"
    assert facts.peak_memory_bytes > 50 * 2**20
    assert facts.prefetch_depth == 0


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

    from tcbench.engine.accelerators.cpu import threads

    before = threads.get_threads()
    with small_session("fp32", threads=before + 1):
        assert threads.get_threads() == before + 1
    assert threads.get_threads() == before
