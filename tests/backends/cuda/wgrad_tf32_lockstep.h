// Owns what wgrad_tf32.cu needs to run as plain C++ beside the instructions.
#define LATE_COPIES 0
#define ELEMENT float
#include "hopper_lockstep.h"
#define __shfl_sync(lanes, value, lane) (value)
