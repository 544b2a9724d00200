"""Write trees.onnx: 1,000 trees of depth 8 over 20 columns, out of scikit-learn.

    v/bin/pip install scikit-learn skl2onnx onnxruntime
    v/bin/python devices/compare/trees.py
    v/bin/python devices/compare/models.py --souk target/release/souk trees.onnx --sizes 10000
"""
import numpy as np
import onnx
from skl2onnx import to_onnx
from sklearn.ensemble import RandomForestRegressor

draw = np.random.default_rng(0)
x = draw.uniform(-1, 1, (4000, 20)).astype(np.float32)
y = x[:, 0] * x[:, 1] + np.sin(3 * x[:, 2]) + draw.normal(0, 0.1, len(x))
forest = RandomForestRegressor(1000, max_depth=8, random_state=0, n_jobs=2).fit(x, y)
onnx.save(to_onnx(forest, x[:1]), "trees.onnx")
