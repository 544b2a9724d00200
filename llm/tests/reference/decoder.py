"""Decoders in 64-bit floats, as the papers write them: what souk's are held against.

    python3 decoder.py           compute every case anew and compare with what lies here
    python3 decoder.py --write   write the cases

Numbers, weights and prompts come from a hash, so that the tests make the same ones: no file of
weights is kept. numpy is all it needs.
"""

import json
import pathlib
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
GENERATED = 16

TINY = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 97, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128, "rope_theta": 10000.0, "tie_word_embeddings": False,
}
LLAMA_3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONGROPE = {
    "rope_type": "longrope", "short_factor": [1.0, 1.25, 2.0, 4.0],
    "long_factor": [1.0, 2.0, 8.0, 16.0],
}
CASES = {
    "llama": {},
    "llama-3": {"rope_theta": 500000.0, "rope_scaling": LLAMA_3, "tie_word_embeddings": True},
    "mistral": {"model_type": "mistral", "head_dim": 32, "sliding_window": 64},
    "qwen2": {"model_type": "qwen2", "num_key_value_heads": 1, "rms_norm_eps": 1e-6},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": True},
    "phi3": {"model_type": "phi3"},
    "phi3-long": {
        "model_type": "phi3", "partial_rotary_factor": 0.5, "rope_scaling": LONGROPE,
        "original_max_position_embeddings": 64, "tie_word_embeddings": True,
    },
}

GEMMA = {
    "head_dim": 32, "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 24, "tie_word_embeddings": True, "sliding_window": 7,
}
CASES |= {
    "mistral-window": {"model_type": "mistral", "sliding_window": 5},
    "gemma2": GEMMA | {
        "model_type": "gemma2", "attn_logit_softcapping": 2.0, "final_logit_softcapping": 30.0,
    },
    "gemma3": GEMMA | {
        "model_type": "gemma3_text", "sliding_window_pattern": 2, "num_key_value_heads": 1,
        "tie_word_embeddings": False, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
}

QWEN_EXPERTS = {"decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False}
CASES |= {
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2-moe": QWEN_EXPERTS | {
        "model_type": "qwen2_moe", "num_experts": 6, "num_experts_per_tok": 3,
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64,
        "norm_topk_prob": False,
    },
    "qwen3-moe": QWEN_EXPERTS | {
        "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "head_dim": 32,
        "moe_intermediate_size": 32, "norm_topk_prob": True, "tie_word_embeddings": True,
    },
}


def mixed(words):
    """SplitMix64's finaliser, on arrays."""
    with np.errstate(over="ignore"):
        words = words + np.uint64(0x9E3779B97F4A7C15)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def seed_of(name):
    """FNV-1a of a name."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x100000001B3) % 2**64
    return np.uint64(seed)


def weight(name, *sizes):
    """Numbers between minus and plus a power of two, which 32-bit floats hold exactly."""
    count = int(np.prod(sizes))
    with np.errstate(over="ignore"):
        words = mixed(seed_of(name) + np.arange(count, dtype=np.uint64))
    units = (words >> np.uint64(40)).astype(np.float64) / 2**23 - 1
    if "norm" in name:
        return (1 + units / 4).astype(np.float32).astype(np.float64).reshape(sizes)
    scale = 1 if "embed" in name else 0.25
    return (units * scale).reshape(sizes)


def prompt(name, vocabulary):
    return [int(word) for word in mixed(seed_of(name) + np.arange(9, dtype=np.uint64)) % vocabulary]


def is_gemma(config):
    return config["model_type"].startswith("gemma")


def normal(config, x, name):
    scale = weight(name, x.shape[-1]) + is_gemma(config)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * scale


def bounded(x, limit):
    return x if limit is None else limit * np.tanh(x / limit)


def window(config, layer):
    """Positions that a token sees, itself among them; none where it sees all."""
    every = {"gemma2": 2, "gemma3_text": config.get("sliding_window_pattern")}
    last_of = every.get(config["model_type"], layer + 2)
    return config.get("sliding_window") if (layer + 1) % last_of else None


def turns(config, width, is_local):
    """Angles of each pair at position 1, and what is turned grows by."""
    base = config["rope_local_base_freq" if is_local else "rope_theta"]
    turn = base ** (-2.0 * np.arange(width // 2) / width)
    scaling = config.get("rope_scaling")
    if scaling is None or is_local:
        return turn, 1
    if scaling["rope_type"] == "linear":
        return turn / scaling["factor"], 1
    if scaling["rope_type"] == "longrope":
        original = config["original_max_position_embeddings"]
        times = config["max_position_embeddings"] / original
        grown = np.sqrt(1 + np.log(times) / np.log(original))
        return turn / np.array(scaling["short_factor"]), grown
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    whole = scaling["original_max_position_embeddings"] * turn / (2 * np.pi)
    share = np.clip((whole - low) / (high - low), 0, 1)
    return share * turn + (1 - share) * turn / scaling["factor"], 1


def rotated(config, x, is_local):
    """Pairs half of what is turned apart, turned by their angles: [position, head, width]."""
    width = int(x.shape[-1] * config.get("partial_rotary_factor", 1))
    turn, grown = turns(config, width, is_local)
    angles = np.arange(len(x))[:, None] * turn
    first, second, rest = np.split(x, [width // 2, width], -1)
    cosine, sine = grown * np.cos(angles)[:, None], grown * np.sin(angles)[:, None]
    turned = [first * cosine - second * sine, first * sine + second * cosine, rest]
    return np.concatenate(turned, -1)


def joint(x, name, sizes):
    """Products with matrices that lie one below the other."""
    y = x @ weight(name, sum(sizes), x.shape[-1]).T
    return np.split(y, np.cumsum(sizes)[:-1], -1)


def attention(config, layer, x):
    family, hidden = config["model_type"], config["hidden_size"]
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    width = config.get("head_dim", hidden // heads)
    base = f"model.layers.{layer}.self_attn."
    counts = {"q": heads, "k": groups, "v": groups}
    if family == "phi3":
        parts = joint(x, base + "qkv_proj.weight", [count * width for count in counts.values()])
        made = dict(zip(counts, parts))
    else:
        made = {
            which: x @ weight(f"{base}{which}_proj.weight", count * width, hidden).T
            for which, count in counts.items()
        }

    def by_head(which):
        y = made[which]
        if family in ("qwen2", "qwen2_moe"):
            y = y + weight(f"{base}{which}_proj.bias", counts[which] * width)
        y = y.reshape(len(x), counts[which], width)
        if family in ("qwen3", "qwen3_moe", "gemma3_text") and which != "v":
            y = normal(config, y, f"{base}{which}_norm.weight")
        return y

    seen = window(config, layer)
    is_local = family == "gemma3_text" and seen is not None
    q = rotated(config, by_head("q"), is_local)
    k = rotated(config, by_head("k"), is_local).repeat(heads // groups, axis=1)
    v = by_head("v").repeat(heads // groups, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(config.get("query_pre_attn_scalar", width))
    scores = bounded(scores, config.get("attn_logit_softcapping"))
    ahead = np.subtract.outer(np.arange(len(x)), np.arange(len(x)))
    scores = np.where((ahead >= 0) & (ahead < (seen or len(x))), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares = shares / shares.sum(-1, keepdims=True)
    seen = np.einsum("hqk,khd->qhd", shares, v).reshape(len(x), heads * width)
    return seen @ weight(base + "o_proj.weight", hidden, heads * width).T


def gated(x, names, wide):
    """A gate, what it lets through, and the way back, of matrices of these names."""
    gate, up, down = names
    gate = x @ weight(gate, wide, x.shape[-1]).T
    up = x @ weight(up, wide, x.shape[-1]).T
    return (gate / (1 + np.exp(-gate)) * up) @ weight(down, x.shape[-1], wide).T


def mixture(config, layer, x):
    """A few experts of each row, by the router's shares, and the one that all rows have."""
    is_mixtral = config["model_type"] == "mixtral"
    base = f"model.layers.{layer}.{'block_sparse_moe' if is_mixtral else 'mlp'}."
    count = config["num_local_experts" if is_mixtral else "num_experts"]
    wide = config["intermediate_size" if is_mixtral else "moe_intermediate_size"]
    parts = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
    router = x @ weight(base + "gate.weight", count, x.shape[-1]).T
    shares = np.exp(router - router.max(-1, keepdims=True))
    shares = shares / shares.sum(-1, keepdims=True)
    made = np.zeros_like(x)
    for row, own in enumerate(shares):
        chosen = np.argsort(-own, kind="stable")[: config["num_experts_per_tok"]]
        whole = own[chosen].sum() if is_mixtral or config["norm_topk_prob"] else 1
        for expert in chosen:
            names = [f"{base}experts.{expert}.{part}.weight" for part in parts]
            made[row] += own[expert] / whole * gated(x[row : row + 1], names, wide)[0]
    if config["model_type"] == "qwen2_moe":
        names = [f"{base}shared_expert.{part}.weight" for part in parts]
        shared = gated(x, names, config["shared_expert_intermediate_size"])
        gate = x @ weight(base + "shared_expert_gate.weight", 1, x.shape[-1]).T
        made += shared / (1 + np.exp(-gate))
    return made


def feed_forward(config, layer, x):
    if "num_experts_per_tok" in config:
        return mixture(config, layer, x)
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    base = f"model.layers.{layer}.mlp."
    if config["model_type"] == "phi3":
        gate, up = joint(x, base + "gate_up_proj.weight", [wide, wide])
    else:
        gate = x @ weight(base + "gate_proj.weight", wide, hidden).T
        up = x @ weight(base + "up_proj.weight", wide, hidden).T
    if is_gemma(config):
        gate = gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) / 2
    else:
        gate = gate / (1 + np.exp(-gate))
    return (gate * up) @ weight(base + "down_proj.weight", hidden, wide).T


def logits(config, tokens):
    """Those after each token."""
    hidden = config["hidden_size"]
    embedding = weight("model.embed_tokens.weight", config["vocab_size"], hidden)
    x = embedding[tokens] * (np.sqrt(hidden) if is_gemma(config) else 1)
    for layer in range(config["num_hidden_layers"]):
        base = f"model.layers.{layer}."

        def norm(y, name):
            return normal(config, y, f"{base}{name}_layernorm.weight")

        seen = attention(config, layer, norm(x, "input"))
        if is_gemma(config):
            x = x + norm(seen, "post_attention")
            made = feed_forward(config, layer, norm(x, "pre_feedforward"))
            x = x + norm(made, "post_feedforward")
        else:
            x = x + seen
            x = x + feed_forward(config, layer, norm(x, "post_attention"))
    x = normal(config, x, "model.norm.weight")
    tied = config["tie_word_embeddings"]
    head = embedding if tied else weight("lm_head.weight", config["vocab_size"], hidden)
    return bounded(x @ head.T, config.get("final_logit_softcapping"))


def case(name):
    config = TINY | CASES[name]
    tokens = prompt(name, config["vocab_size"])
    given, last = len(tokens), None
    for _ in range(GENERATED):
        last = logits(config, tokens)
        tokens.append(int(last[-1].argmax()))
    return {
        "config": config, "prompt": tokens[:given], "generated": tokens[given:],
        "logits": [[round(float(x), 9) for x in row] for row in (last[given - 1], last[-1])],
    }


def main():
    for name in CASES:
        path = HERE / f"{name}.json"
        made = case(name)
        if "--write" in sys.argv:
            path.write_text(json.dumps(made) + "\n")
            continue
        kept = json.loads(path.read_text())
        same = all(made[key] == kept[key] for key in ("config", "prompt", "generated"))
        near = np.allclose(made["logits"], kept["logits"], rtol=0, atol=1e-8)
        print(f"{name}: {'as kept' if same and near else 'DIFFERS'}")
        if not (same and near):
            sys.exit(1)


if __name__ == "__main__":
    main()
