//! Texts as vectors: what a decoder makes of a text, in the place of what follows it.
//!
//! Its last norm is told where else its logits would be, so sessions, cuts and comparisons are
//! those of texts that are written.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use souk_memory::DType;
use souk_onnx::{DecodeError, Dimension, GraphProto, ValueInfoProto, decode, encode};
use thiserror::Error;

use crate::decoder::{LOGITS, NORM};
use crate::generation::{CHUNK, GenerationError, Sequence};

/// Which of a text's positions its vector is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The last, which has seen all of the text.
    #[default]
    Last,
    /// The mean of all.
    Mean,
}

/// Why a model makes no vectors.
#[derive(Debug, Error)]
pub enum EmbeddingError {
    /// It is no model.
    #[error(transparent)]
    Model(#[from] DecodeError),
    /// It is no decoder of souk's.
    #[error("the model has no last norm called {NORM:?}")]
    Norm,
}

/// The model of a decoder that tells vectors for logits; its head is left out.
///
/// # Errors
/// [`EmbeddingError`].
pub fn embedding(model: Bytes) -> Result<Bytes, EmbeddingError> {
    let mut model = decode(model)?;
    behead(model.graph.get_or_insert_default()).ok_or(EmbeddingError::Norm)?;
    Ok(encode(&model))
}

fn behead(graph: &mut GraphProto) -> Option<()> {
    let mut nodes = graph.node.iter();
    let norm = nodes.position(|node| node.output.first().is_some_and(|it| it == NORM))?;
    graph.node.truncate(norm + 1);
    let last = &mut graph.node[norm];
    let scale = last.input.get(1)?.clone();
    LOGITS.clone_into(last.output.first_mut()?);
    let read = graph.node.iter().flat_map(|node| &node.input);
    let read: BTreeSet<&String> = read.collect();
    let is_read = |name: Option<&String>| name.is_some_and(|name| read.contains(name));
    graph.initializer.retain(|it| is_read(it.name.as_ref()));
    let mut weights = graph.initializer.iter();
    let width = *weights.find(|it| it.name() == scale)?.dims.first()?;
    let rows = [Dimension::fixed(1), Dimension::symbol("rows")];
    let dims = rows.into_iter().chain([Dimension::fixed(width)]).collect();
    let port = graph.output.iter_mut().find(|port| port.name() == LOGITS)?;
    *port = ValueInfoProto::tensor(LOGITS, DType::F32.onnx_code(), Some(dims));
    Some(())
}

/// Gives a vector length 1; that of zeros stays.
pub fn normalise(vector: &mut [f32]) {
    let squares = vector.iter().map(|it| f64::from(*it) * f64::from(*it));
    let length = squares.sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
    for number in vector {
        *number = (f64::from(*number) / length) as f32;
    }
}

impl Sequence<'_> {
    /// The vector of a text, of length 1, where the decoder is one of [`embedding`].
    ///
    /// # Errors
    /// [`GenerationError`].
    pub fn embed(&mut self, tokens: &[u32], pooling: Pooling) -> Result<Vec<f32>, GenerationError> {
        let mut vector = match pooling {
            Pooling::Last => {
                let kept = self.agree(tokens);
                self.push(&tokens[kept..])?
            }
            Pooling::Mean => self.summed(tokens)?,
        };
        normalise(&mut vector);
        Ok(vector)
    }

    /// The sum of what is told of each position: its direction is that of the mean.
    fn summed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, GenerationError> {
        self.truncate(0);
        let mut sum = Vec::new();
        for chunk in tokens.chunks(CHUNK) {
            let told = self.push_all(chunk)?;
            let width = told.len() / chunk.len();
            sum.resize(width, 0.0);
            for row in told.chunks_exact(width.max(1)) {
                for (to, from) in sum.iter_mut().zip(row) {
                    *to += from;
                }
            }
        }
        match sum.is_empty() {
            true => Err(GenerationError::Empty),
            false => Ok(sum),
        }
    }
}
