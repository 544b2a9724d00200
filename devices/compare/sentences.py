"""A model of sentences and a number, fitted by scikit-learn, and inputs to ask it with.

    python3 -m venv v
    v/bin/pip install scikit-learn skl2onnx pandas
    v/bin/python devices/compare/sentences.py

Writes `sentences.onnx`, `said.npy` and `price.npy` into the folder that it runs in.
"""
import numpy as np
import pandas
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

said = ["a fine day", "good food", "a lovely place", "a bad day", "awful food", "never again"]
frame = pandas.DataFrame({"said": said, "price": [20.0, 25, 30, 80, 75, 90]})
label = ["good"] * 3 + ["bad"] * 3
columns = ColumnTransformer([("s", TfidfVectorizer(), "said"), ("p", StandardScaler(), ["price"])])
fitted = make_pipeline(columns, LogisticRegression()).fit(frame, label)
inputs = [("said", StringTensorType([None, 1])), ("price", FloatTensorType([None, 1]))]
with open("sentences.onnx", "wb") as file:
    file.write(to_onnx(fitted, initial_types=inputs).SerializeToString())
np.save("said.npy", np.array([["what a lovely day"], ["awful, never again"]]))
np.save("price.npy", np.array([[22], [95]], dtype=np.float32))
