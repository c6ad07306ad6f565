// The instructions of Hopper GPUs, each once: products of tiles by four warps together, copies
// that barriers in shared memory count, registers that some warps leave to others.
//
// Barriers and matrices are told of by where they lie in shared memory, in 32 bits.

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return __cvta_generic_to_shared(pointer);
}

// -- products

typedef uint64_t MatrixDescriptor;

// What wgmma is told of a matrix in shared memory, which lies as vectors of 16 bytes: the first
// vector, and vectors from one plane to the next and from 8 neighbours to the next 8.
__device__ __forceinline__ MatrixDescriptor matrix_descriptor(const void* first, int plane,
                                                              int eights = 8) {
    return shared_address(first) >> 4 | (uint64_t)plane << 16 | (uint64_t)eights << 32;
}

// The same of a matrix in rows of 8, 4 or 2 vectors, as `Box` has them copied when it permutes them.
__device__ __forceinline__ MatrixDescriptor rows_descriptor(const void* first, int vectors,
                                                            int blocks = 1) {
    uint64_t kind = vectors == 8 ? 1 : vectors == 4 ? 2 : 3;
    return matrix_descriptor(first, blocks, vectors * 8) | kind << 62;
}

// The same of 16-bit elements, for an instruction that sums over the rows. blocks: vectors from one such matrix to the next,
// which has the columns after these.
__device__ __forceinline__ MatrixDescriptor transposed_rows_descriptor(const void* first, int vectors,
                                                                   int blocks) {
    return rows_descriptor(first, vectors, blocks);
}

__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Wait until no more than that many of what was begun have not ended.
template <int LEFT> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// The compiler moves nothing about the sums past this: instructions may be at work on them.
template <int TILES, int SUMS> __device__ __forceinline__ void pin(float (&sum)[TILES][SUMS]) {
#pragma unroll
    for (int i = 0; i < TILES * SUMS; ++i)
        asm volatile("" : "+f"(sum[i / SUMS][i % SUMS])::"memory");
}

template <int TILES, int SUMS>
__device__ __forceinline__ void wgmma_fence(float (&sum)[TILES][SUMS]) {
    pin(sum);
    wgmma_fence();
}

template <int LEFT, int TILES, int SUMS>
__device__ __forceinline__ void wgmma_wait(float (&sum)[TILES][SUMS]) {
    wgmma_wait<LEFT>();
    pin(sum);
}

// -- barriers: a phase is over when that many arrivals, and all bytes that they announce, have come

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrive, and announce that many bytes.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(bytes) : "memory");
}

// Until the phase of this parity is over: before the first, that of parity 1 is.
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, int parity) {
    uint32_t over;
    do {
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                     "selp.u32 %0, 1, 0, p;}"
                     : "=r"(over) : "r"(barrier), "r"(parity) : "memory");
    } while (!over);
}

// The same, by a loop that the compiler does not see. It decides how far those around it are unrolled
// and how registers are shared: a kernel keeps the one that it was measured with.
__device__ __forceinline__ void mbarrier_wait_opaque(uint32_t barrier, int parity) {
    asm volatile("{.reg .pred over;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
                 "@!over bra again;}" ::"r"(barrier), "r"(parity) : "memory");
}

// This many threads meet, all that come here; no others take part, as they do in __syncthreads.
template <int THREADS> __device__ __forceinline__ void sync_consumers() {
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}

// -- copies

// What threads wrote to shared memory, copies and products may read.
__device__ __forceinline__ void fence_proxy_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Copies may arrive at the barriers that this thread has begun.
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// 16 bytes to shared memory, or zeros.
__device__ __forceinline__ void cp_async_16_bytes(uint4* to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(there ? 16 : 0) : "memory");
}

// Until what this thread has begun to copy so is there.
__device__ __forceinline__ void cp_async_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// What runtime/driver.py makes, of an array.
struct alignas(64) TensorMap { uint64_t words[16]; };

// A box of an array, at these indices, to shared memory; zeros from outside the array.
__device__ __forceinline__ void tma_load(void* to, const TensorMap& map, int i, int j, int k, int l,
                                          int m, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared_address(to)), "l"(&map),
                 "r"(barrier), "r"(i), "r"(j), "r"(k), "r"(l), "r"(m) : "memory");
}

// A run of pixels of images with zeros around, from this one on, to shared memory: rows of channels.
__device__ __forceinline__ void tma_load_pixels(void* to, const TensorMap& map, int channel, int column,
                                                int row, int image, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %7};" ::"r"(shared_address(to)),
                 "l"(&map), "r"(barrier), "r"(channel), "r"(column), "r"(row), "r"(image),
                 "h"((uint16_t)0) : "memory");
}

// -- registers of a thread from here on; to be called by all of four warps

template <int COUNT> __device__ __forceinline__ void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT> __device__ __forceinline__ void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
