"""The layers of nets that tell faces apart.

From ydwen/caffe-face: CenterLoss. From happynear/caffe-windows (NormFace, AM-Softmax):
ChannelScale, Flip, GeneralContrastiveLoss, GlobalLSEMargin, InnerDistance, LabelSpecificAdd,
LabelSpecificRescale, Noise. For 68 landmarks: WeightEuclideanLoss. From wy1iu/sphereface:
MarginInnerProduct. (NormFace's Normalize shares its name with SSD's: ssd/features.py.)

Used by: the nets of caffe-face, SphereFace, NormFace and AM-Softmax.
"""
