//! Reads a language model from a folder in the layout of Hugging Face's tools: `config.json`, the
//! tokeniser, the chat template, the licence and the weights.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use souk_memory::safetensors;

use super::{Body, Card, LanguageModel, ModelError, json, read};
use crate::chat::ChatTemplate;
use crate::config::{Config, ConfigError};
use crate::embedding::Pooling;
use crate::tokens::Tokenizer;
use crate::weights::{Weight, Weights, raise_norms};

/// The file that names the positions a vector comes from.
const POOLING: &str = "1_Pooling/config.json";
/// The file that marks such a folder.
pub(super) const CONFIG: &str = "config.json";
/// The index from weights to files, if there are several.
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// The only file of weights, if there is just one.
pub(super) const WEIGHTS: &str = "model.safetensors";
/// The name of the template for conversations with tools, if a model has several.
const TOOL_USE: &str = "tool_use";
/// Names of a tokeniser's special tokens in templates.
const SPECIAL_TOKENS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];
/// Tables in some files that follow from the dimensions.
const DERIVED: &str = "rotary_emb.inv_freq";

/// One value or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMoreIds {
    One(u32),
    Several(Vec<u32>),
}

/// Tokens that end a text, as two files list them.
#[derive(Deserialize)]
struct EndTokenIds {
    eos_token_id: Option<OneOrMoreIds>,
}

#[derive(Deserialize)]
struct TokenizerConfig {
    chat_template: Option<Templates>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

/// A file that contains only a template.
#[derive(Deserialize)]
struct TemplateFile {
    chat_template: Option<Templates>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

pub(super) fn open_folder(folder: &Path) -> Result<LanguageModel, ModelError> {
    let config = Config::read(&read(&folder.join(CONFIG))?)?;
    let tokenizer = Tokenizer::read(&read(&folder.join("tokenizer.json"))?)?;
    let said: Option<TokenizerConfig> = json_if_there(&folder.join("tokenizer_config.json"))?;
    let special_tokens = said
        .as_ref()
        .map_or_else(BTreeMap::new, special_tokens_by_name);
    let mut ends = read_end_tokens(folder)?;
    if ends.is_empty() {
        ends.extend(
            special_tokens
                .get("eos_token")
                .and_then(|end| tokenizer.id(end)),
        );
    }
    let name = folder.file_name().unwrap_or_default();
    let card = Card {
        name: name.to_string_lossy().into_owned(),
        ends,
        template: read_template(folder, said.and_then(|it| it.chat_template), special_tokens)?,
        licence: read_licence(folder),
        positions: config.positions,
        vocabulary: config.vocabulary,
        pooling: read_pooling(folder)?,
    };
    let mut weights = read_weights(folder)?;
    if config.architecture.is_gemma() {
        raise_norms(&mut weights);
    }
    Ok(LanguageModel {
        card,
        tokenizer,
        body: Body::Checkpoint {
            config: Box::new(config),
            weights,
        },
    })
}

/// Returns the positions a vector comes from, in the format of sentence-transformers.
fn read_pooling(folder: &Path) -> Result<Pooling, ModelError> {
    let said: BTreeMap<String, Value> = match json_if_there(&folder.join(POOLING))? {
        Some(said) => said,
        None => return Ok(Pooling::default()),
    };
    let modes = said
        .iter()
        .filter(|(_, is_on)| **is_on == Value::Bool(true));
    let mut modes = modes.filter_map(|(name, _)| name.strip_prefix("pooling_mode_"));
    match (modes.next(), modes.next()) {
        (Some("lasttoken"), None) => Ok(Pooling::Last),
        (Some("mean_tokens"), None) => Ok(Pooling::Mean),
        (first, second) => {
            let value = [first, second].into_iter().flatten().collect::<Vec<_>>();
            let (key, value) = ("pooling_mode", value.join(", "));
            Err(ConfigError::Feature { key, value }.into())
        }
    }
}

fn json_if_there<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, ModelError> {
    path.is_file().then(|| json(path)).transpose()
}

fn read_end_tokens(folder: &Path) -> Result<Vec<u32>, ModelError> {
    for file in ["generation_config.json", CONFIG] {
        let said: Option<EndTokenIds> = json_if_there(&folder.join(file))?;
        match said.and_then(|said| said.eos_token_id) {
            Some(OneOrMoreIds::One(id)) => return Ok(vec![id]),
            Some(OneOrMoreIds::Several(ids)) => return Ok(ids),
            None => {}
        }
    }
    Ok(Vec::new())
}

/// Returns the special tokens of a tokeniser by their names in templates.
fn special_tokens_by_name(said: &TokenizerConfig) -> BTreeMap<String, String> {
    let special_tokens = SPECIAL_TOKENS.iter().filter_map(|name| {
        let given = said.rest.get(*name)?;
        let text = given.as_str().or_else(|| given["content"].as_str())?;
        Some(((*name).to_owned(), text.to_owned()))
    });
    special_tokens.collect()
}

/// Returns the chat template, from a file of its own or from the tokeniser's configuration. The
/// template named `tool_use` is for conversations with tools.
fn read_template(
    folder: &Path,
    within: Option<Templates>,
    special_tokens: BTreeMap<String, String>,
) -> Result<Option<ChatTemplate>, ModelError> {
    let file = |name: &str| {
        let path = folder.join(name);
        let bytes = path.is_file().then(|| read(&path)).transpose()?;
        Ok::<_, ModelError>(bytes.map(|it| String::from_utf8_lossy(&it).into_owned()))
    };
    let within = match within {
        None => json_if_there::<TemplateFile>(&folder.join("chat_template.json"))?
            .and_then(|file| file.chat_template),
        within => within,
    };
    let (mut source, mut tool_source) = match within {
        None => (None, None),
        Some(Templates::One(source)) => (Some(source), None),
        Some(Templates::Named(several)) => {
            let mut by_name: BTreeMap<_, _> = several
                .into_iter()
                .map(|it| (it.name, it.template))
                .collect();
            (by_name.remove("default"), by_name.remove(TOOL_USE))
        }
    };
    if let Some(own) = file("chat_template.jinja")? {
        (source, tool_source) = (Some(own), None);
    }
    let named = format!("additional_chat_templates/{TOOL_USE}.jinja");
    tool_source = file(&named)?.or(tool_source);
    Ok(source
        .or_else(|| tool_source.clone())
        .map(|source| ChatTemplate {
            source,
            tool_source,
            special_tokens,
        }))
}

/// Returns the licence from the header of the model's page.
fn read_licence(folder: &Path) -> Option<String> {
    let page = std::fs::read_to_string(folder.join("README.md")).ok()?;
    let head = page.strip_prefix("---")?.split("\n---").next()?;
    let line = head
        .lines()
        .find_map(|line| line.strip_prefix("license:"))?;
    Some(line.trim().to_owned())
}

pub(super) fn read_weights(folder: &Path) -> Result<Weights, ModelError> {
    let index: Option<Index> = json_if_there(&folder.join(INDEX))?;
    let files: BTreeSet<String> = match index {
        Some(index) => index.weight_map.into_values().collect(),
        None => BTreeSet::from([WEIGHTS.to_owned()]),
    };
    let mut weights = Weights::new();
    for file in files {
        let mut parts = Path::new(&file).components();
        let is_name = matches!(
            (parts.next(), parts.next()),
            (Some(Component::Normal(_)), None)
        );
        if !is_name {
            return Err(ModelError::Outside(file));
        }
        let path = folder.join(file);
        let tensors = safetensors::read(&Bytes::from(read(&path)?));
        let tensors = tensors.map_err(|cause| ModelError::Safetensors { path, cause })?;
        let floats = tensors
            .into_iter()
            .filter(|(name, _)| !name.ends_with(DERIVED));
        weights.extend(floats.map(|(name, tensor)| (name, Weight::Floats(tensor))));
    }
    // Files of vector models lack the head and use shorter names.
    Ok(match weights.contains_key("embed_tokens.weight") {
        true => {
            let weights = weights.into_iter();
            let whole = weights.map(|(name, weight)| (format!("model.{name}"), weight));
            whole.collect()
        }
        false => weights,
    })
}
