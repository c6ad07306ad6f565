"""What the ranks run that test_gpu.py starts: records divided among GPUs, of which none takes all.

The batches are those of records that are read, with labels, crops and mirrors, over some epochs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.input.upload import DeviceUploads
from osucaffe.comm.gpu.peers import HostRanks
from osucaffe.comm.job.job import find_job
from osucaffe.data.config import DataConfig
from osucaffe.data.resident.sharded import ShardedSlots
from osucaffe.net import Net
from tests.layers.reading.test_cached_records import taken
from tests.layers.reading.test_raw_records import FORMATS, MEAN, read_net

COUNT = 60


def main() -> None:
    """Compare the batches of each rank."""
    job = find_job()
    with job.together():
        import cupy

        gpu = job.rank % cupy.cuda.runtime.getDeviceCount()
        DeviceUploads.free_bytes = lambda self: 270_000  # type: ignore[method-assign]
        neighbours = HostRanks(job)

        def make(source: Path, transform: str, config: DataConfig) -> Net:
            net = read_net(Cuda(gpu), source, transform, data_config=config)
            net.layers[0].split(job.rank, job.size)
            return net

        for shuffle in 0, 16:
            given = FORMATS / "mnist200_lmdb", MEAN + "crop_size: 20 mirror: true"
            spread = make(
                *given, DataConfig(cache="device", shuffle=shuffle, neighbours=neighbours)
            )
            places = spread.layers[0]._cached.slots
            assert isinstance(places, ShardedSlots)
            assert places.parts[0].shape[0] == -(-200 // job.size)
            read = make(*given, DataConfig(shuffle=shuffle))
            np.testing.assert_equal(taken(spread, COUNT), taken(read, COUNT))
            assert not places.lacking()
            neighbours.gather(None)  # nobody ends while another one reads what it keeps
            read.layers[0].close()
    print(f"rank {job.rank}: spread records alike", flush=True)


if __name__ == "__main__":
    main()
