// A stand-in for a GPU's threads, for kernels as plain C++.
//
// Each thread of a block is a fiber; all run in turn, from one place where they wait to the next: for
// their warp, for the block, or for others to go on. Headers are C's: to read <cmath> alone takes
// longer than to compile a kernel.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS  // also <math.h> and <stdlib.h>
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __constant__ static
#ifndef COMMON  // kernels without common.cuh
#define PDL_BEGIN
#define pdl_wait()
#define pdl_launch_next()
template <typename T, int N> struct alignas(sizeof(T) * N) Vector { T element[N]; };
#define FOR_EACH(count) \
    for (int64_t id = blockIdx.x * blockDim.x + threadIdx.x; id < (count); \
         id += gridDim.x * blockDim.x)
#endif
template <typename T> static constexpr T min(T a, T b) { return b < a ? b : a; }
template <typename T> static T max(T a, T b) { return a < b ? b : a; }
struct float4 { float x, y, z, w; };
struct Index { int x, y, z; };
static Index blockIdx, threadIdx, gridDim, blockDim;
alignas(1024) float4 shared[1 << 14];

constexpr size_t STACK = 1 << 16;
static char* stacks;
static jmp_buf scheduler, fibers[1024];
static bool begun[1024], done[1024];
static void (*body)();
static int running;

enum Wait { NOT, WARP, BLOCK };
static Wait waits[1024];

// (noipa: other threads run meanwhile, and change what a compiler takes for unchanged.)
__attribute__((noipa)) static void wait_for(Wait what) {
    waits[running] = what;
    if (!_setjmp(fibers[running])) _longjmp(scheduler, 1);
}
static void meet() { wait_for(NOT); }
static void meet_warp() { wait_for(WARP); }
#define __syncthreads() wait_for(BLOCK)
#define __syncwarp(...) meet_warp()

// What another thread of the warp has left for all.
static int64_t left_behind[1024];

template <typename T> static T exchange(T value, int from) {
    static_assert(sizeof(T) <= 8, "");
    memcpy(&left_behind[running], &value, sizeof value);
    meet_warp();
    T found;
    memcpy(&found, &left_behind[from], sizeof found);
    meet_warp();
    return found;
}

template <typename T> static T __shfl_sync(unsigned, T value, int lane) {
    return exchange(value, (running & ~31) + lane % 32);
}

// Threads first ... last - 1 go on if all that have not ended wait for the same. Whether any does.
static bool release(Wait what, int first, int last) {
    bool any = false;
    for (int i = first; i < last; ++i)
        if (!done[i]) {
            if (waits[i] != what) return false;
            any = true;
        }
    for (int i = first; i < last; ++i) waits[i] = NOT;
    return any;
}

static void begin() {
    body();
    done[running] = true;
    _longjmp(scheduler, 1);
}

// Let the thread `running` go on until it waits or ends. (swapcontext would call the kernel.)
__attribute__((noipa)) static void resume() {
    if (_setjmp(scheduler)) return;
    if (begun[running]) _longjmp(fibers[running], 1);
    begun[running] = true;
    ucontext_t first;
    getcontext(&first);
    first.uc_stack.ss_sp = stacks + running * STACK;
    first.uc_stack.ss_size = STACK;
    first.uc_link = nullptr;
    makecontext(&first, begin, 0);
    setcontext(&first);
}

template <typename Kernel> static void run_blocks(Index grid, Index block, Kernel kernel) {
    static const Kernel* called;
    int threads = block.x * block.y;
    stacks = static_cast<char*>(malloc(threads * STACK));
    called = &kernel, body = [] { (*called)(); }, gridDim = grid, blockDim = block;
    for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
                memset(shared, 0xff, sizeof shared);
                for (int i = 0; i < threads; ++i)
                    begun[i] = done[i] = false, waits[i] = NOT;
                for (bool any = true; any;) {
                    any = false;
                    for (running = 0; running < threads; ++running) {
                        if (done[running] || waits[running]) continue;
                        threadIdx = {running % block.x, running / block.x, 0};
                        resume();
                        any = true;
                    }
                    for (int i = 0; i < threads; i += 32) any |= release(WARP, i, min(i + 32, threads));
                    any |= release(BLOCK, 0, threads);
                }
                for (int i = 0; i < threads; ++i)
                    if (!done[i]) abort();  // they wait for one another
            }
    free(stacks);
}
