"""Communication among GPUs: NCCL, CUDA IPC, copy engines, and the kernels that add."""
