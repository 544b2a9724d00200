//! Collects the nodes and weights of a decoder's ONNX graph while the module `decoder` builds it.
//! Most methods add one operation and return the name of its output. At the end, the graph must
//! have used every weight.

use std::collections::BTreeMap;

use bytes::Bytes;
use souk_memory::{ContentId, DType, Tensor};
use souk_onnx::custom::DOMAIN;
use souk_onnx::{
    AttributeProto, AttributeType, DataLocation, GraphProto, NodeProto, StringStringEntryProto,
    TensorProto, ValueInfoProto, tensor_to_proto,
};
use souk_onnx::{routing, states};

use crate::weights::{BLOCK, Weight, WeightError, Weights};

/// Settings of attention.
pub(super) struct AttentionSettings {
    /// Positions that a token sees; `None` for all.
    pub window: Option<usize>,
    /// Factor of scores, if not the usual one.
    pub factor: Option<f32>,
    /// Upper limit of scores.
    pub limit: Option<f32>,
}

/// The nodes so far, in order, and the weights that no node uses yet.
pub(super) struct Nodes {
    nodes: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
    contents: BTreeMap<ContentId, Bytes>,
    weights: Weights,
    /// The values of matrices already added, by name.
    added_matrices: BTreeMap<String, String>,
}

impl Nodes {
    pub fn new(weights: Weights) -> Self {
        Self {
            nodes: Vec::new(),
            initializers: Vec::new(),
            contents: BTreeMap::new(),
            weights,
            added_matrices: BTreeMap::new(),
        }
    }

    /// Returns the graph and the contents that its weights name.
    ///
    /// # Errors
    /// [`WeightError::Unused`] if weights remain. The graph must use them all, because a model with
    /// more weights is another model.
    pub fn finish(
        self,
        input: Vec<ValueInfoProto>,
        output: Vec<ValueInfoProto>,
    ) -> Result<(GraphProto, BTreeMap<ContentId, Bytes>), WeightError> {
        if let Some(name) = self.weights.into_keys().next() {
            return Err(WeightError::Unused(name));
        }
        let graph = GraphProto {
            name: Some("decoder".to_owned()),
            node: self.nodes,
            initializer: self.initializers,
            input,
            output,
            ..GraphProto::default()
        };
        Ok((graph, self.contents))
    }

    /// Returns whether an unused weight has this name.
    pub fn has_weight(&self, name: &str) -> bool {
        self.weights.contains_key(name)
    }

    /// Adds a node.
    pub fn push(&mut self, node: NodeProto) {
        self.nodes.push(node);
    }

    /// Adds a constant.
    pub fn push_initializer(&mut self, constant: TensorProto) {
        self.initializers.push(constant);
    }

    /// Returns whether a constant has this name.
    pub fn has_constant(&self, name: &str) -> bool {
        let mut names = self.initializers.iter().map(|it| it.name());
        names.any(|it| it == name)
    }

    /// Adds a node with integer attributes and returns its output's name, which is `name` and must
    /// be new.
    pub fn add(
        &mut self,
        operator: &str,
        inputs: &[&str],
        name: &str,
        integers: &[(&str, i64)],
    ) -> String {
        let mut node = NodeProto::for_operator(operator, inputs, name);
        node.name = Some(name.to_owned());
        node.attribute = integers
            .iter()
            .map(|&(key, value)| integer_attribute(key, value))
            .collect();
        self.nodes.push(node);
        name.to_owned()
    }

    /// Adds a state with rows written along its third axis and returns the output, which is its
    /// next value.
    pub fn add_state(&mut self, inputs: &[&str], name: &str) -> String {
        let name = self.add("TensorScatter", inputs, name, &[("axis", -2)]);
        let node = self.nodes.last_mut().expect("one was just added");
        node.metadata_props.push(states::state_entry(0, 0));
        name
    }

    /// Marks the last output as a place where a planner can cut the decoder.
    pub fn may_cut(&mut self) {
        let node = self.nodes.last_mut().expect("one was added");
        node.metadata_props.push(states::cut_entry(0));
    }

    /// Adds a root mean square norm over the last axis.
    pub fn add_norm(&mut self, from: &str, scale: &str, name: &str, epsilon: f32) -> String {
        let name = self.add("RMSNormalization", &[from, scale], name, &[("axis", -1)]);
        let node = self.nodes.last_mut().expect("one was just added");
        node.attribute.push(AttributeProto {
            name: Some("epsilon".to_owned()),
            r#type: Some(AttributeType::Float as i32),
            f: Some(epsilon),
            ..AttributeProto::default()
        });
        name
    }

    /// Adds attention: the result of queries on the caches.
    pub fn add_attention(
        &mut self,
        inputs: &[&str],
        name: &str,
        look: &AttentionSettings,
    ) -> String {
        let name = self.add("Attention", inputs, name, &[("is_causal", 1)]);
        let node = self.nodes.last_mut().expect("one was just added");
        if let Some(window) = look.window {
            // The attribute does not count the token's own position.
            node.attribute
                .push(integer_attribute("left_window_size", window as i64 - 1));
        }
        let floats = [("scale", look.factor), ("softcap", look.limit)];
        let floats = floats.into_iter().filter_map(|(key, it)| Some((key, it?)));
        node.attribute
            .extend(floats.map(|(key, it)| AttributeProto::from_value(key, it)));
        name
    }

    /// Adds the Gaussian gate of a value (GELU), computed with the hyperbolic tangent.
    pub fn add_gelu(&mut self, from: &str, name: &str) -> String {
        let name = self.add("Gelu", &[from], name, &[]);
        let node = self.nodes.last_mut().expect("one was just added");
        node.attribute
            .push(AttributeProto::from_value("approximate", "tanh"));
        name
    }

    /// Adds the product of a value with a constant factor.
    pub fn add_constant_product(&mut self, from: &str, factor: f32, name: &str) -> String {
        let held = format!("{name}.factor");
        let tensor = Tensor::from_vec([1], vec![factor]).expect("it is one");
        self.initializers.push(tensor_to_proto(&*held, &tensor));
        self.add("Mul", &[from, &held], name, &[])
    }

    /// Adds a product with a matrix whose rows are the result's columns.
    pub fn add_matrix_product(&mut self, from: &str, matrix: &str, name: &str) -> String {
        let turned = format!("{matrix}.turned");
        if self
            .added_matrices
            .insert(turned.clone(), turned.clone())
            .is_none()
        {
            self.transpose(matrix, &turned, &[1, 0]);
        }
        self.add("MatMul", &[from, &turned], name, &[])
    }

    /// Adds products with the matrices of a stack that each row selected.
    pub fn add_routed_products(&mut self, inputs: [&str; 3], name: &str) -> String {
        let name = self.add(routing::OPERATOR, &inputs, name, &[]);
        let node = self.nodes.last_mut().expect("one was just added");
        node.domain = Some(DOMAIN.to_owned());
        name
    }

    /// Adds the largest numbers of each row, and their indices.
    pub fn add_top_k(&mut self, from: &str, count: usize, name: &str) -> [String; 2] {
        let held = self.add_integers("count", &[count as i64]);
        let (values, places) = (format!("{name}.largest"), format!("{name}.places"));
        self.add("TopK", &[from, &held], &values, &[("axis", -1)]);
        let node = self.nodes.last_mut().expect("one was just added");
        node.output.push(places.clone());
        [values, places]
    }

    /// Adds the sum along an axis.
    pub fn sum(&mut self, from: &str, axis: i64, keeps: bool, name: &str) -> String {
        let axes = self.add_integers("axes", &[axis]);
        let keeps = [("keepdims", i64::from(keeps))];
        self.add("ReduceSum", &[from, &axes], name, &keeps)
    }

    /// Reshapes `[1, sequence, heads * width]` to `[1, sequence, heads, width]`.
    pub fn split(&mut self, from: &str, [heads, width]: [usize; 2], name: &str) -> String {
        self.reshape(from, &[0, 0, heads as i64, width as i64], name)
    }

    /// Reshapes `[1, sequence, heads, width]` to `[1, sequence, heads * width]`.
    pub fn join_heads(&mut self, from: &str, width: usize, name: &str) -> String {
        self.reshape(from, &[0, 0, width as i64], name)
    }

    /// Swaps the two middle axes of four.
    pub fn swap_middle_axes(&mut self, from: &str, name: &str) -> String {
        self.transpose(from, name, &[0, 2, 1, 3])
    }

    /// Permutes the axes of a value.
    pub fn transpose(&mut self, from: &str, name: &str, axes: &[i64]) -> String {
        let name = self.add("Transpose", &[from], name, &[]);
        let node = self.nodes.last_mut().expect("one was just added");
        node.attribute.push(AttributeProto {
            name: Some("perm".to_owned()),
            r#type: Some(AttributeType::Ints as i32),
            ints: axes.to_vec(),
            ..AttributeProto::default()
        });
        name
    }

    /// Reshapes a value.
    pub fn reshape(&mut self, from: &str, sizes: &[i64], name: &str) -> String {
        let shape = self.add_integers("sizes", sizes);
        self.add("Reshape", &[from, &shape], name, &[])
    }

    /// Adds a constant of a few integers once and returns its value's name.
    fn add_integers(&mut self, what: &str, numbers: &[i64]) -> String {
        let words: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        let name = format!("{what}.{}", words.join("x"));
        if self
            .added_matrices
            .insert(name.clone(), name.clone())
            .is_none()
        {
            let tensor = Tensor::from_vec([numbers.len()], numbers.to_vec());
            let tensor = tensor.expect("as many as there are");
            self.initializers.push(tensor_to_proto(&*name, &tensor));
        }
        name
    }

    /// Adds a table that is not a weight of the file.
    pub fn table(&mut self, name: &str, sizes: [usize; 2], values: Vec<f32>) {
        let tensor = Tensor::from_vec(sizes, values).expect("a table is as large as it says");
        self.add_external_tensor(name, &tensor);
    }

    /// Adds a vector of the file as 32-bit floats and returns its value's name.
    pub fn add_vector(&mut self, name: &str, length: usize) -> Result<String, WeightError> {
        let weight = self.take_weight(name, &[length])?;
        let Weight::Floats(tensor) = weight else {
            let dtype = DType::I8;
            let name = name.to_owned();
            return Err(WeightError::Type { name, dtype });
        };
        let values = tensor.to_f64s().map_err(|_| wrong_type(name, &tensor))?;
        let values = values.into_iter().map(|value| value as f32).collect();
        let tensor = Tensor::from_vec([length], values).expect("as long as it was");
        self.add_external_tensor(name, &tensor);
        Ok(name.to_owned())
    }

    /// Adds a matrix of the file as 32-bit floats and returns its value's name.
    pub fn matrix(&mut self, name: &str, sizes: [usize; 2]) -> Result<String, WeightError> {
        self.add_weight(name, &sizes)
    }

    /// Adds a stack of matrices as 32-bit floats and returns its value's name.
    pub fn stack(&mut self, name: &str, sizes: [usize; 3]) -> Result<String, WeightError> {
        self.add_weight(name, &sizes)
    }

    fn add_weight(&mut self, name: &str, sizes: &[usize]) -> Result<String, WeightError> {
        let value = match self.take_weight(name, sizes)? {
            Weight::Floats(tensor) => {
                self.add_external_tensor(name, &tensor);
                match tensor.dtype() {
                    DType::F32 => name.to_owned(),
                    DType::F16 | DType::Bf16 => {
                        let wide = format!("{name}.wide");
                        let to = i64::from(DType::F32.onnx_code());
                        self.add("Cast", &[name], &wide, &[("to", to)])
                    }
                    _ => return Err(wrong_type(name, &tensor)),
                }
            }
            Weight::Blocks { integers, scales } => {
                let (held, steps) = (format!("{name}.integers"), format!("{name}.scales"));
                self.add_external_tensor(&held, &integers);
                self.add_external_tensor(&steps, &scales);
                let to = i64::from(DType::F32.onnx_code());
                let block = ("block_size", BLOCK as i64);
                let axis = ("axis", sizes.len() as i64 - 1);
                let attributes = [axis, block, ("output_dtype", to)];
                self.add("DequantizeLinear", &[&held, &steps], name, &attributes)
            }
        };
        Ok(value)
    }

    fn take_weight(&mut self, name: &str, sizes: &[usize]) -> Result<Weight, WeightError> {
        let weight = self.weights.remove(name);
        let weight = weight.ok_or_else(|| WeightError::Missing(name.to_owned()))?;
        if weight.dims() != sizes {
            return Err(WeightError::Sizes {
                name: name.to_owned(),
                found: weight.dims().to_vec(),
                expected: sizes.to_vec(),
            });
        }
        Ok(weight)
    }

    /// Names a tensor by its content; the values stay outside the model.
    fn add_external_tensor(&mut self, name: &str, tensor: &Tensor) {
        let id = ContentId::for_content(tensor.bytes());
        self.contents.insert(id, tensor.bytes().clone());
        let location = StringStringEntryProto::new("location", format!("blake3:{id}"));
        self.initializers.push(TensorProto {
            raw_data: None,
            data_location: Some(DataLocation::External as i32),
            external_data: vec![location],
            ..tensor_to_proto(name, tensor)
        });
    }
}

fn wrong_type(name: &str, tensor: &Tensor) -> WeightError {
    WeightError::Type {
        name: name.to_owned(),
        dtype: tensor.dtype(),
    }
}

pub(super) fn integer_attribute(key: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: Some(key.to_owned()),
        r#type: Some(AttributeType::Int as i32),
        i: Some(value),
        ..AttributeProto::default()
    }
}
