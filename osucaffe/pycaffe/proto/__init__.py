"""The name `caffe.proto`, in which scripts find the messages of Caffe's format."""

from ...proto import caffe_pb2

__all__ = ["caffe_pb2"]
