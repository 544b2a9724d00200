"""From a fitted scikit-learn pipeline to a result.

pip install scikit-learn skl2onnx && python examples/scikit_learn.py
"""

import numpy as np
from skl2onnx import to_onnx
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import souk

x, y = load_digits(return_X_y=True)
x, y = x.astype(np.float32), np.array([f"a {digit}" for digit in y])
fitted = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200)).fit(x[:1500], y[:1500])
with souk.testnet() as net:
    answer = net.run(to_onnx(fitted, x[:1]), {"X": x[1500:]}, budget=1)
labels, chances = answer["output_label"], answer["output_probability"]
print(
    f"{(labels == y[1500:]).mean():.1%} right, for {answer.cost}; the first is "
    f"{labels[0]} at {chances[0][labels[0]]:.0%}"
)
assert (labels == fitted.predict(x[1500:])).all(), "as the pipeline itself says"
