import pytest

from tcbench.engine.accelerators import routes
from tcbench.engine.work import Norm


@pytest.mark.parametrize(("channels", "then"), [(64, "none"), (66, "add_relu")])
def test_calls_fuse_an_addition_where_the_channels_are_a_multiple_of_four(channels, then):
    route = routes.batch_norm(Norm(8, channels, 7, 7, "NHWC", "float16", "add_relu"), 2e-5, 0.1, 75, True)
    assert route.then == then
    assert (route.kept is None) == (then != "none")
