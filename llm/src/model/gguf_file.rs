//! A GGUF file as a language model: its names and numbers in the words of the rest.

use std::path::Path;

use bytes::Bytes;

use super::{Body, Card, LanguageModel, ModelError, read};
use crate::chat::ChatTemplate;
use crate::config::{Architecture, Config, Rotary};
use crate::gguf::{Gguf, Value};
use crate::tokens::Tokenizer;
use crate::weights::{Weight, Weights};

mod vocabulary;

/// What each pair's angle is divided by, where a file says so.
const DIVISORS: &str = "rope_freqs.weight";

pub(super) fn open(path: &Path) -> Result<LanguageModel, ModelError> {
    let file = Gguf::read(&Bytes::from(read(path)?))?;
    let config = config(&file)?;
    let tokenizer = Tokenizer::read(vocabulary::json(&file)?.to_string().as_bytes())?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let card = Card {
        name: file.text("general.name").unwrap_or(&name).to_owned(),
        ends: ends(&file),
        template: template(&file),
        licence: file.text("general.license").map(str::to_owned),
        positions: config.positions,
    };
    let weights = weights(&file)?;
    Ok(LanguageModel {
        card,
        tokenizer,
        body: Body::Checkpoint { config, weights },
    })
}

fn config(file: &Gguf) -> Result<Config, ModelError> {
    let family = text(file, "general.architecture")?;
    let architecture = Architecture::named(family)?;
    let key = |part: &str| format!("{family}.{part}");
    let number = |part: &str| {
        let number = file
            .number(&key(part))
            .ok_or_else(|| ModelError::GgufLacks(key(part)));
        // A number beyond the machine's is refused with the others.
        number.map(|number| usize::try_from(number).unwrap_or(usize::MAX))
    };
    let or = |part: &str, otherwise: usize| match file.number(&key(part)) {
        Some(_) => number(part),
        None => Ok(otherwise),
    };
    let (hidden, heads) = (number("embedding_length")?, number("attention.head_count")?);
    let head_width = or(
        "attention.key_length",
        hidden.checked_div(heads).unwrap_or(0),
    )?;
    let epsilon = key("attention.layer_norm_rms_epsilon");
    let vocabulary = file
        .array("tokenizer.ggml.tokens")
        .map_or(0, <[Value]>::len);
    let epsilon = file.float(&epsilon).ok_or(ModelError::GgufLacks(epsilon))?;
    let config = Config {
        architecture,
        hidden,
        layers: number("block_count")?,
        heads,
        key_heads: or("attention.head_count_kv", heads)?,
        head_width,
        feed_forward: number("feed_forward_length")?,
        vocabulary: or("vocab_size", vocabulary)?,
        epsilon: epsilon as f32,
        positions: number("context_length")?,
        rotary: Rotary {
            base: file.float(&key("rope.freq_base")).unwrap_or(10_000.0),
            // Llama's converters put the numbers of a pair side by side; the others leave them.
            interleaved: architecture == Architecture::Llama,
            divisors: divisors(file)?,
        },
    };
    Ok(config.checked()?)
}

fn text<'a>(file: &'a Gguf, key: &str) -> Result<&'a str, ModelError> {
    file.text(key)
        .ok_or_else(|| ModelError::GgufLacks(key.to_owned()))
}

fn divisors(file: &Gguf) -> Result<Vec<f64>, ModelError> {
    match file.weight(DIVISORS) {
        None => Ok(Vec::new()),
        Some(Weight::Floats(tensor)) => Ok(tensor.to_f64s().unwrap_or_default()),
        Some(Weight::Blocks { .. }) => Err(ModelError::GgufLacks(DIVISORS.to_owned())),
    }
}

fn ends(file: &Gguf) -> Vec<u32> {
    let keys = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"];
    let ids = keys.into_iter().filter_map(|key| file.number(key));
    ids.filter_map(|id| u32::try_from(id).ok()).collect()
}

fn template(file: &Gguf) -> Option<ChatTemplate> {
    let source = file.text("tokenizer.chat_template")?.to_owned();
    let mark = |key: &str| {
        let id = usize::try_from(file.number(key)?).ok()?;
        match file.array("tokenizer.ggml.tokens")?.get(id)? {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        }
    };
    Some(ChatTemplate {
        source,
        begin: mark("tokenizer.ggml.bos_token_id").unwrap_or_default(),
        end: mark("tokenizer.ggml.eos_token_id").unwrap_or_default(),
    })
}

fn weights(file: &Gguf) -> Result<Weights, ModelError> {
    let mut weights = Weights::new();
    for name in file.names().filter(|name| *name != DIVISORS) {
        let known = known_name(name).ok_or_else(|| ModelError::Tensor(name.to_owned()))?;
        let weight = file.weight(name).expect("the file has what it names");
        weights.insert(known, weight);
    }
    Ok(weights)
}

/// What a tensor is called elsewhere.
fn known_name(name: &str) -> Option<String> {
    let whole = match name {
        "token_embd.weight" => Some("model.embed_tokens.weight"),
        "output_norm.weight" => Some("model.norm.weight"),
        "output.weight" => Some("lm_head.weight"),
        _ => None,
    };
    if let Some(whole) = whole {
        return Some(whole.to_owned());
    }
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let (part, ending) = rest.rsplit_once('.')?;
    let part = match part {
        "attn_norm" => "input_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
        "attn_output" => "self_attn.o_proj",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        _ => return None,
    };
    Some(format!("model.layers.{layer}.{part}.{ending}"))
}
