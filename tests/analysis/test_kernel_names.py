"""`tcbench.analysis.kernel_names`: what tells kernels apart, on 100 names from public traces."""

from pathlib import Path

import pytest

from tcbench.analysis.kernel_kinds import kernel_kind
from tcbench.analysis.kernel_names import MOST_CHARACTERS, short_kernel_name

PUBLIC = [line.split("\t") for line in Path(__file__).with_name("kernel_names.tsv").read_text("utf-8").splitlines()]


@pytest.mark.parametrize(("short", "kind", "name"), PUBLIC)
def test_a_kernel_of_a_public_trace_has_this_short_name_and_kind(short, kind, name):
    assert (short_kernel_name(name), kernel_kind(name)) == (short, kind)
    assert len(short) <= MOST_CHARACTERS
    assert short_kernel_name(short) == short


def test_short_names_of_different_kernels_differ():
    assert len({short for short, _, _ in PUBLIC}) == len(PUBLIC) == 100


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void cudnn::bn_fw_tr<float, Vec<int, 2>, true>(cudnnTensorStruct, float const*)", "bn_fw_tr Vec fp32,int32"),
        ("void internal::gemvx::kernel<float, 7>(Params)", "gemvx kernel fp32"),
        (
            "void run<(int)2, to(c &)::[lambda() (instance 3)]::operator ()()::[lambda(float) (instance 1)]>(T3)",
            "run to fp32",
        ),
        ("my_triton_kernel_0d1d2d3de4c", "my_triton_kernel"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("conv fprop 3x3", "conv fprop 3x3"),
        ("", ""),
    ],
)
def test_rules_of_short_names(name, short):
    assert short_kernel_name(name) == short == short_kernel_name(short)


@pytest.mark.parametrize("name", ["<" * 10_000, "f(" * 10_000, "_ZN" + "9" * 5_000, "a>>>(<)", "_ZN1" + "I" * 9_000])
def test_a_damaged_name_is_cut_too(name):
    assert len(short_kernel_name(name)) <= MOST_CHARACTERS
    assert kernel_kind(name) == "other"
