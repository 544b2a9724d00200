//! Computes the sizes of all values of a run before the run makes any of them, so that an engine
//! can refuse a run that it would not survive.
//!
//! An engine that allocates without a check ends the process if a size that the run determines
//! exceeds memory, and an engine with 32-bit integers wraps larger ones. Sizes are integers, which
//! the reference kernels compute exactly; of all other values only the shapes matter.

use std::collections::BTreeMap;

use bytes::Bytes;
use souk_memory::{DType, Tensor};
use souk_onnx::NodeProto;
use souk_onnx::schema::{Extents, OperatorSchema};
use souk_onnx::subgraph::node_name;
use souk_onnx::types::Types;
use souk_vocabulary::processor::RunError;

use crate::call::{Call, KernelError, resolve_axes, resolve_axis};
use crate::conv::{TransposedWindow, Window};
use crate::shape::{broadcast_shape, element_count};
use crate::{Scope, run_nodes};

/// A value can have at most this many integers to follow: lists of sizes, or indices of a batch of
/// sequences.
const WHOLE_MAX: usize = 1 << 16;

/// An input can have at most this many integers to follow. Each different input needs a new
/// analysis, so this covers lists of sizes, but not the words of a text.
const GIVEN_MAX: usize = 1 << 8;

/// The known properties of a value before a run makes it.
#[derive(Clone)]
struct KnownValue {
    dims: Vec<usize>,
    /// Its integers or booleans, if they are few.
    whole: Option<Tensor>,
}

/// The properties of an input that determine the sizes of values computed from it: its type, shape
/// and integers, if few.
pub type ValueSummary = (DType, Vec<usize>, Option<Bytes>);

/// Returns the summary of a tensor.
pub fn summarise_tensor(tensor: &Tensor) -> ValueSummary {
    let whole = KnownValue::from_tensor(tensor, GIVEN_MAX).whole;
    let bytes = whole.map(|whole| whole.bytes().clone());
    (tensor.dtype(), tensor.dims().to_vec(), bytes)
}

/// Reasons why an engine should not run nodes as they are.
#[derive(Debug)]
pub enum ExtentsError {
    /// A value is too large for any device.
    TooLarge(RunError),
    /// A size is unknown before the run, or an integer does not fit 32 bits.
    Unknown,
}

impl From<KernelError> for ExtentsError {
    fn from(_: KernelError) -> Self {
        Self::Unknown
    }
}

/// Follows nodes in order, and returns the shape of each value that they read or make. `inputs` and
/// `weights` must contain every value that the nodes read but do not make.
pub fn infer_shapes(
    nodes: &[NodeProto],
    types: &Types,
    opset: i64,
    inputs: &Scope,
    weights: &Scope,
) -> Result<BTreeMap<String, Vec<usize>>, ExtentsError> {
    let mut values: BTreeMap<String, KnownValue> = BTreeMap::new();
    for node in nodes {
        for name in node.input.iter().filter(|name| !name.is_empty()) {
            if !values.contains_key(name) {
                let known = match (inputs.get(name), weights.get(name)) {
                    (Some(input), _) => KnownValue::from_tensor(input, GIVEN_MAX),
                    (None, weight) => {
                        KnownValue::from_tensor(weight.ok_or(ExtentsError::Unknown)?, WHOLE_MAX)
                    }
                };
                values.insert(name.clone(), known);
            }
        }
        let made = Node::new(node, &values, opset).infer_outputs(types)?;
        let named = node.output.iter().cloned().zip(made);
        values.extend(named.filter(|(name, _)| !name.is_empty()));
    }
    let sizes = values.into_iter().map(|(name, known)| (name, known.dims));
    Ok(sizes.collect())
}

impl KnownValue {
    fn from_tensor(tensor: &Tensor, elements_max: usize) -> Self {
        let is_whole = !tensor.dtype().is_float() && tensor.shape().element_count() <= elements_max;
        Self {
            dims: tensor.dims().to_vec(),
            whole: is_whole.then(|| tensor.clone()),
        }
    }
}

/// A node with the known properties of its inputs.
struct Node<'a> {
    node: &'a NodeProto,
    inputs: Vec<Option<&'a KnownValue>>,
    opset: i64,
}

impl<'a> Node<'a> {
    fn new(node: &'a NodeProto, values: &'a BTreeMap<String, KnownValue>, opset: i64) -> Self {
        let inputs = node.input.iter().map(|name| values.get(name)).collect();
        Self {
            node,
            inputs,
            opset,
        }
    }

    fn infer_outputs(&self, types: &Types) -> Result<Vec<KnownValue>, ExtentsError> {
        let too_large = |elements: u128| {
            ExtentsError::TooLarge(RunError::Operator {
                operator: self.node.op_type().to_owned(),
                node: node_name(self.node),
                reason: KernelError::TooLarge(elements).to_string(),
            })
        };
        let all = match self.output_dims() {
            Ok(all) => all,
            Err(KernelError::TooLarge(elements)) => return Err(too_large(elements)),
            Err(_) => return Err(ExtentsError::Unknown),
        };
        for dims in &all {
            if let Err(KernelError::TooLarge(elements)) = element_count(dims) {
                return Err(too_large(elements));
            }
        }
        let first = self.node.output.first().and_then(|name| types.get(name));
        if first.is_none_or(|dtype| dtype.is_float()) {
            let bare = |dims| KnownValue { dims, whole: None };
            return Ok(all.into_iter().map(bare).collect());
        }
        let few = all
            .iter()
            .all(|dims| element_count(dims).is_ok_and(|it| it <= WHOLE_MAX));
        let whole = if few { self.integer_outputs()? } else { None };
        let computes = matches!(self.node.op_type(), "Add" | "Div" | "Mul" | "Sub");
        match whole {
            Some(whole) if whole.iter().all(fits_32) => Ok(whole
                .iter()
                .map(|it| KnownValue::from_tensor(it, WHOLE_MAX))
                .collect()),
            // Such operators only move integers, which were checked before.
            None if !computes => {
                let bare = |dims| KnownValue { dims, whole: None };
                Ok(all.into_iter().map(bare).collect())
            }
            _ => Err(ExtentsError::Unknown),
        }
    }

    /// Returns the integers that the node makes, if all its inputs' integers are known.
    fn integer_outputs(&self) -> Result<Option<Vec<Tensor>>, ExtentsError> {
        if matches!(self.node.op_type(), "Shape" | "Size") {
            return Ok(Some(vec![self.shape_output()?]));
        }
        let mut scope = Scope::new();
        for (name, known) in self.node.input.iter().zip(&self.inputs) {
            match known.map(|known| known.whole.clone()) {
                Some(Some(whole)) => scope.insert(name.clone(), whole),
                Some(None) => return Ok(None),
                None => continue,
            };
        }
        let nodes = std::slice::from_ref(self.node);
        run_nodes(nodes, &mut scope, self.opset).map_err(|_| ExtentsError::Unknown)?;
        let made = self.node.output.iter().map(|name| scope.remove(name));
        Ok(made.collect())
    }

    /// Returns the output of `Shape` or `Size`.
    fn shape_output(&self) -> Result<Tensor, KernelError> {
        let dims = self.input_dims(0)?;
        if self.node.op_type() == "Size" {
            return Ok(Tensor::scalar(element_count(dims)? as i64));
        }
        let sizes: Vec<i64> = self
            .shape_axes(dims.len())
            .map(|axis| dims[axis] as i64)
            .collect();
        Ok(Tensor::from_vec([sizes.len()], sizes)?)
    }

    /// Returns the axes whose sizes `Shape` returns.
    fn shape_axes(&self, rank: usize) -> std::ops::Range<usize> {
        let end = rank as i64;
        let bound = |name, default| {
            let at: i64 = self.node.int(name).unwrap_or(default);
            let at = if at < 0 { at.saturating_add(end) } else { at };
            at.clamp(0, end) as usize
        };
        let (start, end) = (bound("start", 0), bound("end", end));
        start..end.max(start)
    }

    fn input_dims(&self, index: usize) -> Result<&'a [usize], KernelError> {
        let known = self.inputs.get(index).copied().flatten();
        known
            .map(|known| &known.dims[..])
            .ok_or(KernelError::Missing(index))
    }

    fn input_rank(&self) -> Result<usize, KernelError> {
        Ok(self.input_dims(0)?.len())
    }

    /// Returns a call of the node without inputs, to read its attributes.
    fn call<'s>(&'s self, scope: &'s Scope) -> Call<'s> {
        Call {
            node: self.node,
            inputs: Vec::new(),
            scope,
            opset: self.opset,
        }
    }

    /// Returns a list of integers from an input or an attribute.
    fn int_list_argument(&self, name: &str, index: usize) -> Result<Option<Vec<i64>>, KernelError> {
        if self.node.input_name(index).is_none() {
            let stated = self.node.ints(name).filter(|list| !list.is_empty());
            return Ok(stated.map(<[i64]>::to_vec));
        }
        let known = self.inputs.get(index).copied().flatten();
        let whole = known.and_then(|known| known.whole.as_ref());
        let whole = whole.ok_or(KernelError::Missing(index))?;
        match whole.dtype() {
            DType::I32 => Ok(Some(
                whole.to_vec::<i32>()?.into_iter().map(i64::from).collect(),
            )),
            _ => Ok(Some(whole.to_vec::<i64>()?)),
        }
    }

    fn required_int_list(&self, name: &str, index: usize) -> Result<Vec<i64>, KernelError> {
        self.int_list_argument(name, index)?
            .ok_or(KernelError::Missing(index))
    }

    fn int_attribute(&self, name: &str, default: i64) -> i64 {
        self.node.int(name).unwrap_or(default)
    }

    /// Returns the shape of each output.
    fn output_dims(&self) -> Result<Vec<Vec<usize>>, KernelError> {
        let operator = self.node.op_type();
        let extents = OperatorSchema::for_operator(operator).extents;
        let one = match operator {
            "Split" => return self.split_dims(),
            _ if extents == Extents::OfFirst => self.input_dims(0)?.to_vec(),
            _ if extents == Extents::Broadcast => self.broadcast_dims()?,
            _ if operator.starts_with("Reduce") => self.reduction_dims()?,
            "Shape" => vec![self.shape_axes(self.input_rank()?).len()],
            "Size" => Vec::new(),
            "MatMul" | "Gemm" => self.product_dims()?,
            "Conv" | "ConvTranspose" | "MaxPool" | "AveragePool" => self.window_dims()?,
            "GlobalAveragePool" | "GlobalMaxPool" => self.global_pool_dims()?,
            "Reshape" => self.reshape_dims()?,
            "Slice" => self.slice_dims()?,
            _ => self.layout_dims(operator)?,
        };
        Ok(vec![one; self.node.output.len().max(1)])
    }

    fn broadcast_dims(&self) -> Result<Vec<usize>, KernelError> {
        let mut dims = self.input_dims(0)?.to_vec();
        for index in 1..self.inputs.len() {
            dims = broadcast_shape(&dims, self.input_dims(index)?)?;
        }
        Ok(dims)
    }

    fn reduction_dims(&self) -> Result<Vec<usize>, KernelError> {
        let (dims, rank) = (self.input_dims(0)?, self.input_rank()?);
        let list = self.int_list_argument("axes", 1)?.unwrap_or_default();
        if list.is_empty() && self.int_attribute("noop_with_empty_axes", 0) != 0 {
            return Ok(dims.to_vec());
        }
        let over = match list.is_empty() {
            true => (0..rank).collect(),
            false => resolve_axes(&list, rank)?,
        };
        let keeps = self.int_attribute("keepdims", 1) != 0;
        let kept = (0..rank).filter(|axis| keeps || !over.contains(axis));
        let size = |axis| if over.contains(&axis) { 1 } else { dims[axis] };
        Ok(kept.map(size).collect())
    }

    fn product_dims(&self) -> Result<Vec<usize>, KernelError> {
        let (left, right) = (self.input_dims(0)?, self.input_dims(1)?);
        let unfit = || KernelError::Shapes(left.to_vec(), right.to_vec());
        let [left_batch @ .., m, k] = left else {
            return Err(unfit());
        };
        let [right_batch @ .., k_too, n] = right else {
            return Err(unfit());
        };
        let turned = |name| self.int_attribute(name, 0) != 0;
        let (m, k) = if turned("transA") { (k, m) } else { (m, k) };
        let (k_too, n) = if turned("transB") {
            (n, k_too)
        } else {
            (k_too, n)
        };
        if k != k_too {
            return Err(unfit());
        }
        Ok([broadcast_shape(left_batch, right_batch)?, vec![*m, *n]].concat())
    }

    fn window_dims(&self) -> Result<Vec<usize>, KernelError> {
        let scope = Scope::new();
        let call = self.call(&scope);
        let &[samples, channels, ref spatial @ ..] = self.input_dims(0)? else {
            return Err(KernelError::Range(0));
        };
        let (made, output) = match self.node.op_type() {
            "Conv" => {
                let &[filters, _, ref kernel @ ..] = self.input_dims(1)? else {
                    return Err(KernelError::Range(1));
                };
                let window = Window::read(&call, kernel.to_vec(), spatial)?;
                (filters, window.output)
            }
            "ConvTranspose" => {
                let &[_, each, ref kernel @ ..] = self.input_dims(1)? else {
                    return Err(KernelError::Range(1));
                };
                if kernel.len() != spatial.len() {
                    return Err(KernelError::Range(1));
                }
                let groups = self.int_attribute("group", 1).max(1) as usize;
                let filters = element_count(&[each, groups])?;
                (
                    filters,
                    TransposedWindow::read(&call, kernel, spatial)?.output,
                )
            }
            _ => {
                let stated = self.node.ints("kernel_shape").unwrap_or(&[]);
                let size = |&size: &i64| usize::try_from(size).ok();
                let kernel: Option<Vec<usize>> = stated.iter().map(size).collect();
                let kernel = kernel.ok_or(KernelError::Attribute("kernel_shape"))?;
                (channels, Window::read(&call, kernel, spatial)?.output)
            }
        };
        Ok([&[samples, made], &output[..]].concat())
    }

    fn global_pool_dims(&self) -> Result<Vec<usize>, KernelError> {
        let ahead = |(axis, &size): (usize, &usize)| if axis < 2 { size } else { 1 };
        Ok(self.input_dims(0)?.iter().enumerate().map(ahead).collect())
    }

    fn reshape_dims(&self) -> Result<Vec<usize>, KernelError> {
        let own = self.input_dims(0)?;
        let keeps_zeros = self.int_attribute("allowzero", 0) != 0;
        let wanted = self.required_int_list("shape", 1)?;
        let open = wanted.iter().position(|&size| size == -1);
        let size = |(axis, &size): (usize, &i64)| match size {
            -1 => Ok(1),
            0 if !keeps_zeros => own.get(axis).copied().ok_or(KernelError::Range(1)),
            size => usize::try_from(size).map_err(|_| KernelError::Range(1)),
        };
        let mut dims: Vec<usize> = wanted
            .iter()
            .enumerate()
            .map(size)
            .collect::<Result<_, _>>()?;
        let all = element_count(own)?;
        if let Some(open) = open {
            dims[open] = all.checked_div(element_count(&dims)?).unwrap_or(0);
        }
        match element_count(&dims)? == all {
            true => Ok(dims),
            false => Err(KernelError::Shapes(own.to_vec(), dims)),
        }
    }

    fn slice_dims(&self) -> Result<Vec<usize>, KernelError> {
        let mut dims = self.input_dims(0)?.to_vec();
        let (starts, ends) = (
            self.required_int_list("starts", 1)?,
            self.required_int_list("ends", 2)?,
        );
        let all: Vec<i64> = (0..starts.len() as i64).collect();
        let along = resolve_axes(
            &self.int_list_argument("axes", 3)?.unwrap_or(all),
            dims.len(),
        )?;
        let steps = self
            .int_list_argument("steps", 4)?
            .unwrap_or(vec![1; starts.len()]);
        if [ends.len(), along.len(), steps.len()] != [starts.len(); 3] || steps.contains(&0) {
            return Err(KernelError::Range(2));
        }
        for (index, axis) in along.into_iter().enumerate() {
            dims[axis] = slice_length(dims[axis], starts[index], ends[index], steps[index]);
        }
        Ok(dims)
    }

    fn split_dims(&self) -> Result<Vec<Vec<usize>>, KernelError> {
        let dims = self.input_dims(0)?;
        let along = resolve_axis(self.int_attribute("axis", 0), dims.len())?;
        let parts = self.node.output.len();
        let lengths = match self.int_list_argument("split", 1)? {
            Some(list) => to_sizes(&list)?,
            None => {
                let each = dims[along].div_ceil(parts.max(1));
                let length = |part| each.min(dims[along].saturating_sub(part * each));
                (0..parts).map(length).collect()
            }
        };
        if lengths.len() != parts {
            return Err(KernelError::Range(1));
        }
        let part = |length| {
            let mut dims = dims.to_vec();
            dims[along] = length;
            dims
        };
        Ok(lengths.into_iter().map(part).collect())
    }

    /// Returns the shape for operators that reshape or repeat elements.
    fn layout_dims(&self, operator: &str) -> Result<Vec<usize>, KernelError> {
        if operator == "ConstantOfShape" {
            return to_sizes(&self.required_int_list("", 0)?);
        }
        let (dims, rank) = (self.input_dims(0)?, self.input_rank()?);
        Ok(match operator {
            "Expand" => broadcast_shape(dims, &to_sizes(&self.required_int_list("", 1)?)?)?,
            "Tile" => {
                let times = to_sizes(&self.required_int_list("", 1)?)?;
                if times.len() != rank {
                    return Err(KernelError::Range(1));
                }
                let size = |(&size, times): (&usize, usize)| element_count(&[size, times]);
                dims.iter().zip(times).map(size).collect::<Result<_, _>>()?
            }
            "Gather" => {
                let axis = resolve_axis(self.int_attribute("axis", 0), rank)?;
                [&dims[..axis], self.input_dims(1)?, &dims[axis + 1..]].concat()
            }
            "Concat" => {
                let axis = resolve_axis(self.int_attribute("axis", 0), rank)?;
                let mut dims = dims.to_vec();
                for index in 1..self.inputs.len() {
                    dims[axis] += self
                        .input_dims(index)?
                        .get(axis)
                        .ok_or(KernelError::Range(0))?;
                }
                dims
            }
            "Transpose" => match self.node.ints("perm") {
                Some(order) => resolve_axes(order, rank)?
                    .into_iter()
                    .map(|axis| dims[axis])
                    .collect(),
                None => dims.iter().rev().copied().collect(),
            },
            "Flatten" => {
                let at = self.int_attribute("axis", 1);
                let at = if at == rank as i64 {
                    rank
                } else {
                    resolve_axis(at, rank)?
                };
                vec![element_count(&dims[..at])?, element_count(&dims[at..])?]
            }
            "Squeeze" => {
                let gone = match self.int_list_argument("axes", 1)? {
                    Some(list) => resolve_axes(&list, rank)?,
                    None => (0..rank).filter(|&axis| dims[axis] == 1).collect(),
                };
                let kept = (0..rank).filter(|axis| !gone.contains(axis));
                kept.map(|axis| dims[axis]).collect()
            }
            "Unsqueeze" => {
                let list = self.required_int_list("axes", 1)?;
                let new = resolve_axes(&list, rank + list.len())?;
                let mut old = dims.iter().copied();
                let all = 0..rank + list.len();
                let size = |axis| match new.contains(&axis) {
                    true => Some(1),
                    false => old.next(),
                };
                let dims: Option<Vec<usize>> = all.map(size).collect();
                dims.ok_or(KernelError::Range(1))?
            }
            _ => return Err(KernelError::Attribute("op_type")),
        })
    }
}

fn to_sizes(list: &[i64]) -> Result<Vec<usize>, KernelError> {
    let size = |&size: &i64| usize::try_from(size).map_err(|_| KernelError::Range(1));
    list.iter().map(size).collect()
}

/// Returns how many of `size` elements a slice keeps.
fn slice_length(size: usize, start: i64, end: i64, step: i64) -> usize {
    let size = size as i64;
    let placed = |bound: i64, low: i64, high: i64| {
        let bound = if bound < 0 {
            bound.saturating_add(size)
        } else {
            bound
        };
        bound.clamp(low, high)
    };
    if size == 0 {
        return 0;
    }
    let (from, to) = match step > 0 {
        true => (placed(start, 0, size), placed(end, 0, size)),
        false => (placed(end, -1, size - 1), placed(start, 0, size - 1)),
    };
    (to - from)
        .max(0)
        .unsigned_abs()
        .div_ceil(step.unsigned_abs()) as usize
}

/// Returns whether every element fits 32 bits.
fn fits_32(tensor: &Tensor) -> bool {
    let fits = |values: Vec<i64>| values.iter().all(|&value| i32::try_from(value).is_ok());
    tensor.to_vec::<i64>().map_or(true, fits)
}

#[cfg(test)]
mod tests;
