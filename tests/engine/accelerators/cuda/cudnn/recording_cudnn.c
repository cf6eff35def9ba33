/* A cuDNN that computes nothing: it writes down every descriptor's settings and every call's arguments, by name.

   Compiled against NVIDIA's header (-DWITH_CUDNN_HEADER) a wrong order or type of parameters does not compile, and the
   numbers below are compared with the header's. Without it, the few types are declared here. */

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef WITH_CUDNN_HEADER
#include "cudnn_ops.h"
_Static_assert(CUDNN_DATA_FLOAT == 0 && CUDNN_DATA_HALF == 2 && CUDNN_DATA_BFLOAT16 == 9, "data types");
_Static_assert(CUDNN_TENSOR_NCHW == 0 && CUDNN_TENSOR_NHWC == 1, "formats");
_Static_assert(CUDNN_BATCHNORM_SPATIAL == 1 && CUDNN_BATCHNORM_SPATIAL_PERSISTENT == 2, "modes");
_Static_assert(CUDNN_BATCHNORM_OPS_BN == 0 && CUDNN_BATCHNORM_OPS_BN_ACTIVATION == 1 &&
                   CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION == 2, "operations");
_Static_assert(CUDNN_ACTIVATION_RELU == 1 && CUDNN_PROPAGATE_NAN == 1, "activation");
_Static_assert(CUDNN_STATUS_SUCCESS == 0, "success");
#else
typedef int cudnnStatus_t, cudnnTensorFormat_t, cudnnDataType_t, cudnnActivationMode_t, cudnnNanPropagation_t,
    cudnnBatchNormMode_t, cudnnBatchNormOps_t;
typedef struct cudnnContext *cudnnHandle_t;
typedef struct cudnnTensorStruct *cudnnTensorDescriptor_t;
typedef struct cudnnActivationStruct *cudnnActivationDescriptor_t;
typedef struct CUstream_st *cudaStream_t;
#endif

struct cudnnTensorStruct { int format, type, n, c, h, w; };
struct cudnnActivationStruct { int mode, nan; double coefficient; };

static char record[1 << 16];
static size_t used;
static int alive;
static int next_status;
/* Above 2^32, as are handles and addresses on a GPU: what goes through a C int is seen. */
static const size_t a_handle = 0x7f0123456780;  /* HANDLE in test_calls.py */
static size_t workspace_size = 0x300000100, reserve_size = 512;

static void note(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    used += (size_t)vsnprintf(record + used, sizeof record - used, format, arguments);
    va_end(arguments);
}

/* -- what the tests ask ----------------------------------------------------------------------------------------- */

const char *recorded(void) { return record; }
void forget(void) { used = 0; record[0] = 0; }
int descriptors_alive(void) { return alive; }
void fail_next(int status) { next_status = status; }
void set_sizes(size_t workspace, size_t reserve) { workspace_size = workspace; reserve_size = reserve; }

/* -- writing down ----------------------------------------------------------------------------------------------- */

static cudnnStatus_t end(void) {
    int status = next_status;
    next_status = 0;
    note("\n");
    return (cudnnStatus_t)status;
}

static void at(const char *name, const void *address) { note(" %s=%lld", name, (long long)(size_t)address); }
static void number(const char *name, long long value) { note(" %s=%lld", name, value); }
static void real(const char *name, double value) { note(" %s=%.17g", name, value); }
static void scale(const char *name, const void *value) { note(" %s=%g", name, *(const float *)value); }

static void tensor(const char *name, cudnnTensorDescriptor_t t) {
    if (!t) {
        note(" %s=none", name);
        return;
    }
    const char *type = t->type == 2 ? "half" : t->type == 9 ? "bfloat16" : t->type == 0 ? "float" : "other";
    note(" %s=%s:%s:%dx%dx%dx%d", name, type,
         t->format == 1 ? "NHWC" : t->format == 0 ? "NCHW" : "other", t->n, t->c, t->h, t->w);
}

static void activation(cudnnActivationDescriptor_t a) {
    if (!a)
        note(" activation=none");
    else
        note(" activation=%d:%d:%g", a->mode, a->nan, a->coefficient);
}

/* -- cuDNN ------------------------------------------------------------------------------------------------------ */

size_t cudnnGetVersion(void) { return 92800; }
const char *cudnnGetErrorString(cudnnStatus_t status) { return status ? "CUDNN_STATUS_MADE_UP" : "CUDNN_STATUS_SUCCESS"; }
void cudnnGetLastErrorString(char *message, size_t size) { snprintf(message, size, "as the test\nwished"); }

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    *handle = (cudnnHandle_t)a_handle;
    note("cudnnCreate");
    return end();
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    note("cudnnDestroy");
    at("handle", handle);
    return end();
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    note("cudnnSetStream");
    at("handle", handle);
    at("stream", stream);
    return end();
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *descriptor) {
    *descriptor = calloc(1, sizeof **descriptor);
    alive++;
    return (cudnnStatus_t)0;
}

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t descriptor) {
    free(descriptor);
    alive--;
    return (cudnnStatus_t)0;
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t descriptor, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
    *descriptor = (struct cudnnTensorStruct){(int)format, (int)type, n, c, h, w};
    return (cudnnStatus_t)0;
}

cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t *descriptor) {
    *descriptor = calloc(1, sizeof **descriptor);
    alive++;
    return (cudnnStatus_t)0;
}

cudnnStatus_t cudnnDestroyActivationDescriptor(cudnnActivationDescriptor_t descriptor) {
    free(descriptor);
    alive--;
    return (cudnnStatus_t)0;
}

cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t descriptor, cudnnActivationMode_t mode,
                                           cudnnNanPropagation_t nan, double coefficient) {
    *descriptor = (struct cudnnActivationStruct){(int)mode, (int)nan, coefficient};
    return (cudnnStatus_t)0;
}

cudnnStatus_t cudnnBatchNormalizationForwardTraining(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void *alpha, const void *beta,
    const cudnnTensorDescriptor_t xDesc, const void *x, const cudnnTensorDescriptor_t yDesc, void *y,
    const cudnnTensorDescriptor_t bnScaleBiasMeanVarDesc, const void *bnScale, const void *bnBias,
    double exponentialAverageFactor, void *resultRunningMean, void *resultRunningVariance, double epsilon,
    void *resultSaveMean, void *resultSaveInvVariance) {
    note("cudnnBatchNormalizationForwardTraining");
    at("handle", handle);
    number("mode", mode);
    scale("alpha", alpha);
    scale("beta", beta);
    tensor("xDesc", xDesc);
    at("x", x);
    tensor("yDesc", yDesc);
    at("y", y);
    tensor("bnScaleBiasMeanVarDesc", bnScaleBiasMeanVarDesc);
    at("bnScale", bnScale);
    at("bnBias", bnBias);
    real("exponentialAverageFactor", exponentialAverageFactor);
    at("resultRunningMean", resultRunningMean);
    at("resultRunningVariance", resultRunningVariance);
    real("epsilon", epsilon);
    at("resultSaveMean", resultSaveMean);
    at("resultSaveInvVariance", resultSaveInvVariance);
    return end();
}

cudnnStatus_t cudnnBatchNormalizationForwardTrainingEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t bnOps, const void *alpha, const void *beta,
    const cudnnTensorDescriptor_t xDesc, const void *xData, const cudnnTensorDescriptor_t zDesc, const void *zData,
    const cudnnTensorDescriptor_t yDesc, void *yData, const cudnnTensorDescriptor_t bnScaleBiasMeanVarDesc,
    const void *bnScale, const void *bnBias, double exponentialAverageFactor, void *resultRunningMean,
    void *resultRunningVariance, double epsilon, void *resultSaveMean, void *resultSaveInvVariance,
    cudnnActivationDescriptor_t activationDesc, void *workspace, size_t workSpaceSizeInBytes, void *reserveSpace,
    size_t reserveSpaceSizeInBytes) {
    note("cudnnBatchNormalizationForwardTrainingEx");
    at("handle", handle);
    number("mode", mode);
    number("bnOps", bnOps);
    scale("alpha", alpha);
    scale("beta", beta);
    tensor("xDesc", xDesc);
    at("xData", xData);
    tensor("zDesc", zDesc);
    at("zData", zData);
    tensor("yDesc", yDesc);
    at("yData", yData);
    tensor("bnScaleBiasMeanVarDesc", bnScaleBiasMeanVarDesc);
    at("bnScale", bnScale);
    at("bnBias", bnBias);
    real("exponentialAverageFactor", exponentialAverageFactor);
    at("resultRunningMean", resultRunningMean);
    at("resultRunningVariance", resultRunningVariance);
    real("epsilon", epsilon);
    at("resultSaveMean", resultSaveMean);
    at("resultSaveInvVariance", resultSaveInvVariance);
    activation(activationDesc);
    at("workspace", workspace);
    number("workSpaceSizeInBytes", (long long)workSpaceSizeInBytes);
    at("reserveSpace", reserveSpace);
    number("reserveSpaceSizeInBytes", (long long)reserveSpaceSizeInBytes);
    return end();
}

cudnnStatus_t cudnnBatchNormalizationBackward(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void *alphaDataDiff, const void *betaDataDiff,
    const void *alphaParamDiff, const void *betaParamDiff, const cudnnTensorDescriptor_t xDesc, const void *x,
    const cudnnTensorDescriptor_t dyDesc, const void *dy, const cudnnTensorDescriptor_t dxDesc, void *dx,
    const cudnnTensorDescriptor_t dBnScaleBiasDesc, const void *bnScale, void *dBnScaleResult, void *dBnBiasResult,
    double epsilon, const void *savedMean, const void *savedInvVariance) {
    note("cudnnBatchNormalizationBackward");
    at("handle", handle);
    number("mode", mode);
    scale("alphaDataDiff", alphaDataDiff);
    scale("betaDataDiff", betaDataDiff);
    scale("alphaParamDiff", alphaParamDiff);
    scale("betaParamDiff", betaParamDiff);
    tensor("xDesc", xDesc);
    at("x", x);
    tensor("dyDesc", dyDesc);
    at("dy", dy);
    tensor("dxDesc", dxDesc);
    at("dx", dx);
    tensor("dBnScaleBiasDesc", dBnScaleBiasDesc);
    at("bnScale", bnScale);
    at("dBnScaleResult", dBnScaleResult);
    at("dBnBiasResult", dBnBiasResult);
    real("epsilon", epsilon);
    at("savedMean", savedMean);
    at("savedInvVariance", savedInvVariance);
    return end();
}

cudnnStatus_t cudnnBatchNormalizationBackwardEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t bnOps, const void *alphaDataDiff,
    const void *betaDataDiff, const void *alphaParamDiff, const void *betaParamDiff,
    const cudnnTensorDescriptor_t xDesc, const void *xData, const cudnnTensorDescriptor_t yDesc, const void *yData,
    const cudnnTensorDescriptor_t dyDesc, const void *dyData, const cudnnTensorDescriptor_t dzDesc, void *dzData,
    const cudnnTensorDescriptor_t dxDesc, void *dxData, const cudnnTensorDescriptor_t dBnScaleBiasDesc,
    const void *bnScaleData, const void *bnBiasData, void *dBnScaleData, void *dBnBiasData, double epsilon,
    const void *savedMean, const void *savedInvVariance, cudnnActivationDescriptor_t activationDesc, void *workSpace,
    size_t workSpaceSizeInBytes, void *reserveSpace, size_t reserveSpaceSizeInBytes) {
    note("cudnnBatchNormalizationBackwardEx");
    at("handle", handle);
    number("mode", mode);
    number("bnOps", bnOps);
    scale("alphaDataDiff", alphaDataDiff);
    scale("betaDataDiff", betaDataDiff);
    scale("alphaParamDiff", alphaParamDiff);
    scale("betaParamDiff", betaParamDiff);
    tensor("xDesc", xDesc);
    at("xData", xData);
    tensor("yDesc", yDesc);
    at("yData", yData);
    tensor("dyDesc", dyDesc);
    at("dyData", dyData);
    tensor("dzDesc", dzDesc);
    at("dzData", dzData);
    tensor("dxDesc", dxDesc);
    at("dxData", dxData);
    tensor("dBnScaleBiasDesc", dBnScaleBiasDesc);
    at("bnScaleData", bnScaleData);
    at("bnBiasData", bnBiasData);
    at("dBnScaleData", dBnScaleData);
    at("dBnBiasData", dBnBiasData);
    real("epsilon", epsilon);
    at("savedMean", savedMean);
    at("savedInvVariance", savedInvVariance);
    activation(activationDesc);
    at("workspace", workSpace);
    number("workSpaceSizeInBytes", (long long)workSpaceSizeInBytes);
    at("reserveSpace", reserveSpace);
    number("reserveSpaceSizeInBytes", (long long)reserveSpaceSizeInBytes);
    return end();
}

cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t bnOps, const cudnnTensorDescriptor_t xDesc,
    const cudnnTensorDescriptor_t zDesc, const cudnnTensorDescriptor_t yDesc,
    const cudnnTensorDescriptor_t bnScaleBiasMeanVarDesc, const cudnnActivationDescriptor_t activationDesc,
    size_t *sizeInBytes) {
    note("cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize");
    at("handle", handle);
    number("mode", mode);
    number("bnOps", bnOps);
    tensor("xDesc", xDesc);
    tensor("zDesc", zDesc);
    tensor("yDesc", yDesc);
    tensor("bnScaleBiasMeanVarDesc", bnScaleBiasMeanVarDesc);
    activation(activationDesc);
    *sizeInBytes = workspace_size;
    return end();
}

cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t bnOps, const cudnnTensorDescriptor_t xDesc,
    const cudnnTensorDescriptor_t yDesc, const cudnnTensorDescriptor_t dyDesc, const cudnnTensorDescriptor_t dzDesc,
    const cudnnTensorDescriptor_t dxDesc, const cudnnTensorDescriptor_t dBnScaleBiasDesc,
    const cudnnActivationDescriptor_t activationDesc, size_t *sizeInBytes) {
    note("cudnnGetBatchNormalizationBackwardExWorkspaceSize");
    at("handle", handle);
    number("mode", mode);
    number("bnOps", bnOps);
    tensor("xDesc", xDesc);
    tensor("yDesc", yDesc);
    tensor("dyDesc", dyDesc);
    tensor("dzDesc", dzDesc);
    tensor("dxDesc", dxDesc);
    tensor("dBnScaleBiasDesc", dBnScaleBiasDesc);
    activation(activationDesc);
    *sizeInBytes = workspace_size + 1;
    return end();
}

cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t bnOps,
    const cudnnActivationDescriptor_t activationDesc, const cudnnTensorDescriptor_t xDesc, size_t *sizeInBytes) {
    note("cudnnGetBatchNormalizationTrainingExReserveSpaceSize");
    at("handle", handle);
    number("mode", mode);
    number("bnOps", bnOps);
    activation(activationDesc);
    tensor("xDesc", xDesc);
    *sizeInBytes = reserve_size;
    return end();
}
