//! Recognises attention of several heads as exporters write it: queries, keys and values split into
//! heads and transposed, two products with a softmax between them, and the heads put together
//! again. The sequence engine runs all these nodes as one step.

use super::{PatternMatch, SequenceMatcher, SequencePattern};

/// Attention of several heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::sequences) struct Attention {
    pub heads: usize,
    /// Factor of the scores, applied before the mask is added.
    pub scale: f32,
    pub masked: bool,
}

/// Heads by length, then features: the axes of a value that was split into heads.
const TURNED: [i64; 4] = [0, 2, 1, 3];
const RANK: usize = 4;

/// Walks back from the node that puts heads together again.
struct AttentionMatcher<'r, 'a> {
    reader: &'r SequenceMatcher<'a>,
    nodes: Vec<usize>,
    scale: f32,
    mask: Option<&'a str>,
}

/// Returns the attention whose last node is `last`, if there is one.
pub(in crate::sequences) fn match_attention(
    reader: &SequenceMatcher<'_>,
    last: usize,
) -> Option<PatternMatch> {
    let join = reader.node(last);
    let sizes = (join.op_type() == "Reshape").then(|| reader.reshape_sizes(join))??;
    let &[batch, length, features] = &sizes[..] else {
        return None;
    };
    let mut walk = AttentionMatcher {
        reader,
        nodes: vec![last],
        scale: 1.0,
        mask: None,
    };
    let turned = walk.claim_transpose(join.input_name(0)?, &TURNED)?;
    let product = walk.claim_maker(turned, "MatMul")?;
    let weighed = reader.node(product);
    let softmax = walk.claim_maker(weighed.input_name(0)?, "Softmax")?;
    if !reader.is_along_last(reader.node(softmax)) {
        return None;
    }
    let (queries, keys) = walk.claim_scores(reader.node(softmax).input_name(0)?)?;
    let values = walk.claim_transpose(weighed.input_name(1)?, &TURNED)?;
    let (queries, heads, each) = walk.claim_head_split(queries)?;
    let (keys, key_heads, key_each) = walk.claim_head_split(keys)?;
    let (values, value_heads, value_each) = walk.claim_head_split(values)?;
    let of_one_make = key_heads == heads && value_heads == heads && key_each == each;
    // Sizes left open or copied are those of the queries; a stated one is checked with them.
    let keeps = batch <= 0 && length <= 0 && heads.checked_mul(value_each) == Some(features);
    let masked = walk.mask.is_some();
    let mask = walk.mask.iter().map(|name| (*name).to_owned());
    let attention = Attention {
        heads: usize::try_from(heads).ok()?,
        scale: walk.scale,
        masked,
    };
    walk.nodes.sort_unstable();
    (of_one_make && keeps).then(|| PatternMatch {
        pattern: SequencePattern::Attend(attention),
        inputs: [queries, keys, values]
            .map(str::to_owned)
            .into_iter()
            .chain(mask)
            .collect(),
        nodes: walk.nodes,
    })
}

impl<'a> AttentionMatcher<'_, 'a> {
    /// Returns the node of this operator that makes a value for one reader alone.
    fn claim_maker(&mut self, name: &str, operator: &str) -> Option<usize> {
        let index = self.reader.maker_for_one(name, operator)?;
        self.nodes.push(index);
        Some(index)
    }

    /// Returns the input of a transpose of these axes.
    fn claim_transpose(&mut self, name: &str, axes: &[i64]) -> Option<&'a str> {
        let index = self.reader.maker_for_one(name, "Transpose")?;
        let node = self.reader.node(index);
        let given = (node.ints("perm") == Some(axes)).then(|| node.input_name(0))??;
        self.nodes.push(index);
        Some(given)
    }

    /// Returns the input of a split into heads, the number of heads, and the features of each.
    fn claim_head_split(&mut self, name: &'a str) -> Option<(&'a str, i64, i64)> {
        let index = self.claim_maker(name, "Reshape")?;
        let node = self.reader.node(index);
        let sizes = self.reader.reshape_sizes(node)?;
        let &[batch, length, heads, each] = &sizes[..] else {
            return None;
        };
        let rows = node.input_name(0)?;
        let keeps = batch <= 0 && length <= 0 && heads > 0 && each > 0;
        // One size can be counted; the other is then that of the rows.
        let counted = (batch == -1) != (length == -1) || (batch, length) == (0, 0);
        (keeps && counted && self.reader.is_floats(rows, RANK - 1)).then_some((rows, heads, each))
    }

    /// Queries and keys, split into heads, of scores before the softmax.
    fn claim_scores(&mut self, name: &'a str) -> Option<(&'a str, &'a str)> {
        if let Some(index) = self.reader.maker_for_one(name, "Add") {
            let node = self.reader.node(index);
            for (scores, mask) in [(0, 1), (1, 0)] {
                let (scores, mask) = (node.input_name(scores)?, node.input_name(mask)?);
                if self.mask.is_some() || !self.reader.is_floats(mask, RANK) {
                    continue;
                }
                let (held, scale) = (self.nodes.len(), self.scale);
                self.nodes.push(index);
                self.mask = Some(mask);
                if let Some(found) = self.claim_product(scores) {
                    return Some(found);
                }
                self.nodes.truncate(held);
                (self.mask, self.scale) = (None, scale);
            }
            return None;
        }
        self.claim_product(name)
    }

    fn claim_product(&mut self, name: &'a str) -> Option<(&'a str, &'a str)> {
        let name = self.claim_scale(name);
        let index = self.claim_maker(name, "MatMul")?;
        let node = self.reader.node(index);
        let queries = self.claim_scale(node.input_name(0)?);
        let queries = self.claim_transpose(queries, &TURNED)?;
        let keys = self.claim_scale(node.input_name(1)?);
        let keys = match self.claim_transpose(keys, &[0, 2, 3, 1]) {
            Some(keys) => keys,
            None => {
                let keys = self.claim_transpose(keys, &[0, 1, 3, 2])?;
                let keys = self.claim_scale(keys);
                self.claim_transpose(keys, &TURNED)?
            }
        };
        Some((queries, keys))
    }

    /// If a product or quotient with a number makes this value, returns the other operand;
    /// otherwise returns the name itself.
    fn claim_scale(&mut self, name: &'a str) -> &'a str {
        let reader = self.reader;
        let by = |operator, index: usize| {
            let maker = reader.maker_for_one(name, operator)?;
            let number = reader.scalar_constant(reader.node(maker), index)?;
            Some((maker, reader.node(maker).input_name(1 - index)?, number))
        };
        let found = by("Mul", 1).or_else(|| by("Mul", 0));
        let divided = || by("Div", 1).map(|(maker, given, number)| (maker, given, number.recip()));
        let Some((maker, given, factor)) = found.or_else(divided) else {
            return name;
        };
        self.scale *= factor;
        self.nodes.push(maker);
        given
    }
}
