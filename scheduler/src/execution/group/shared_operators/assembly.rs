//! Builds the small models that cut the input of a shared operator and join its output on the
//! leader, the device that runs the rest of the graph. They serve leaders with a memory of their
//! own.
//!
//! Both use ordinary operators on the leader. So the leader's own part never leaves its memory, and
//! only other devices' inputs and results travel.

use bytes::Bytes;
use souk_memory::{DType, Tensor};
use souk_onnx::{
    AttributeProto, AttributeType, Dimension, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, TensorProto, ValueInfoProto, encode_model, tensor_to_proto,
};

use crate::graph::{Bindings, Graph, ValueId};
use crate::planning::split::{Cut, Part, Segment};

/// Versions of the format and of the operator set: the oldest that support all it uses.
const IR_VERSION: i64 = 8;
const OPSET: i64 = 13;

/// A value of an assembly: its name in the model, its name in the run, and its extents.
pub(in crate::execution::group) struct AssemblyPort {
    pub name: String,
    pub held: String,
    dims: Vec<usize>,
}

/// A cut or a join.
pub(in crate::execution::group) struct Assembly {
    pub inputs: Vec<AssemblyPort>,
    pub outputs: Vec<AssemblyPort>,
    dtype: DType,
    nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
}

impl Assembly {
    /// Creates the model that cuts the input of a segment into the rows of each part; `held` names
    /// them.
    pub fn for_cutting(
        graph: &Graph,
        segment: &Segment,
        parts: &[Part],
        held: impl Fn(&Part) -> String,
    ) -> Self {
        let (dtype, dims) = value_type(graph, segment.input);
        let rows = |units| segment.part_dims(&dims, units);
        let parts = parts.iter();
        let outputs = parts.clone().map(|part| (held(part), rows(part.units)));
        let whole = (graph.value(segment.input).name.clone(), dims.clone());
        let mut assembly = Self::new(dtype, vec![whole], outputs.collect());
        let flat = rows(segment.units);
        let input = assembly.inputs[0].name.clone();
        let input = assembly.add_reshape(&input, &dims, &flat, "rows");
        let axis = assembly.add_constant("axis", &[part_axis(segment)]);
        for (index, part) in parts.enumerate() {
            let first = assembly.add_constant(&format!("first{index}"), &[part.first]);
            let behind =
                assembly.add_constant(&format!("behind{index}"), &[part.first + part.units]);
            let output = assembly.outputs[index].name.clone();
            let inputs = [&input, &first, &behind, &axis];
            assembly.nodes.push(build_node("Slice", &inputs, &output));
        }
        assembly
    }

    /// Creates the model that joins the outputs of a segment's parts; `held` names those.
    pub fn for_joining(
        graph: &Graph,
        segment: &Segment,
        parts: &[Part],
        held: impl Fn(&Part) -> String,
    ) -> Self {
        let (dtype, dims) = value_type(graph, segment.output);
        let of_part = |units| segment.part_dims(&dims, units);
        let inputs = parts.iter().map(|part| (held(part), of_part(part.units)));
        let whole = (graph.value(segment.output).name.clone(), dims.clone());
        let mut assembly = Self::new(dtype, inputs.collect(), vec![whole]);
        let flat = of_part(segment.units);
        let output = assembly.outputs[0].name.clone();
        let joined = match flat == dims {
            true => output.clone(),
            false => "rows".to_owned(),
        };
        let inputs: Vec<&String> = assembly.inputs.iter().map(|port| &port.name).collect();
        let mut concat = build_node("Concat", &inputs, &joined);
        concat.attribute = vec![AttributeProto {
            name: Some("axis".to_owned()),
            r#type: Some(AttributeType::Int as i32),
            i: Some(part_axis(segment) as i64),
            ..AttributeProto::default()
        }];
        assembly.nodes.push(concat);
        assembly.add_reshape(&joined, &flat, &dims, &output);
        assembly
    }

    fn new(
        dtype: DType,
        inputs: Vec<(String, Vec<usize>)>,
        outputs: Vec<(String, Vec<usize>)>,
    ) -> Self {
        let ports = |letter: &str, named: Vec<(String, Vec<usize>)>| -> Vec<AssemblyPort> {
            let each = named.into_iter().enumerate();
            let port = |(index, (held, dims))| AssemblyPort {
                name: format!("{letter}{index}"),
                held,
                dims,
            };
            each.map(port).collect()
        };
        Self {
            inputs: ports("x", inputs),
            outputs: ports("y", outputs),
            dtype,
            nodes: Vec::new(),
            constants: Vec::new(),
        }
    }

    /// Reshapes a value to other extents; returns the value itself if they are the same.
    fn add_reshape(&mut self, value: &str, from: &[usize], to: &[usize], name: &str) -> String {
        if from == to {
            return value.to_owned();
        }
        let shape = self.add_constant("shape", to);
        self.nodes
            .push(build_node("Reshape", &[&value.to_owned(), &shape], name));
        name.to_owned()
    }

    fn add_constant(&mut self, name: &str, values: &[usize]) -> String {
        let counts: Vec<i64> = values.iter().map(|&value| value as i64).collect();
        let tensor = Tensor::from_vec([values.len()], counts).expect("there are as many");
        self.constants.push(tensor_to_proto(name, &tensor));
        name.to_owned()
    }

    /// Encodes the assembly as a model.
    pub fn encode_model(&self) -> Bytes {
        let info = |port: &AssemblyPort| {
            let dims = port.dims.iter();
            let dims = dims.map(|&extent| Dimension::new_fixed(extent as i64));
            let code = self.dtype.onnx_code();
            ValueInfoProto::new_tensor(port.name.clone(), code, Some(dims.collect()))
        };
        encode_model(&ModelProto {
            ir_version: Some(IR_VERSION),
            opset_import: vec![OperatorSetIdProto {
                domain: None,
                version: Some(OPSET),
            }],
            graph: Some(GraphProto {
                name: Some("assembly".to_owned()),
                node: self.nodes.clone(),
                input: self.inputs.iter().map(info).collect(),
                output: self.outputs.iter().map(info).collect(),
                initializer: self.constants.clone(),
                ..GraphProto::default()
            }),
            ..ModelProto::default()
        })
    }

    /// Returns the bindings of its inputs.
    pub fn input_bindings(&self) -> Bindings {
        let none = Bindings::new();
        let bind = |known: Bindings, port: &AssemblyPort| {
            known.with_input(&port.name, self.dtype, &port.dims)
        };
        self.inputs.iter().fold(none, bind)
    }
}

/// Returns the axis along which a segment's parts lie, with rows taken as one.
fn part_axis(segment: &Segment) -> usize {
    match segment.cut {
        Cut::Rows { lead } => lead - 1,
        Cut::Channels => segment.axis,
    }
}

fn value_type(graph: &Graph, id: ValueId) -> (DType, Vec<usize>) {
    let value = graph.value(id);
    let dims = value.dims().expect("a segment's are known");
    let dtype = value.dtype().expect("a segment's is known");
    (
        dtype,
        dims.into_iter().map(|extent| extent as usize).collect(),
    )
}

fn build_node(operator: &str, inputs: &[&String], output: &str) -> NodeProto {
    NodeProto {
        op_type: Some(operator.to_owned()),
        name: Some(output.to_owned()),
        input: inputs.iter().map(|&input| input.clone()).collect(),
        output: vec![output.to_owned()],
        ..NodeProto::default()
    }
}
