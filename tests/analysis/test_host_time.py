import factories
import pytest

from tcbench.analysis.host_time import functions, longest_phase, origin
from tcbench.core.host_profile import Frame, Stack

OURS = Frame("Node.apply", "tcbench/engine/backends/chainer/ops/node.py", 76)
KERNEL = Frame("Engine.run", "tcbench/engine/accelerators/cpu/onednn/library.py", 422)
CHAINER = Frame("Link.__call__", "chainer/link.py", 280)
NUMPY = Frame("clip", "numpy/_core/fromnumeric.py", 1)
WAIT = Frame("Condition.wait", "python/threading.py", 295)
BUILT_IN = Frame("<method 'acquire' of '_thread.lock' objects>")
USER = Frame("step", "/home/me/step.py", 3)


@pytest.mark.parametrize(
    ("frames", "whose"),
    [
        ((OURS,), "tcbench"),
        ((OURS, KERNEL), "compute"),
        ((KERNEL, CHAINER), "framework"),
        ((CHAINER, NUMPY), "compute"),
        ((OURS, KERNEL, WAIT, BUILT_IN), "compute"),
        ((CHAINER, BUILT_IN), "framework"),
        ((OURS, WAIT), "tcbench"),
        ((CHAINER, USER), "tcbench"),
        ((BUILT_IN,), "tcbench"),
    ],
)
def test_a_stack_is_its_last_functions_or_its_callers(frames, whose):
    assert origin(frames) == whose


TAKEN = factories.make_host_profile(
    Stack("io", (OURS,), 0.05),
    Stack("forward", (OURS,), 0.01),
    Stack("forward", (OURS, KERNEL), 0.01),
    Stack("forward", (CHAINER, KERNEL), 0.02),
    Stack("backward", (CHAINER,), 0.03),
)


def test_self_time_is_added_up_over_all_stacks_that_end_in_a_function():
    first, second = functions(TAKEN, "forward")
    assert (first.frame, first.origin) == (KERNEL, "compute")
    assert (first.seconds, first.share) == pytest.approx((0.03, 0.75))
    assert (second.frame, second.share) == (OURS, pytest.approx(0.25))
    assert functions(TAKEN, "update") == ()


@pytest.mark.parametrize(
    ("verdict", "phase"),
    {"input-bound": "io", "host-bound": "forward", "balanced": "io", "gpu-bound": None, "network-bound": None}.items(),
)
def test_the_phase_that_holds_the_step_back_follows_the_verdict(verdict, phase):
    assert longest_phase(TAKEN, verdict) == phase
    assert longest_phase(factories.make_host_profile(), verdict) is None
