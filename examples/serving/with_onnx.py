"""The same model in ONNX Runtime, which needs neither osucaffe nor its preprocessing:
`python with_onnx.py model.onnx IMAGE`, after
`osucaffe export deploy.prototxt --weights x.caffemodel --onnx model.onnx --with_preprocessing`."""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image

session = onnxruntime.InferenceSession(sys.argv[1])
_, channels, height, width = session.get_inputs()[0].shape
image = Image.open(sys.argv[2]).convert("RGB" if channels == 3 else "L").resize((width, height))
planes = np.asarray(image, np.float32).reshape(height, width, channels).transpose(2, 0, 1)[::-1]
(scores,) = session.run(None, {session.get_inputs()[0].name: planes[None]})
names = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
print(names[int(scores.argmax())], float(scores.max()))
