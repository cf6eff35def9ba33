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


@pytest.mark.parametrize("name", gpus.names())
def test_peak_rates_are_the_data_sheets(name):
    rates = peak_rates(gpus.load(name))
    fp32, tf32, fp16 = DATA_SHEETS[name]
    assert rates.fp32_flops_s == pytest.approx(fp32 * 1e12, rel=0.02)
    assert rates.fp16_flops_s == pytest.approx(fp16 * 1e12, rel=0.02)
    assert rates.tf32_flops_s == (pytest.approx(tf32 * 1e12, rel=0.02) if tf32 else rates.fp32_flops_s)


def conv(dtype="float16", math="strict", n=8, c=64):
    return ConvFprop(Conv2d(n, c, 28, 28, 64, 3, 3, 1, 1, "NHWC", dtype, math))


def test_a_convolution_computes_at_the_rate_of_its_dtype_and_arithmetic():
    rates = peak_rates(gpus.load("A100"))
    assert rates.of(conv()) == rates.of(conv("bfloat16")) == rates.fp16_flops_s
    assert rates.of(conv("float32")) == rates.fp32_flops_s
    assert rates.of(conv("float32", "tf32")) == rates.tf32_flops_s
    assert rates.of(Relu(1000, "float16")) == rates.fp32_flops_s
