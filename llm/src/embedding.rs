//! Turns texts into vectors (embeddings) with a decoder: removes the model's head, so that its last
//! norm is the output in place of the logits. The rest of the model stays the same, so it runs in
//! sessions, split over devices or not, as in text generation. The crate `node/texts` uses it.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use souk_memory::DType;
use souk_onnx::{DecodeError, Dimension, GraphProto, ValueInfoProto, decode_model, encode_model};
use thiserror::Error;

use crate::decoder::{LOGITS, NORM};
use crate::generation::{GenerationError, STEP_TOKENS_MAX, Sequence};

/// How the vectors of a text's positions become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The vector of the last position, which depends on the whole text.
    #[default]
    Last,
    /// The mean of the vectors of all positions.
    Mean,
}

/// Why a model cannot return vectors.
#[derive(Debug, Error)]
pub enum EmbeddingError {
    /// The bytes are no model.
    #[error(transparent)]
    Model(#[from] DecodeError),
    /// The model is not one of souk's decoders.
    #[error("the model has no final norm called {NORM:?}")]
    Norm,
}

/// Converts a decoder's model to one without its head, which returns vectors in place of logits.
///
/// # Errors
/// [`EmbeddingError`].
pub fn to_embedding_model(model: Bytes) -> Result<Bytes, EmbeddingError> {
    let mut model = decode_model(model)?;
    remove_head(model.graph.get_or_insert_default()).ok_or(EmbeddingError::Norm)?;
    Ok(encode_model(&model))
}

fn remove_head(graph: &mut GraphProto) -> Option<()> {
    let mut nodes = graph.node.iter();
    let norm = nodes.position(|node| node.output.first().is_some_and(|name| name == NORM))?;
    graph.node.truncate(norm + 1);
    let last = &mut graph.node[norm];
    let scale = last.input.get(1)?.clone();
    LOGITS.clone_into(last.output.first_mut()?);
    let inputs = graph.node.iter().flat_map(|node| &node.input);
    let inputs: BTreeSet<&String> = inputs.collect();
    let is_read = |name: Option<&String>| name.is_some_and(|name| inputs.contains(name));
    graph
        .initializer
        .retain(|weight| is_read(weight.name.as_ref()));
    let mut weights = graph.initializer.iter();
    let width = *weights
        .find(|weight| weight.name() == scale)?
        .dims
        .first()?;
    let rows = [Dimension::new_fixed(1), Dimension::new_symbol("rows")];
    let dims = rows
        .into_iter()
        .chain([Dimension::new_fixed(width)])
        .collect();
    let port = graph.output.iter_mut().find(|port| port.name() == LOGITS)?;
    *port = ValueInfoProto::new_tensor(LOGITS, DType::F32.onnx_code(), Some(dims));
    Some(())
}

/// Scales a vector to length 1. A zero vector will stay zero.
pub fn normalise(vector: &mut [f32]) {
    let squares = vector.iter().map(|x| f64::from(*x) * f64::from(*x));
    let length = squares.sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
    for x in vector {
        *x = (f64::from(*x) / length) as f32;
    }
}

impl Sequence<'_> {
    /// Returns the vector of a text, of length 1. The decoder must be one that
    /// [`to_embedding_model`] returned.
    ///
    /// # Errors
    /// [`GenerationError`].
    pub fn embed_tokens(
        &mut self,
        tokens: &[u32],
        pooling: Pooling,
    ) -> Result<Vec<f32>, GenerationError> {
        let mut vector = match pooling {
            Pooling::Last => {
                let prefix_length = self.truncate_to_prefix(tokens);
                self.push(&tokens[prefix_length..])?
            }
            Pooling::Mean => self.sum_vectors(tokens)?,
        };
        normalise(&mut vector);
        Ok(vector)
    }

    /// Returns the sum of the vectors of all positions, which has the direction of their mean.
    fn sum_vectors(&mut self, tokens: &[u32]) -> Result<Vec<f32>, GenerationError> {
        self.truncate(0);
        let mut sum = Vec::new();
        for chunk in tokens.chunks(STEP_TOKENS_MAX) {
            let vectors = self.push_all(chunk)?;
            let width = vectors.len() / chunk.len();
            sum.resize(width, 0.0);
            for vector in vectors.chunks_exact(width.max(1)) {
                for (total, x) in sum.iter_mut().zip(vector) {
                    *total += x;
                }
            }
        }
        match sum.is_empty() {
            true => Err(GenerationError::Empty),
            false => Ok(sum),
        }
    }
}
