// The conversion between float32 and the 16-bit floats. Compiled for T, one of these.

extern "C" __global__ void narrow(const float* x, T* bits, int64_t count) {
    int64_t stride = gridDim.x * (int64_t)blockDim.x;
#pragma unroll 4
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += stride)
        bits[i] = from_sum(x[i]);
}

extern "C" __global__ void widen(float* x, const T* bits, int64_t count) {
    int64_t stride = gridDim.x * (int64_t)blockDim.x;
#pragma unroll 4
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += stride)
        x[i] = to_sum(bits[i]);
}
