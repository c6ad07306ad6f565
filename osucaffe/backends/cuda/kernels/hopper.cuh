// Owns the instructions that kernels for Hopper GPUs share: products of tiles by four warps together.

// To the nearest of what the products read.
__device__ __forceinline__ uint32_t rounded(float x) {
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return __cvta_generic_to_shared(pointer);
}

// What threads wrote to shared memory, copies and products may read.
__device__ __forceinline__ void publish() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void begin_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void end_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Wait until no more than so many of what was begun have not ended.
template <int LEFT> __device__ __forceinline__ void await_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// The compiler moves nothing about the sums past this: instructions may be at work on them.
template <int TILES, int SUMS> __device__ __forceinline__ void pin(float (&sum)[TILES][SUMS]) {
#pragma unroll
    for (int i = 0; i < TILES * SUMS; ++i)
        asm volatile("" : "+f"(sum[i / SUMS][i % SUMS])::"memory");
}

template <int TILES, int SUMS>
__device__ __forceinline__ void begin_products(float (&sum)[TILES][SUMS]) {
    pin(sum);
    begin_products();
}

template <int LEFT, int TILES, int SUMS>
__device__ __forceinline__ void await_products(float (&sum)[TILES][SUMS]) {
    await_products<LEFT>();
    pin(sum);
}
