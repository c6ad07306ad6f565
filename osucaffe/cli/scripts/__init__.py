"""The commands that run programs written for Caffe."""
