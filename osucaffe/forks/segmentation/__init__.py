"""The layers of nets that label pixels.

From alexgkendall/caffe-segnet and TimoSaemann/caffe-enet: DenseImageData, Upsample (also that of
eric612/MobileNet-YOLO), BN (also that of yjxiong/caffe, for TSN and PSPNet). From yjxiong/caffe:
SegData. From hszhao/PSPNet and DeepLab: ImageSegData, Interp,
MatWrite, SegAccuracy. From HED and Andrew-Qibin/caffe_dss: ImageLabelmapData. From torrvision/caffe
(CRF-RNN): MultiStageMeanfield. From ctensmeyer/caffe: BilinearInterpolation.

Used by: SegNet, ENet, DeepLab v2, PSPNet, HED, DSS, CRF-RNN; examples/segnet_digits trains one.
"""
