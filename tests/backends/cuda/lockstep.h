// Owns a stand-in for a GPU's threads: the kernels of filter_gradient.cu as plain C++.
//
// Each thread of a block is a fiber; all run in turn from one meeting to the next. Kernels whose
// threads all come to the same meetings, as this one's, run as they would on a GPU.
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
using std::min;
struct float4 { float x, y, z, w; };
struct int2 { int x, y; };
inline int2 make_int2(int x, int y) { return {x, y}; }
struct Index { int x, y, z; };
static Index blockIdx, threadIdx;
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
    body = kernel;
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

// What comes asynchronously comes as late as it may: when it is waited for.
struct Copy { float* to; const float* from; int count; bool real; };
static std::vector<std::vector<Copy>> pending[1024];

static void arrive(int left) {
    auto& stages = pending[threadIdx.x];
    while ((int)stages.size() > left + 1) {
        for (const Copy& each : stages.front())
            for (int i = 0; i < each.count; ++i) each.to[i] = each.real ? each.from[i] : 0.0f;
        stages.erase(stages.begin());
    }
}

template <int BYTES> void copy(float* to, const float* from, bool real) {
    auto& stages = pending[threadIdx.x];
    if (stages.empty()) stages.emplace_back();
    if ((uintptr_t)to % BYTES || (uintptr_t)from % BYTES) abort();
    stages.back().push_back({to, from, BYTES / 4, real});
}
inline void copy_once(float* to, const float* from, bool real) { copy<16>(to, from, real); }
inline void end_stage() {
    auto& stages = pending[threadIdx.x];
    if (stages.empty()) stages.emplace_back();
    stages.emplace_back();
}
template <int COUNT> void wait_stage() { arrive(COUNT); }

inline uint32_t rounded(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static uint32_t operands[1024][6];
inline void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    int lane = threadIdx.x % 32, warp = threadIdx.x - lane, g = lane / 4, t = lane % 4;
    memcpy(operands[threadIdx.x], a, 16);
    memcpy(operands[threadIdx.x] + 4, b, 8);
    meet();
    auto value = [](int thread, int i) {
        float result;
        memcpy(&result, &operands[thread][i], 4);
        return result;
    };
    for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 8; ++k)
            d[i] += value(warp + 4 * g + k % 4, i / 2 + k / 4 * 2) *
                    value(warp + 4 * (2 * t + i % 2) + k % 4, 4 + k / 4);
    meet();
}
