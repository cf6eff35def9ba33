import itertools
from dataclasses import replace

import numpy as np
import pytest
from reference import REFERENCE

from tcbench.engine import work as w
from tcbench.engine.accelerators.cuda.cudnn import graphs

CONV = w.Conv2d(4, 8, 14, 10, 16, 3, 3, 2, 1, "NHWC", "float16")
NORM = w.Norm(4, 16, 7, 5, "NHWC", "float16")
CONVS = [kind(CONV) for kind in (w.ConvFprop, w.ConvDgrad, w.ConvWgrad, w.ConvFpropStats)]


def norms(norm):
    """Forward and backward, with each that may follow."""
    return [
        work
        for after in ("none", "relu", "add_relu")
        for work in (
            w.BatchNormForward(replace(norm, after=after), 2e-5, 0.1),
            w.BatchNormBackward(replace(norm, after=after)),
        )
    ]


NORMS = norms(NORM)


def ident(work):
    if isinstance(work, dict):
        return "operands"
    return f"{work.name}-{work.norm.after}" if hasattr(work, "norm") else work.name


def by_uid(graph):
    return {t.settings["uid"]: t.settings for t in graph.tensors if "uid" in t.settings}


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_strides_are_those_of_a_contiguous_array_seen_as_nchw(layout):
    shape = (2, 3, 4, 5)
    array = np.empty(shape, np.uint8)
    logical = array if layout == "NCHW" else array.transpose(0, 3, 1, 2)
    assert graphs.dims(shape, layout) == (list(logical.shape), list(logical.strides))


@pytest.mark.parametrize("work", [*CONVS, *NORMS, w.ConvFprop(replace(CONV, dtype="bfloat16"))], ids=ident)
def test_each_operand_is_the_tensor_of_its_number(work, frontend):
    tensors = by_uid(graphs.build_graph(work, {}, 90))
    assert sorted(tensors) == list(range(1, len(graphs.slots(work)) + 1))
    types = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT", "bool": "BOOLEAN"}
    for uid, operand in zip(sorted(tensors), (work.operands[slot] for slot in graphs.slots(work)), strict=True):
        dim, stride = graphs.dims(operand.shape, "NHWC")
        assert tensors[uid]["dim"] == dim
        assert tensors[uid]["stride"] == stride
        assert tensors[uid]["data_type"] == types[operand.dtype]


@pytest.mark.parametrize("work", CONVS + NORMS, ids=ident)
def test_what_is_read_goes_in_and_what_is_written_comes_out(work, frontend):
    graph = graphs.build_graph(work, {}, 90)
    tensors = by_uid(graph)
    for uid, operand in enumerate(work.operands, start=1):
        assert ("output" in tensors[uid]) == (operand.role == "out"), operand.name
    for uid in range(len(work.operands) + 1, len(tensors) + 1):
        assert tensors[uid]["output"]


def test_the_running_statistics_that_come_out_are_mean_then_variance(frontend):
    work = NORMS[0]
    graph = graphs.build_graph(work, {}, 90)
    [(_, settings, (_, mean, inv_std, running_mean, running_var))] = graph.operations
    names = {name: uid for uid, name in enumerate((o.name for o in work.operands), start=1)}
    assert settings["in_running_mean"].settings["uid"] == names["running_mean"]
    assert settings["in_running_var"].settings["uid"] == names["running_var"]
    assert (mean.settings["uid"], inv_std.settings["uid"]) == (names["mean"], names["inv_std"])
    assert (running_mean.settings["uid"], running_var.settings["uid"]) == (len(names) + 1, len(names) + 2)


def test_constants_are_passed_by_value_in_single_precision(frontend):
    graph = graphs.build_graph(NORMS[2], {}, 90)
    operations = {operation: settings for operation, settings, _ in graph.operations}
    norm, mask = operations["batchnorm"], operations["cmp_gt"]
    for constant, value in ((norm["epsilon"], 2e-5), (norm["momentum"], 0.1), (mask["comparison"], 0.0)):
        assert constant.settings["value"] == float(np.float32(value))
        assert constant.settings["kept_as"] == "FLOAT"


@pytest.mark.parametrize(
    ("after", "then"), [("none", []), ("relu", ["relu", "cmp_gt"]), ("add_relu", ["add", "relu", "cmp_gt"])]
)
def test_a_forward_norm_fuses_what_follows(after, then, frontend):
    graph = graphs.build_graph(w.BatchNormForward(replace(NORM, after=after), 2e-5, 0.1), {}, 90)
    assert [operation for operation, _, _ in graph.operations] == ["batchnorm", *then]


def test_the_masked_gradient_is_the_residuals(frontend):
    work = w.BatchNormBackward(replace(NORM, after="add_relu"))
    graph = graphs.build_graph(work, {}, 90)
    (_, scale, [masked]), (_, norm, _) = graph.operations
    names = [None, *(operand.name for operand in work.operands)]
    assert names[scale["input"].settings["uid"]] == "gy"
    assert names[scale["scale"].settings["uid"]] == "mask"
    assert names[masked.settings["uid"]] == "gresidual"
    assert norm["grad"] is masked


def test_without_addition_the_masked_gradient_stays_inside_in_its_own_type(frontend):
    graph = graphs.build_graph(w.BatchNormBackward(replace(NORM, after="relu")), {}, 90)
    (_, _, [masked]), _ = graph.operations
    assert masked.settings == {"data_type": "HALF"}


@pytest.mark.parametrize(
    ("work", "roles"),
    [
        (w.ConvFprop(CONV), {"image": "x", "weight": "w"}),
        (w.ConvDgrad(CONV), {"loss": "gy", "filter": "w"}),
        (w.ConvWgrad(CONV), {"image": "x", "loss": "gy"}),
    ],
    ids=ident,
)
def test_a_convolution_has_its_geometry_and_its_operands(work, roles, frontend):
    graph = graphs.build_graph(work, {}, 90)
    [(operation, settings, _)] = graph.operations
    names = [None, *(operand.name for operand in work.operands)]
    assert operation == work.name
    assert {role: names[settings[role].settings["uid"]] for role in roles} == roles
    assert settings["padding"] == [1, 1]
    assert settings["stride"] == [2, 2]
    assert settings["dilation"] == [1, 1]
    assert settings["compute_data_type"] == "FLOAT"


def as_cudnn_reads(array, tensor):
    """The values of a flat array in the dims and strides of a tensor."""
    strides = [array.itemsize * stride for stride in tensor.settings["stride"]]
    return np.lib.stride_tricks.as_strided(array, tensor.settings["dim"], strides)


@pytest.mark.parametrize("kind", [w.ConvFprop, w.ConvDgrad, w.ConvWgrad])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("k", "c"), [(4, 7), (1, 7), (4, 1)])
def test_a_product_of_columns_multiplies_matrices_of_the_operands(kind, layout, k, c, frontend):
    work = kind(w.product(w.Conv2d(3, c, 5, 6, k, 3, 3, 2, 1, layout, "float16")))
    arrays = [np.random.default_rng(0).integers(-3, 3, operand.size).astype("float16") for operand in work.operands]
    (operation, settings, [result]) = graphs.build_graph(work, {}, 90).operations[0]
    assert (operation, settings["compute_data_type"]) == ("matmul", "FLOAT")
    a, b, c_ = (as_cudnn_reads(arrays[t.settings["uid"] - 1], t) for t in (settings["A"], settings["B"], result))
    expected = [array.copy() for array in arrays]
    REFERENCE[work.name](work, *expected)
    c_[...] = a @ b
    assert all(np.array_equal(array, right) for array, right in zip(arrays, expected, strict=True))


@pytest.mark.parametrize(
    ("conv", "sm"),
    [
        (w.product(replace(CONV, dtype="float32")), 90),  # strict: cuDNN multiplies on Tensor Cores alone
        (replace(CONV, n=1), 90),
        (replace(w.product(CONV), n=2), 90),
        (w.product(replace(CONV, c=3)), 75),  # 27 values of the filter
        (w.product(replace(CONV, k=12)), 75),
        (w.product(replace(CONV, n=1)), 75),  # 7 x 5 pixels
    ],
    ids=["strict", "3x3", "several images", "channels", "filters", "pixels"],
)
def test_every_other_convolution_is_one_to_cudnn(conv, sm, frontend):
    for kind in (w.ConvFprop, w.ConvDgrad, w.ConvWgrad):
        assert [operation for operation, _, _ in graphs.build_graph(kind(conv), {}, sm).operations] == [kind.name]


def test_products_of_multiples_of_8_are_products_on_the_first_tensor_cores_too(frontend):
    conv = w.product(replace(CONV, n=8))
    assert [operation for operation, _, _ in graphs.build_graph(w.ConvFprop(conv), {}, 70).operations] == ["matmul"]


def test_statistics_are_taken_of_the_convolutions_result(frontend):
    (_, _, [y]), (operation, settings, _) = graphs.build_graph(w.ConvFpropStats(CONV), {}, 90).operations
    assert operation == "genstats"
    assert settings["input"] is y


def test_from_compute_capability_10_on_statistics_are_added_to_what_is_there():
    work = w.ConvFpropStats(CONV)
    assert [work.operands[index].name for index in graphs.accumulated_operands(work, 100)] == ["sum", "square_sum"]
    assert graphs.accumulated_operands(work, 120) == graphs.accumulated_operands(work, 100)
    assert graphs.accumulated_operands(work, 90) == ()
    assert graphs.accumulated_operands(w.ConvFprop(CONV), 100) == ()


@pytest.mark.parametrize("kind", [w.ConvFprop, w.ConvDgrad, w.ConvWgrad])
def test_strict_single_precision_keeps_away_from_tensor_cores_and_16_bits_from_sums_of_their_own(kind):
    strict, tf32 = (kind(replace(CONV, dtype="float32", math=math)) for math in ("strict", "tf32"))
    assert graphs.deselected_notes(strict) == ("TENSOR_CORE", "DOWN_CONVERT_INPUTS")
    assert graphs.deselected_notes(tf32) == ()
    halves = [kind(replace(CONV, math=math)) for math in ("strict", "tf32")]
    assert {graphs.deselected_notes(half) for half in halves} == {("REDUCED_PRECISION_REDUCTION",)}


def test_a_kernels_work_has_no_graph(frontend):
    with pytest.raises(TypeError, match="relu is not done by a cuDNN graph"):
        graphs.build_graph(w.Relu(8, "float16"), {}, 90)


def test_no_two_kinds_or_variants_share_a_key():
    assert all(a.key != b.key for a, b in itertools.combinations(CONVS + NORMS, 2))
