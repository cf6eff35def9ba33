import pytest

from tcbench.engine.accelerators import routes
from tcbench.engine.work import Add, Conv2d, ConvFprop, Norm


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
