"""The layers of SSD, the single-shot detector (Liu et al. 2016).

From weiliu89/caffe (branch ssd): AnnotatedData, PriorBox, MultiBoxLoss, DetectionOutput,
DetectionEvaluate, Normalize, Permute. From imistyrain/ssd: FocalLoss. From OpenVINO's training
toolbox: PriorBoxClustered. Two of these names mean
something else in other forks, and the settings or bottoms tell which is meant: NormFace's Normalize
(features.py) and Cascade R-CNN's DetectionEvaluate (detection.py).

Used by: SSD and the nets made of it, such as MobileNet-SSD; MobileNet-YOLO reads AnnotatedData;
examples/ssd_digits trains one.
"""
