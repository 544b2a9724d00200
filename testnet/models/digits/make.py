"""Train the bundled digit classifier and write it with its held-out images.

    python3 -m venv venv
    venv/bin/pip install -r requirements.txt
    venv/bin/python make.py

Writes beside itself, from scikit-learn's 8x8 digits (1,797 images of handwritten digits):

    digits.onnx   opset 17; `images` float32 [batch, 1, 8, 8], grey levels 0 to 16, give
                  `logits` float32 [batch, 10]
    images.npy    float32 [360, 1, 8, 8]: a fifth of the images, stratified, never seen in training
    labels.npy    int64 [360]: the digit each of them shows

The network has a stem, two blocks of four parallel branches and a dense head, so there is
something to cut and something to run side by side. Nothing was tuned on the held-out images: they
are read once, at the end. One seed fixes every draw, and a second run on one machine writes the
same bytes; another version of JAX or another processor may still round differently.
"""
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SEED = 7
HELD_OUT = 360
EPOCHS = 60
BATCH = 64
LEARNING_RATE = 2e-3
WEIGHT_DECAY = 1e-4
GREY_LEVELS = 16.0
ACCURACY_MIN = 0.97
HERE = pathlib.Path(__file__).parent

# Convolutions: name -> (outputs, inputs, kernel). A block's branches give 16+24+16+8 channels.
CONVOLUTIONS = {
    "stem": (16, 1, 3),
    "block1.point": (16, 16, 1),
    "block1.three.reduce": (16, 16, 1),
    "block1.three": (24, 16, 3),
    "block1.five.reduce": (8, 16, 1),
    "block1.five": (16, 8, 5),
    "block1.pool.project": (8, 16, 1),
    "block2.point": (16, 64, 1),
    "block2.three.reduce": (16, 64, 1),
    "block2.three": (24, 16, 3),
    "block2.five.reduce": (8, 64, 1),
    "block2.five": (16, 8, 5),
    "block2.pool.project": (8, 64, 1),
}
DENSE = {"head.hidden": (64, 256), "head.logits": (10, 64)}


class Jax:
    """Runs the network, for training."""

    def __init__(self, weights):
        self.weights = weights

    def conv(self, x, name):
        w, b = self.weights[name]
        order = ("NCHW", "OIHW", "NCHW")
        y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=order)
        return jax.nn.relu(y + b[None, :, None, None])

    def pool(self, x, kernel, stride, pad):
        window, strides = (1, 1, kernel, kernel), (1, 1, stride, stride)
        pads = ((0, 0), (0, 0), (pad, pad), (pad, pad))
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, pads)

    def concat(self, parts, _name):
        return jnp.concatenate(parts, axis=1)

    def flatten(self, x):
        return x.reshape(x.shape[0], -1)

    def dense(self, x, name):
        w, b = self.weights[name]
        return x @ w.T + b

    def relu(self, x, _name):
        return jax.nn.relu(x)


class Onnx:
    """Writes the same network down as ONNX nodes; a value is its name."""

    def __init__(self, weights):
        self.weights, self.nodes, self.constants = weights, [], []

    def node(self, op, inputs, name, **attributes):
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def constant_pair(self, name):
        pair = [f"{name}.weight", f"{name}.bias"]
        for label, array in zip(pair, self.weights[name]):
            self.constants.append(numpy_helper.from_array(np.asarray(array, np.float32), label))
        return pair

    def conv(self, x, name):
        kernel = CONVOLUTIONS[name][2]
        shape = {"kernel_shape": [kernel, kernel], "pads": [kernel // 2] * 4}
        inputs = [x, *self.constant_pair(name)]
        return self.relu(self.node("Conv", inputs, f"{name}.conv", **shape), name)

    def pool(self, x, kernel, stride, pad):
        shape = {"kernel_shape": [kernel, kernel], "strides": [stride, stride], "pads": [pad] * 4}
        return self.node("MaxPool", [x], f"{x}.pool{stride}", **shape)

    def concat(self, parts, name):
        return self.node("Concat", parts, f"{name}.concat", axis=1)

    def flatten(self, x):
        return self.node("Flatten", [x], "head.flatten", axis=1)

    def dense(self, x, name):
        output = "logits" if name == "head.logits" else name
        return self.node("Gemm", [x, *self.constant_pair(name)], output, transB=1)

    def relu(self, x, name):
        return self.node("Relu", [x], f"{name}.relu")


def block(to, x, name):
    """Four views of the same image side by side: a point, 3x3, 5x5 and a pooled one."""
    point = to.conv(x, f"{name}.point")
    three = to.conv(to.conv(x, f"{name}.three.reduce"), f"{name}.three")
    five = to.conv(to.conv(x, f"{name}.five.reduce"), f"{name}.five")
    pooled = to.conv(to.pool(x, 3, 1, 1), f"{name}.pool.project")
    return to.concat([point, three, five, pooled], name)


def network(to, images):
    """The one definition of the network, for both of the classes above."""
    x = to.conv(images, "stem")
    x = to.pool(block(to, x, "block1"), 2, 2, 0)
    x = to.pool(block(to, x, "block2"), 2, 2, 0)
    x = to.relu(to.dense(to.flatten(x), "head.hidden"), "head.hidden")
    return to.dense(x, "head.logits")


def initial_weights(draw):
    """He initialisation; biases begin at zero."""

    def pair(shape):
        spread = np.sqrt(2.0 / np.prod(shape[1:]))
        kernel = jnp.asarray(draw.normal(0.0, spread, shape), jnp.float32)
        return kernel, jnp.zeros(shape[0], jnp.float32)

    weights = {name: pair((o, i, k, k)) for name, (o, i, k) in CONVOLUTIONS.items()}
    return weights | {name: pair(shape) for name, shape in DENSE.items()}


def loss(weights, images, labels):
    scores = jax.nn.log_softmax(network(Jax(weights), images))
    return -jnp.mean(scores[jnp.arange(labels.shape[0]), labels])


@jax.jit
def adamw_step(state, step, rate, images, labels):
    weights, mean, square = state
    slope = jax.grad(loss)(weights, images, labels)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, slope)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, square, slope)
    m_scale, s_scale = 1 - 0.9**step, 1 - 0.999**step

    def move(w, m, s):
        return w - rate * (m / m_scale / (jnp.sqrt(s / s_scale) + 1e-8) + WEIGHT_DECAY * w)

    return jax.tree.map(move, weights, mean, square), mean, square


def shifted(images, draw):
    """Each image moved by at most one pixel either way: handwriting is seldom centred."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    places = draw.integers(0, 3, (len(images), 2))
    return np.stack([p[:, y : y + 8, x : x + 8] for p, (y, x) in zip(padded, places)])


def train(images, labels):
    draw = np.random.default_rng(SEED)
    weights = initial_weights(draw)
    zeros = jax.tree.map(jnp.zeros_like, weights)
    state, step = (weights, zeros, zeros), 0
    steps = EPOCHS * (len(images) // BATCH)
    for _ in range(EPOCHS):
        order = draw.permutation(len(images))
        for chosen in np.split(order[: len(order) // BATCH * BATCH], len(order) // BATCH):
            step += 1
            rate = LEARNING_RATE * 0.5 * (1 + np.cos(np.pi * step / steps))
            seen = shifted(images[chosen], draw)
            state = adamw_step(state, float(step), rate, seen, labels[chosen])
    return state[0]


def with_grey_levels(weights):
    """Trained on 0 to 1; dividing the stem's kernel lets the model take 0 to 16 as they are."""
    kernel, bias = weights["stem"]
    return weights | {"stem": (kernel / GREY_LEVELS, bias)}


def model_of(weights):
    to = Onnx(weights)
    network(to, "images")
    graph = helper.make_graph(
        to.nodes,
        "digits",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        to.constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main():
    digits = load_digits()
    images = digits.images.astype(np.float32)[:, None]
    labels = digits.target.astype(np.int64)
    kept, held, kept_labels, held_labels = train_test_split(
        images, labels, test_size=HELD_OUT, stratify=labels, random_state=SEED
    )
    weights = with_grey_levels(train(kept / GREY_LEVELS, kept_labels))
    model = model_of(weights)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, HERE / "digits.onnx")
    np.save(HERE / "images.npy", held)
    np.save(HERE / "labels.npy", held_labels)

    session = onnxruntime.InferenceSession(HERE / "digits.onnx")
    right = session.run(["logits"], {"images": held})[0].argmax(axis=1) == held_labels
    size = (HERE / "digits.onnx").stat().st_size
    print(f"digits.onnx: {len(model.graph.node)} nodes, {size:,} bytes")
    print(f"held-out accuracy: {right.sum()} of {len(right)} = {right.mean():.2%}")
    assert right.mean() >= ACCURACY_MIN, "too few held-out images are classified right"


if __name__ == "__main__":
    main()
