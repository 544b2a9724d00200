//! Writes the ONNX nodes and constants of a gradient. Each result gets a name that no value of the
//! model has, and rules refer to values only by their names.

use std::collections::BTreeMap;

use souk_memory::{DType, Tensor};
use souk_onnx::{NodeProto, TensorProto, tensor_to_proto};

/// The beginning of the name of each value that a step graph adds to a model.
pub(super) const PREFIX: &str = "souk.train/";

/// The operator set from which reductions have their axes as an input.
const AXES_INPUT_OPSET: i64 = 18;

/// The nodes and constants of a graph under construction.
pub(super) struct Writer {
    pub nodes: Vec<NodeProto>,
    pub constants: Vec<TensorProto>,
    /// Names of the constants by their contents, so that each is written once.
    names: BTreeMap<(i32, Vec<i64>, Vec<u8>), String>,
    next: usize,
    opset: i64,
    dtype: DType,
}

impl Writer {
    /// Creates a writer for floats of this type, which is f32 except in tests.
    pub fn new(opset: i64, dtype: DType) -> Self {
        Self {
            nodes: Vec::new(),
            constants: Vec::new(),
            names: BTreeMap::new(),
            next: 0,
            opset,
            dtype,
        }
    }

    /// Returns the version of the standard operator set.
    pub fn opset(&self) -> i64 {
        self.opset
    }

    /// Adds a node and returns the name of its result.
    pub fn add_node(&mut self, mut node: NodeProto) -> String {
        let name = self.new_name();
        node.name = Some(name.clone());
        node.output = vec![name.clone()];
        self.nodes.push(node);
        name
    }

    /// Adds a node with several results, and returns their names.
    pub fn add_node_with_outputs(&mut self, mut node: NodeProto, count: usize) -> Vec<String> {
        let names: Vec<String> = (0..count).map(|_| self.new_name()).collect();
        node.name = names.first().cloned();
        node.output.clone_from(&names);
        self.nodes.push(node);
        names
    }

    fn new_name(&mut self) -> String {
        self.next += 1;
        format!("{PREFIX}{}", self.next)
    }

    /// Adds an operator without attributes.
    pub fn add(&mut self, operator: &str, inputs: &[&str]) -> String {
        self.add_node(NodeProto::for_operator(operator, inputs, ""))
    }

    /// Returns the name of a scalar constant.
    pub fn add_float(&mut self, value: f64) -> String {
        let tensor = match self.dtype {
            DType::F64 => Tensor::scalar(value),
            _ => Tensor::scalar(value as f32),
        };
        self.add_constant(&tensor)
    }

    /// Returns the name of a list of floats.
    pub fn add_floats(&mut self, values: &[f64]) -> String {
        let tensor = match self.dtype {
            DType::F64 => Tensor::from_vec([values.len()], values.to_vec()),
            _ => Tensor::from_vec([values.len()], values.iter().map(|it| *it as f32).collect()),
        };
        self.add_constant(&tensor.expect("a list has the length of its values"))
    }

    /// Returns the name of a list of integers.
    pub fn add_ints(&mut self, values: &[i64]) -> String {
        let tensor = Tensor::from_vec([values.len()], values.to_vec());
        self.add_constant(&tensor.expect("a list has the length of its values"))
    }

    /// Returns the name of one integer.
    pub fn add_int(&mut self, value: i64) -> String {
        self.add_constant(&Tensor::scalar(value))
    }

    fn add_constant(&mut self, tensor: &Tensor) -> String {
        let proto = tensor_to_proto("", tensor);
        let key = (
            tensor.dtype().onnx_code(),
            proto.dims.clone(),
            tensor.bytes().to_vec(),
        );
        if let Some(name) = self.names.get(&key) {
            return name.clone();
        }
        let name = self.new_name();
        self.names.insert(key, name.clone());
        let name_of_it = Some(name.clone());
        self.constants.push(TensorProto {
            name: name_of_it,
            ..proto
        });
        name
    }

    /// Multiplies a value by a number, unless that is one.
    pub fn scale(&mut self, value: &str, factor: f64) -> String {
        if factor == 1.0 {
            return value.to_owned();
        }
        let factor = self.add_float(factor);
        self.add("Mul", &[value, &factor])
    }

    /// Reshapes a value.
    pub fn reshape(&mut self, value: &str, dims: &[usize]) -> String {
        let dims: Vec<i64> = dims.iter().map(|dim| *dim as i64).collect();
        let dims = self.add_ints(&dims);
        // Without this, an extent of 0 would stand for the extent of the input.
        let node = NodeProto::for_operator("Reshape", &[value, &dims], "");
        let node = match self.opset {
            ..14 => node,
            _ => node.with("allowzero", 1),
        };
        self.add_node(node)
    }

    /// Permutes the axes of a value.
    pub fn transpose(&mut self, value: &str, axes: &[usize]) -> String {
        let axes: Vec<i64> = axes.iter().map(|axis| *axis as i64).collect();
        self.add_node(NodeProto::for_operator("Transpose", &[value], "").with("perm", axes))
    }

    /// Swaps the last two axes of a value.
    pub fn transpose_last(&mut self, value: &str, rank: usize) -> String {
        let mut axes: Vec<usize> = (0..rank).collect();
        axes.swap(rank - 1, rank - 2);
        self.transpose(value, &axes)
    }

    /// Sums over axes, which keep the extent 1.
    pub fn reduce_sum(&mut self, value: &str, axes: &[usize]) -> String {
        if axes.is_empty() {
            return value.to_owned();
        }
        let axes: Vec<i64> = axes.iter().map(|axis| *axis as i64).collect();
        let axes = self.add_ints(&axes);
        let node = NodeProto::for_operator("ReduceSum", &[value, &axes], "");
        self.add_node(node.with("keepdims", 1))
    }

    /// Returns the largest elements along an axis, which keeps the extent 1.
    pub fn reduce_max(&mut self, value: &str, axis: usize) -> String {
        let axes = vec![axis as i64];
        let node = if self.opset < AXES_INPUT_OPSET {
            NodeProto::for_operator("ReduceMax", &[value], "").with("axes", axes)
        } else {
            let axes = self.add_ints(&axes);
            NodeProto::for_operator("ReduceMax", &[value, &axes], "")
        };
        self.add_node(node.with("keepdims", 1))
    }

    /// Sums a gradient over the axes along which its value was broadcast.
    pub fn unbroadcast(&mut self, gradient: &str, from: &[usize], to: &[usize]) -> String {
        if from == to {
            return gradient.to_owned();
        }
        let more = from.len() - to.len();
        let is_spread = |axis: &usize| *axis < more || (to[*axis - more] == 1 && from[*axis] != 1);
        let axes: Vec<usize> = (0..from.len()).filter(is_spread).collect();
        let summed = self.reduce_sum(gradient, &axes);
        if more == 0 {
            return summed;
        }
        self.reshape(&summed, to)
    }

    /// Converts booleans to floats: 1 for true.
    pub fn cast_to_float(&mut self, value: &str) -> String {
        let code = i64::from(self.dtype.onnx_code());
        self.add_node(NodeProto::for_operator("Cast", &[value], "").with("to", code))
    }

    /// Slices a value along one axis: `count` elements from `start`, `step` apart.
    pub fn slice(&mut self, value: &str, axis: usize, part: AxisRange) -> String {
        let AxisRange { start, count, step } = part;
        let end = start + (count.max(1) - 1) * step + 1;
        let start = self.add_ints(&[start as i64]);
        let end = self.add_ints(&[end as i64]);
        let axis = self.add_ints(&[axis as i64]);
        let step = self.add_ints(&[step as i64]);
        self.add("Slice", &[value, &start, &end, &axis, &step])
    }

    /// Adds elements before and after each axis: `pads` holds all beginnings, then all ends.
    pub fn pad(&mut self, value: &str, pads: &[usize], with: f64) -> String {
        if pads.iter().all(|pad| *pad == 0) {
            return value.to_owned();
        }
        let pads: Vec<i64> = pads.iter().map(|pad| *pad as i64).collect();
        let pads = self.add_ints(&pads);
        let with = self.add_float(with);
        self.add("Pad", &[value, &pads, &with])
    }
}

/// Elements along an axis.
#[derive(Clone, Copy)]
pub(super) struct AxisRange {
    pub start: usize,
    pub count: usize,
    pub step: usize,
}
