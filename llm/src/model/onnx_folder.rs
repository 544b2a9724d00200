//! Writes and opens folders of language models in souk's own layout: a standard ONNX model with its
//! weights in one separate file, which other tools can read too, next to the tokeniser and the
//! model's metadata.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use bytes::Bytes;
use souk_memory::ContentId;
use souk_onnx::states::model_states;
use souk_onnx::subgraph::{Subgraph, weight_id};
use souk_onnx::{
    Dimension, DimensionValue, GraphProto, ModelProto, StringStringEntryProto, TensorProto,
    decode_model, encode_model, external_location,
};

use super::{Body, Card, LanguageModel, ModelError, json, read};
use crate::decoder::Decoder;
use crate::tokens::Tokenizer;

/// The file that marks such a folder.
pub(super) const CARD: &str = "language-model.json";
const MODEL: &str = "model.onnx";
const WEIGHTS: &str = "weights.bin";
const TOKENIZER: &str = "tokenizer.json";
/// Alignment of weights in bytes, so that a reader may map them.
const ALIGNMENT: usize = 64;

pub(super) fn write(
    folder: &Path,
    card: &Card,
    tokenizer: &str,
    decoder: &Decoder,
) -> Result<(), ModelError> {
    std::fs::create_dir_all(folder).map_err(|cause| file_error(folder, cause))?;
    let places = write_weights(&folder.join(WEIGHTS), &decoder.subgraph.weights)?;
    let mut model = decode_onnx(&folder.join(MODEL), decoder.subgraph.model.clone())?;
    let graph = model.graph.get_or_insert_default();
    for tensor in &mut graph.initializer {
        let id = external_location(tensor).and_then(weight_id);
        if let Some((start, length)) = id.and_then(|id| places.get(&id)) {
            let entry = |key: &str, value: String| StringStringEntryProto::new(key, value);
            tensor.external_data = vec![
                entry("location", WEIGHTS.to_owned()),
                entry("offset", start.to_string()),
                entry("length", length.to_string()),
            ];
        }
    }
    let card = serde_json::to_vec_pretty(card).expect("a card is plain data");
    let files = [
        (MODEL, encode_model(&model).to_vec()),
        (TOKENIZER, tokenizer.as_bytes().to_vec()),
        (CARD, card),
    ];
    for (name, bytes) in files {
        let path = folder.join(name);
        std::fs::write(&path, bytes).map_err(|cause| file_error(&path, cause))?;
    }
    Ok(())
}

/// Writes weights one after another and returns the position and length of each.
fn write_weights(
    path: &Path,
    weights: &BTreeMap<ContentId, Bytes>,
) -> Result<BTreeMap<ContentId, (usize, usize)>, ModelError> {
    let file = File::create(path).map_err(|cause| file_error(path, cause))?;
    let mut file = BufWriter::new(file);
    let mut places = BTreeMap::new();
    let mut at = 0usize;
    for (id, bytes) in weights {
        let start = at.next_multiple_of(ALIGNMENT);
        let padding = [0; ALIGNMENT];
        let mut put = |bytes: &[u8]| {
            file.write_all(bytes)
                .map_err(|cause| file_error(path, cause))
        };
        put(&padding[..start - at])?;
        put(bytes)?;
        places.insert(*id, (start, bytes.len()));
        at = start + bytes.len();
    }
    file.flush().map_err(|cause| file_error(path, cause))?;
    Ok(places)
}

pub(super) fn open_written(folder: &Path) -> Result<LanguageModel, ModelError> {
    let card: Card = json(&folder.join(CARD))?;
    let tokenizer = Tokenizer::read(&read(&folder.join(TOKENIZER))?)?;
    let path = folder.join(MODEL);
    let mut model = decode_onnx(&path, read(&path)?.into())?;
    let states = model_states(&model)?;
    let graph = model.graph.get_or_insert_default();
    let room =
        position_count(graph).ok_or(ModelError::NoDecoder("it has no tables of positions"))?;
    let first = states.first().map_or("", |state| &state.input);
    let cache = cache_dims(graph, first).ok_or(ModelError::NoDecoder("it has no caches"))?;
    let file = Bytes::from(read(&folder.join(WEIGHTS))?);
    let mut weights = BTreeMap::new();
    for tensor in &mut graph.initializer {
        if external_location(tensor).is_some() {
            let bytes = initializer_bytes(tensor, &file)
                .ok_or(ModelError::NoDecoder("a weight lies outside its file"))?;
            let id = ContentId::for_content(&bytes);
            weights.insert(id, bytes);
            let location = StringStringEntryProto::new("location", format!("blake3:{id}"));
            tensor.external_data = vec![location];
        }
    }
    let subgraph = Subgraph {
        model: encode_model(&model),
        weights,
    };
    let decoder = Decoder {
        subgraph,
        states,
        room,
        cache,
    };
    Ok(LanguageModel {
        card,
        tokenizer,
        body: Body::Written(decoder),
    })
}

fn decode_onnx(path: &Path, bytes: Bytes) -> Result<ModelProto, ModelError> {
    decode_model(bytes).map_err(|cause| ModelError::Onnx {
        path: path.to_owned(),
        cause,
    })
}

fn file_error(path: &Path, cause: std::io::Error) -> ModelError {
    ModelError::File {
        path: path.to_owned(),
        cause,
    }
}

/// Returns the positions in the tables of angles.
fn position_count(graph: &GraphProto) -> Option<usize> {
    let table = graph.initializer.iter().find(|it| it.name() == "cosines")?;
    usize::try_from(*table.dims.first()?).ok()
}

/// Returns the heads of a cache, and their width.
fn cache_dims(graph: &GraphProto, name: &str) -> Option<[usize; 2]> {
    let input = graph.input.iter().find(|input| input.name() == name)?;
    let [_, heads, _, width] = &input.tensor_type()?.shape.as_ref()?.dim[..] else {
        return None;
    };
    let size = |dim: &Dimension| match dim.value {
        Some(DimensionValue::DimValue(size)) => usize::try_from(size).ok(),
        _ => None,
    };
    Some([size(heads)?, size(width)?])
}

/// Returns the bytes of an initializer from the file of weights.
fn initializer_bytes(tensor: &TensorProto, file: &Bytes) -> Option<Bytes> {
    let number = |key: &str| tensor.external_entry(key)?.parse::<usize>().ok();
    let (start, length) = (number("offset")?, number("length")?);
    let end = start.checked_add(length).filter(|end| *end <= file.len())?;
    (external_location(tensor) == Some(WEIGHTS)).then(|| file.slice(start..end))
}
