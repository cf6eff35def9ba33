import pytest

from tcbench.work import Conv2d, Norm


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_work_of_a_dtype_that_no_plan_is_chosen_for_is_refused(dtype):
    message = f"on a GPU: expected float16 or float32, got {dtype}"
    with pytest.raises(ValueError, match=message):
        Conv2d(1, 8, 4, 4, 8, 1, 1, 1, 0, "NHWC", dtype)
    with pytest.raises(ValueError, match=message):
        Norm(1, 8, 4, 4, "NHWC", dtype)
