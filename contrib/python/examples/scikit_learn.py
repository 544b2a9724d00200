"""From a fitted scikit-learn pipeline to a result.

    pip install scikit-learn skl2onnx && python examples/scikit_learn.py

skl2onnx has operators of its own for linear models and scalers; told to leave them out it writes
those of ONNX, which every device knows. The labels come from the probabilities.
"""

import numpy as np
from onnx.utils import Extractor
from skl2onnx import to_onnx
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import souk

x, y = load_digits(return_X_y=True)
x = x.astype(np.float32)
fitted = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200)).fit(x[:1500], y[:1500])
plain = {"LinearClassifier", "Normalizer", "Scaler"}
model = to_onnx(fitted, x[:1], options={"zipmap": False}, black_op=plain)
model = Extractor(model).extract_model(["X"], ["probabilities"])
with souk.testnet() as net:
    answer = net.run(model, {"X": x[1500:]}, budget=1)
labels = fitted.classes_[answer["probabilities"].argmax(1)]
print(f"{(labels == y[1500:]).mean():.1%} right, for {answer.cost}")
assert (labels == fitted.predict(x[1500:])).all(), "as the pipeline itself says"
