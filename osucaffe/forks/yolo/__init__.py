"""The layers of YOLO's second and third version (Redmon & Farhadi 2017, 2018).

From choasup/caffe-yolo9000, as intel/caffe and eric612/MobileNet-YOLO have them: Reorg, RegionLoss,
EvalDetection. From eric612/MobileNet-YOLO: YoloDetectionOutput, Yolov3,
Yolov3DetectionOutput.

Used by: YOLOv2's nets in these forks, MobileNet-YOLO, MobileNet-YOLOv3.
"""
