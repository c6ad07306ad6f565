// Owns what wgrad_16bit.cu needs to run as plain C++ beside the instructions.
#define ELEMENT bfloat16
#define TURNED
#include "hopper_lockstep.h"
#define __grid_constant__
#define __align__(bytes)
#define FOR_EACH(count) \
    for (int64_t id = blockIdx.x * blockDim.x + threadIdx.x; id < (count); \
         id += gridDim.x * blockDim.x)
static Index blockDim;
