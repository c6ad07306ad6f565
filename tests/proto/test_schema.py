"""Holds the schema against a table of Caffe's fields, and the generated code against the schema."""

from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from osucaffe.proto import caffe_pb2

TABLE = Path(__file__).with_name("schema.txt")
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
    assert sorted(describe(file)) == TABLE.read_text().splitlines()


def test_field_numbers_of_our_own_are_far_from_caffes() -> None:
    own = caffe_pb2.SolverState.DESCRIPTOR.fields_by_name["osucaffe"]
    assert own.number >= 1000


def test_the_generated_code_is_of_the_schema_file() -> None:
    """Every field line of caffe.proto is in the compiled descriptor, and none besides."""
    lines = Path(caffe_pb2.__file__).with_name("caffe.proto").read_text().splitlines()
    statements = [line.split("//")[0].split() for line in lines]
    fields = [s for s in statements if s and s[0] in ("optional", "repeated", "required")]
    assert len(fields) == sum(
        len(kind.fields) for kind in caffe_pb2.DESCRIPTOR.message_types_by_name.values()
    )


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
