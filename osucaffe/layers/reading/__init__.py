"""The layers that read data, Caffe's and PatchData, and what all layers that read share:
streams of records, images, host memory that becomes tops."""
