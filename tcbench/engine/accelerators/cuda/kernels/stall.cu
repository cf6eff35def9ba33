// Occupies the stream for a time in nanoseconds. Source: PTX ISA, "Special Registers: %globaltimer".

#include "common.cuh"

__device__ unsigned long long now_ns() {
    unsigned long long ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

extern "C" __global__ void stall(long long ns) {
    const unsigned long long end = now_ns() + static_cast<unsigned long long>(ns);
    while (now_ns() < end) {
    }
}
