"""`osucaffe time`: its table without a log; `--cluster`: a device measured for predictions."""

from __future__ import annotations

from osucaffe.study.cluster import read_cluster
from tests.study.test_study import CLUSTER

from ..conftest import Cli


def test_without_a_log_there_is_a_table(cli: Cli) -> None:
    cli.write_net()
    command = "time", "--model=net.prototxt", "--iterations=1"
    assert cli.ok(*command).out == ""
    done = cli.ok(*command, "--quiet")
    assert done.err == ""
    assert done.out.splitlines()[-1].startswith("total")


def test_time_measures_a_device(cli: Cli) -> None:
    cli.write_net()
    cli.write("c.toml", CLUSTER)
    command = "time", "--model=net.prototxt", "--iterations=2", "--threads=1", "--cluster=c.toml"
    out = cli.ok(*command).out
    assert "8 images take" in out
    assert "wrote c.toml" in out
    found = read_cluster(cli.folder / "c.toml")
    rate, batch = found.device.images_per_second["tiny"]
    assert rate > 0
    assert batch == 8
    assert found.device.tflops != 0.01
    assert "--threads 1" in found.sources["device.tflops"]
    assert "must read batches of one size" in cli.fails(*command, "--phase=TEST").err
    assert "c.tml" in cli.fails(*command[:-1], "--cluster=c.tml").err
