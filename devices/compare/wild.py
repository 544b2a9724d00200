"""Models as people export them, run through a market and judged beside ONNX Runtime.

    python3 -m venv v
    v/bin/pip install onnx onnxruntime skl2onnx scikit-learn lightgbm xgboost onnxmltools \
        onnxconverter-common torch torchvision onnxscript
    souk testnet up --detach
    v/bin/python devices/compare/wild.py --souk souk --dir souk-testnet

Keras (`tensorflow-cpu tf2onnx onnx onnxruntime`) and PaddlePaddle (`paddlepaddle paddle2onnx onnx
onnxruntime`) may need environments of their own; each runs only the exporters that it has. Weights
of networks are drawn, so nothing is downloaded.

Each model is made here, run by ONNX Runtime (where that has no kernel, by the ONNX project's own
evaluator, which is said), and by souk whole and cut over two providers. Type, shape and values of
every output must be alike: floats within 1e-4 of the output's largest element (halves 3e-3),
integers and texts equal. Models whose floats are quantised and given back between nodes (QDQ) are
judged beside the ONNX project's own evaluator: ONNX Runtime rounds sums elsewhere and is a step off
now and then. Of models that draw at random only types and shapes are compared. What souk refuses is
told with the operator. The last lines are a table by exporter. `--only TEXT` runs models with that
in their names, or the exporters whose names have it; `--keep DIR` keeps the models and inputs there.
An exporter that is not installed is skipped aloud. ONNX Runtime lowers texts only where the machine
has the locale en_US.UTF-8.
"""
import argparse
import collections
import contextlib
import io
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

TOLERANCE = 1e-4
HALF = 3e-3
# What a plan says of a model that is one operator.
UNDIVIDED = "real work for 1 devices"
SUBMIT_SECONDS_MAX = 180

MAKERS = collections.OrderedDict()


def exporter(name):
    def register(maker):
        MAKERS.setdefault(name, []).append(maker)
        return maker

    return register


class Case:
    """A model with inputs for one run."""

    def __init__(self, name, model, inputs, folder=None, tolerance=TOLERANCE, as_written=False, draws=False):
        self.name = name
        self.model = model
        self.inputs = inputs
        self.folder = folder
        self.tolerance = tolerance
        # Whether it is judged beside the ONNX project's evaluator.
        self.as_written = as_written
        # Whether it draws at random, so that just type and shape can be alike.
        self.draws = draws


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--souk", default="souk")
    parser.add_argument("--dir", default="souk-testnet")
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--cuts", default="1,2", help="over how many providers, by commas")
    return parser.parse_args()


# ---------------------------------------------------------------------------------------------
# scikit-learn


def table(rows=40, columns=6, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)


def classes(x, count):
    score = x[:, 0] + 0.5 * x[:, 1] - 0.3 * x[:, 2] * x[:, 3]
    edges = np.quantile(score, np.arange(1, count) / count)
    return np.digitize(score, edges)


def fitted(name, estimator, targets, options=None, x=None):
    from skl2onnx import to_onnx

    x = table(200) if x is None else x
    y = None if targets is None else targets(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(x, y)
        try:
            model = to_onnx(estimator, x[:1], options=options)
        except (ValueError, RuntimeError) as error:
            print(f"not exported: {name}: {str(error)[:100]!r}", flush=True)
            return None
    return Case(name, model, {model.graph.input[0].name: x[:25]})


def two(x):
    return classes(x, 2)


def three(x):
    return classes(x, 3)


def named(x):
    return np.array(["cat", "dog", "emu"])[classes(x, 3)]


def real(x):
    return (x[:, 0] * 2 - x[:, 1] ** 2 + x[:, 2]).astype(np.float64)


@exporter("scikit-learn")
def classifiers():
    from sklearn import (
        discriminant_analysis,
        ensemble,
        linear_model,
        naive_bayes,
        neighbors,
        neural_network,
        svm,
        tree,
    )
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.calibration import CalibratedClassifierCV

    seed = {"random_state": 0}
    logistic = linear_model.LogisticRegression
    yield fitted("forest, 3 classes", ensemble.RandomForestClassifier(30, **seed), three)
    yield fitted("forest, 2 classes", ensemble.RandomForestClassifier(30, **seed), two)
    yield fitted("forest, texts", ensemble.RandomForestClassifier(10, **seed), named)
    yield fitted("extra trees", ensemble.ExtraTreesClassifier(20, **seed), three)
    yield fitted("decision tree", tree.DecisionTreeClassifier(**seed), three)
    boosting = ensemble.GradientBoostingClassifier
    yield fitted("boosting, 2 classes", boosting(n_estimators=20, **seed), two)
    yield fitted("boosting, 3 classes", boosting(n_estimators=20, **seed), three)
    histogram = ensemble.HistGradientBoostingClassifier
    yield fitted("histogram boosting", histogram(max_iter=20, **seed), three)
    yield fitted("ada boost", ensemble.AdaBoostClassifier(n_estimators=10, **seed), three)
    yield fitted("bagging", ensemble.BaggingClassifier(n_estimators=5, **seed), three)
    voters = [("a", logistic()), ("b", tree.DecisionTreeClassifier(**seed))]
    yield fitted("voting", ensemble.VotingClassifier(voters, voting="soft", flatten_transform=False), three)
    yield fitted("logistic, 2 classes", logistic(), two)
    yield fitted("logistic, 3 classes", logistic(), three)
    arrays = {logistic: {"zipmap": False}}
    yield fitted("logistic, arrays", logistic(), three, options=arrays)
    yield fitted("logistic, texts", logistic(), named)
    yield fitted("one against rest", OneVsRestClassifier(logistic()), three)
    yield fitted("calibrated", CalibratedClassifierCV(logistic(), cv=2), two)
    yield fitted("stochastic descent", linear_model.SGDClassifier(**seed), three)
    yield fitted("ridge classifier", linear_model.RidgeClassifier(), two)
    perceptron = neural_network.MLPClassifier((16,), max_iter=200, **seed)
    yield fitted("perceptron", perceptron, three)
    yield fitted("linear SVC", svm.LinearSVC(**seed), three)
    yield fitted("SVC, radial", svm.SVC(probability=True, **seed), three)
    yield fitted("SVC, polynomial", svm.SVC(kernel="poly", **seed), two)
    yield fitted("SVC, linear", svm.SVC(kernel="linear", probability=True, **seed), two)
    yield fitted("neighbours", neighbors.KNeighborsClassifier(5), three)
    yield fitted("naive Bayes", naive_bayes.GaussianNB(), three)
    linear = discriminant_analysis.LinearDiscriminantAnalysis()
    yield fitted("linear discriminants", linear, three)


@exporter("scikit-learn")
def regressors():
    from sklearn import ensemble, linear_model, neighbors, neural_network, svm, tree

    seed = {"random_state": 0}
    yield fitted("forest regressor", ensemble.RandomForestRegressor(20, **seed), real)
    yield fitted("extra trees regressor", ensemble.ExtraTreesRegressor(20, **seed), real)
    yield fitted("tree regressor", tree.DecisionTreeRegressor(**seed), real)
    boosting = ensemble.GradientBoostingRegressor(n_estimators=20, **seed)
    yield fitted("boosting regressor", boosting, real)
    histogram = ensemble.HistGradientBoostingRegressor(max_iter=20, **seed)
    yield fitted("histogram boosting regressor", histogram, real)
    yield fitted("linear regression", linear_model.LinearRegression(), real)
    yield fitted("lasso", linear_model.Lasso(alpha=0.1), real)
    yield fitted("SVR", svm.SVR(), real)
    yield fitted("linear SVR", svm.LinearSVR(**seed), real)
    yield fitted("neighbours regressor", neighbors.KNeighborsRegressor(3), real)
    perceptron = neural_network.MLPRegressor(hidden_layer_sizes=(8, 8), max_iter=200, **seed)
    yield fitted("perceptron regressor", perceptron, real)


@exporter("scikit-learn")
def transformers():
    from sklearn import cluster, decomposition, impute, preprocessing

    holes = table(200)
    holes[::7, 2] = np.nan
    yield fitted("standard scaler", preprocessing.StandardScaler(), None)
    yield fitted("robust scaler", preprocessing.RobustScaler(), None)
    yield fitted("min and max scaler", preprocessing.MinMaxScaler(), None)
    for norm in ("l1", "l2", "max"):
        yield fitted(f"normalizer {norm}", preprocessing.Normalizer(norm), None)
    yield fitted("binarizer", preprocessing.Binarizer(threshold=0.2), None)
    yield fitted("polynomial features", preprocessing.PolynomialFeatures(2), None)
    bins = preprocessing.KBinsDiscretizer(4, encode="ordinal", quantile_method="linear")
    yield fitted("bins", bins, None)
    yield fitted("imputer", impute.SimpleImputer(strategy="mean"), None, x=holes)
    yield fitted("principal components", decomposition.PCA(3), None)
    yield fitted("k-means", cluster.KMeans(3, n_init=1, random_state=0), None)
    whole = np.random.default_rng(1).integers(0, 5, (200, 3)).astype(np.int64)
    one_hot = preprocessing.OneHotEncoder(sparse_output=False)
    yield fitted("one-hot of integers", one_hot, None, x=whole)


@exporter("scikit-learn, text columns")
def text_columns():
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
    import pandas

    draw = np.random.default_rng(2)
    towns = draw.choice(["Bonn", "Lima", "Oslo"], 200)
    sizes = draw.choice(["small", "large"], 200)
    numbers = table(200, 2)
    frame = pandas.DataFrame({"town": towns, "size": sizes, "a": numbers[:, 0], "b": numbers[:, 1]})
    label = np.where((towns == "Oslo") ^ (numbers[:, 0] > 0), "yes", "no")
    declared = [("town", StringTensorType([None, 1])), ("size", StringTensorType([None, 1]))]
    declared += [(name, FloatTensorType([None, 1])) for name in ("a", "b")]
    given = {"town": towns[:25, None], "size": sizes[:25, None]}
    given["town"] = given["town"].astype(object)
    given["town"][3] = "Rome"
    given["size"] = given["size"].astype(object)
    given |= {"a": numbers[:25, :1], "b": numbers[:25, 1:]}
    ordinal = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    encoders = {"one-hot": OneHotEncoder(handle_unknown="ignore"), "ordinal": ordinal}
    estimators = {"logistic": LogisticRegression(), "forest": RandomForestClassifier(10, random_state=0)}
    for kind, encoder in encoders.items():
        for name, estimator in estimators.items():
            columns = ColumnTransformer([("t", encoder, ["town", "size"]), ("n", StandardScaler(), ["a", "b"])])
            pipeline = make_pipeline(columns, estimator).fit(frame, label)
            yield Case(f"{kind}, {name}", to_onnx(pipeline, initial_types=declared), given)


@exporter("scikit-learn, sentences")
def sentences():
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn.compose import ColumnTransformer
    from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    import pandas

    good = ["a fine day", "Good food and a good wine", "what a lovely place", "I liked it, very much!"]
    bad = ["a bad day", "the food was awful", "never again", "I hated it: bad, very BAD!"]
    said, label = np.array(good + bad), np.repeat(["good", "bad"], 4)
    declared = [("said", StringTensorType([None, 1]))]
    given = {"said": said[:, None].astype(object)}
    counters = {
        "words": TfidfVectorizer(),
        "pairs of words": TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
        "counts": CountVectorizer(stop_words=["a", "the"]),
        "letters": TfidfVectorizer(analyzer="char", ngram_range=(2, 3)),
    }
    for name, counter in counters.items():
        pipeline = make_pipeline(counter, LogisticRegression()).fit(said, label)
        yield Case(name, to_onnx(pipeline, initial_types=declared), given)
    towns, prices = np.array(["Bonn", "Lima"] * 4), np.arange(8, dtype=np.float32)
    frame = pandas.DataFrame({"said": said, "town": towns, "price": prices})
    columns = [("s", TfidfVectorizer(), "said"), ("t", OneHotEncoder(), ["town"])]
    columns = ColumnTransformer([*columns, ("p", StandardScaler(), ["price"])])
    pipeline = make_pipeline(columns, LogisticRegression()).fit(frame, label)
    declared += [("town", StringTensorType([None, 1])), ("price", FloatTensorType([None, 1]))]
    given = given | {"town": towns[:, None].astype(object), "price": prices[:, None]}
    yield Case("beside columns", to_onnx(pipeline, initial_types=declared), given)


# ---------------------------------------------------------------------------------------------
# LightGBM and XGBoost


def boosted(name, estimator, targets, convert):
    from onnxmltools.convert.common.data_types import FloatTensorType

    x = table(200)
    estimator.fit(x, targets(x))
    model = convert(estimator, initial_types=[("x", FloatTensorType([None, x.shape[1]]))], target_opset=15)
    return Case(name, model, {"x": x[:25]})


@exporter("LightGBM")
def lightgbm():
    from lightgbm import LGBMClassifier, LGBMRegressor
    from onnxmltools import convert_lightgbm

    few = {"n_estimators": 20, "verbose": -1}
    yield boosted("LightGBM, 2 classes", LGBMClassifier(**few), two, convert_lightgbm)
    yield boosted("LightGBM, 3 classes", LGBMClassifier(**few), three, convert_lightgbm)
    yield boosted("LightGBM regressor", LGBMRegressor(**few), real, convert_lightgbm)


@exporter("XGBoost")
def xgboost():
    from onnxmltools import convert_xgboost
    from xgboost import XGBClassifier, XGBRegressor

    yield boosted("XGBoost, 2 classes", XGBClassifier(n_estimators=20), two, convert_xgboost)
    yield boosted("XGBoost, 3 classes", XGBClassifier(n_estimators=20), three, convert_xgboost)
    yield boosted("XGBoost regressor", XGBRegressor(n_estimators=20), real, convert_xgboost)


# ---------------------------------------------------------------------------------------------
# What ONNX Runtime's tools write


def weights(name, *dims, seed=0, scale=0.3):
    values = np.random.default_rng(seed + len(name)).normal(size=dims) * scale
    return numpy_helper.from_array(values.astype(np.float32), name)


def model_of(nodes, inputs, outputs, held, opset=21, dtype=TensorProto.FLOAT):
    def value(name, dims):
        kind = dtype
        if isinstance(dims, tuple):
            kind, dims = dims
        return helper.make_tensor_value_info(name, kind, dims)

    graph = helper.make_graph(
        nodes,
        "made",
        [value(*it) for it in inputs.items()],
        [value(*it) for it in outputs.items()],
        held,
    )
    sets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


def convolutions(opset=17):
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], kernel_shape=[3, 3], pads=[1] * 4),
        node("Relu", ["c1"], ["r1"]),
        node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p1", "w2", "b2"], ["c2"], kernel_shape=[3, 3], pads=[1] * 4),
        node("Add", ["c2", "p1"], ["a2"]),
        node("LeakyRelu", ["a2"], ["r2"], alpha=0.1),
        node("Concat", ["r2", "p1"], ["j2"], axis=1),
        node("AveragePool", ["j2"], ["p2"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Sigmoid", ["p2"], ["s2"]),
        node("Mul", ["s2", "p2"], ["m2"]),
        node("GlobalAveragePool", ["m2"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "w3", "b3"], ["l"], transB=1),
        node("Softmax", ["l"], ["y"], axis=1),
    ]
    held = [weights("w1", 8, 3, 3, 3), weights("b1", 8), weights("w2", 8, 8, 3, 3)]
    held += [weights("b2", 8), weights("w3", 10, 16), weights("b3", 10)]
    return model_of(nodes, {"x": ["n", 3, 16, 16]}, {"y": ["n", 10]}, held, opset=opset)


def image(seed=3):
    return np.random.default_rng(seed).normal(size=(2, 3, 16, 16)).astype(np.float32)


def words(opset=17):
    """A layer of a transformer as an exporter writes it, small functions apart."""
    node = helper.make_node
    width, heads = 32, 4
    nodes = []
    for name in "qkv":
        nodes += [
            node("MatMul", ["x", f"w{name}"], [f"{name}0"]),
            node("Add", [f"{name}0", f"b{name}"], [f"{name}1"]),
            node("Reshape", [f"{name}1", "heads"], [f"{name}2"]),
            node("Transpose", [f"{name}2"], [f"{name}3"], perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]),
        ]
    nodes += [
        node("MatMul", ["q3", "k3"], ["s0"]),
        node("Div", ["s0", "root"], ["s1"]),
        node("Softmax", ["s1"], ["s2"], axis=-1),
        node("MatMul", ["s2", "v3"], ["o0"]),
        node("Transpose", ["o0"], ["o1"], perm=[0, 2, 1, 3]),
        node("Reshape", ["o1", "flat"], ["o2"]),
        node("MatMul", ["o2", "wo"], ["o3"]),
        node("Add", ["o3", "bo"], ["o4"]),
        node("Add", ["o4", "x"], ["o5"]),
        node("LayerNormalization", ["o5", "g1", "h1"], ["n1"], epsilon=1e-5, axis=-1),
        node("MatMul", ["n1", "wi"], ["i0"]),
        node("Add", ["i0", "bi"], ["i1"]),
        node("Div", ["i1", "two"], ["i2"]),
        node("Erf", ["i2"], ["i3"]),
        node("Add", ["i3", "one"], ["i4"]),
        node("Mul", ["i1", "i4"], ["i5"]),
        node("Mul", ["i5", "half"], ["i6"]),
        node("MatMul", ["i6", "wf"], ["f0"]),
        node("Add", ["f0", "bf"], ["f1"]),
        node("Add", ["f1", "n1"], ["f2"]),
        node("LayerNormalization", ["f2", "g2", "h2"], ["y"], epsilon=1e-5, axis=-1),
    ]
    held = [weights(f"w{name}", width, width) for name in "qkvo"]
    held += [weights(f"b{name}", width) for name in "qkvo"]
    held += [weights("wi", width, 64), weights("bi", 64), weights("wf", 64, width), weights("bf", width)]
    held += [weights(name, width) for name in ("g1", "h1", "g2", "h2")]
    one = [("root", np.sqrt(width / heads)), ("two", np.sqrt(2)), ("one", 1), ("half", 0.5)]
    held += [numpy_helper.from_array(np.float32(value), name) for name, value in one]
    sizes = {"heads": [0, 0, heads, width // heads], "flat": [0, 0, width]}
    held += [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in sizes.items()]
    return model_of(nodes, {"x": ["n", "words", width]}, {"y": ["n", "words", width]}, held, opset=opset)


def text(seed=4):
    return np.random.default_rng(seed).normal(size=(2, 7, 32)).astype(np.float32)


class Reader:
    def __init__(self, name, values):
        self.left = iter([{name: value} for value in values])

    def get_next(self):
        return next(self.left, None)


def through_files(model, write):
    with tempfile.TemporaryDirectory() as folder:
        source, target = (str(pathlib.Path(folder) / name) for name in ("in.onnx", "out.onnx"))
        onnx.save(model, source)
        write(source, target)
        return onnx.load(target)


@exporter("ONNX Runtime, quantised")
def quantised():
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

    def static(model, name, values, form, **options):
        def write(source, target):
            reader = Reader(name, values)
            quantize_static(source, target, reader, quant_format=form, **options)

        return through_files(model, write)

    images = [image(seed) for seed in range(4)]
    texts = [text(seed) for seed in range(4)]
    for form in (QuantFormat.QDQ, QuantFormat.QOperator):
        written = form is QuantFormat.QDQ
        opset = 21 if written else 17
        for kind, options in (("u8", {}), ("i8 by channel", {"per_channel": True, "activation_type": QuantType.QInt8})):
            made = static(convolutions(opset), "x", images, form, **options)
            yield Case(f"convolutions, static {form.name}, {kind}", made, {"x": image()}, as_written=written)
        made = static(words(opset), "x", texts, form)
        yield Case(f"transformer, static {form.name}", made, {"x": text()}, as_written=written)
    # Without an instruction for it ONNX Runtime adds products of bytes in 16 bits: 7 bits fit.
    narrow = {"reduce_range": True}
    dynamic = through_files(words(), lambda source, target: quantize_dynamic(source, target, **narrow))
    yield Case("transformer, dynamic", dynamic, {"x": text()})
    level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    yield Case("transformer, dynamic, optimised", through_files(dynamic, optimise(level)), {"x": text()})


@exporter("ONNX Runtime, 4 bits")
def four_bits():
    from onnxruntime.quantization import matmul_nbits_quantizer as narrow

    for symmetric in (True, False):
        quantiser = narrow.MatMulNBitsQuantizer(words(), block_size=16, is_symmetric=symmetric)
        quantiser.process()
        kind = "symmetric" if symmetric else "zero points"
        yield Case(f"transformer, 4 bits, {kind}", quantiser.model.model, {"x": text()})


def optimise(level):
    def write(source, target):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = level
        options.optimized_model_filepath = target
        options.log_severity_level = 3
        onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    return write


@exporter("ONNX Runtime, optimised")
def optimised():
    levels = onnxruntime.GraphOptimizationLevel
    for name, level in (("basic", levels.ORT_ENABLE_BASIC), ("extended", levels.ORT_ENABLE_EXTENDED)):
        yield Case(f"convolutions, {name}", through_files(convolutions(), optimise(level)), {"x": image()})
        yield Case(f"transformer, {name}", through_files(words(), optimise(level)), {"x": text()})
    from onnxruntime.transformers import optimizer

    def write(source, target):
        made = optimizer.optimize_model(source, model_type="bert", num_heads=4, hidden_size=32, opt_level=0)
        made.save_model_to_file(target)

    yield Case("transformer, by its own tool", through_files(words(), write), {"x": text()})


@exporter("half precision, files beside")
def forms():
    from onnxconverter_common import float16

    narrow = float16.convert_float_to_float16(words())
    yield Case("transformer, half", narrow, {"x": text().astype(np.float16)}, tolerance=HALF)
    narrow = float16.convert_float_to_float16(convolutions(), keep_io_types=True)
    yield Case("convolutions, half within", narrow, {"x": image()}, tolerance=HALF)
    folder = pathlib.Path(tempfile.mkdtemp())
    path = folder / "model.onnx"
    onnx.save(words(), path, save_as_external_data=True, location="model.data", size_threshold=256)
    yield Case("transformer, weights beside", path, {"x": text()}, folder=folder)
    open_sizes = words()
    for dim in open_sizes.graph.input[0].type.tensor_type.shape.dim[:2]:
        dim.ClearField("dim_param")
        dim.dim_value = -1
    yield Case("transformer, sizes of -1", open_sizes, {"x": text()})


# ---------------------------------------------------------------------------------------------
# What exporters of language models and PaddlePaddle's write, by hand


@exporter("operators of ONNX Runtime, by hand")
def by_hand():
    node = helper.make_node
    own = {"domain": "com.microsoft"}
    draw = np.random.default_rng(5)
    floats = lambda *dims: draw.normal(size=dims).astype(np.float32)

    def case(name, nodes, inputs, outputs, held=()):
        kinds = {np.dtype("float32"): 1, np.dtype("int64"): 7, np.dtype("int32"): 6, np.dtype("uint8"): 2, np.dtype("int8"): 3}
        ports = {key: (kinds[value.dtype], [None] * value.ndim) for key, value in inputs.items()}
        return Case(name, model_of(nodes, ports, outputs, list(held)), inputs)

    x = floats(2, 5, 32)
    three_dims = {"y": [None] * 3}
    held = [weights("w", 32, 96), weights("b", 96), weights("g", 32), weights("h", 32)]
    attention = lambda inputs, outputs, **more: node("Attention", inputs, outputs, num_heads=4, **more, **own)
    yield case("attention", [attention(["x", "w", "b"], ["y"])], {"x": x}, three_dims, held)
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int32)
    masked = [attention(["x", "w", "b", "m"], ["y"])]
    yield case("attention, masked", masked, {"x": x, "m": mask}, three_dims, held)
    lengths = np.array([5, 3], np.int32)
    yield case("attention, lengths", masked, {"x": x, "m": lengths}, three_dims, held)
    causal = [attention(["x", "w", "b", "", "p"], ["y", "present"], unidirectional=1)]
    past = floats(2, 2, 4, 3, 8)
    both = {"y": [None] * 3, "present": [None] * 5}
    yield case("attention, with a past", causal, {"x": x, "p": past}, both, held)
    bytes_held = [
        numpy_helper.from_array(draw.integers(-60, 60, (32, 96)).astype(np.int8), "wi"),
        numpy_helper.from_array(np.float32(0.02), "xs"),
        numpy_helper.from_array(np.float32(0.01), "ws"),
        numpy_helper.from_array(np.uint8(128), "xz"),
        numpy_helper.from_array(np.int8(0), "wz"),
    ]
    whole = ["x", "wi", "b", "xs", "ws", "m", "xz", "wz"]
    integers = [node("QAttention", whole, ["y"], num_heads=4, **own)]
    words = {"x": draw.integers(0, 255, (2, 5, 32)).astype(np.uint8), "m": mask}
    yield case("attention of integers", integers, words, three_dims, held[1:2] + bytes_held)
    heads = {"q": floats(2, 5, 32), "k": floats(2, 7, 32), "v": floats(2, 7, 32)}
    multi = node("MultiHeadAttention", ["q", "k", "v", "b", "m"], ["y"], num_heads=4, **own)
    mask = np.array([[1] * 7, [1] * 4 + [0] * 3], np.int32)
    yield case("many heads, masked", [multi], heads | {"m": mask}, three_dims, held)
    group = node(
        "GroupQueryAttention",
        ["q", "k", "v", "pk", "pv", "last", "total", "cos", "sin"],
        ["y", "nk", "nv"],
        num_heads=4,
        kv_num_heads=2,
        do_rotary=1,
        **own,
    )
    turns = np.arange(16)[:, None] / 10000 ** (np.arange(8) / 8)
    rotary = [numpy_helper.from_array(fn(turns).astype(np.float32), key) for key, fn in (("cos", np.cos), ("sin", np.sin))]
    asked = {"q": floats(1, 3, 64), "k": floats(1, 3, 32), "v": floats(1, 3, 32)}
    none = {"pk": floats(1, 2, 0, 16), "pv": floats(1, 2, 0, 16)}
    first = {"last": np.array([2], np.int32), "total": np.array(3, np.int32)}
    outputs = {"y": [None] * 3, "nk": [None] * 4, "nv": [None] * 4}
    yield case("grouped queries, first words", [group], asked | none | first, outputs, rotary)
    asked = {"q": floats(1, 1, 64), "k": floats(1, 1, 32), "v": floats(1, 1, 32)}
    some = {"pk": floats(1, 2, 4, 16), "pv": floats(1, 2, 4, 16)}
    later = {"last": np.array([4], np.int32), "total": np.array(5, np.int32)}
    yield case("grouped queries, next word", [group], asked | some | later, outputs, rotary)
    turned = node("RotaryEmbedding", ["x", "at", "cos", "sin"], ["y"], num_heads=4, **own)
    places = np.arange(5)[None].repeat(2, 0).astype(np.int64)
    wide = {"x": floats(2, 5, 64), "at": places}
    yield case("rotary places", [turned], wide, three_dims, rotary)
    skip = [node("SkipLayerNormalization", ["x", "z", "g", "h"], ["y", "", "", "s"], epsilon=1e-5, **own)]
    sums = {"y": [None] * 3, "s": [None] * 3}
    yield case("skip normalisation", skip, {"x": x, "z": floats(2, 5, 32)}, sums, held)
    root = [node("SkipSimplifiedLayerNormalization", ["x", "z", "g"], ["y", "", "", "s"], epsilon=1e-5, **own)]
    yield case("skip normalisation by squares", root, {"x": x, "z": floats(2, 5, 32)}, sums, held)
    root = [node("SimplifiedLayerNormalization", ["x", "g"], ["y"], epsilon=1e-5, axis=-1)]
    yield case("normalisation by squares", root, {"x": x}, three_dims, held)
    embed = node(
        "EmbedLayerNormalization",
        ["ids", "types", "words", "places", "kinds", "g", "h", "mask"],
        ["y", "counts"],
        **own,
    )
    ids = {"ids": np.array([[3, 1, 2], [0, 9, 9]], np.int32), "types": np.array([[0, 0, 1], [0, 1, 1]], np.int32)}
    ids["mask"] = np.array([[1, 1, 1], [1, 1, 0]], np.int32)
    tables = [weights("words", 10, 32), weights("places", 8, 32), weights("kinds", 2, 32)]
    counted = {"y": [None] * 3, "counts": (TensorProto.INT32, [None])}
    yield case("embedding", [embed], ids, counted, held + tables)
    for operator in ("BiasGelu", "FastGelu"):
        yield case(operator, [node(operator, ["x", "g"], ["y"], **own)], {"x": x}, three_dims, held)
    yield case("QuickGelu", [node("QuickGelu", ["x"], ["y"], **own)], {"x": x}, three_dims)
    fused = node("FusedMatMul", ["x", "z"], ["y"], alpha=0.25, transB=1, **own)
    yield case("FusedMatMul", [fused], {"x": x, "z": floats(2, 6, 32)}, three_dims)
    fused = node("FusedGemm", ["x", "w", "b"], ["y"], activation="Relu", **own)
    yield case("FusedGemm", [fused], {"x": floats(4, 32)}, {"y": [None] * 2}, held)
    small = [weights("k", 4, 3, 3, 3), weights("c", 4)]
    fused = node("FusedConv", ["x", "k", "c"], ["y"], activation="Relu", kernel_shape=[3, 3], **own)
    yield case("FusedConv", [fused], {"x": image()}, {"y": [None] * 4}, small)


# ---------------------------------------------------------------------------------------------
# PyTorch


class Net:
    """A network with what it is asked: `open_dims` names sizes left open, by input and dimension."""

    def __init__(self, name, make, *inputs, open_dims=(), only=None, **options):
        self.name = name
        self.make = make
        self.inputs = inputs
        self.open_dims = open_dims
        # The exporter, where just one takes it.
        self.only = only
        self.options = options


def drawn(*dims, seed=6):
    return np.random.default_rng(seed).normal(size=dims).astype(np.float32)


def counted(high, *dims, seed=7):
    return np.random.default_rng(seed).integers(0, high, dims)


def applied(function, **parts):
    """A module that has `parts` and computes `function` of itself and its inputs."""
    import torch

    class Applied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

        def forward(self, *inputs):
            return function(self, *inputs)

    # Both exporters ask the signature for as many inputs.
    names = function.__code__.co_varnames[1 : function.__code__.co_argcount]
    scope = {}
    exec(f"def forward(self, {', '.join(names)}):\n    return function(self, {', '.join(names)})", {"function": function}, scope)
    Applied.forward = scope["forward"]
    return Applied()


BATCH = ({0: "n"},)
IMAGES = drawn(2, 3, 32, 32)


def networks_of_images():
    import torch
    import torchvision
    from torch import nn
    from torch.nn import functional as F

    def plain():
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding="same"),
            nn.BatchNorm2d(8),
            nn.Hardswish(),
            nn.MaxPool2d(3, 2, 1, ceil_mode=True),
            nn.Conv2d(8, 16, 3, stride=2, groups=4, bias=False),
            nn.BatchNorm2d(16),
            nn.PReLU(16),
            nn.AvgPool2d(2, 1, 1, count_include_pad=False),
            nn.AdaptiveAvgPool2d(3),
            nn.Dropout2d(),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 10),
            nn.LogSoftmax(1),
        )

    models = torchvision.models
    yield Net("convolutions", plain, IMAGES, open_dims=BATCH)
    basic = models.resnet.BasicBlock
    yield Net("residual", lambda: models.ResNet(basic, [1, 1, 1, 1], num_classes=10), IMAGES, open_dims=BATCH)
    yield Net("mobilenet v3", lambda: models.mobilenet_v3_small(), IMAGES, open_dims=BATCH)
    yield Net("squeezenet", lambda: models.squeezenet1_1(), drawn(1, 3, 64, 64))
    yield Net("efficientnet", lambda: models.efficientnet_b0(), IMAGES)
    yield Net("shufflenet", lambda: models.shufflenet_v2_x0_5(), IMAGES, open_dims=BATCH)
    vit = lambda: models.VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=10)
    yield Net("vision transformer", vit, IMAGES, open_dims=BATCH)
    segment = lambda: applied(
        lambda self, x: self.net(x)["out"],
        net=models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4),
    )
    yield Net("segmentation", segment, drawn(1, 3, 64, 64))

    def around(self, x):
        a = F.relu(self.a(x))
        b = F.relu(self.b(F.max_pool2d(a, 2)))
        return self.c(torch.cat([a, F.interpolate(b, size=a.shape[2:], mode="bilinear")], 1))

    unet = lambda: applied(
        around, a=nn.Conv2d(3, 8, 3, padding=1), b=nn.Conv2d(8, 8, 3, padding=1), c=nn.Conv2d(16, 2, 1)
    )
    sizes = ({0: "n", 2: "h", 3: "w"},)
    yield Net("down and up, any size", unet, IMAGES, open_dims=sizes)

    def enlarged(self, x):
        return (
            F.interpolate(x, scale_factor=2, mode="nearest"),
            F.interpolate(x, scale_factor=1.5, mode="bilinear", align_corners=False),
            F.interpolate(x, size=(13, 9), mode="bilinear", align_corners=True),
            F.interpolate(x, scale_factor=2, mode="bicubic"),
            F.interpolate(x, size=(4, 3), mode="area"),
        )

    yield Net("interpolations", lambda: applied(enlarged), drawn(1, 2, 8, 6))

    def warped(self, x, theta):
        grid = F.affine_grid(theta, [2, 3, 10, 12], align_corners=False)
        reflected = F.grid_sample(x, grid * 1.3, mode="nearest", padding_mode="reflection", align_corners=True)
        return F.grid_sample(x, grid, align_corners=False), reflected

    theta = np.array([[[1, 0.1, 0], [0.2, 0.9, 0.1]]] * 2, np.float32)
    yield Net("sampled by grid", lambda: applied(warped), IMAGES, theta)

    def backwards():
        return nn.Sequential(
            nn.ConvTranspose2d(3, 8, 3, stride=2, padding=1, output_padding=1),
            nn.ELU(),
            nn.ConvTranspose2d(8, 12, 3, groups=4, dilation=2),
            nn.PixelShuffle(2),
            nn.PixelUnshuffle(2),
            nn.Tanh(),
        )

    yield Net("transposed convolutions", backwards, drawn(1, 3, 9, 8), open_dims=BATCH)

    def edges():
        return nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
            nn.Conv2d(4, 4, 3, padding=1, padding_mode="replicate"),
            nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
            nn.ConstantPad2d((1, -1, 2, 0), 0.5),
            nn.Conv2d(4, 8, (3, 1), dilation=(2, 1)),
            nn.LocalResponseNorm(3),
        )

    yield Net("edges", edges, drawn(1, 3, 9, 8))
    space = lambda: nn.Sequential(nn.Conv3d(2, 4, 3), nn.BatchNorm3d(4), nn.MaxPool3d(2), nn.AdaptiveAvgPool3d(1), nn.Flatten())
    yield Net("in space", space, drawn(2, 2, 8, 8, 8), open_dims=BATCH)

    def boxes(self, x, at, scores):
        corners = torch.cat([at[:, :2], at[:, :2] + at[:, 2:].abs() + 1], 1)
        kept = torchvision.ops.nms(corners, scores, 0.3)[:5]
        pooled = torchvision.ops.roi_align(self.net(x), [corners[:4]], (3, 3), 0.5, sampling_ratio=2)
        return kept, corners[kept], scores[kept], pooled

    detect = lambda: applied(boxes, net=nn.Conv2d(3, 4, 3, stride=2, padding=1))
    yield Net("detection", detect, drawn(1, 3, 32, 32), np.abs(drawn(12, 4)) * 8, np.abs(drawn(12)))

    def scaled(self, x):
        x = x.permute(0, 3, 1, 2).float() / 255
        return self.net((x - self.mean) / self.deviation).argmax(1).to(torch.int32)

    rule = lambda value: nn.Parameter(torch.full((1, 3, 1, 1), value), requires_grad=False)
    bytes_in = lambda: applied(scaled, net=nn.Conv2d(3, 5, 3), mean=rule(0.45), deviation=rule(0.22))
    yield Net("bytes in, classes out", bytes_in, counted(256, 2, 16, 16, 3).astype(np.uint8), open_dims=BATCH)

    def normalised():
        return nn.Sequential(
            nn.Conv2d(3, 8, 3),
            nn.GroupNorm(4, 8),
            nn.Conv2d(8, 8, 3),
            nn.InstanceNorm2d(8, affine=True),
            nn.LayerNorm([28, 28]),
            nn.Softmax2d(),
        )

    yield Net("normalisations", normalised, IMAGES, open_dims=BATCH)
    squares = lambda: nn.Sequential(nn.RMSNorm(32), nn.Linear(32, 8), nn.RMSNorm(8))
    yield Net("normalisation by squares", squares, IMAGES, open_dims=BATCH, only="dynamo")
    halved = lambda: plain().half()
    yield Net("convolutions, half", halved, IMAGES.astype(np.float16), open_dims=BATCH, tolerance=HALF)


def networks_of_sequences():
    import torch
    from torch import nn
    from torch.nn import functional as F

    x = drawn(2, 7, 16)
    both = ({0: "n", 1: "words"},)
    for kind in ("LSTM", "GRU", "RNN"):
        two_ways = lambda kind=kind: getattr(nn, kind)(16, 12, 2, batch_first=True, bidirectional=True)
        yield Net(f"{kind}, two ways", two_ways, x, open_dims=both)
    begun = lambda: applied(lambda self, x, h, c: self.net(x, (h, c)), net=nn.LSTM(16, 12, proj_size=0))
    yield Net("LSTM, with states", begun, x, drawn(1, 7, 12), drawn(1, 7, 12, seed=8))
    layer = lambda kind, **more: kind(16, 4, 32, batch_first=True, **more)
    mask = np.array([[False] * 7, [False] * 4 + [True] * 3])

    def encode(self, x, mask):
        causal = torch.triu(torch.full((x.shape[1], x.shape[1]), float("-inf")), 1)
        return self.net(x, mask=causal, src_key_padding_mask=mask.float() * -1e9)

    encoder = lambda: applied(encode, net=nn.TransformerEncoder(layer(nn.TransformerEncoderLayer, activation="gelu"), 2))
    yield Net("encoder, masked", encoder, x, mask, open_dims=({0: "n", 1: "words"}, {0: "n", 1: "words"}))
    # Without masks the TorchScript exporter does not take these layers.
    decoder = lambda: nn.TransformerDecoder(layer(nn.TransformerDecoderLayer, norm_first=True), 1)
    causal = np.triu(np.full((7, 7), -1e4, np.float32), 1)
    yield Net("decoder", decoder, x, drawn(2, 5, 16), causal, np.zeros((7, 5), np.float32))

    def attend(self, q, k, v, mask):
        plain = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return plain, F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3)

    heads = [drawn(2, 4, 7, 8, seed=seed) for seed in range(3)]
    yield Net("attention", lambda: applied(attend), *heads, drawn(1, 1, 7, 7) > -0.5)

    def language(self, ids, past_k, past_v):
        x = self.words(ids)
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.norm
        n, count, width = x.shape
        q = self.q(y).view(n, count, 4, 8).transpose(1, 2)
        k = self.k(y).view(n, count, 2, 8).transpose(1, 2)
        v = self.v(y).view(n, count, 2, 8).transpose(1, 2)
        start = past_k.shape[2]
        at = torch.arange(start, start + count)[:, None] * self.turns
        cos, sin = at.cos().repeat(1, 2), at.sin().repeat(1, 2)
        turn = lambda z: z * cos + torch.cat([-z[..., 4:], z[..., :4]], -1) * sin
        k = torch.cat([past_k, turn(k)], 2)
        v = torch.cat([past_v, v], 2)
        causal = torch.ones(count, start + count, dtype=torch.bool).tril(start)
        many = lambda z: z.repeat_interleave(2, 1)
        y = F.scaled_dot_product_attention(turn(q), many(k), many(v), attn_mask=causal)
        x = x + self.o(y.transpose(1, 2).reshape(n, count, width))
        x = x + self.down(F.silu(self.up(x)))
        return x @ self.words.weight.T, k, v

    def speaker():
        part = lambda rows, columns: nn.Linear(rows, columns, bias=False)
        turns = nn.Parameter(10000 ** (-torch.arange(4) / 4), requires_grad=False)
        parts = {"q": part(32, 32), "k": part(32, 16), "v": part(32, 16), "o": part(32, 32)}
        parts |= {"up": part(32, 64), "down": part(64, 32), "norm": nn.Parameter(torch.rand(32)), "words": nn.Embedding(50, 32)}
        return applied(language, turns=turns, **parts)

    past = drawn(2, 2, 3, 8)
    sizes = ({0: "n", 1: "words"}, {0: "n", 2: "past"}, {0: "n", 2: "past"})
    yield Net("language, with a past", speaker, counted(50, 2, 5), past, past, open_dims=sizes)
    sounds = lambda: nn.Sequential(
        nn.Conv1d(16, 8, 3, dilation=2),
        nn.utils.parametrizations.weight_norm(nn.Conv1d(8, 8, 1)),
        nn.GLU(1),
        nn.AvgPool1d(2),
        nn.ConvTranspose1d(4, 4, 4, 2, 1),
        nn.BatchNorm1d(4),
    )
    yield Net("sounds", sounds, drawn(2, 16, 30), open_dims=({0: "n", 2: "time"},))
    spectrum = lambda self, x: torch.stft(x, 16, 4, window=self.window, return_complex=True).abs()
    window = lambda: nn.Parameter(torch.hann_window(16), requires_grad=False)
    yield Net("spectrum", lambda: applied(spectrum, window=window()), drawn(2, 64))
    narrow = lambda: layer(nn.TransformerEncoderLayer).half()
    yield Net("encoder, half", narrow, x.astype(np.float16), causal.astype(np.float16), tolerance=HALF)

    def brain(self, x):
        return self.net(x.bfloat16()).float()

    short = lambda: applied(brain, net=nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).bfloat16())
    yield Net("perceptron, bfloat16", short, x, as_written=True, tolerance=2e-2)


def networks_of_tensors():
    import torch
    from torch import nn
    from torch.nn import functional as F

    perceptron = lambda: nn.Sequential(
        nn.Linear(6, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 16), nn.SiLU(), nn.BatchNorm1d(16), nn.Linear(16, 3)
    )
    yield Net("perceptron", perceptron, drawn(4, 6), open_dims=BATCH)
    yield Net("perceptron, double", lambda: perceptron().double(), drawn(4, 6).astype(np.float64))

    def indexed(self, ids, x):
        rows = self.words(ids)
        best, at = x.topk(3, dim=1)
        sums = torch.zeros(4, 10).scatter_add(1, ids[:, :5], x[:, :5])
        put = x.scatter(1, at, 0.0).masked_fill(x < 0, -1.0)
        bag = rows[torch.arange(4), at[:, 0] % 5]
        rows = rows.index_put((ids[:, 0] % 4,), torch.tensor(1.5)) * torch.where(x[:, :5, None] > 0, 1.0, 0.5)
        return rows, best, at, sums, put, bag, x.index_select(1, ids[0]), x.gather(1, at)

    yield Net("gathered and scattered", lambda: applied(indexed, words=nn.Embedding(10, 4)), counted(10, 4, 5), drawn(4, 10))

    def summed(self, x, y):
        return (
            torch.einsum("bij,bkj->bik", x, y),
            torch.einsum("bij,bij->b", x, x),
            torch.einsum("ijk->kji", x),
            x.cumsum(1),
            torch.baddbmm(x @ x.transpose(1, 2), x, y.transpose(1, 2)),
            x.tril(-1) + x.triu(1),
            F.cosine_similarity(x, y, dim=-1),
            torch.outer(x[0, 0], y[0, 0]),
        )

    far = lambda self, x, y: torch.cdist(x, y)
    yield Net("distances", lambda: applied(far), drawn(2, 5, 6), drawn(2, 4, 6), only="script")
    yield Net("products and sums", lambda: applied(summed), drawn(2, 5, 6), drawn(2, 5, 6, seed=9))

    def reduced(self, x):
        return (
            x.var(1), x.std(), x.norm(dim=2), x.norm(p=1, dim=1), x.logsumexp(2), x.amax((0, 2)),
            x.prod(1), x.min(1).values, x.mean((1, 2), keepdim=True), x.argmin(2), (x > 0).any(1), (x > -1).all(),
            F.normalize(x, dim=1), x.softmax(1), x.abs().sum().sqrt(),
        )  # fmt: skip

    yield Net("reductions", lambda: applied(reduced), drawn(2, 5, 6))

    def sliced(self, x):
        return (
            x.flip(1), x.roll((1, -2), (0, 1)), x[:, 1:-1:2], x[..., -3:], x[:, [3, 0, 2]], x.unfold(1, 3, 2),
            x[:, None, ::3], torch.stack(x.unbind(0), 2), torch.cat(x.chunk(3, 1), 0), x.transpose(1, 2).flip(2),
            x.repeat(2, 1, 1), x.expand(2, *x.shape), x.movedim(0, 2), x.narrow(1, 1, 2), x.diagonal(dim1=1, dim2=2),
        )  # fmt: skip

    yield Net("slices", lambda: applied(sliced), drawn(2, 6, 6))

    def whole(self, x, y):
        return (
            x // y, x % y, torch.div(x, y, rounding_mode="trunc"), x == y,
            x.bool() & ~(y > 3), x.clamp(2, 9), x.pow(2), x.float().round().int(), x.sort(1, descending=True).values,
            x.argsort(1), x.max(1).indices, F.one_hot(y, 12), torch.bucketize(x, torch.tensor([1, 4, 9])),
        )  # fmt: skip

    low = counted(20, 3, 5) - 8
    bits = lambda self, x, y: (x & y, x | y, x ^ y, x << 1, ~x)
    yield Net("bits", lambda: applied(bits), low, counted(11, 3, 5) + 1, only="dynamo")
    yield Net("integers", lambda: applied(whole), low, counted(11, 3, 5) + 1)

    def shaped(self, x):
        return x.nonzero(), x[x > 0], torch.unique(x.round()), (x > 0).sum()

    yield Net("sizes by values", lambda: applied(shaped), drawn(3, 5))

    def bent(self, x):
        functions = "relu6 leaky_relu elu selu celu gelu silu mish softplus softsign hardsigmoid hardtanh logsigmoid tanhshrink"
        made = [getattr(F, name)(x) for name in functions.split()]
        return [*made, F.hardshrink(x), F.softshrink(x), F.threshold(x, 0.0, 0.0), F.gelu(x, approximate="tanh")]

    yield Net("activations", lambda: applied(bent), drawn(3, 5) * 3)

    def computed(self, x):
        names = "exp log1p sin cos tan atan erf floor ceil trunc frac sign reciprocal rsqrt log2"
        y = x.abs() + 0.1
        return [getattr(y, name)() for name in names.split()] + [torch.atan2(x, y), torch.fmod(x, y), torch.remainder(x, y)]

    yield Net("functions", lambda: applied(computed), drawn(3, 5))
    hyperbolic = lambda self, x: (x.sinh(), x.cosh(), x.asinh(), x.erfc(), x.expm1())
    yield Net("hyperbolic functions", lambda: applied(hyperbolic), drawn(3, 5), only="dynamo")

    def looped():
        class Looped(nn.Module):
            def forward(self, x, count: int):
                total = x
                for index in range(count):
                    if float(total.sum()) > 10.0:
                        total = total - index
                    else:
                        total = total * 2 + index
                return total

        return torch.jit.script(Looped())

    yield Net("loop, scripted", looped, drawn(3, 4), np.array(5), only="script")

    def chosen(self, x):
        return torch.cond(x.sum() > 0, lambda x: self.a(x), lambda x: self.b(x).cos(), (x,))

    branches = lambda: applied(chosen, a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    yield Net("branches", branches, drawn(3, 4), only="dynamo")
    auto = lambda self, x: self.out(self.mean(x) + torch.exp(self.spread(x) * 0.5) * torch.randn_like(self.mean(x)))
    draws = lambda: applied(auto, mean=nn.Linear(6, 4), spread=nn.Linear(6, 4), out=nn.Linear(4, 6))
    yield Net("autoencoder that draws", draws, drawn(4, 6), draws=True)


def exported(dynamo):
    import torch

    for net in itertools.chain(networks_of_tensors(), networks_of_sequences(), networks_of_images()):
        if net.only not in (None, "dynamo" if dynamo else "script"):
            continue
        torch.manual_seed(0)
        module = net.make().eval()
        for part in module.modules():
            if isinstance(getattr(part, "running_var", None), torch.Tensor):
                part.running_mean.normal_(0, 0.2)
                part.running_var.uniform_(0.5, 1.5)
        given = tuple(torch.from_numpy(value) if value.ndim else int(value) for value in net.inputs)
        names = [f"x{index}" for index in range(len(given))]
        folder = pathlib.Path(tempfile.mkdtemp())
        options = {"input_names": names, "dynamo": dynamo}
        if net.open_dims and dynamo:
            options["dynamic_shapes"] = net.open_dims
        elif net.open_dims:
            options["dynamic_axes"] = dict(zip(names, net.open_dims))
        told = io.StringIO()
        try:
            with warnings.catch_warnings(), contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
                warnings.simplefilter("ignore")
                torch.onnx.export(module, given, folder / "model.onnx", **options)
        except Exception as error:  # Exporters raise what they like.
            print(f"not exported: {net.name}: {str(error).strip()[:160]!r}", flush=True)
            continue
        yield Case(net.name, folder / "model.onnx", dict(zip(names, net.inputs)), folder=folder, **net.options)


@exporter("PyTorch, TorchScript exporter")
def torch_script():
    yield from exported(False)


@exporter("PyTorch, dynamo exporter")
def torch_dynamo():
    yield from exported(True)


# ---------------------------------------------------------------------------------------------
# Keras


def networks_of_keras():
    import keras
    from keras import layers, ops

    def through(name, shape, make, *inputs, dtype="float32"):
        given = [keras.Input(part, dtype=dtype) for part in shape]
        return name, keras.Model(given, make(*given)), inputs

    def sequential(*parts):
        def make(x):
            for part in parts:
                x = part(x)
            return x

        return make

    image = [(32, 32, 3)]
    images = drawn(2, 32, 32, 3)
    # tf2onnx has nothing for the exact one.
    gelu = lambda x: keras.activations.gelu(x, approximate=True)
    dense = sequential(
        layers.Dense(32, gelu), layers.BatchNormalization(), layers.Dropout(0.2), layers.Dense(8, "swish"), layers.Dense(3, "softmax")
    )
    yield through("perceptron", [(6,)], dense, drawn(4, 6))
    convolutions = sequential(
        layers.Rescaling(0.5, 0.1),
        layers.Conv2D(8, 3, padding="same", activation="relu"),
        layers.BatchNormalization(),
        layers.MaxPooling2D(3, 2, padding="same"),
        layers.SeparableConv2D(12, 3, strides=2, padding="same"),
        layers.LeakyReLU(),
        layers.DepthwiseConv2D(3, dilation_rate=2),
        layers.AveragePooling2D(2, padding="same"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(10),
        layers.Softmax(),
    )
    yield through("convolutions", image, convolutions, images)
    mobile = keras.applications.MobileNetV3Small((32, 32, 3), 0.35, weights=None, classes=10)
    yield "mobilenet v3", mobile, (images,)
    mobile = keras.applications.MobileNetV2((32, 32, 3), 0.35, weights=None, classes=10)
    yield "mobilenet v2", mobile, (images,)

    def residual(x):
        y = x = layers.Conv2D(8, 3, 2, padding="same")(x)
        for _ in range(2):
            y = layers.ReLU(6.0)(layers.GroupNormalization(4)(layers.Conv2D(8, 3, padding="same")(y)))
        return layers.GlobalMaxPooling2D()(layers.Add()([x, y]))

    yield through("residual", image, residual, images)

    def around(x):
        a = layers.Conv2D(6, 3, padding="same", activation="elu")(x)
        b = layers.Conv2D(6, 3, 2, padding="same", activation="selu")(layers.ZeroPadding2D(1)(a))
        b = layers.Cropping2D(((0, 1), (1, 0)))(layers.UpSampling2D(2, interpolation="bilinear")(b))
        b = layers.Resizing(32, 32, interpolation="nearest")(b)
        return layers.Conv2D(1, 1, activation="sigmoid")(layers.Concatenate()([a, b]))

    yield through("down and up", image, around, images)
    back = sequential(
        layers.Conv2DTranspose(6, 3, 2, padding="same", activation="tanh"), layers.UpSampling2D(2), layers.Conv2DTranspose(2, 4, 2)
    )
    yield through("transposed convolutions", [(8, 8, 3)], back, drawn(2, 8, 8, 3))
    words, ids = [(7, 16)], counted(20, 2, 9).astype(np.int32)
    x = drawn(2, 7, 16)
    two_ways = sequential(layers.Bidirectional(layers.LSTM(8, return_sequences=True)), layers.LSTM(6), layers.Dense(2))
    yield through("LSTM, two ways", words, two_ways, x)
    yield through("GRU", words, sequential(layers.GRU(8, return_sequences=True), layers.GRU(6, reset_after=False)), x)
    yield through("RNN", [(None, 16)], sequential(layers.SimpleRNN(8, go_backwards=True)), x)
    masked = sequential(layers.Embedding(20, 16, mask_zero=True), layers.LSTM(8), layers.Dense(2, "softmax"))
    yield through("words, masked", [(None,)], masked, ids, dtype="int32")

    def encoder(x):
        y = layers.MultiHeadAttention(4, 8)(x, x, use_causal_mask=True)
        x = layers.LayerNormalization()(layers.Add()([x, y]))
        return layers.LayerNormalization()(x + layers.Dense(16)(layers.Dense(32, gelu)(x)))

    yield through("encoder", [(None, 16)], encoder, x)
    sounds = sequential(
        layers.Conv1D(8, 3, padding="causal", dilation_rate=2), layers.MaxPooling1D(2), layers.Conv1D(4, 3, activation="softplus"), layers.Flatten()
    )
    yield through("sounds", [(30, 4)], sounds, drawn(2, 30, 4))
    space = sequential(layers.Conv3D(4, 3, activation="relu"), layers.MaxPooling3D(2), layers.GlobalAveragePooling3D())
    yield through("in space", [(8, 8, 8, 2)], space, drawn(2, 8, 8, 8, 2))

    def tensors(x, y):
        best, at = ops.top_k(x, 3)
        sums = ops.cumsum(x, 1) + ops.einsum("bi,bj->bi", x, y)
        picked = ops.take(x, [2, 0], 1)
        return best, at, sums, ops.where(x > y, x, 0.0), picked, ops.max(x, 1), ops.flip(x, 1), ops.one_hot(at[:, 0], 6)

    yield through("tensors", [(6,), (6,)], tensors, drawn(4, 6), drawn(4, 6, seed=9))


@exporter("Keras, tf2onnx")
def keras_models():
    import keras
    import tensorflow
    import tf2onnx

    keras.utils.set_random_seed(0)
    draw = np.random.default_rng(11)
    for name, network, inputs in networks_of_keras():
        for weight in network.variables:
            if weight.path.endswith(("moving_mean", "moving_variance", "gamma", "beta", "bias")):
                weight.assign(draw.uniform(0.5, 1.5, weight.shape))
        names = [f"x{index}" for index in range(len(inputs))]
        signature = [
            tensorflow.TensorSpec(part.shape, part.dtype, name=key) for key, part in zip(names, network.inputs)
        ]
        called = tensorflow.function(lambda *given: network(list(given)), input_signature=signature)
        try:
            model, _ = tf2onnx.convert.from_function(called, signature, opset=18)
        except Exception as error:  # Exporters raise what they like.
            print(f"not exported: {name}: {str(error).strip()[:160]!r}", flush=True)
            continue
        yield Case(name, model, dict(zip(names, inputs)))


# ---------------------------------------------------------------------------------------------
# PaddlePaddle


def networks_of_paddle():
    from paddle import nn

    convolutions = nn.Sequential(
        nn.Conv2D(3, 8, 3, padding=1), nn.BatchNorm2D(8), nn.Hardswish(), nn.MaxPool2D(2),
        nn.Conv2D(8, 8, 3, groups=2), nn.PReLU(8), nn.AdaptiveAvgPool2D(1), nn.Flatten(), nn.Linear(8, 5), nn.Softmax(),
    )  # fmt: skip
    yield "perceptron", nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3)), [None, 6], drawn(4, 6)
    yield "convolutions", convolutions, [None, 3, 32, 32], IMAGES
    up = nn.Sequential(nn.Conv2DTranspose(3, 4, 3, 2), nn.Swish(), nn.Upsample(scale_factor=2, mode="bilinear"), nn.Upsample(scale_factor=2))
    yield "up", up, [None, 3, 8, 8], drawn(1, 3, 8, 8)
    yield "LSTM, two ways", nn.LSTM(16, 12, 2, direction="bidirect"), [None, 7, 16], drawn(2, 7, 16)
    yield "GRU", nn.GRU(16, 12), [None, 7, 16], drawn(2, 7, 16)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32), 2)
    yield "encoder", encoder, [None, None, 16], drawn(2, 7, 16)
    from paddle.vision import models

    yield "mobilenet v3", models.MobileNetV3Small(0.5, num_classes=10), [None, 3, 64, 64], drawn(1, 3, 64, 64)
    yield "squeezenet", models.SqueezeNet("1.1", num_classes=10), [None, 3, 64, 64], drawn(1, 3, 64, 64)
    yield "shufflenet", models.shufflenet_v2_x0_25(num_classes=10), [None, 3, 64, 64], drawn(1, 3, 64, 64)


@exporter("PaddlePaddle, paddle2onnx")
def paddle_models():
    import paddle
    import paddle2onnx

    paddle.seed(0)
    for name, network, dims, value in networks_of_paddle():
        network.eval()
        path = pathlib.Path(tempfile.mkdtemp()) / "model.onnx"
        given = [paddle.static.InputSpec(dims, "float32", "x")]
        try:
            # What folds constants afterwards would install packages of its own.
            paddle2onnx.dygraph2onnx(network, str(path), given, opset_version=15, optimize_tool="None")
            asked = onnx.load(path).graph.input[0].name
        except (Exception, SystemExit) as error:  # It ends Python where it fails.
            print(f"not exported: {name}: {str(error).strip()[:160]!r}", flush=True)
            continue
        yield Case(name, path, {asked: value}, folder=path.parent)


# ---------------------------------------------------------------------------------------------


def theirs(case, path):
    if not case.as_written:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        try:
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            names = [value.name for value in session.get_outputs()]
            return dict(zip(names, session.run(None, case.inputs)))
        except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as error:
            print(f"beside the evaluator: {case.name}: {str(error)[-80:]}", flush=True)
    from onnx.reference import ReferenceEvaluator

    model = onnx.load(path)
    names = [value.name for value in model.graph.output]
    return dict(zip(names, ReferenceEvaluator(model).run(None, case.inputs)))


def souk(options, case, path, folder, parts):
    command = [options.souk, "--dir", options.dir, "--json", "submit", str(path), "-o", str(folder / "out")]
    command += ["--min-providers", str(parts), "--max-providers", str(parts), "--wait", "60"]
    for index, (name, value) in enumerate(case.inputs.items()):
        value = value.astype(str) if value.dtype == object else value
        np.save(folder / f"{index}.npy", value)
        command += ["-i", f"{name}={folder / f'{index}.npy'}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=SUBMIT_SECONDS_MAX)


def file_name(name):
    return name.replace("/", "_").replace("\\", "_")


def ours(folder, name, wanted):
    """An output as ONNX Runtime gives it: texts and maps lie in a file beside the numbers."""
    meaning = folder / "out" / f"{file_name(name)}.json"
    if isinstance(wanted, list):
        return json.loads(meaning.read_text())
    if wanted.dtype == object:
        return np.array(json.loads(meaning.read_text()), dtype=object)
    return np.load(folder / "out" / f"{file_name(name)}.npy")


def differs(name, wanted, found, tolerance=TOLERANCE):
    if isinstance(wanted, list):
        keys = [str(key) for key in wanted[0]]
        if [list(row) for row in found] != [keys] * len(wanted):
            return f"{name}: maps of other keys"
        wanted = np.array([list(row.values()) for row in wanted])
        found = np.array([list(row.values()) for row in found])
        return differs(name, wanted.astype(np.float32), found.astype(np.float32), tolerance)
    if wanted.dtype != found.dtype or wanted.shape != found.shape:
        return f"{name}: {found.dtype}{found.shape}, not {wanted.dtype}{wanted.shape}"
    if wanted.dtype == object or wanted.dtype.kind in "biu":
        same = (wanted == found).all()
        return None if same else f"{name}: {found.ravel()[:5]}, not {wanted.ravel()[:5]}"
    scale = max(float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0)), 1e-30)
    wanted, found = wanted.astype(np.float64), found.astype(np.float64)
    same = (wanted == found) | (np.isnan(wanted) & np.isnan(found))
    off = np.where(same, 0, np.abs(wanted - found)).max(initial=0)
    return None if off <= tolerance * scale else f"{name}: {off:.3g} off, of {scale:.3g}"


def judge(options, case, parts, root):
    folder = pathlib.Path(tempfile.mkdtemp(dir=root))
    path = case.model
    if not isinstance(path, pathlib.Path):
        path = folder / "model.onnx"
        onnx.save(case.model, path)
    wanted = theirs(case, path)
    ended = souk(options, case, path, folder, parts)
    if ended.returncode != 0:
        text = (ended.stdout + ended.stderr).strip().splitlines()
        try:
            text = [json.loads(text[-1])["error"]["cause"]]
        except (ValueError, KeyError, TypeError, IndexError):
            pass
        if UNDIVIDED in "".join(text):
            return "one part", ""
        return "refused", (text or ["no word"])[-1][:300]
    tolerance = np.inf if case.draws else case.tolerance
    faults = [differs(name, value, ours(folder, name, value), tolerance) for name, value in wanted.items()]
    faults = [fault for fault in faults if fault]
    return ("wrong", faults[0]) if faults else ("equal", "")


def main():
    options = arguments()
    root = options.keep or pathlib.Path(tempfile.mkdtemp())
    root.mkdir(parents=True, exist_ok=True)
    rows, skipped, wrong = [], [], 0
    # Making models takes longest: where `--only` names exporters, no other makes any.
    asked = [name for name in MAKERS if options.only in name] or list(MAKERS)
    for name in asked:
        makers, counts = MAKERS[name], collections.Counter()
        for maker in makers:
            cases = maker()
            while True:
                try:
                    case = next(cases)
                except StopIteration:
                    break
                except ImportError as missing:
                    skipped.append(name)
                    print(f"skipped: {name}: {missing}", flush=True)
                    break
                if case is None or options.only not in f"{name}: {case.name}":
                    continue
                verdicts = {}
                for parts in options.cuts.split(","):
                    try:
                        verdicts[parts] = judge(options, case, int(parts), root)
                    except Exception as error:  # What judges may fail at the model too.
                        verdicts[parts] = ("wrong", f"{type(error).__name__}: {error}"[:300])
                whole = next(iter(verdicts.values()))[0]
                counts[whole] += 1
                counts["cut"] += [verdict for verdict, _ in verdicts.values()][-1] == "equal"
                counts["one part"] += [verdict for verdict, _ in verdicts.values()][-1] == "one part"
                wrong += any(verdict == "wrong" for verdict, _ in verdicts.values())
                told = "; ".join(f"in {parts}: {verdict} {why}".strip() for parts, (verdict, why) in verdicts.items())
                print(f"{name}: {case.name}: {told}", flush=True)
        rows.append((name, counts))
    print(f"\nONNX Runtime {onnxruntime.__version__}, {os.uname().machine}")
    print("| exporter | models | equal | cut in two: equal, one operator | refused |\n|---|---|---|---|---|")
    for name, counts in rows:
        models = counts["equal"] + counts["wrong"] + counts["refused"]
        cut = f"{counts['cut']}, {counts['one part']}"
        print(f"| {name} | {models} | {counts['equal']} | {cut} | {counts['refused']} |")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
