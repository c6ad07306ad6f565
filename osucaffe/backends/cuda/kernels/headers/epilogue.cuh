// What kernels do to a value before they store it; all kernels can use it, as common.cuh.

// A ReLU that keeps this slope of what is not positive (1: no ReLU).
__device__ __forceinline__ float relu(float x, float slope) { return x > 0 ? x : slope * x; }

// The gradient of what a ReLU read, from that of its output y: nothing where y is not positive.
__device__ __forceinline__ float relu_backward(float gradient, float y) {
    return !(y > 0) ? 0.0f : gradient;
}
