//! Reads a language model from a GGUF file, and renames its tensors and settings to those of
//! Hugging Face's files, which the decoder expects.

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

/// Maximum files of one model.
const PARTS_MAX: u64 = 1000;
/// Names of a tokeniser's special tokens in the file, and in templates.
const SPECIAL_TOKENS: [(&str, &str); 7] = [
    ("bos", "bos_token"),
    ("eos", "eos_token"),
    ("unknown", "unk_token"),
    ("seperator", "sep_token"),
    ("padding", "pad_token"),
    ("cls", "cls_token"),
    ("mask", "mask_token"),
];

pub(super) fn open_gguf(path: &Path) -> Result<LanguageModel, ModelError> {
    let file = read_all_parts(path)?;
    let config = numbers::read_config(&file)?;
    let tokenizer = Tokenizer::read(vocabulary::tokenizer_json(&file)?.to_string().as_bytes())?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let card = Card {
        name: file
            .metadata_text("general.name")
            .unwrap_or(&name)
            .to_owned(),
        ends: read_end_tokens(&file),
        template: read_template(&file),
        licence: file.metadata_text("general.license").map(str::to_owned),
        positions: config.positions,
        vocabulary: config.vocabulary,
        pooling: read_pooling(&file)?,
    };
    let weights = read_weights(&file, config.architecture)?;
    Ok(LanguageModel {
        card,
        tokenizer,
        body: Body::Checkpoint {
            config: Box::new(config),
            weights,
        },
    })
}

/// Reads the file and the other parts of its model. `path` may name any part.
fn read_all_parts(path: &Path) -> Result<Gguf, ModelError> {
    let open = |path: &Path| Ok::<_, ModelError>(Gguf::read(&Bytes::from(read(path)?))?);
    let file = open(path)?;
    let parts = file.part_count();
    if parts == 1 {
        return Ok(file.join_parts(Vec::new())?);
    }
    let lacks = || ModelError::GgufParts {
        path: path.to_owned(),
        parts,
    };
    let stem = path
        .file_stem()
        .and_then(|it| it.to_str())
        .ok_or_else(lacks)?;
    let stem = stem
        .strip_suffix(&format!("-of-{parts:05}"))
        .ok_or_else(lacks)?;
    let (name, number) = stem.rsplit_once('-').ok_or_else(lacks)?;
    let own: u64 = number.parse().map_err(|_| lacks())?;
    if parts > PARTS_MAX || !(1..=parts).contains(&own) {
        return Err(lacks());
    }
    let mut files = Vec::new();
    for number in (1..=parts).filter(|number| *number != own) {
        let path = path.with_file_name(format!("{name}-{number:05}-of-{parts:05}.gguf"));
        if !path.is_file() {
            return Err(lacks());
        }
        files.push(open(&path)?);
    }
    // The first part holds the model's metadata.
    match own {
        1 => Ok(file.join_parts(files)?),
        _ => {
            files.push(file);
            let first = files.remove(0);
            Ok(first.join_parts(files)?)
        }
    }
}

fn require_text<'a>(file: &'a Gguf, key: &str) -> Result<&'a str, ModelError> {
    file.metadata_text(key)
        .ok_or_else(|| ModelError::GgufLacks(key.to_owned()))
}

/// Returns the positions a vector comes from, by llama.cpp's numbers.
fn read_pooling(file: &Gguf) -> Result<Pooling, ModelError> {
    let family = file
        .metadata_text("general.architecture")
        .unwrap_or_default();
    match file.metadata_integer(&format!("{family}.pooling_type")) {
        None | Some(0 | 3) => Ok(Pooling::Last),
        Some(1) => Ok(Pooling::Mean),
        Some(other) => Err(ModelError::Config(ConfigError::Feature {
            key: "pooling_type",
            value: other.to_string(),
        })),
    }
}

fn read_end_tokens(file: &Gguf) -> Vec<u32> {
    let keys = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"];
    let ids = keys
        .into_iter()
        .filter_map(|key| file.metadata_integer(key));
    ids.filter_map(|id| u32::try_from(id).ok()).collect()
}

fn read_template(file: &Gguf) -> Option<ChatTemplate> {
    let named = |name: &str| file.metadata_text(name).map(str::to_owned);
    let source = named("tokenizer.chat_template")?;
    let mark = |key: &str| {
        let id = usize::try_from(file.metadata_integer(&format!("tokenizer.ggml.{key}_token_id"))?)
            .ok()?;
        match file.metadata_array("tokenizer.ggml.tokens")?.get(id)? {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        }
    };
    let special_tokens = SPECIAL_TOKENS
        .iter()
        .filter_map(|(key, name)| Some(((*name).to_owned(), mark(key)?)));
    Some(ChatTemplate {
        source,
        tool_source: named("tokenizer.chat_template.tool_use"),
        special_tokens: special_tokens.collect(),
    })
}

fn read_weights(file: &Gguf, architecture: Architecture) -> Result<Weights, ModelError> {
    let mut weights = Weights::new();
    for name in file
        .tensor_names()
        .filter(|name| !numbers::TABLES.contains(name))
    {
        let known =
            known_name(name, architecture).ok_or_else(|| ModelError::Tensor(name.to_owned()))?;
        let weight = file.read_weight(name).expect("the file has what it names");
        weights.insert(known, weight);
    }
    Ok(weights)
}

/// Returns the name of a tensor in Hugging Face's files.
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
