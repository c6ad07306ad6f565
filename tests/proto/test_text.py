"""Checks prototxt: what the errors say, and that what is written is what Caffe writes."""

import time
from pathlib import Path

import pytest

from osucaffe.errors import UserError
from osucaffe.proto import (
    NetParameter,
    SolverParameter,
    format_text,
    parse_text,
    read_text,
    write_text,
)

MISTAKES = [
    (
        "layer {\n  convolution_param {\n    kernle_size: 3\n  }\n}",
        'net:3:5: unknown field "kernle_size" in ConvolutionParameter '
        '(did you mean "kernel_size"?)',
    ),
    ("layer { zzz: 3 }", 'net:1:9: unknown field "zzz" in LayerParameter'),
    (
        "layer { bnr_param { } }",
        'net:1:9: unknown field "bnr_param" in LayerParameter (did you mean "bn_param"?)',
    ),
    (
        "layer { local_size: 5 }",
        'net:1:9: unknown field "local_size" in LayerParameter (it belongs in lrn_param)',
    ),
    (
        'net: "net.prototxt"',
        'net:1:1: unknown field "net" in NetParameter: is this a solver\'s prototxt?',
    ),
    (
        "layer { pooling_param { pool: MAXX } }",
        "net:1:31: unknown value MAXX for PoolMethod (one of MAX, AVE, STOCHASTIC)",
    ),
    ("layer { phase: 7 }", "net:1:16: unknown value 7 for Phase (one of TRAIN, TEST)"),
    ("layer {\n  type: 3\n}", "net:2:9: expected string but found: '3'"),
    ("layer { inner_product_param { num_output: ten } }", "net:1:43: couldn't parse integer: ten"),
    ("layer { inner_product_param { num_output: -1 } }", "net:1:43: value out of range: -1"),
    (
        'layer {\n  name: "a"\n',
        'net:2:9: found the end of the file in the block "layer" of line 1: its "}" is missing',
    ),
    (
        "layer {\n  pooling_param {\n    stride: 2\n}\nlayer {\n}",
        'net:5:1: found field "layer" in the block "pooling_param" of line 2: its "}" is missing',
    ),
    (
        "layer {\n  pooling_param {\n    stride: 2 # }\n  top: '}'\n}",
        'net:4:3: found field "top" in the block "pooling_param" of line 2: its "}" is missing',
    ),
    (
        "layer { pooling_param { stride: 2 }\nlayer { }",
        'net:2:1: found field "layer" in the block "layer" of line 1: its "}" is missing',
    ),
    (  # indented as if it belonged there
        "layer {\n  pooling_param {\n    top: 'a'\n  }\n}",
        'net:3:5: unknown field "top" in PoolingParameter',
    ),
    (
        'layer { inner_product_param { num_output: "16" } }',
        'net:1:43: "16" is text, but a number belongs here: write 16 without the quotes',
    ),
    ('layer { name: "a" } }', "net:1:21: expected identifier or number, got }"),
    ('layer { name "a" }', 'net:1:14: expected ":"'),
    ('layer { name: "a }', "net:1:15: string missing ending quote: '\"a }'"),
    ('name: "a"\nname: "b"', 'net:2:7: "name" is given more than once in NetParameter'),
    ("layer { clip_param { min: 0 } }", "net: layer[0].clip_param.max is not given"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_a_mistake_is_named_with_its_place(text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        parse_text(text, NetParameter, "net")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert "osucaffe." not in str(error.value)


def test_a_minus_may_stand_apart_from_its_number() -> None:
    net = parse_text(
        """layer { name: "a: - 1" # b: - 2
        power_param { scale: - 1 shift: -\n.5 } }""",
        NetParameter,
    )
    (layer,), power = net.layer, net.layer[0].power_param
    assert (layer.name, power.scale, power.shift) == ("a: - 1", -1, -0.5)
    with pytest.raises(UserError, match=r'^text:2:13: unknown field "unknown"'):
        parse_text("layer { power_param {\n scale: - 1 unknown: 2 } }", NetParameter)


_LONG = 200_000
LONG = {  # each took minutes, or gigabytes
    "nested blocks": (
        "layer { " * (_LONG // 8),
        'found field "layer" in the block "layer" of line 1',
    ),
    "nested lines": (
        "layer {\n" * (_LONG // 8),
        'found field "layer" in the block "layer" of line',
    ),
    "a name": ("layer { " + "x" * _LONG + ": 1 }", 'unknown field "x'),
    "blank lines": ("\n" * _LONG + "x", f'{_LONG + 1}:1: unknown field "x"'),
    "lines after a mistake": ("x:" + "\n" * _LONG, '1:1: unknown field "x"'),
    "a device": ("device_id: [" + "1" * _LONG, "1:1: unknown field"),
    "escaped quotes": ("layer {\n x" + ' \\"' * (_LONG // 3), '2:2: unknown field "x"'),
    "backslashes": ('name: "' + "\\" * _LONG + '"', "1: 200,000 backslashes in a row"),
}


@pytest.mark.parametrize(("text", "message"), LONG.values(), ids=LONG)
@pytest.mark.parametrize("kind", [NetParameter, SolverParameter])
def test_a_long_mistake_takes_no_time_with_its_square(kind: type, text: str, message: str) -> None:
    begun = time.process_time()
    with pytest.raises(UserError) as error:
        parse_text(text, kind)
    assert time.process_time() - begun < 5
    assert kind is SolverParameter or message in str(error.value)


def test_a_net_given_as_a_solver_is_told() -> None:
    with pytest.raises(UserError, match=r"1:1: .*\"layer\" in SolverParameter: is this a net's"):
        parse_text("layer { }", SolverParameter)


def test_an_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text("nmae: 3")
    with pytest.raises(UserError, match=r'net\.prototxt:1:1: unknown field "nmae".*"name"'):
        read_text(path, NetParameter)


def test_unreadable_files(tmp_path: Path, formats: Path, monkeypatch) -> None:
    with pytest.raises(UserError, match=r"none\.prototxt: cannot read it: No such .* directory$"):
        read_text(tmp_path / "none.prototxt", NetParameter)
    monkeypatch.chdir(tmp_path)  # from where names are taken
    with pytest.raises(UserError) as caught:
        read_text("models/none.prototxt", NetParameter)
    assert str(caught.value).endswith(f"No such file or directory (looked in {tmp_path})")
    with pytest.raises(UserError, match="it is a folder, expected a file"):
        read_text(tmp_path, NetParameter)
    with pytest.raises(UserError, match="not a text file"):
        read_text(formats / "lenet_iter_200.caffemodel", NetParameter)


@pytest.mark.parametrize("encoding", ["utf-8", "gbk", "gb18030", "latin-1", "utf-8-sig"])
def test_comments_of_any_encoding(tmp_path: Path, encoding: str) -> None:
    comment = "é" if encoding == "latin-1" else "如果图片大于224，则使用crop的方式"
    text = f'# {comment}\nname: "a"  # {comment}\nlayer {{\n# {comment}\n  top: "b"\n}}\n'
    path = tmp_path / "net.prototxt"
    path.write_bytes(text.encode(encoding))
    net = read_text(path, NetParameter)
    assert (net.name, net.layer[0].top) == ("a", ["b"])
    path.write_bytes(text.replace("top", "tpo").encode(encoding))
    with pytest.raises(UserError, match=r'net\.prototxt:5:3: unknown field "tpo".*"top"'):
        read_text(path, NetParameter)


def test_bytes_that_unicode_takes_for_ends_of_lines(tmp_path: Path) -> None:
    """0x85 and 0x0c are no ends of lines to Caffe; they occur in GBK."""
    path = tmp_path / "net.prototxt"
    path.write_bytes(b'# \x85\x85 \x0c \xc4\x85 x\nname: "a\x85b"\n# \x85\nlayre { }\n')
    with pytest.raises(UserError, match=r'net\.prototxt:4:1: unknown field "layre"'):
        read_text(path, NetParameter)


def test_a_value_in_latin_1(tmp_path: Path) -> None:
    folder = tmp_path / "données"
    folder.mkdir()
    path = folder / "solver.prototxt"
    path.write_bytes(f'snapshot_prefix: "{folder}"'.encode("latin-1"))
    solver = read_text(path, SolverParameter)
    assert solver.snapshot_prefix == str(folder)
    assert Path(solver.snapshot_prefix).is_dir()
    write_text(path, solver)
    assert read_text(path, SolverParameter) == solver


def test_of_a_list_of_devices_the_first_counts() -> None:
    text = "max_iter: 5\ndevice_id: [2,\n 3]\n%s: 1"
    solver = parse_text(text % "display", SolverParameter)
    assert (solver.max_iter, solver.device_id, solver.display) == (5, 2, 1)
    with pytest.raises(UserError, match=r'^text:4:1: unknown field "displya"'):
        parse_text(text % "displya", SolverParameter)


def test_writes_what_caffe_writes(tmp_path: Path, formats: Path) -> None:
    reference = formats / "v1_upgraded.prototxt"
    write_text(tmp_path / "net.prototxt", read_text(reference, NetParameter))
    assert (tmp_path / "net.prototxt").read_bytes() == reference.read_bytes()


def test_writing_changes_no_value() -> None:
    text = 'name: "1.0\\nscale: 2.0"\nlayer {\n  loss_weight: 0.1\n  loss_weight: -3\n}\n'
    net = parse_text(text, NetParameter)
    net.layer[0].loss_weight.extend([1e-30, 1 / 3, 16777216.0, 3e38, 0.0])
    assert parse_text(format_text(net), NetParameter) == net
    assert format_text(net).startswith(text.removesuffix("}\n"))
    assert "€" in format_text(NetParameter(name="€"))


@pytest.mark.parametrize("escape", [r"\000", r"\0", r"\x00"])
def test_characters_of_value_0_are_refused(escape: str) -> None:
    text = f'layer {{ name: "d" data_param {{ source: "a{escape}b" }} }}'
    with pytest.raises(UserError, match=r"^n\.prototxt: source has a character of value 0"):
        parse_text(text, NetParameter, "n.prototxt")
    assert parse_text(r'name: "C:\\0\\x00"', NetParameter).name == r"C:\0\x00"


NEW, OLD = 'layer { name: "a" type: "ReLU" }\n', "layers { type: RELU }\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (NEW + "layers { type: RELU param { lr_mult: 1 } }", "use one form for all"),
        (OLD + 'layer { type: "Scale" blobs_lr: 1 }', "use one form for all"),
        ('layers { type: "ReLU" }', 'types in quotes belong in "layer"'),
        ("layer { type: RELU }", 'types without quotes belong in old "layers"'),
    ],
)
def test_layers_of_both_forms_are_told(text: str, told: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_text(text, NetParameter)
    assert told in str(caught.value)
