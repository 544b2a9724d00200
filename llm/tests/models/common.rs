//! Builds the small models of these tests: a hash of each weight's name determines its numbers, so
//! that `reference/decoder.py` builds the same model.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;

use serde_json::{Value, json};
use souk_cpu::Cpu;

use souk_llm::decoder::Decoder;
use souk_llm::generation::Sequence;
use souk_memory::{Tensor, safetensors};
use souk_vocabulary::catalogue;
use souk_vocabulary::processor::Program;
use souk_vocabulary::processor::session::State;

/// SplitMix64's finaliser.
pub fn mixed(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The numbers of a weight, by its name.
pub fn weight(name: &str, count: usize) -> Vec<f32> {
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |seed, byte| {
        (seed ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let unit = |at: u64| (mixed(seed.wrapping_add(at)) >> 40) as f64 / f64::from(1 << 23) - 1.0;
    let number = |at: u64| match name {
        name if name.contains("norm") => 1.0 + unit(at) / 4.0,
        name if name.contains("embed") => unit(at),
        _ => unit(at) * 0.25,
    };
    (0..count as u64).map(|at| number(at) as f32).collect()
}

/// Names and sizes of all weights of a model of these numbers.
pub fn sizes(config: &Value) -> BTreeMap<String, Vec<usize>> {
    let number = |key: &str| config[key].as_u64().map(|it| it as usize);
    let of = |key: &str| number(key).unwrap();
    let (hidden, wide, vocabulary) = (of("hidden_size"), of("intermediate_size"), of("vocab_size"));
    let (heads, groups) = (of("num_attention_heads"), of("num_key_value_heads"));
    let width = number("head_dim").unwrap_or(hidden / heads);
    let mut sizes = BTreeMap::new();
    let mut add = |name: &str, dims: &[usize]| sizes.insert(name.to_owned(), dims.to_vec());
    add("model.embed_tokens.weight", &[vocabulary, hidden]);
    add("model.norm.weight", &[hidden]);
    if config["tie_word_embeddings"] == json!(false) {
        add("lm_head.weight", &[vocabulary, hidden]);
    }
    for layer in 0..of("num_hidden_layers") {
        let mut own = |part: &str, dims: &[usize]| {
            add(&format!("model.layers.{layer}.{part}"), dims);
        };
        own("input_layernorm.weight", &[hidden]);
        own("post_attention_layernorm.weight", &[hidden]);
        let is_gemma = config["model_type"].as_str().unwrap().starts_with("gemma");
        if is_gemma {
            own("pre_feedforward_layernorm.weight", &[hidden]);
            own("post_feedforward_layernorm.weight", &[hidden]);
        }
        own("self_attn.o_proj.weight", &[hidden, heads * width]);
        let has_experts = config["num_experts_per_tok"].is_u64();
        if has_experts {
            experts(config, hidden, &mut own);
        } else {
            own("mlp.down_proj.weight", &[hidden, wide]);
        }
        if config["model_type"] == "phi3" {
            let rows = (heads + 2 * groups) * width;
            own("self_attn.qkv_proj.weight", &[rows, hidden]);
            own("mlp.gate_up_proj.weight", &[2 * wide, hidden]);
            continue;
        }
        if !has_experts {
            own("mlp.gate_proj.weight", &[wide, hidden]);
            own("mlp.up_proj.weight", &[wide, hidden]);
        }
        let family = config["model_type"].as_str().unwrap();
        for (which, count) in [("q", heads), ("k", groups), ("v", groups)] {
            let rows = count * width;
            own(&format!("self_attn.{which}_proj.weight"), &[rows, hidden]);
            if ["qwen2", "qwen2_moe"].contains(&family) {
                own(&format!("self_attn.{which}_proj.bias"), &[rows]);
            }
            let has_norms = ["qwen3", "qwen3_moe", "gemma3_text"].contains(&family);
            if has_norms && which != "v" {
                own(&format!("self_attn.{which}_norm.weight"), &[width]);
            }
        }
    }
    sizes
}

/// Names and sizes of the weights of a layer's experts.
fn experts(config: &Value, hidden: usize, own: &mut impl FnMut(&str, &[usize])) {
    let of = |key: &str| config[key].as_u64().unwrap() as usize;
    let is_mixtral = config["model_type"] == "mixtral";
    let (base, count, wide, parts) = match is_mixtral {
        true => (
            "block_sparse_moe",
            of("num_local_experts"),
            of("intermediate_size"),
            ["w1", "w3", "w2"],
        ),
        false => (
            "mlp",
            of("num_experts"),
            of("moe_intermediate_size"),
            ["gate_proj", "up_proj", "down_proj"],
        ),
    };
    own(&format!("{base}.gate.weight"), &[count, hidden]);
    let mut expert = |name: &str, wide: usize| {
        for (part, dims) in parts
            .iter()
            .zip([[wide, hidden], [wide, hidden], [hidden, wide]])
        {
            own(&format!("{base}.{name}.{part}.weight"), &dims);
        }
    };
    for at in 0..count {
        expert(&format!("experts.{at}"), wide);
    }
    if config["model_type"] == "qwen2_moe" {
        expert("shared_expert", of("shared_expert_intermediate_size"));
        own("mlp.shared_expert_gate.weight", &[1, hidden]);
    }
}

/// All weights of a model of these numbers.
pub fn weights(config: &Value) -> BTreeMap<String, Tensor> {
    let sizes = sizes(config).into_iter();
    let tensor = |(name, dims): (String, Vec<usize>)| {
        let values = weight(&name, dims.iter().product());
        (name, Tensor::from_vec(dims, values).unwrap())
    };
    sizes.map(tensor).collect()
}

/// A folder as Hugging Face's tools leave it, its words numbers.
pub fn write_folder(folder: &Path, config: &Value, weights: &BTreeMap<String, Tensor>) {
    let words = (0..config["vocab_size"].as_u64().unwrap()).map(|id| (format!("w{id}"), json!(id)));
    let tokenizer = json!({"version": "1.0", "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "unk_token": "w0",
            "vocab": words.collect::<serde_json::Map<_, _>>()}});
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();
    write("config.json", config.to_string().as_bytes());
    write("tokenizer.json", tokenizer.to_string().as_bytes());
    write("model.safetensors", &safetensors::write(weights).unwrap());
}

/// The processor of this machine, two threads of it.
pub fn cpu() -> Cpu {
    Cpu::new(
        catalogue::all_processors()[0].clone(),
        NonZeroUsize::new(2).unwrap(),
    )
}

/// The decoder that draws its tokens.
pub fn drawing(mut decoder: Decoder) -> Decoder {
    decoder.subgraph.model = souk_llm::decoder::to_sampling_model(decoder.subgraph.model).unwrap();
    decoder
}

/// A sequence in a session of a program.
pub fn sequence<'a>(program: &'a dyn Program, decoder: &Decoder, room: usize) -> Sequence<'a> {
    let states = decoder.states.iter().map(|port| State {
        port: port.clone(),
        value: decoder.empty_cache(room),
    });
    Sequence::new(program.open_session(states.collect()).unwrap(), room)
}
