"""Make the model that souk carries: a Llama of a million parameters that knows the glossary.

    python3 -m venv v && v/bin/pip install jax numpy tokenizers safetensors
    v/bin/python llm/models/glossary/make.py

Text: the documents of this repository, and questions and answers made of docs/glossary.md. It
writes config.json, tokenizer.json, model.safetensors (f16) and what belongs to them beside itself,
in some minutes on two cores. Run again it gives a model as good, not the same bytes.
"""
import json
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from texts import documents, dialogues

HERE = pathlib.Path(__file__).resolve().parent
END, MARKS = "<|end|>", ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WIDTH, LAYERS, HEADS, KEYS, INNER, WORDS = 128, 5, 4, 2, 352, 1024
HEAD, EPSILON, THETA, POSITIONS = WIDTH // HEADS, 1e-5, 10000.0, 512
LENGTH, BATCH, STEPS, RATE = 192, 6, 1400, 4e-3


def tokenizer(texts):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS, special_tokens=MARKS, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    return made


def drawn(key):
    """Weights, by the names that Hugging Face's tools give them."""
    shapes = {"model.embed_tokens.weight": (WORDS, WIDTH), "model.norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes |= {
            f"{at}input_layernorm.weight": (WIDTH,),
            f"{at}post_attention_layernorm.weight": (WIDTH,),
            f"{at}self_attn.q_proj.weight": (WIDTH, WIDTH),
            f"{at}self_attn.k_proj.weight": (KEYS * HEAD, WIDTH),
            f"{at}self_attn.v_proj.weight": (KEYS * HEAD, WIDTH),
            f"{at}self_attn.o_proj.weight": (WIDTH, WIDTH),
            f"{at}mlp.gate_proj.weight": (INNER, WIDTH),
            f"{at}mlp.up_proj.weight": (INNER, WIDTH),
            f"{at}mlp.down_proj.weight": (WIDTH, INNER),
        }
    made = {}
    for name, shape in sorted(shapes.items()):
        key, own = jax.random.split(key)
        made[name] = jnp.ones(shape) if len(shape) == 1 else 0.04 * jax.random.normal(own, shape)
    return made


def normed(x, weight):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + EPSILON) * weight


def turned(x):
    """Rotary places: the first half of a head with the second."""
    turns = 1 / THETA ** (jnp.arange(0, HEAD, 2) / HEAD)
    angles = jnp.arange(x.shape[1])[:, None] * turns
    angles = jnp.concatenate([angles, angles], -1)[None, :, None]
    front, back = jnp.split(x, 2, -1)
    return x * jnp.cos(angles) + jnp.concatenate([-back, front], -1) * jnp.sin(angles)


def logits(held, tokens):
    batch, length = tokens.shape
    x = held["model.embed_tokens.weight"][tokens]
    hidden = jnp.tril(jnp.ones((length, length), bool))
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        y = normed(x, held[f"{at}input_layernorm.weight"])
        part = lambda name: y @ held[f"{at}self_attn.{name}_proj.weight"].T
        query = turned(part("q").reshape(batch, length, HEADS, HEAD))
        key = turned(part("k").reshape(batch, length, KEYS, HEAD))
        value = part("v").reshape(batch, length, KEYS, HEAD)
        key, value = (jnp.repeat(it, HEADS // KEYS, 2) for it in (key, value))
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / HEAD**0.5
        scores = jax.nn.softmax(jnp.where(hidden, scores, -1e9), -1)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", scores, value).reshape(batch, length, WIDTH)
        x = x + mixed @ held[f"{at}self_attn.o_proj.weight"].T
        y = normed(x, held[f"{at}post_attention_layernorm.weight"])
        gate = jax.nn.silu(y @ held[f"{at}mlp.gate_proj.weight"].T)
        up = y @ held[f"{at}mlp.up_proj.weight"].T
        x = x + (gate * up) @ held[f"{at}mlp.down_proj.weight"].T
    return normed(x, held["model.norm.weight"]) @ held["model.embed_tokens.weight"].T


def loss(held, tokens):
    scores = jax.nn.log_softmax(logits(held, tokens[:, :-1]))
    return -jnp.mean(jnp.take_along_axis(scores, tokens[:, 1:, None], -1))


@jax.jit
def step(held, first, second, tokens, number):
    """AdamW, its rate warmed up and let down to nothing."""
    at, slopes = jax.value_and_grad(loss)(held, tokens)
    size = jnp.sqrt(sum(jnp.sum(it * it) for it in slopes.values()))
    slopes = {name: it / jnp.maximum(size, 1.0) for name, it in slopes.items()}
    done = number / STEPS
    rate = RATE * jnp.minimum(1.0, number / 50) * 0.5 * (1 + jnp.cos(jnp.pi * done))
    first = {name: 0.9 * first[name] + 0.1 * it for name, it in slopes.items()}
    second = {name: 0.98 * second[name] + 0.02 * it * it for name, it in slopes.items()}

    def moved(name, it):
        mean = first[name] / (1 - 0.9 ** (number + 1))
        spread = second[name] / (1 - 0.98 ** (number + 1))
        decay = 0.05 if it.ndim > 1 else 0.0
        return it - rate * (mean / (jnp.sqrt(spread) + 1e-8) + decay * it)

    return {name: moved(name, it) for name, it in held.items()}, first, second, at


def main():
    pages, asked = documents(), list(dialogues())
    words = tokenizer(pages + asked)
    read = np.array(words.encode(END.join(pages)).ids)
    asker = words.token_to_id("<|user|>")
    draw = np.random.default_rng(0)

    def stream():
        """Dialogues in another order each time, one behind the other."""
        order = draw.permutation(len(asked))
        return np.array(words.encode("".join(asked[at] for at in order)).ids)

    held = drawn(jax.random.key(0))
    print(f"{sum(it.size for it in held.values()):,} parameters, {len(asked)} dialogues")
    first = {name: jnp.zeros_like(it) for name, it in held.items()}
    second = dict(first)
    began = time.monotonic()
    for number in range(STEPS):
        if number % 20 == 0:
            talk = stream()
            beginnings = np.flatnonzero(talk == asker)
        rows = []
        for row in range(BATCH):
            source, starts = (read, None) if row < BATCH // 3 else (talk, beginnings)
            last = len(source) - LENGTH - 1
            start = draw.integers(0, last) if starts is None else draw.choice(starts[starts < last])
            rows.append(source[start : start + LENGTH + 1])
        held, first, second, at = step(held, first, second, jnp.array(np.stack(rows)), number)
        if number % 50 == 49:
            print(f"step {number + 1}: loss {at:.3f}, {time.monotonic() - began:.0f} s", flush=True)
    save_file({name: np.asarray(it, np.float16) for name, it in held.items()}, HERE / "model.safetensors")
    words.save(str(HERE / "tokenizer.json"))
    end = words.token_to_id(END)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEYS,
        "head_dim": HEAD,
        "vocab_size": WORDS,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": EPSILON,
        "rope_theta": THETA,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "eos_token_id": end,
        "torch_dtype": "float16",
    }
    (HERE / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (HERE / "chat_template.jinja").write_text(TEMPLATE)


if __name__ == "__main__":
    main()
