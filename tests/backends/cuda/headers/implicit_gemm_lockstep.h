// Owns what implicit_gemm.cu needs to run as plain C++ beside the instructions.
#include "hopper_lockstep.h"

static int values[1024];
inline int __shfl_sync(uint32_t, int value, int lane) {
    values[threadIdx.x] = value;
    meet_warp();
    int result = values[threadIdx.x / 32 * 32 + lane];
    meet_warp();
    return result;
}
