"""Descriptions of GPUs that are not here, from NVIDIA's documents: one of each architecture.

Limits are those of the CUDA programming guide's table of compute capabilities; multiprocessors,
clocks and memory those of the data sheets and architecture white papers (T4, A100 80GB, RTX 3090,
RTX 4090, H200, B200, RTX 5090).
"""

from __future__ import annotations

import json

from osucaffe.backends.cuda.runtime.device import Device

KIB = 1 << 10


def _device(
    name: str,
    capability: int,
    sms: int,
    shared: tuple[int, int],
    threads_blocks: tuple[int, int],
    ghz: float,
    gib: int,
) -> Device:
    """shared: KiB of a block and of a multiprocessor."""
    block, whole = (each * KIB for each in shared)
    threads, blocks = threads_blocks
    return Device(
        0, name, capability, sms, block, whole, 65536, threads, blocks, ghz * 1e9, gib << 30
    )  # fmt: skip


DEVICES = {
    "T4": _device("Tesla T4", 75, 40, (64, 64), (1024, 16), 1.59, 16),
    "A100": _device("NVIDIA A100", 80, 108, (163, 164), (2048, 32), 1.41, 80),
    "RTX 3090": _device("NVIDIA RTX 3090", 86, 82, (99, 100), (1536, 16), 1.695, 24),
    "RTX 4090": _device("NVIDIA RTX 4090", 89, 128, (99, 100), (1536, 24), 2.52, 24),
    "H200": _device("NVIDIA H200", 90, 132, (227, 228), (2048, 32), 1.98, 141),
    "B200": _device("NVIDIA B200", 100, 148, (227, 228), (2048, 32), 1.965, 180),
    "RTX 5090": _device("NVIDIA RTX 5090", 120, 170, (99, 100), (1536, 24), 2.407, 32),
}
H200 = DEVICES["H200"]
BUS_WIDTHS = {75: 426, 80: 2718, 86: 1248, 89: 1344, 90: 6556, 100: 10666, 120: 2389}
"""Bits of the memory's bus at 3 GHz that give its data sheet's rate, by architecture."""


def as_cudnn_says(device: Device) -> str:
    """The properties of a device as cuDNN writes them."""
    return json.dumps({
        "maxGridSize": [2**31 - 1, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
        "regsPerBlock": 65536, "multiProcessorCount": device.sm_count, "smCountOrigin": 0,
        "warpSize": 32, "maxSharedMemoryPerBlock": 48 * KIB,
        "maxSharedMemoryPerBlockOptin": device.shared_memory, "reservedSharedMemoryPerBlock": 1024,
        "oversizedSharedMemoryPerBlock": 0, "maxRegistersPerSM": device.registers_per_sm,
        "maxCtasPerSM": device.blocks_per_sm, "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": device.threads_per_sm, "pciDeviceId": 0, "isTccDriver": 0,
        "supportCoopLaunch": 1, "totalGlobalMem": device.total_memory,
        "smClockRateKHz": int(device.clock / 1e3), "memClockRateKHz": 3000000,
        "memoryBusWidth": BUS_WIDTHS[device.compute_capability], "l2CacheSize": 50 << 20,
        "cudaDeviceId": 0, "deviceVer": device.compute_capability * 10, "driverVer": 13000,
        "deviceName": device.name,
    })  # fmt: skip
