"""The messages of Caffe's format: classes that protobuf builds of caffe.desc, which is the
schema of caffe.proto as its compiler writes it (caffe.proto says how)."""

from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.internal import builder

_schema = descriptor_pb2.FileDescriptorSet.FromString(
    Path(__file__).with_name("caffe.desc").read_bytes()
)
DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(_schema.file[0].SerializeToString())
builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals())
builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, __name__, globals())
