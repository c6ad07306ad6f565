"""The layers of nets that see clips of videos.

From facebookarchive/C3D: Convolution3D, Pooling3D. From yjxiong/caffe (temporal segment networks,
TSN): VideoData.

Used by: C3D, and TSN with BN-Inception (whose BN is segmentation/bn.py).
"""
