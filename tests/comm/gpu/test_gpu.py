"""Communicators for device arrays on real GPUs: as many ranks as there are, and two on one."""

from __future__ import annotations

import pytest

from ..ranks import all_say, mpiexec, needs_mpi

pytestmark = [pytest.mark.gpu, needs_mpi]


def gpus() -> int:
    import cupy

    return min(4, cupy.cuda.runtime.getDeviceCount())


def test_a_gpu_for_each_rank() -> None:
    all_say("cases right", gpus(), "tests.comm.gpu_ranks", "check", timeout=300)


def test_device_arrays_given_to_mpi() -> None:
    asked = "from osucaffe.comm.job import job; print(job.cuda_aware(job.start_mpi()))"
    if mpiexec(1, "-c", asked).stdout.strip() != "True":
        pytest.skip("this MPI is not CUDA-aware")
    done = mpiexec(max(2, gpus()), "-m", "tests.comm.gpu_ranks", "direct", timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("cases right") == max(2, gpus())


def test_two_ranks_on_one_gpu() -> None:
    all_say("cases right", 2, "tests.comm.gpu_ranks", "share", timeout=300)
