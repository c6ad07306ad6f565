"""The labels of a camera's pictures, or a video's: `python video.py runs/fit [FILE]` (needs
opencv-python)."""

import sys

import cv2

import osucaffe as oc

model = oc.load(sys.argv[1])
video = cv2.VideoCapture(sys.argv[2] if len(sys.argv) > 2 else 0)
while (frame := video.read()[1]) is not None:
    print(model.predict(frame[:, :, ::-1], top=1))  # OpenCV has blue first
