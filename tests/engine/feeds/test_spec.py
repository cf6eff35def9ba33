import pytest

from tcbench.engine.feeds.spec import TensorSpec


def test_activations_of_another_dtype_are_refused_by_name():
    with pytest.raises(ValueError, match="stored as float16 or bfloat16 or float32 or float64, not as int8"):
        TensorSpec(dtype="int8")
