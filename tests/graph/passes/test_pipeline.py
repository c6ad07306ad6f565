"""The passes that make a net's layers what runs: which run, in their order, and what they say."""

from __future__ import annotations

import pytest

from benchmarks.nets import MODELS, training_net
from osucaffe.backends.cpu import Cpu
from osucaffe.cli import main
from osucaffe.graph.passes import pipeline
from osucaffe.net import Net


@pytest.mark.parametrize("inspectable", [False, True])
def test_each_pass_reports_what_it_did(inspectable: bool) -> None:
    net = Net(training_net("lenet", 2), backend=Cpu(), inspectable=inspectable)
    wanted = [
        each.name
        for each in pipeline.COMPILE + pipeline.PREPARE + pipeline.PLACE
        if not each.inference and each.for_all and (each.inspectable or not inspectable)
    ]
    assert [each.name for each in net.passes] == wanted
    for one, following in zip(net.passes, net.passes[1:], strict=False):
        assert following.before == one.after
    assert net.passes[-1].after == [len(calls) for calls in net.programs]
    if not inspectable:
        fused = next(each for each in net.passes if each.name == "fuse ReLU")
        assert (fused.before[0] - fused.after[0], fused.did) == (1, "1 relu")
        assert any([each.layer for each in call.fused] == ["relu1"] for call in net.programs[0])


def test_time_prints_the_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["time", "--model", str(MODELS / "lenet" / "deploy.prototxt"), "--passes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [
        each.name
        for each in pipeline.COMPILE + pipeline.PREPARE + pipeline.PLACE
        if not each.inference and each.for_all
    ]
    assert [line[:20].strip() for line in lines] == names
    assert "1 relu" in lines[2]
