// Owns a stand-in for a GPU's threads, for kernels as plain C++.
//
// Each thread of a block is a fiber; all run in turn from one meeting to the next. Kernels whose
// threads all come to the same meetings run as they would on a GPU.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <algorithm>
#include <functional>
#include <vector>
#include <ucontext.h>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define PDL_BEGIN
#define pdl_wait()
#define pdl_launch_next()
using std::min;
struct float4 { float x, y, z, w; };
struct Index { int x, y, z; };
static Index blockIdx, threadIdx, gridDim;
float4 shared[1 << 14];
template <typename T, int N> struct alignas(sizeof(T) * N) Vector { T element[N]; };

static ucontext_t scheduler;
static std::vector<ucontext_t> fibers;
static std::vector<bool> done;
static std::function<void()> body;
static int running;

static void meet() { swapcontext(&fibers[running], &scheduler); }
#define __syncthreads meet

static void begin() {
    body();
    done[running] = true;
}

static void run_blocks(Index grid, Index block, std::function<void()> kernel) {
    int threads = block.x * block.y;
    std::vector<char> stacks(threads * size_t(1 << 16));
    body = kernel, gridDim = grid;
    for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
                fibers.assign(threads, {});
                done.assign(threads, false);
                memset(shared, 0xff, sizeof shared);
                for (int i = 0; i < threads; ++i) {
                    getcontext(&fibers[i]);
                    fibers[i].uc_stack.ss_sp = &stacks[i * size_t(1 << 16)];
                    fibers[i].uc_stack.ss_size = 1 << 16;
                    fibers[i].uc_link = &scheduler;
                    makecontext(&fibers[i], begin, 0);
                }
                for (bool any = true; any;) {
                    any = false;
                    for (running = 0; running < threads; ++running) {
                        if (done[running]) continue;
                        threadIdx = {running % block.x, running / block.x, 0};
                        swapcontext(&scheduler, &fibers[running]);
                        any = true;
                    }
                }
            }
}
