// Samples of a tensor, by which candidates for computing it are compared.
//
// Compiled for T, the type of an element.

extern "C" __global__ void sample(const T* x, float* to, int64_t count, int samples) {
    PDL_BEGIN;
    FOR_EACH(samples) {
        // All of them if there are few; else some, by a generator of random numbers.
        uint64_t at = count <= samples ? id % count : mix64(id) % (uint64_t)count;
        to[id] = to_float(x[at]);
    }
}
