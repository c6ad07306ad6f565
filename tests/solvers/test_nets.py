"""Which nets a solver has, and the contradictions that are refused."""

from __future__ import annotations

import pytest

from osucaffe.errors import UserError
from osucaffe.proto import NetParameter, SolverParameter, parse_text
from osucaffe.solvers.nets import testing_nets as choose_test_nets
from osucaffe.solvers.nets import training_net as choose_training_net


def read(path: str) -> NetParameter:
    return NetParameter(name=path)


def parse(text: str) -> SolverParameter:
    return parse_text(text, SolverParameter)


@pytest.mark.parametrize(
    "text",
    [
        'net: "a"',
        'train_net: "a"',
        'net_param { name: "a" }',
        'train_net_param { name: "a" }',
    ],
)
def test_the_training_net(text: str) -> None:
    param = parse(text + ' train_state { level: 2 stage: "s" }')
    choice = choose_training_net(param, "s.prototxt", read)
    assert (choice.param.name, choice.level, choice.stages) == ("a", 2, ("s",))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("", "none does"), ('net: "a" train_net: "b"', "these do: net, train_net$")],
)
def test_exactly_one_training_net(text: str, complaint: str) -> None:
    with pytest.raises(UserError, match=f"s.prototxt: exactly one of net, .*{complaint}"):
        choose_training_net(parse(text), "s.prototxt", read)


def test_test_nets_come_in_the_order_of_caffe() -> None:
    param = parse(
        'net: "generic" test_net: "file" test_net_param { name: "given" } test_interval: 5 '
        'test_iter: 1 test_iter: 2 test_iter: 3 test_state { stage: "a" } test_state {} '
        "test_state { level: 1 }"
    )
    choices = choose_test_nets(param, "s.prototxt", read)
    assert [choice.param.name for choice in choices] == ["given", "file", "generic"]
    assert [choice.stages for choice in choices] == [("a",), (), ()]
    assert [choice.level for choice in choices] == [0, 0, 1]


def test_one_net_is_tested_in_several_states() -> None:
    """As Caffe's autoencoder is: on training and on test images."""
    param = parse(
        'net: "a" test_interval: 5 test_iter: 1 test_iter: 2 '
        'test_state { stage: "train" } test_state { stage: "test" }'
    )
    choices = choose_test_nets(param, "s.prototxt", read)
    assert [(choice.param.name, choice.stages) for choice in choices] == [
        ("a", ("train",)),
        ("a", ("test",)),
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('net: "a" test_iter: 1', "test_interval must be positive"),
        ('net: "a" test_iter: -1 test_interval: 1', "test_iter must not be negative"),
        ('net: "a" test_net: "b" test_net: "c" test_iter: 1 test_interval: 1', "1 values for 2"),
        ('train_net: "a" test_iter: 1 test_interval: 1', "1 values for 0 test nets"),
        ('train_net: "a" test_net: "b" test_interval: 1', "0 values for 1 test nets"),
        (
            'net: "a" test_iter: 1 test_interval: 1 test_state {} test_state {}',
            "test_state has 2 entries for 1",
        ),
    ],
)
def test_contradictions_are_named(text: str, complaint: str) -> None:
    with pytest.raises(UserError, match=f"s.prototxt: .*{complaint}"):
        choose_test_nets(parse(text), "s.prototxt", read)
