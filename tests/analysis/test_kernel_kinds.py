"""`tcbench.analysis.kernel_kinds`: what a kernel does, told from its name."""

import pytest

from tcbench.analysis.kernel_kinds import kernel_kind, matrix_precision

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
    "smallGatherKernel": "embedding",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "communication",
    "triton_red_fused_add_native_layer_norm_3": "normalisation",
    "triton_poi_fused_convolution_relu_2": "elementwise",
    "_ZN2ck6device26kernel_grouped_conv_fwd_xdlINS_18BlockwiseTransposeEEEvPT_": "convolution",
    "void my_kernel<float>(matmul::Params, transpose::Options)": "other",
}


@pytest.mark.parametrize("name", KINDS)
def test_the_kind_follows_from_the_words_of_the_name_and_not_of_its_parameters(name):
    assert kernel_kind(name) == KINDS[name]


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("volta_sgemm_128x64_nn", "fp32"),
        ("cudnn_infer_volta_scudnn_winograd_128x128_relu_tile148t_nt_v1", "fp32"),
        ("void wgrad_alg0_engine<float, 128, 6, 7>(int)", "fp32"),
        ("volta_fp16_sgemm_fp16_128x64_nn", None),
        ("Cijk_Ailk_Bljk_SB_MT64x64x16_MI32x32x2", "fp32"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1>(Params)", "tf32"),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw", "tf32"),
        ("cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1", None),
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8", None),
        ("volta_fp16_s884gemm_fp16_64x128", None),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x256x32", None),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", None),
    ],
)
def test_the_precision_of_a_matrix_kernel_follows_from_its_name(name, precision):
    assert matrix_precision(name) == precision
