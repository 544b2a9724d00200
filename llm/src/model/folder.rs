//! A folder as Hugging Face's tools leave it.

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

/// The file that says which positions a vector is of.
const POOLING: &str = "1_Pooling/config.json";
/// The file that says what a folder is.
pub(super) const CONFIG: &str = "config.json";
/// Which file holds which weight, where there are several.
const INDEX: &str = "model.safetensors.index.json";
/// The one file of weights, where there is one.
const WEIGHTS: &str = "model.safetensors";
/// Tables that some files carry and that follow from the numbers.
const DERIVED: &str = "rotary_emb.inv_freq";

/// One or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Ids {
    One(u32),
    Several(Vec<u32>),
}

/// Tokens that end a text, as two files say it.
#[derive(Deserialize)]
struct Ends {
    eos_token_id: Option<Ids>,
}

#[derive(Deserialize)]
struct TokenizerConfig {
    chat_template: Option<Templates>,
    bos_token: Option<Token>,
    eos_token: Option<Token>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Token {
    Text(String),
    Full { content: String },
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

pub(super) fn open(folder: &Path) -> Result<LanguageModel, ModelError> {
    let config = Config::read(&read(&folder.join(CONFIG))?)?;
    let tokenizer = Tokenizer::read(&read(&folder.join("tokenizer.json"))?)?;
    let said: Option<TokenizerConfig> = json_if_there(&folder.join("tokenizer_config.json"))?;
    let end = said.as_ref().and_then(|said| said.eos_token.as_ref());
    let mut ends = ends(folder)?;
    if ends.is_empty() {
        ends.extend(end.and_then(|end| tokenizer.id(end.text())));
    }
    let name = folder.file_name().unwrap_or_default();
    let card = Card {
        name: name.to_string_lossy().into_owned(),
        ends,
        template: template(folder, said)?,
        licence: licence(folder),
        positions: config.positions,
        pooling: pooling(folder)?,
    };
    let mut weights = weights(folder)?;
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

/// Which positions a vector is of, as sentence-transformers say it.
fn pooling(folder: &Path) -> Result<Pooling, ModelError> {
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

fn ends(folder: &Path) -> Result<Vec<u32>, ModelError> {
    for file in ["generation_config.json", CONFIG] {
        let said: Option<Ends> = json_if_there(&folder.join(file))?;
        match said.and_then(|said| said.eos_token_id) {
            Some(Ids::One(id)) => return Ok(vec![id]),
            Some(Ids::Several(ids)) => return Ok(ids),
            None => {}
        }
    }
    Ok(Vec::new())
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Full { content: text } => text,
        }
    }
}

/// The template of conversations: a file of its own, or in the tokeniser's configuration.
fn template(
    folder: &Path,
    said: Option<TokenizerConfig>,
) -> Result<Option<ChatTemplate>, ModelError> {
    let path = folder.join("chat_template.jinja");
    let own = path.is_file().then(|| read(&path)).transpose()?;
    let own = own.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let mark = |token: Option<&Token>| token.map_or(String::new(), |it| it.text().to_owned());
    let said = said.unwrap_or(TokenizerConfig {
        chat_template: None,
        bos_token: None,
        eos_token: None,
    });
    let (begin, end) = (mark(said.bos_token.as_ref()), mark(said.eos_token.as_ref()));
    let within = said.chat_template.and_then(|templates| match templates {
        Templates::One(source) => Some(source),
        Templates::Named(several) => several
            .into_iter()
            .find(|it| it.name == "default")
            .map(|it| it.template),
    });
    let source = own.or(within);
    Ok(source.map(|source| ChatTemplate { source, begin, end }))
}

/// The first line that says so in the head of the model's page.
fn licence(folder: &Path) -> Option<String> {
    let page = std::fs::read_to_string(folder.join("README.md")).ok()?;
    let head = page.strip_prefix("---")?.split("\n---").next()?;
    let line = head
        .lines()
        .find_map(|line| line.strip_prefix("license:"))?;
    Some(line.trim().to_owned())
}

fn weights(folder: &Path) -> Result<Weights, ModelError> {
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
    // Models that make vectors are kept without the head, and named so.
    Ok(match weights.contains_key("embed_tokens.weight") {
        true => {
            let weights = weights.into_iter();
            let whole = weights.map(|(name, weight)| (format!("model.{name}"), weight));
            whole.collect()
        }
        false => weights,
    })
}
