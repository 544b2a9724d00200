//! Computes `TfIdfVectorizer`, which counts how often each of a list of sequences occurs in each
//! row of words or numbers. The preparation calls it for words, and the reference kernels for
//! numbers.

use std::collections::BTreeMap;

use souk_memory::Tensor;

use super::NodeFault;
use crate::NodeProto;

/// The sequences to count.
struct Counter<T> {
    /// The column of each sequence.
    columns: BTreeMap<Vec<T>, usize>,
    /// The lengths of sequences.
    lengths: std::ops::RangeInclusive<usize>,
    /// The most words to skip between two of a sequence.
    skips: usize,
    width: usize,
}

/// Returns the weighted counts of each row of texts.
pub(super) fn of_texts(
    node: &NodeProto,
    texts: &[String],
    dims: &[usize],
) -> Result<Tensor, NodeFault> {
    let pool = node.strings("pool_strings").unwrap_or_default();
    let pool = pool
        .iter()
        .map(|text| std::str::from_utf8(text).unwrap_or_default());
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    count_ngrams(node, &pool.collect::<Vec<_>>(), &texts, dims)
}

/// Returns the weighted counts of each row of numbers, which must be as many as `dims` says.
///
/// # Errors
/// [`NodeFault`] if the input has neither one nor two dimensions, or attributes contradict each
/// other.
pub fn from_numbers(
    node: &NodeProto,
    numbers: &[i64],
    dims: &[usize],
) -> Result<Tensor, NodeFault> {
    let pool = node.ints("pool_int64s").unwrap_or_default();
    count_ngrams(node, pool, numbers, dims)
}

fn count_ngrams<T: Ord + Copy>(
    node: &NodeProto,
    pool: &[T],
    words: &[T],
    dims: &[usize],
) -> Result<Tensor, NodeFault> {
    let counter = Counter::from_node(node, pool)?;
    let weigh = column_weigher(node, counter.width)?;
    let (rows, length) = match *dims {
        [length] => (1, length),
        [rows, length] => (rows, length),
        _ => return Err(NodeFault::Shape(dims.to_vec())),
    };
    let mut made = Vec::with_capacity(rows * counter.width);
    for row in 0..rows {
        let counts = counter.count_row(&words[row * length..(row + 1) * length]);
        let weighed = counts.into_iter().enumerate();
        made.extend(weighed.map(|(at, count)| weigh(at, count)));
    }
    let dims = if dims.len() == 1 {
        vec![counter.width]
    } else {
        vec![rows, counter.width]
    };
    Ok(Tensor::from_vec(dims, made)?)
}

/// Returns the number of columns of a node's output.
#[must_use]
pub fn output_width(node: &NodeProto) -> usize {
    let indexes = node.ints("ngram_indexes").unwrap_or_default();
    let widest = indexes.iter().max().copied().unwrap_or(-1);
    usize::try_from(widest.saturating_add(1)).unwrap_or(0)
}

/// Returns the function that weights a column's count.
fn column_weigher(node: &NodeProto, width: usize) -> Result<impl Fn(usize, u32) -> f32, NodeFault> {
    let weights = node.floats("weights").unwrap_or_default();
    // Weights follow the order of the sequences, each of which has a column.
    let mut by_column = vec![1.0_f32; width];
    let columns = node.ints("ngram_indexes").unwrap_or_default();
    for (weight, column) in weights.iter().zip(columns) {
        if let Some(at) = usize::try_from(*column)
            .ok()
            .and_then(|at| by_column.get_mut(at))
        {
            *at = *weight;
        }
    }
    let mode = node.string("mode").unwrap_or("TF");
    let (counts, weighs) = match mode {
        "TF" => (true, false),
        "IDF" => (false, true),
        "TFIDF" => (true, true),
        _ => {
            let found = mode.to_owned();
            return Err(NodeFault::Attribute {
                name: "mode",
                found,
            });
        }
    };
    Ok(move |at: usize, count: u32| {
        let counted = if counts {
            count as f32
        } else {
            f32::from(u8::from(count > 0))
        };
        if weighs {
            counted * by_column[at]
        } else {
            counted
        }
    })
}

impl<T: Ord + Copy> Counter<T> {
    fn from_node(node: &NodeProto, pool: &[T]) -> Result<Self, NodeFault> {
        let size = |name: &'static str, least: i64| {
            let found = node.int(name).unwrap_or(least).max(least);
            usize::try_from(found).unwrap_or(usize::MAX)
        };
        let lengths = size("min_gram_length", 1)..=size("max_gram_length", 1);
        let starts = node.ints("ngram_counts").unwrap_or_default();
        let indexes = node.ints("ngram_indexes").unwrap_or_default();
        let wrong = |name| {
            let found = "not of the pool's size".to_owned();
            NodeFault::Attribute { name, found }
        };
        let mut columns = BTreeMap::new();
        let mut sequences = indexes.iter();
        for (place, &start) in starts.iter().enumerate() {
            let end = starts.get(place + 1).copied();
            let end = end.map_or(Some(pool.len()), |end| usize::try_from(end).ok());
            let start = usize::try_from(start).ok();
            let part = start.zip(end).and_then(|(start, end)| pool.get(start..end));
            let part = part.ok_or_else(|| wrong("ngram_counts"))?;
            for sequence in part.chunks(place + 1) {
                let column = sequences.next().and_then(|&at| usize::try_from(at).ok());
                let column = column.ok_or_else(|| wrong("ngram_indexes"))?;
                columns.insert(sequence.to_vec(), column);
            }
        }
        Ok(Self {
            columns,
            lengths,
            skips: size("max_skip_count", 0),
            width: output_width(node),
        })
    }

    /// Counts the occurrences of each column's sequence in a row of words.
    fn count_row(&self, words: &[T]) -> Vec<u32> {
        let mut counts = vec![0; self.width];
        let skips = self.skips.min(words.len());
        for apart in 1..=skips + 1 {
            for length in self.lengths.clone() {
                // A single word has no gaps.
                if length == 1 && apart > 1 {
                    continue;
                }
                let Some(reach) = (length - 1).checked_mul(apart) else {
                    continue;
                };
                for start in 0..words.len().saturating_sub(reach) {
                    let sequence: Vec<T> =
                        (0..length).map(|at| words[start + at * apart]).collect();
                    if let Some(&column) = self.columns.get(&sequence) {
                        counts[column] += 1;
                    }
                }
            }
        }
        counts
    }
}
