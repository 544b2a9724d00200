//! Checks the indices among a job's inputs before the job runs, for example the token ids of a
//! language model: refuses an index beyond the extent of the values from which a node of the model
//! takes elements by it. The buyer calls this for its quotes, because no device can run such a job.
//!
//! The check follows an index from an input through operators that only move or widen integers, to
//! a node that takes elements along an axis of known extent by it. The search ends where a node
//! computes with the index. It also ends at a body, whose nodes may never run. So a refused index
//! would fail on every device.

use std::collections::{BTreeMap, BTreeSet};

use souk_memory::{DType, Tensor};
use souk_onnx::DataType;

use super::shape::Fact;
use super::{Graph, ImportError, Node, ValueId};

/// Operators whose outputs hold the elements of their inputs unchanged.
const MOVES: [&str; 8] = [
    "Cast",
    "Concat",
    "Flatten",
    "Identity",
    "Reshape",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
];

/// Operators that take elements by index, each with the number of the input that holds the elements
/// and of the input that holds the indices.
const TAKES: [(&str, usize, usize); 3] = [
    ("Gather", 0, 1),
    ("GatherElements", 0, 1),
    ("ScatterElements", 0, 1),
];

impl Graph {
    /// Checks that each index among the inputs lies within the extent along which a node takes
    /// elements by it.
    ///
    /// # Errors
    /// [`ImportError::InputIndex`] for the first index beyond its extent.
    pub fn check_indices(&self, inputs: &BTreeMap<String, Tensor>) -> Result<(), ImportError> {
        for (name, tensor) in inputs {
            let (Some(value), Some(range)) =
                (self.find_value(name), IndexRange::from_tensor(tensor))
            else {
                continue;
            };
            if !self.inputs().contains(&value) {
                continue;
            }
            for node in self.index_takers(value) {
                let Some(extent) = self.extent_taken_by(node.0, node.1) else {
                    continue;
                };
                if let Some(index) = range.index_beyond(extent) {
                    return Err(ImportError::InputIndex {
                        input: name.clone(),
                        index,
                        extent,
                        node: node.0.name().to_owned(),
                        operator: node.0.operator_name(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Returns the nodes that read the value, directly or through nodes that only move it, each
    /// with the number of the input that reads it.
    fn index_takers(&self, value: ValueId) -> Vec<(&Node, usize)> {
        let (mut seen, mut open) = (BTreeSet::from([value]), vec![value]);
        let mut takers = Vec::new();
        while let Some(value) = open.pop() {
            for node in self.value(value).readers.iter().map(|id| self.node(*id)) {
                let place = |it: &Option<ValueId>| *it == Some(value);
                let places = (0..).zip(&node.inputs).filter(|(_, it)| place(it));
                takers.extend(places.map(|(place, _): (usize, _)| (node, place)));
                let moved = node.outputs.iter().flatten().copied();
                let moved = moved.filter(|made| self.is_plain_move(node, value, *made));
                open.extend(moved.filter(|made| seen.insert(*made)));
            }
        }
        takers
    }

    /// Returns whether a node only moves the elements of `value` into `made`, with integers of 32
    /// or 64 bits.
    fn is_plain_move(&self, node: &Node, value: ValueId, made: ValueId) -> bool {
        let is_first = node.inputs.first() == Some(&Some(value));
        let is_concat = node.proto.op_type() == "Concat";
        let is_wide = matches!(
            self.value(made).fact.elem,
            Some(DataType::Int32 | DataType::Int64)
        );
        is_standard(node)
            && MOVES.contains(&node.proto.op_type())
            && (is_first || is_concat)
            && is_wide
    }

    /// Returns the extent along which a node takes elements by the indices in input `place`.
    /// Returns `None` if it takes none by that input, if the extent is unknown, or if its output is
    /// empty.
    fn extent_taken_by(&self, node: &Node, place: usize) -> Option<u64> {
        let takes = |it: &&(&str, usize, usize)| it.0 == node.proto.op_type() && it.2 == place;
        let (_, of, _) = TAKES.iter().find(takes).filter(|_| is_standard(node))?;
        let dims = self.value_fact(node.inputs.get(*of)?)?.dims.as_ref()?;
        let rank = i64::try_from(dims.len()).ok()?;
        let axis = node.proto.int("axis").unwrap_or(0);
        let axis = if axis < 0 { axis + rank } else { axis };
        let made = self.value_fact(node.outputs.first()?)?.element_count()?;
        let extent = (*dims.get(usize::try_from(axis).ok()?)?)?;
        (made > 0).then_some(extent)
    }

    fn value_fact(&self, value: &Option<ValueId>) -> Option<&Fact> {
        value.map(|id| &self.value(id).fact)
    }
}

fn is_standard(node: &Node) -> bool {
    node.proto.operator_domain().is_empty()
}

/// The smallest and the largest of the integers that an input holds.
struct IndexRange {
    least: i64,
    most: i64,
}

impl IndexRange {
    /// Returns the range of a tensor of integers if all of them fit in 32 bits, because a cast to
    /// 32 bits would change others.
    fn from_tensor(tensor: &Tensor) -> Option<IndexRange> {
        let values: Vec<i64> = match tensor.dtype() {
            DType::I64 => tensor.to_vec::<i64>().ok()?,
            DType::I32 => tensor
                .to_vec::<i32>()
                .ok()?
                .into_iter()
                .map(i64::from)
                .collect(),
            _ => return None,
        };
        let (least, most) = (*values.iter().min()?, *values.iter().max()?);
        let is_narrow = least >= i64::from(i32::MIN) && most <= i64::from(i32::MAX);
        is_narrow.then_some(IndexRange { least, most })
    }

    /// Returns an index of the range beyond an extent, if there is one. A negative index counts
    /// from the end.
    fn index_beyond(&self, extent: u64) -> Option<i64> {
        let extent = i64::try_from(extent).ok()?;
        match () {
            () if self.most >= extent => Some(self.most),
            () if self.least < -extent => Some(self.least),
            () => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use souk_onnx::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto};
    use souk_onnx::{ValueInfoProto, encode_model};

    use super::*;
    use crate::graph::Bindings;

    /// Checks `ids` as the indices of a `Gather` of 2 by 10 numbers, behind the nodes `between`.
    fn checked(between: &[&str], axis: i64, ids: &[i64]) -> Result<(), ImportError> {
        let ids = Tensor::from_vec([ids.len()], ids.to_vec()).unwrap();
        let rows = Tensor::from_vec([2, 10], vec![0.0_f32; 20]).unwrap();
        let mut nodes = Vec::new();
        let mut last = "ids".to_owned();
        for name in between {
            let mut node = NodeProto::for_operator(name, &[&last], &format!("{last}_"));
            if *name == "Cast" {
                node = node.with("to", i64::from(DType::I32.onnx_code()));
            }
            if *name == "Mod" {
                node.input.push("ids".to_owned());
            }
            nodes.push(node);
            last.push('_');
        }
        nodes.push(NodeProto::for_operator("Gather", &["rows", &last], "y").with("axis", axis));
        let declared =
            |name: &str, dtype: DType| ValueInfoProto::new_tensor(name, dtype.onnx_code(), None);
        let model = ModelProto {
            ir_version: Some(10),
            opset_import: vec![OperatorSetIdProto {
                domain: None,
                version: Some(18),
            }],
            graph: Some(GraphProto {
                node: nodes,
                input: vec![declared("rows", DType::F32), declared("ids", DType::I64)],
                output: vec![declared("y", DType::F32)],
                ..GraphProto::default()
            }),
            ..ModelProto::default()
        };
        let bindings = Bindings::new()
            .with_input("ids", DType::I64, ids.dims())
            .with_input("rows", DType::F32, rows.dims());
        let graph = Graph::import(encode_model(&model), &bindings).unwrap();
        let inputs = BTreeMap::from([("ids".to_owned(), ids), ("rows".to_owned(), rows)]);
        graph.check_indices(&inputs)
    }

    #[test]
    fn an_index_past_either_end_is_refused_and_named() {
        assert_eq!(checked(&[], 0, &[0, 1, -1, -2]), Ok(()));
        assert_eq!(checked(&[], 1, &[9, -10]), Ok(()));
        assert_eq!(checked(&[], -1, &[9, -10]), Ok(()));
        for (axis, bad) in [(0, 2), (0, -3), (1, 10), (-1, -11)] {
            let error = checked(&[], axis, &[0, bad, 1]).unwrap_err().to_string();
            assert!(error.contains("\"ids\""), "{error}");
            assert!(error.contains(&format!("index {bad},")), "{error}");
        }
    }

    #[test]
    fn an_index_is_followed_through_what_moves_it_and_no_further() {
        for moved in [&["Identity"][..], &["Cast"], &["Cast", "Identity"]] {
            assert!(checked(moved, 0, &[5]).is_err(), "{moved:?}");
        }
        assert_eq!(checked(&["Mod"], 0, &[5]), Ok(()), "computed with");
        assert_eq!(checked(&["Cast"], 0, &[1 << 32]), Ok(()), "it wraps to 0");
        assert!(
            checked(&[], 0, &[1 << 33]).is_ok(),
            "not looked at so far off"
        );
    }
}
