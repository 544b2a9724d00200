//! Describes a node with the facts (types, extents and known contents) of its inputs. It is the
//! argument of every inference rule, and its methods read inputs and attributes for the rules.

use souk_onnx::schema::OperatorSchema;
use souk_onnx::{DataType, NodeProto};

use super::{Dims, Fact, ShapeFault, data_type};

/// A node with the facts of its inputs, for an inference rule.
pub(crate) struct Operation<'a> {
    pub(crate) node: &'a NodeProto,
    pub(crate) opset: i64,
    inputs: &'a [Option<&'a Fact>],
}

/// The result of a rule: a fact for each of the first outputs, or no facts.
pub(crate) type Inference = Result<Vec<Fact>, ShapeFault>;

impl<'a> Operation<'a> {
    pub(crate) fn new(node: &'a NodeProto, opset: i64, inputs: &'a [Option<&'a Fact>]) -> Self {
        Self {
            node,
            opset,
            inputs,
        }
    }

    /// Returns the fact of input `index`, if the node has that input.
    pub(crate) fn input_fact(&self, index: usize) -> Option<&'a Fact> {
        self.inputs.get(index).copied().flatten()
    }

    pub(crate) fn input_facts(&self) -> impl Iterator<Item = &'a Fact> {
        self.inputs.iter().copied().flatten()
    }

    /// Returns the element type of the first output, as the schema defines it.
    pub(crate) fn result_elem(&self) -> Option<DataType> {
        let result = OperatorSchema::for_operator(self.node.op_type()).result;
        result.output_type(self.node, |index| self.input_elem(index), data_type)
    }

    /// Returns the element type of input `index`, if known.
    pub(crate) fn input_elem(&self, index: usize) -> Option<DataType> {
        self.input_fact(index)?.elem
    }

    /// Returns the extents of input `index`, if its rank is known.
    pub(crate) fn input_dims(&self, index: usize) -> Option<&'a Dims> {
        self.input_fact(index)?.dims.as_ref()
    }

    /// Returns the extents of input `index`, and fails if it has fewer than `rank` of them.
    pub(crate) fn dims_of_rank(
        &self,
        index: usize,
        rank: usize,
    ) -> Result<Option<&'a Dims>, ShapeFault> {
        match self.input_dims(index) {
            Some(dims) if dims.len() < rank => Err(ShapeFault::Rank {
                input: index,
                expected: rank,
                found: dims.len(),
            }),
            dims => Ok(dims),
        }
    }

    /// Returns the integer contents of input `index`, if known.
    pub(crate) fn input_ints(&self, index: usize) -> Option<&'a [i64]> {
        self.input_fact(index)?.ints.as_deref()
    }

    /// Returns the float contents of input `index`, if known.
    pub(crate) fn input_floats(&self, index: usize) -> Option<&'a [f32]> {
        self.input_fact(index)?.floats.as_deref()
    }

    /// Returns whether the node names input `index`.
    pub(crate) fn has_input(&self, index: usize) -> bool {
        self.node.input_name(index).is_some()
    }

    /// Returns an integer attribute, or its default.
    pub(crate) fn int_or(&self, name: &str, default: i64) -> i64 {
        self.node.int(name).unwrap_or(default)
    }

    /// Returns integers that are an attribute in old operator sets and an input in new ones. The
    /// outer option is none if they are unknown, the inner one if the node omits them.
    pub(crate) fn ints_or_input(&self, name: &str, index: usize) -> Option<Option<Vec<i64>>> {
        if let Some(ints) = self.node.ints(name) {
            return Some(Some(ints.to_vec()));
        }
        if !self.has_input(index) {
            return Some(None);
        }
        self.input_ints(index).map(|ints| Some(ints.to_vec()))
    }

    /// Returns the inference of a single output with `elem` and `dims`.
    pub(crate) fn single_output(elem: Option<DataType>, dims: Option<Dims>) -> Inference {
        Ok(vec![Fact {
            elem,
            dims,
            ..Fact::default()
        }])
    }
}

/// Returns an axis counted from the front.
pub(crate) fn axis_of(axis: i64, rank: usize) -> Result<usize, ShapeFault> {
    let signed = i64::try_from(rank).map_err(|_| ShapeFault::Axis { axis, rank })?;
    let counted = if axis < 0 { axis + signed } else { axis };
    match usize::try_from(counted) {
        Ok(counted) if counted < rank => Ok(counted),
        _ => Err(ShapeFault::Axis { axis, rank }),
    }
}

/// Returns the axes counted from the front, or all axes.
pub(crate) fn axes_or_all(axes: Option<&[i64]>, rank: usize) -> Result<Vec<usize>, ShapeFault> {
    match axes {
        Some(axes) => axes.iter().map(|&axis| axis_of(axis, rank)).collect(),
        None => Ok((0..rank).collect()),
    }
}

/// Converts a signed result to an extent, and fails if it is negative.
pub(crate) fn to_extent(value: i64, axis: usize) -> Result<Option<u64>, ShapeFault> {
    match u64::try_from(value) {
        Ok(extent) => Ok(Some(extent)),
        Err(_) => Err(ShapeFault::Negative {
            axis,
            extent: value,
        }),
    }
}

/// Broadcasts two shapes against each other.
pub(crate) fn broadcast_dims(left: &Dims, right: &Dims) -> Result<Dims, ShapeFault> {
    let rank = left.len().max(right.len());
    let at = |dims: &Dims, axis: usize| {
        let missing = rank - dims.len();
        if axis < missing {
            Some(1)
        } else {
            dims[axis - missing]
        }
    };
    let joined = (0..rank).map(|axis| match (at(left, axis), at(right, axis)) {
        (Some(1), other) | (other, Some(1)) => Ok(other),
        (Some(a), Some(b)) if a != b => Err(ShapeFault::Broadcast {
            left: left.clone(),
            right: right.clone(),
        }),
        // An unknown extent can only be 1 or the known one.
        (a, b) => Ok(a.or(b)),
    });
    joined.collect()
}

/// Broadcasts any number of shapes against each other, if all ranks are known.
pub(crate) fn broadcast_all<'a>(
    facts: impl Iterator<Item = &'a Fact>,
) -> Result<Option<Dims>, ShapeFault> {
    let mut joined: Dims = Vec::new();
    for fact in facts {
        match &fact.dims {
            Some(dims) => joined = broadcast_dims(&joined, dims)?,
            None => return Ok(None),
        }
    }
    Ok(Some(joined))
}
