"""A classifier as a web service: `uvicorn server:app`, MODEL=the run's folder (needs fastapi,
uvicorn and python-multipart). curl -F image=@cat.jpg http://127.0.0.1:8000/predict"""

import io
import os

from fastapi import FastAPI, UploadFile
from PIL import Image

import osucaffe as oc

app, model = FastAPI(), oc.load(os.environ.get("MODEL", "runs/fit"))


@app.post("/predict")
def predict(image: UploadFile) -> dict[str, float]:
    """The labels of an image with their scores. FastAPI calls it in threads, which take turns."""
    return dict(model.predict(Image.open(io.BytesIO(image.file.read()))).top)
