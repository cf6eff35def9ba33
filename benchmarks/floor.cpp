// A training step of ResNet-50 as its primitives alone: what floor.py holds ours against.
//
//   floor BATCH PIXELS f32|bf16 nhwc|nchw|blocked
//
// Makes one step for each line on standard input, and answers with a line of JSON: seconds by phase and kind of primitive.
// In it: convolutions (the filters stay in the layout that oneDNN prefers), batch normalisations with ReLU, additions, and
// a plain loop for the weights, on OpenMP's threads. Not in it: loss, pooling, the last layer, input, reorders of filters.
// Each primitive has arrays of its own. OpenMP's threads wait for each other at barriers, so only a quiet machine shows
// the floor.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "oneapi/dnnl/dnnl.hpp"

using dnnl::memory;
using dnnl::normalization_flags;
using Tag = memory::format_tag;
using Dtype = memory::data_type;
using Arguments = std::unordered_map<int, memory>;

constexpr long n_parameters = 25557032;
constexpr float learning_rate = 0.01f, momentum = 0.9f, weight_decay = 1e-4f, epsilon = 2e-5f;

struct Launch {
    std::string kind;
    std::function<void()> run;
};

class Step {
  public:
    Step(int batch, int pixels, Dtype dtype, Tag layout) : batch_(batch), dtype_(dtype), layout_(layout) {
        int side = stem(pixels), channels = 64;
        const struct { int blocks, width; } groups[] = {{3, 64}, {4, 128}, {6, 256}, {3, 512}};
        for (const auto& group : groups)
            for (int block = 0; block < group.blocks; block++) {
                // The stride is in the first convolution, as in the paper.
                const int stride = block == 0 && group.width > 64 ? 2 : 1;
                bottleneck(channels, side, group.width, stride, block == 0);
                side = (side - 1) / stride + 1;
                channels = 4 * group.width;
            }
        phases_["update"].push_back({"sgd", [this] { update(); }});
    }

    // Seconds of a phase of the step by kind.
    std::map<std::string, double> run(const std::string& phase) {
        std::map<std::string, double> seconds;
        for (const Launch& launch : phases_[phase]) {
            const auto start = std::chrono::steady_clock::now();
            launch.run();
            stream_.wait();
            const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
            seconds[launch.kind] += taken.count();
        }
        return seconds;
    }

  private:
    // Returns the side of the images after the pooling, which is left out.
    int stem(int pixels) {
        const Tag layout = layout_;
        if (layout == Tag::nChw16c) layout_ = Tag::nhwc;  // there are no blocks of three channels
        convolution(3, pixels, 64, 7, 2, /* has_dgrad */ false);
        layout_ = layout;
        const int side = (pixels - 1) / 2 + 1;
        normalisation(64, side, /* relu */ true);
        return (side - 1) / 2 + 1;
    }

    void bottleneck(int channels, int side, int width, int stride, bool projects) {
        const int out = (side - 1) / stride + 1;
        convolution(channels, side, width, 1, stride);
        normalisation(width, out, true);
        convolution(width, out, width, 3, 1);
        normalisation(width, out, true);
        convolution(width, out, 4 * width, 1, 1);
        normalisation(4 * width, out, false);
        if (projects) {
            convolution(channels, side, 4 * width, 1, stride);
            normalisation(4 * width, out, false);
        }
        addition(4 * width, out);
    }

    void convolution(int c, int side, int k, int window, int stride, bool has_dgrad = true) {
        const int pad = window / 2, out = (side + 2 * pad - window) / stride + 1;
        const memory::dims strides{stride, stride}, pads{pad, pad}, filters{k, c, window, window};
        const memory::desc x({batch_, c, side, side}, dtype_, layout_), y({batch_, k, out, out}, dtype_, layout_);
        const memory::desc w(filters, dtype_, Tag::any), gw(filters, Dtype::f32, Tag::any);
        const auto direct = dnnl::algorithm::convolution_direct;
        const dnnl::convolution_forward::primitive_desc fprop(
            engine_, dnnl::prop_kind::forward_training, direct, x, w, y, strides, pads, pads);
        const memory input = array(fprop.src_desc());
        add("forward", "conv", dnnl::convolution_forward(fprop),
            {{DNNL_ARG_SRC, input}, {DNNL_ARG_WEIGHTS, array(fprop.weights_desc())}, {DNNL_ARG_DST, array(fprop.dst_desc())}});
        const dnnl::convolution_backward_weights::primitive_desc wgrad(
            engine_, direct, x, gw, y, strides, pads, pads, fprop);
        add("backward", "wgrad", dnnl::convolution_backward_weights(wgrad),
            {{DNNL_ARG_SRC, input},
             {DNNL_ARG_DIFF_WEIGHTS, array(wgrad.diff_weights_desc())},
             {DNNL_ARG_DIFF_DST, array(wgrad.diff_dst_desc())}});
        if (!has_dgrad) return;
        const dnnl::convolution_backward_data::primitive_desc dgrad(engine_, direct, x, w, y, strides, pads, pads, fprop);
        add("backward", "dgrad", dnnl::convolution_backward_data(dgrad),
            {{DNNL_ARG_DIFF_SRC, array(dgrad.diff_src_desc())},
             {DNNL_ARG_WEIGHTS, array(dgrad.weights_desc())},
             {DNNL_ARG_DIFF_DST, array(dgrad.diff_dst_desc())}});
    }

    void normalisation(int c, int side, bool relu) {
        auto flags = normalization_flags::use_scale | normalization_flags::use_shift;
        if (relu) flags = flags | normalization_flags::fuse_norm_relu;
        const memory::desc x({batch_, c, side, side}, dtype_, layout_), vector({c}, Dtype::f32, Tag::a);
        const dnnl::batch_normalization_forward::primitive_desc forward(
            engine_, dnnl::prop_kind::forward_training, x, x, epsilon, flags);
        const dnnl::batch_normalization_backward::primitive_desc backward(
            engine_, dnnl::prop_kind::backward, x, x, x, epsilon, flags, forward);
        Arguments both{{DNNL_ARG_SRC, array(x)},
                       {DNNL_ARG_MEAN, array(forward.mean_desc())},
                       {DNNL_ARG_VARIANCE, array(forward.variance_desc())},
                       {DNNL_ARG_SCALE, array(vector)}};
        if (relu) both[DNNL_ARG_WORKSPACE] = array(forward.workspace_desc());
        Arguments of_forward = both, of_backward = both;
        of_forward[DNNL_ARG_DST] = array(x);
        of_forward[DNNL_ARG_SHIFT] = array(vector);
        of_backward[DNNL_ARG_DIFF_DST] = array(x);
        of_backward[DNNL_ARG_DIFF_SRC] = array(x);
        of_backward[DNNL_ARG_DIFF_SCALE] = array(vector);
        of_backward[DNNL_ARG_DIFF_SHIFT] = array(vector);
        add("forward", "batch norm", dnnl::batch_normalization_forward(forward), of_forward);
        add("backward", "batch norm", dnnl::batch_normalization_backward(backward), of_backward);
    }

    // The residual's, with ReLU after it; backward ReLU's gradient, and the sum of the gradients of both branches.
    void addition(int c, int side) {
        const memory::desc x({batch_, c, side, side}, dtype_, layout_);
        const auto relu = dnnl::algorithm::eltwise_relu;
        dnnl::post_ops then;
        then.append_eltwise(relu, 0.f, 0.f);
        dnnl::primitive_attr with_relu;
        with_relu.set_post_ops(then);
        const auto sum = [&](const dnnl::primitive_attr& attributes) {
            return dnnl::binary({engine_, dnnl::algorithm::binary_add, x, x, x, attributes});
        };
        const auto three = [&](int a, int b, int c) { return Arguments{{a, array(x)}, {b, array(x)}, {c, array(x)}}; };
        add("forward", "add", sum(with_relu), three(DNNL_ARG_SRC_0, DNNL_ARG_SRC_1, DNNL_ARG_DST));
        const dnnl::eltwise_forward::primitive_desc hint(engine_, dnnl::prop_kind::forward_training, relu, x, x, 0.f);
        add("backward", "relu", dnnl::eltwise_backward({engine_, relu, x, x, x, 0.f, 0.f, hint}),
            three(DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_SRC));
        add("backward", "add", sum({}), three(DNNL_ARG_SRC_0, DNNL_ARG_SRC_1, DNNL_ARG_DST));
    }

    // SGD with momentum and weight decay: every value of weights, momentum and gradient once.
    void update() {
        float *w = weights_.data(), *v = velocity_.data();
        const float* g = gradients_.data();
#pragma omp parallel for simd
        for (long i = 0; i < n_parameters; i++) {
            v[i] = momentum * v[i] - learning_rate * (g[i] + weight_decay * w[i]);
            w[i] += v[i];
        }
    }

    void add(const char* phase, const char* kind, dnnl::primitive primitive, Arguments arguments) {
        phases_[phase].push_back({kind, [=, this] { primitive.execute(stream_, arguments); }});
    }

    // Filled, so that every page is there: numbers of [-0.5, 0.5), zeros in 16 bits.
    memory array(const memory::desc& of) {
        memory made(of, engine_);
        auto* bytes = static_cast<uint8_t*>(made.get_data_handle());
        std::fill_n(bytes, of.get_size(), 0);
        if (of.get_data_type() == Dtype::f32)
            for (size_t i = 0; i < of.get_size() / sizeof(float); i++)
                reinterpret_cast<float*>(bytes)[i] = ((i * 2654435761u) >> 16 & 255) / 256.f - 0.5f;
        return made;
    }

    dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
    mutable dnnl::stream stream_{engine_};
    int batch_;
    Dtype dtype_;
    Tag layout_;
    std::map<std::string, std::vector<Launch>> phases_;
    std::vector<float> weights_ = std::vector<float>(n_parameters), velocity_ = weights_, gradients_ = weights_;
};

int main(int count, char** words) {
    const std::map<std::string, Dtype> dtypes{{"f32", Dtype::f32}, {"bf16", Dtype::bf16}};
    const std::map<std::string, Tag> layouts{{"nhwc", Tag::nhwc}, {"nchw", Tag::nchw}, {"blocked", Tag::nChw16c}};
    if (count != 5 || !dtypes.count(words[3]) || !layouts.count(words[4])) {
        std::fprintf(stderr, "expected: floor BATCH PIXELS f32|bf16 nhwc|nchw|blocked\n");
        return 2;
    }
    Step step(std::atoi(words[1]), std::atoi(words[2]), dtypes.at(words[3]), layouts.at(words[4]));
    for (std::string line; std::getline(std::cin, line);) {
        const char* before = "{";
        for (const char* phase : {"forward", "backward", "update"}) {
            std::printf("%s\"%s\": ", before, phase);
            before = "{";
            for (const auto& [kind, seconds] : step.run(phase)) {
                std::printf("%s\"%s\": %.6f", before, kind.c_str(), seconds);
                before = ", ";
            }
            std::printf("}");
        }
        std::printf("}\n");
        std::fflush(stdout);
    }
}
