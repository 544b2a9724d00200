//! A GGUF file as a language model: its names and numbers in the words of the rest.

use std::path::Path;

use bytes::Bytes;

use super::{Body, Card, LanguageModel, ModelError, read};
use crate::chat::ChatTemplate;
use crate::config::{Architecture, ConfigError};
use crate::embedding::Pooling;
use crate::gguf::{Gguf, Value};
use crate::tokens::Tokenizer;
use crate::weights::Weights;

mod numbers;
mod vocabulary;

pub(super) fn open(path: &Path) -> Result<LanguageModel, ModelError> {
    let file = Gguf::read(&Bytes::from(read(path)?))?;
    let config = numbers::config(&file)?;
    let tokenizer = Tokenizer::read(vocabulary::json(&file)?.to_string().as_bytes())?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let card = Card {
        name: file.text("general.name").unwrap_or(&name).to_owned(),
        ends: ends(&file),
        template: template(&file),
        licence: file.text("general.license").map(str::to_owned),
        positions: config.positions,
        pooling: pooling(&file)?,
    };
    let weights = weights(&file, config.architecture)?;
    Ok(LanguageModel {
        card,
        tokenizer,
        body: Body::Checkpoint {
            config: Box::new(config),
            weights,
        },
    })
}

fn text<'a>(file: &'a Gguf, key: &str) -> Result<&'a str, ModelError> {
    file.text(key)
        .ok_or_else(|| ModelError::GgufLacks(key.to_owned()))
}

/// Which positions a vector is of: llama.cpp's numbers.
fn pooling(file: &Gguf) -> Result<Pooling, ModelError> {
    let family = file.text("general.architecture").unwrap_or_default();
    match file.number(&format!("{family}.pooling_type")) {
        None | Some(0 | 3) => Ok(Pooling::Last),
        Some(1) => Ok(Pooling::Mean),
        Some(other) => Err(ModelError::Config(ConfigError::Feature {
            key: "pooling_type",
            value: other.to_string(),
        })),
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

fn weights(file: &Gguf, architecture: Architecture) -> Result<Weights, ModelError> {
    let mut weights = Weights::new();
    for name in file.names().filter(|name| !numbers::TABLES.contains(name)) {
        let known =
            known_name(name, architecture).ok_or_else(|| ModelError::Tensor(name.to_owned()))?;
        let weight = file.weight(name).expect("the file has what it names");
        weights.insert(known, weight);
    }
    Ok(weights)
}

/// What a tensor is called elsewhere.
fn known_name(name: &str, architecture: Architecture) -> Option<String> {
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
        "ffn_norm" if architecture.is_gemma() => "pre_feedforward_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        "post_attention_norm" => "post_attention_layernorm",
        "post_ffw_norm" => "post_feedforward_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
        "attn_output" => "self_attn.o_proj",
        "ffn_gate" => "mlp.gate_proj",
        "attn_qkv" => "self_attn.qkv_proj",
        "ffn_up" if architecture.has_joint_matrices() => "mlp.gate_up_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        "ffn_gate_inp" => "mlp.gate",
        "ffn_gate_exps" => "mlp.experts.gate_proj",
        "ffn_up_exps" => "mlp.experts.up_proj",
        "ffn_down_exps" => "mlp.experts.down_proj",
        "ffn_gate_inp_shexp" => "mlp.shared_expert_gate",
        "ffn_gate_shexp" => "mlp.shared_expert.gate_proj",
        "ffn_up_shexp" => "mlp.shared_expert.up_proj",
        "ffn_down_shexp" => "mlp.shared_expert.down_proj",
        _ => return None,
    };
    Some(format!("model.layers.{layer}.{part}.{ending}"))
}
