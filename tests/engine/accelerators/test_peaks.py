import pytest

from tcbench.engine.accelerators.peaks import peak_rates
from tcbench.engine.work import Conv2d, ConvFprop, Relu
from tcbench.hardware import gpus

# TFLOP/s as NVIDIA's data sheets give them, dense: fp32, TF32, fp16.
DATA_SHEETS = {
    "V100": (15.7, None, 125.0),
    "T4": (8.1, None, 65.0),
    "A100": (19.5, 156.0, 312.0),
    "L40S": (91.6, 183.0, 362.0),
    "H100": (67.0, 494.7, 989.4),
    "H200": (67.0, 494.7, 989.4),
    "B200": (75.0, 1125.0, 2250.0),
}


@pytest.mark.parametrize("name", gpus.NAMES)
def test_peak_rates_are_the_data_sheets(name):
    rates = peak_rates(gpus.load(name))
    fp32, tf32, fp16 = DATA_SHEETS[name]
    assert rates.peak_flops_s("fp32") == pytest.approx(fp32 * 1e12, rel=0.02)
    assert rates.peak_flops_s("fp16") == pytest.approx(fp16 * 1e12, rel=0.02)
    assert rates.peak_flops_s("tf32") == (pytest.approx(tf32 * 1e12, rel=0.02) if tf32 else rates.peak_flops_s("fp32"))


def conv(dtype="float16", math="strict", n=8, c=64):
    return ConvFprop(Conv2d(n, c, 28, 28, 64, 3, 3, 1, 1, "NHWC", dtype, math))


def test_a_convolution_computes_at_the_rate_of_its_dtype_and_arithmetic():
    rates = peak_rates(gpus.load("A100"))
    assert rates.precision(conv()) == rates.precision(conv("bfloat16")) == "fp16"
    assert rates.precision(conv("float32")) == rates.precision(Relu(1000, "float16")) == "fp32"
    assert rates.precision(conv("float32", "tf32")) == "tf32"
    assert peak_rates(gpus.load("V100")).precision(conv("float32", "tf32")) == "fp32"
