"""`tcbench.analysis.kernel_kinds`: what a kernel does, told from its name."""

import pytest

from tcbench.analysis.kernel_kinds import kernel_kind

KINDS = {
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_nn_align4>(cutlass::Params)": "matmul",
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized>(Params)": "convolution",
    "volta_scudnn_128x64_relu_interior_nn_v1": "convolution",
    "fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Params)": "attention",
    "void vllm::reshape_and_cache_flash_kernel<float>(float*)": "copy",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(cudnnTensorStruct)": "normalisation",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float> > >()": "reduction",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)": "elementwise",
    "void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda(at::Iter&)>(int)": "copy",
    "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float> >(int)": "optimizer",
    "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, true>(Params)": "transpose",
    "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long>(int)": "embedding",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "communication",
    "triton_red_fused_add_native_layer_norm_3": "normalisation",
    "triton_poi_fused_convolution_relu_2": "elementwise",
    "_ZN2ck6device26kernel_grouped_conv_fwd_xdlINS_18BlockwiseTransposeEEEvPT_": "convolution",
    "void my_kernel<float>(matmul::Params, transpose::Options)": "other",
}


@pytest.mark.parametrize("name", KINDS)
def test_the_kind_follows_from_the_words_of_the_name_and_not_of_its_parameters(name):
    assert kernel_kind(name) == KINDS[name]


@pytest.mark.parametrize("name", ["", "_ZN", "_ZN9999a", "<" * 10_000, "f(" * 10_000, "_ZN" + "9" * 5_000, "a>>>(<)"])
def test_a_damaged_name_is_of_no_known_kind(name):
    assert kernel_kind(name) == "other"
