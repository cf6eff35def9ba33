import pytest

from tcbench.engine.accelerators import routes
from tcbench.engine.work import Add, Conv2d, ConvFprop, Norm


@pytest.mark.parametrize(("channels", "then"), [(64, "none"), (66, "add_relu")])
def test_calls_fuse_an_addition_where_the_channels_are_a_multiple_of_four(channels, then):
    route = routes.batch_norm(Norm(8, channels, 7, 7, "NHWC", "float16", "add_relu"), 2e-5, 0.1, 75, True)
    assert route.then == then
    assert (route.saved is None) == (then != "none")


def test_a_dtype_that_work_does_not_have_is_refused():
    message = "expected one of float16, bfloat16, float32, float64, got int8"
    with pytest.raises(ValueError, match=message):
        Conv2d(1, 8, 4, 4, 8, 1, 1, 1, 0, "NHWC", "int8")
    with pytest.raises(ValueError, match=message):
        Norm(1, 8, 4, 4, "NHWC", "int8")


@pytest.mark.parametrize("work", [ConvFprop(Conv2d(1, 8, 4, 4, 8, 1, 1, 1, 0, "NHWC", "float64")), Add(8, "float64")])
def test_float64_is_refused_on_a_gpu(work):
    with pytest.raises(ValueError, match=f"{work.name}: on a GPU: expected float32 or 16 bits, got float64"):
        routes.check_dtypes(work)
