"""`tcbench.analysis.kernel_names`: what tells kernels apart, on 100 names from public traces."""

import time
from pathlib import Path

import pytest

from tcbench.analysis.kernel_kinds import kernel_kind, matrix_precision
from tcbench.analysis.kernel_names import MOST_CHARACTERS, short_kernel_name, short_kernel_names

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
        ("void sum<Accessor<float, Array<int, 2> >, Plus<double> >(int)", "sum Plus fp64"),
        ("_ZN2ck6kernelILNS_4ModeE12ENS_3SumIfEEEEvNS_4ArgsE", "Sum fp32"),
        ("_ZN2ck5scaleEPfNS_4ArgsE", "scale"),
        ("void internal::gemvx::kernel<float, 7>(Params)", "gemvx kernel fp32"),
        (
            "void run<(int)2, to(c &)::[lambda() (instance 3)]::operator ()()::[lambda(float) (instance 1)]>(T3)",
            "run to fp32",
        ),
        ("my_triton_kernel_0d1d2d3de4c", "my_triton_kernel"),
        ("my_triton_kernel_0d1d_v2", "my_triton_kernel_0d1d_v2"),
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


def test_names_that_are_equal_when_cut_differ_by_a_checksum_within_a_trace():
    names = [f"{'front_' * 6}{middle}{'_end' * 8}" for middle in ("a" * 9, "b" * 9)]
    first, second, _ = short_kernel_names([*names, "other"]).values()
    assert first != second and len(first) == len(second) <= MOST_CHARACTERS
    assert first.startswith("front_front") and first.endswith("_end_end") and first.count("…") == 2
    assert short_kernel_names(names[:1]) == {names[0]: short_kernel_name(names[0])}
    assert short_kernel_name(names[0]).count("…") == 1


HOSTILE = ["1", "<", "d1", "(", " ", "op", "a_0d", "[clone", "cudnn", "S", "884", "x,", "Array<"]


@pytest.mark.parametrize("part", HOSTILE)
@pytest.mark.parametrize("begin", ["", "a_0d", "_ZN1aI", "x<", "Cijk_A_B_C_MT"])
@pytest.mark.parametrize("length", [26, 1900, 10_000])
def test_a_name_of_any_length_is_read_quickly(part, begin, length):
    def time_s(function, end):
        name = (begin + part * length)[:length] + end  # a name of its own, because results are cached
        begin_s = time.process_time()
        function(name)
        return time.process_time() - begin_s

    for function in (short_kernel_name, kernel_kind, matrix_precision):
        assert min(time_s(function, end) for end in ("!", "!>", "_v2")) < 0.1
