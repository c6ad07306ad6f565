"""Holds the schema against tables of the fields of Caffe and its forks, and the generated code
against the schema."""

from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from osucaffe.proto import caffe_pb2

TABLE = Path(__file__).with_name("schema.txt")
FORKS = Path(__file__).with_name("forks.txt")
"""What Caffe does not have, each line with the fork that it is of ("osucaffe": our own)."""
FIRST = 100_000_001  # the least number of what forks added to Caffe's own messages
Field = descriptor_pb2.FieldDescriptorProto


def describe(file: descriptor_pb2.FileDescriptorProto) -> list[str]:
    """One line a field or enum value: where, name = number, label, type, default, packed."""
    lines = [f"{e.name} {v.name} = {v.number}" for e in file.enum_type for v in e.value]

    def message(kind: descriptor_pb2.DescriptorProto) -> None:
        for f in kind.field:
            label = Field.Label.Name(f.label).removeprefix("LABEL_").lower()
            name = f.type_name.removeprefix(".osucaffe.") or (
                Field.Type.Name(f.type).removeprefix("TYPE_").lower()
            )
            default = f.default_value
            if f.type == Field.TYPE_FLOAT and default:
                default = f"{float(default):.6g}"
            parts = [kind.name, f.name, "=", str(f.number), label, name]
            if default or f.HasField("default_value"):
                parts.append(f'default "{default}"')
            if f.options.packed:
                parts.append("packed")
            lines.append(" ".join(parts))
        for e in kind.enum_type:
            lines.extend(f"{kind.name}.{e.name} {v.name} = {v.number}" for v in e.value)
        for inner in kind.nested_type:
            message(inner)

    for kind in file.message_type:
        message(kind)
    return lines


def test_every_name_number_type_and_default_is_caffes() -> None:
    file = descriptor_pb2.FileDescriptorProto()
    caffe_pb2.DESCRIPTOR.CopyToProto(file)
    forks = [line.split(": ", 1)[1] for line in FORKS.read_text().splitlines()]
    assert forks == sorted(forks)
    assert sorted(describe(file)) == sorted(TABLE.read_text().splitlines() + forks)


def test_forks_fields_have_numbers_that_no_caffe_uses() -> None:
    """A binary file of a fork has unknown fields, then, and not wrong ones."""
    caffes = {line.split()[0] for line in TABLE.read_text().splitlines()}
    for line in FORKS.read_text().splitlines():
        where, name, _, number = line.split(": ", 1)[1].split()[:4]
        if where in caffes and not name.startswith("raw_"):
            assert FIRST <= int(number) < 2**29, line


def test_annotations_have_the_numbers_of_ssd() -> None:
    box = caffe_pb2.NormalizedBBox(xmin=0.5, label=3, difficult=True)
    assert box.SerializeToString() == b"\x0d\x00\x00\x00\x3f\x28\x03\x30\x01"
    record = caffe_pb2.AnnotatedDatum(datum=caffe_pb2.Datum(), type="BBOX")
    record.annotation_group.add(group_label=1).annotation.add(instance_id=0)
    assert record.SerializeToString() == b"\x0a\x00\x10\x00\x1a\x06\x08\x01\x12\x02\x08\x00"
    item = caffe_pb2.LabelMap(item=[caffe_pb2.LabelMapItem(name="a", label=1, display_name="b")])
    assert item.SerializeToString() == b"\x0a\x08\x0a\x01a\x10\x01\x1a\x01b"


def test_field_numbers_of_our_own_are_far_from_caffes() -> None:
    own = caffe_pb2.SolverState.DESCRIPTOR.fields_by_name["osucaffe"]
    assert own.number >= 1000


def test_the_generated_code_is_of_the_schema_file() -> None:
    """Every field line of caffe.proto is in the compiled descriptor, and none besides."""
    lines = Path(caffe_pb2.__file__).with_name("caffe.proto").read_text().splitlines()
    statements = [line.split("//")[0].split() for line in lines]
    fields = [s for s in statements if s and s[0] in ("optional", "repeated", "required")]
    kinds = list(caffe_pb2.DESCRIPTOR.message_types_by_name.values())
    kinds += [inner for kind in kinds for inner in kind.nested_types]
    assert len(fields) == sum(len(kind.fields) for kind in kinds)


def test_lives_beside_another_caffe() -> None:
    """A schema of package caffe, in caffe.proto, joins the same pool and reads our bytes."""
    other = descriptor_pb2.FileDescriptorProto()
    caffe_pb2.DESCRIPTOR.CopyToProto(other)
    other.name, other.package = "caffe.proto", "caffe"
    for kind in other.message_type:
        for field in kind.field:
            if field.type_name:
                field.type_name = field.type_name.replace(".osucaffe.", ".caffe.")
    descriptor_pool.Default().AddSerializedFile(other.SerializeToString())
    theirs = message_factory.GetMessageClass(
        descriptor_pool.Default().FindMessageTypeByName("caffe.LayerParameter")
    )
    ours = caffe_pb2.LayerParameter(name="a", bottom=["b"])
    assert theirs.FromString(ours.SerializeToString()).bottom == ["b"]


@pytest.mark.parametrize(
    ("message", "field", "default"),
    [
        (caffe_pb2.NetState(), "phase", caffe_pb2.TEST),
        (caffe_pb2.SolverParameter(), "solver_mode", caffe_pb2.SolverParameter.GPU),
        (caffe_pb2.LRNParameter(), "k", 1.0),
        (caffe_pb2.DataParameter(), "backend", caffe_pb2.DataParameter.LEVELDB),
        (caffe_pb2.FillerParameter(), "type", "constant"),
        (caffe_pb2.LossParameter(), "normalization", caffe_pb2.LossParameter.VALID),
    ],
)
def test_defaults_are_seen_from_python(message: object, field: str, default: object) -> None:
    assert getattr(message, field) == default
