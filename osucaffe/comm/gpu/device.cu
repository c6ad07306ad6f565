// The sum of two arrays, which may begin anywhere.
//
// Compiled for T (the type of an element) and A (the type in which elements are added).

extern "C" __global__ void add(T* x, const T* y, int64_t count) {
    int64_t stride = gridDim.x * (int64_t)blockDim.x;
#pragma unroll 4
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += stride)
        x[i] = from_sum(to_sum(x[i]) + to_sum(y[i]));
}
