"""Models as people export them, run through a market and judged beside ONNX Runtime.

    python3 -m venv v
    v/bin/pip install onnx onnxruntime skl2onnx scikit-learn lightgbm xgboost onnxmltools \
        onnxconverter-common
    souk testnet up --detach
    v/bin/python devices/compare/wild.py --souk souk --dir souk-testnet

Each model is made here, run by ONNX Runtime, and by souk whole and cut over two providers. Type,
shape and values of every output must be alike: floats within 1e-4 of the output's largest element
(halves 3e-3), integers and texts equal. Models whose floats are quantised and given back between
nodes (QDQ) are judged beside the ONNX project's own evaluator: ONNX Runtime rounds sums elsewhere
and is a step off now and then. What souk refuses is told with the
operator. The last lines are a table by exporter. `--only TEXT` runs models with that in their
names; `--keep DIR` keeps the models and inputs there. An exporter that is not installed is skipped
aloud. ONNX Runtime lowers texts only where the machine has the locale en_US.UTF-8.
"""
import argparse
import collections
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

    def __init__(self, name, model, inputs, folder=None, tolerance=TOLERANCE, as_written=False):
        self.name = name
        self.model = model
        self.inputs = inputs
        self.folder = folder
        self.tolerance = tolerance
        # Whether it is judged beside the ONNX project's evaluator.
        self.as_written = as_written


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


def theirs(case, path):
    if case.as_written:
        from onnx.reference import ReferenceEvaluator

        model = onnx.load(path)
        names = [value.name for value in model.graph.output]
        return dict(zip(names, ReferenceEvaluator(model).run(None, case.inputs)))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(None, case.inputs)))


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
    faults = [differs(name, value, ours(folder, name, value), case.tolerance) for name, value in wanted.items()]
    faults = [fault for fault in faults if fault]
    return ("wrong", faults[0]) if faults else ("equal", "")


def main():
    options = arguments()
    root = options.keep or pathlib.Path(tempfile.mkdtemp())
    root.mkdir(parents=True, exist_ok=True)
    rows, skipped, wrong = [], [], 0
    for name, makers in MAKERS.items():
        counts = collections.Counter()
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
                    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
                        verdicts[parts] = ("wrong", str(error)[:300])
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
