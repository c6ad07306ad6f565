"""The layers of detectors with regions: Fast and Faster R-CNN, R-FCN, PVANet, MNC.

From rbgirshick/caffe-fast-rcnn: ROIPooling, SmoothL1Loss (SSD's form too); and the Python modules
rpn.* of py-faster-rcnn, as classes of ours. From daijifeng001/caffe-rfcn: PSROIPooling,
BoxAnnotatorOHEM, SmoothL1LossOHEM, SoftmaxWithLossOHEM. From sanghoon/caffe (PVANet): Proposal.
From daijifeng001/caffe-mnc (multi-task network cascades): ROIWarping, MaskPooling, MaskResize.
ROIAlign is Cascade R-CNN's.

Used by: Fast and Faster R-CNN, R-FCN, PVANet, MNC; nets of MS-CNN and Cascade R-CNN use ROIPooling
and ROIAlign.
"""
