// Owns what implicit_gemm.cu needs to run as plain C++ beside the instructions: threads of a warp that
// meet.
#include "hopper_lockstep.h"
static Index blockDim;
#define FOR_EACH(count) \
    for (int64_t id = blockIdx.x * blockDim.x + threadIdx.x; id < (count); \
         id += gridDim.x * blockDim.x)

static int arrived[32], meetings[32];
static void meet_warp() {
    int warp = threadIdx.x / 32, before = meetings[warp];
    if (++arrived[warp] == 32) {
        arrived[warp] = 0;
        ++meetings[warp];
    }
    while (meetings[warp] == before) meet();
}
#define __syncwarp meet_warp
static int values[1024];
inline int __shfl_sync(uint32_t, int value, int lane) {
    values[threadIdx.x] = value;
    meet_warp();
    int result = values[threadIdx.x / 32 * 32 + lane];
    meet_warp();
    return result;
}
