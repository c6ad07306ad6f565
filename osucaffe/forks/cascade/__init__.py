"""The layers of MS-CNN (Cai et al. 2016) and Cascade R-CNN (Cai & Vasconcelos 2018).

From zhaoweicai/mscnn: BoxOutput, DetectionLoss, DetectionAccuracy, ImageGtData, and first versions
of DecodeBBox, BboxAccuracy, ProposalTarget. From zhaoweicai/cascade-rcnn: these, and
BoxGroupOutput, DetectionGroupLoss, DetectionGroupAccuracy, DetectionData, EvalData, FrcnnOutput,
HardMining, ScaleRoute. (Its form of DetectionEvaluate is in ssd/detection.py, with SSD's.)

Used by: MS-CNN's and Cascade R-CNN's nets.
"""
