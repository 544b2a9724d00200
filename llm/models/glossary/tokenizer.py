"""Make the tokeniser and the configuration of the glossary model from the texts it learns from.

    python3 -m venv v && v/bin/pip install tokenizers
    v/bin/python llm/models/glossary/tokenizer.py

It writes tokenizer.json, config.json and chat_template.jinja beside itself. A new tokeniser needs new
weights: `begin.py` has the commands.
"""
import json
import pathlib

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from texts import dialogues, documents

HERE = pathlib.Path(__file__).resolve().parent
END, MARKS = "<|end|>", ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WIDTH, HEADS, TOKENS = 128, 4, 1024


def train_tokenizer(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENS, special_tokens=MARKS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def main():
    tokenizer = train_tokenizer(documents() + list(dialogues()))
    tokenizer.save(str(HERE / "tokenizer.json"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": 352,
        "num_hidden_layers": 5,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 2,
        "head_dim": WIDTH // HEADS,
        "vocab_size": TOKENS,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "eos_token_id": tokenizer.token_to_id(END),
        "torch_dtype": "float16",
    }
    (HERE / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (HERE / "chat_template.jinja").write_text(TEMPLATE)


if __name__ == "__main__":
    main()
