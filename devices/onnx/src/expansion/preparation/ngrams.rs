//! Computes `TfIdfVectorizer`, which counts how often each sequence (n-gram) of a list occurs in
//! each row of strings or numbers. The preparation (the part of a model that the buyer's machine
//! computes first) calls it for strings, and the reference kernels for numbers.

use std::collections::BTreeMap;

use souk_memory::Tensor;

use super::NodeFault;
use crate::NodeProto;

/// The sequences to count.
struct Counter<T> {
    /// The column of each sequence.
    columns: BTreeMap<Vec<T>, usize>,
    /// The lengths of the sequences to count.
    lengths: std::ops::RangeInclusive<usize>,
    /// The maximum number of words between two consecutive words of a sequence.
    skips_max: usize,
    /// The number of columns.
    width: usize,
}

/// Returns the weighted counts of each row of strings.
pub(super) fn from_strings(
    node: &NodeProto,
    strings: &[String],
    dims: &[usize],
) -> Result<Tensor, NodeFault> {
    let pool = node.strings("pool_strings").unwrap_or_default();
    let pool = pool
        .iter()
        .map(|text| std::str::from_utf8(text).unwrap_or_default());
    let strings: Vec<&str> = strings.iter().map(String::as_str).collect();
    count_ngrams(node, &pool.collect::<Vec<_>>(), &strings, dims)
}

/// Returns the weighted counts of each row of numbers. `dims` is the shape of `numbers`.
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
    let mut weighted = Vec::with_capacity(rows * counter.width);
    for row in 0..rows {
        let counts = counter.count_row(&words[row * length..(row + 1) * length]);
        let counts = counts.into_iter().enumerate();
        weighted.extend(counts.map(|(column, count)| weigh(column, count)));
    }
    let dims = if dims.len() == 1 {
        vec![counter.width]
    } else {
        vec![rows, counter.width]
    };
    Ok(Tensor::from_vec(dims, weighted)?)
}

/// Returns the number of columns of a node's output.
#[must_use]
pub fn output_width(node: &NodeProto) -> usize {
    let indexes = node.ints("ngram_indexes").unwrap_or_default();
    let last_column = indexes.iter().max().copied().unwrap_or(-1);
    usize::try_from(last_column.saturating_add(1)).unwrap_or(0)
}

/// Returns the function that weights a column's count.
fn column_weigher(node: &NodeProto, width: usize) -> Result<impl Fn(usize, u32) -> f32, NodeFault> {
    let weights = node.floats("weights").unwrap_or_default();
    // Weights follow the order of the sequences, each of which has a column.
    let mut by_column = vec![1.0_f32; width];
    let columns = node.ints("ngram_indexes").unwrap_or_default();
    for (weight, column) in weights.iter().zip(columns) {
        if let Some(entry) = usize::try_from(*column)
            .ok()
            .and_then(|column| by_column.get_mut(column))
        {
            *entry = *weight;
        }
    }
    let mode = node.string("mode").unwrap_or("TF");
    let (uses_counts, uses_weights) = match mode {
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
    Ok(move |column: usize, count: u32| {
        let value = if uses_counts {
            count as f32
        } else {
            f32::from(u8::from(count > 0))
        };
        if uses_weights {
            value * by_column[column]
        } else {
            value
        }
    })
}

impl<T: Ord + Copy> Counter<T> {
    fn from_node(node: &NodeProto, pool: &[T]) -> Result<Self, NodeFault> {
        let size = |name: &'static str, min: i64| {
            let value = node.int(name).unwrap_or(min).max(min);
            usize::try_from(value).unwrap_or(usize::MAX)
        };
        let lengths = size("min_gram_length", 1)..=size("max_gram_length", 1);
        let starts = node.ints("ngram_counts").unwrap_or_default();
        let indexes = node.ints("ngram_indexes").unwrap_or_default();
        let invalid = |name| {
            let found = "not of the pool's size".to_owned();
            NodeFault::Attribute { name, found }
        };
        let mut columns = BTreeMap::new();
        let mut sequences = indexes.iter();
        // `ngram_counts` has the start in the pool of the sequences of length 1, 2 and so on.
        for (index, &start) in starts.iter().enumerate() {
            let end = starts.get(index + 1).copied();
            let end = end.map_or(Some(pool.len()), |end| usize::try_from(end).ok());
            let start = usize::try_from(start).ok();
            let part = start.zip(end).and_then(|(start, end)| pool.get(start..end));
            let part = part.ok_or_else(|| invalid("ngram_counts"))?;
            for sequence in part.chunks(index + 1) {
                let column = sequences.next().and_then(|&at| usize::try_from(at).ok());
                let column = column.ok_or_else(|| invalid("ngram_indexes"))?;
                columns.insert(sequence.to_vec(), column);
            }
        }
        Ok(Self {
            columns,
            lengths,
            skips_max: size("max_skip_count", 0),
            width: output_width(node),
        })
    }

    /// Counts the occurrences of each column's sequence in a row of words.
    fn count_row(&self, words: &[T]) -> Vec<u32> {
        let mut counts = vec![0; self.width];
        let skips_max = self.skips_max.min(words.len());
        for distance in 1..=skips_max + 1 {
            for length in self.lengths.clone() {
                // A single word has no gaps.
                if length == 1 && distance > 1 {
                    continue;
                }
                let Some(reach) = (length - 1).checked_mul(distance) else {
                    continue;
                };
                for start in 0..words.len().saturating_sub(reach) {
                    let sequence = (0..length).map(|k| words[start + k * distance]);
                    let sequence: Vec<T> = sequence.collect();
                    if let Some(&column) = self.columns.get(&sequence) {
                        counts[column] += 1;
                    }
                }
            }
        }
        counts
    }
}
