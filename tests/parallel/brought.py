"""What the ranks run that test_brought.py starts: designs that modules outside osucaffe bring."""

from osucaffe.comm.config import CommConfig
from osucaffe.parallel.config import ParallelConfig

from .equivalence import Case, check, job_with_data

if __name__ == "__main__":
    with job_with_data() as (job, folder):
        halves = ParallelConfig(compression="halves:Halves", bucket=512)
        for case in (
            Case(halves, tolerance=1e-2, iterations=4),
            Case(ParallelConfig("paused:Paused", bucket=512)),
            Case(ParallelConfig("paused:Paused", "overlapped", bucket=512)),
            Case(ParallelConfig(propagation="overlapped"), CommConfig(algorithm="star:star")),
        ):
            check(case, job, folder / "lmdb", {})
    print(f"rank {job.rank} alike\n", end="")
