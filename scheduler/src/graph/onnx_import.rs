//! Builds a [`Graph`] from the bytes of an ONNX model, the first step of every plan and run:
//! decodes the model, binds its inputs to the job's shapes, infers the types of all values, folds
//! constants, drops nodes that no output needs, and computes costs.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use souk_onnx::budget::Usage;
use souk_onnx::expansion::{Meanings, expand_model};
use souk_onnx::{GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, decode_model};

use super::bind::{Binder, describe_declaration};
use super::captures::captured_names;
use super::cost::Cost;
use super::external::{Files, read_weight};
use super::order::topological_order;
use super::shape::{
    Fact, InferenceBudget, InnerWork, Scope, bodies_work, constant_fact, infer_outputs,
};
use super::{Bindings, Graph, ImportError, Node, NodeId, Source, Value, ValueId, fold, inline};

/// Oldest standard operator set that the operator rules cover.
const OPSET_MIN: i64 = 7;

impl Graph {
    /// Imports a model that contains its weights or names them by content id. You must bind each
    /// input, unless it has a default or `bindings` assumes extents.
    ///
    /// # Errors
    /// [`ImportError`] if the model or the bound inputs are invalid.
    pub fn import(model: Bytes, bindings: &Bindings) -> Result<Self, ImportError> {
        Self::import_with(model, bindings, &mut |_| None)
    }

    /// Imports a model that may keep weights in files next to it. `files` maps a path relative to
    /// the model's folder to a path on this machine; it never gets a path outside that folder.
    ///
    /// # Errors
    /// [`ImportError`] if the model, its files or the bound inputs are invalid.
    pub fn import_with(
        model: Bytes,
        bindings: &Bindings,
        files: &mut Files<'_>,
    ) -> Result<Self, ImportError> {
        Self::import_model(decode_model(model)?, bindings, files)
    }

    /// Returns the type and shape of each input as text. Sizes that the model leaves open appear by
    /// name.
    ///
    /// # Errors
    /// [`ImportError::Decode`] if the bytes are not an ONNX model.
    pub fn declared_inputs(model: Bytes) -> Result<BTreeMap<String, String>, ImportError> {
        let graph = decode_model(model)?.graph.unwrap_or_default();
        let inputs = graph.input.iter();
        let declared = inputs.map(|input| (input.name().to_owned(), describe_declaration(input)));
        Ok(declared.collect())
    }

    /// Returns the meaning of those inputs and outputs that stand for something other than tensors,
    /// for example texts or maps.
    ///
    /// # Errors
    /// [`ImportError`] if the model is invalid.
    pub fn read_meanings(model: Bytes) -> Result<Meanings, ImportError> {
        let mut model = decode_model(model)?;
        inline::inline_functions(&mut model)?;
        Ok(expand_model(&mut model)?)
    }

    fn import_model(
        mut model: ModelProto,
        bindings: &Bindings,
        files: &mut Files<'_>,
    ) -> Result<Self, ImportError> {
        if let Some(found) = model.opset("").filter(|&opset| opset < OPSET_MIN) {
            let oldest = OPSET_MIN;
            return Err(ImportError::Opset { found, oldest });
        }
        inline::inline_functions(&mut model)?;
        let preparation = expand_model(&mut model)?.preparation;
        if preparation
            .produced_values()
            .any(|made| bindings.is_input_missing(made))
        {
            let inputs = preparation.required_inputs().cloned().collect();
            return Err(ImportError::Unprepared { inputs });
        }
        let graph = model.graph.take().unwrap_or_default();
        // A few nodes can expand to many.
        Usage::of_graph(&graph).check_limits()?;
        let mut draft = Draft::new(graph, bindings, files)?;
        draft.sort_nodes()?;
        draft.bind_inputs(bindings)?;
        draft.infer_outputs(model.opset("").unwrap_or(OPSET_MIN))?;
        let mut graph = draft.into_graph();
        graph.ir_version = model.ir_version();
        graph.opsets = model.opset_import;
        Ok(graph)
    }
}

/// A graph during its import. Values are numbered in the model's order, and so are nodes until
/// [`Draft::sort_nodes`].
struct Draft {
    name: String,
    nodes: Vec<Node>,
    values: Vec<Value>,
    by_name: BTreeMap<String, ValueId>,
    /// The model's declaration of each input, in the order of `inputs`.
    declared: Vec<ValueInfoProto>,
    inputs: Vec<ValueId>,
    outputs: Vec<ValueId>,
    /// Number of nodes before the import drops any.
    found_nodes: usize,
    /// Work of each node's bodies (the graphs in `If`, `Loop` or `Scan`), as far as it is inferred.
    bodies: Vec<InnerWork>,
}

impl Draft {
    fn new(
        graph: GraphProto,
        bindings: &Bindings,
        files: &mut Files<'_>,
    ) -> Result<Self, ImportError> {
        let mut draft = Self {
            name: graph.name().to_owned(),
            nodes: Vec::with_capacity(graph.node.len()),
            values: Vec::new(),
            by_name: BTreeMap::new(),
            declared: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            found_nodes: graph.node.len(),
            bodies: Vec::with_capacity(graph.node.len()),
        };
        // Before IR version 4 every initialiser is also an input; in later versions, an initialiser
        // that is also an input is a default. In both cases the job can bind its own value.
        let inputs: BTreeSet<String> = graph.input.iter().map(|it| it.name().to_owned()).collect();
        let given = |name: &str| bindings.has_input(name) && inputs.contains(name);
        let defaults: BTreeSet<&str> = graph.initializer.iter().map(TensorProto::name).collect();
        draft.add_inputs(&graph, |name| !defaults.contains(name) || given(name))?;
        draft.add_initializers(&graph, files, given)?;
        draft.add_nodes(graph.node, files)?;
        draft.resolve_values(&graph.output)?;
        draft.attach_types(&graph.value_info, &graph.output);
        Ok(draft)
    }

    fn add_value(
        &mut self,
        name: &str,
        source: Source,
        fact: Fact,
    ) -> Result<ValueId, ImportError> {
        let id = ValueId(self.values.len());
        if self.by_name.insert(name.to_owned(), id).is_some() {
            let by = match source {
                Source::Input => "an input".to_owned(),
                Source::Constant(_) => "a constant".to_owned(),
                Source::Node(node) => self.nodes[node.0].name().to_owned(),
            };
            let value = name.to_owned();
            return Err(ImportError::DuplicateValue { value, by });
        }
        self.values.push(Value {
            name: name.to_owned(),
            fact,
            is_inferred: !matches!(source, Source::Node(_)),
            source,
            readers: Vec::new(),
            stated: None,
        });
        Ok(id)
    }

    fn add_inputs(
        &mut self,
        graph: &GraphProto,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<(), ImportError> {
        for input in graph.input.iter().filter(|input| wanted(input.name())) {
            let id = self.add_value(input.name(), Source::Input, Fact::default())?;
            self.values[id.0].stated = Some(input.clone());
            self.inputs.push(id);
            self.declared.push(input.clone());
        }
        Ok(())
    }

    fn add_initializers(
        &mut self,
        graph: &GraphProto,
        files: &mut Files<'_>,
        given: impl Fn(&str) -> bool,
    ) -> Result<(), ImportError> {
        for tensor in graph
            .initializer
            .iter()
            .filter(|tensor| !given(tensor.name()))
        {
            self.add_constant(tensor.clone(), files)?;
        }
        Ok(())
    }

    fn add_constant(
        &mut self,
        tensor: TensorProto,
        files: &mut Files<'_>,
    ) -> Result<(), ImportError> {
        let name = tensor.name().to_owned();
        let constant = read_weight(tensor, files)?;
        let fact = constant_fact(&constant);
        self.add_value(&name, Source::Constant(Box::new(constant)), fact)?;
        Ok(())
    }

    fn add_nodes(
        &mut self,
        protos: Vec<NodeProto>,
        files: &mut Files<'_>,
    ) -> Result<(), ImportError> {
        let mut names = NodeNames::default();
        for mut proto in protos {
            if let Some(tensor) = fold::constant_node(&proto) {
                self.add_constant(tensor, files)?;
                continue;
            }
            proto.name = Some(names.unique_name(&proto));
            let id = NodeId(self.nodes.len());
            let made = proto.output.clone();
            self.nodes.push(Node {
                proto,
                inputs: Vec::new(),
                captures: Vec::new(),
                outputs: Vec::new(),
                cost: Cost::default(),
            });
            for name in made {
                let wanted = !name.is_empty();
                let output =
                    wanted.then(|| self.add_value(&name, Source::Node(id), Fact::default()));
                self.nodes[id.0].outputs.push(output.transpose()?);
            }
        }
        Ok(())
    }

    fn resolve_values(&mut self, outputs: &[ValueInfoProto]) -> Result<(), ImportError> {
        for node in &mut self.nodes {
            let find = |name: &str| {
                let found = self.by_name.get(name).copied();
                found.ok_or_else(|| ImportError::UnknownValue {
                    node: node.proto.name().to_owned(),
                    operator: node.proto.op_type().to_owned(),
                    value: name.to_owned(),
                })
            };
            let optional = |name: &String| (!name.is_empty()).then(|| find(name)).transpose();
            node.inputs = node
                .proto
                .input
                .iter()
                .map(optional)
                .collect::<Result<_, _>>()?;
            let captured = captured_names(&node.proto).into_iter();
            node.captures = captured.map(find).collect::<Result<_, _>>()?;
        }
        for output in outputs {
            let id = self.by_name.get(output.name()).copied();
            let value = output.name().to_owned();
            self.outputs
                .push(id.ok_or(ImportError::UnknownOutput { value })?);
        }
        Ok(())
    }

    fn attach_types(&mut self, infos: &[ValueInfoProto], outputs: &[ValueInfoProto]) {
        for info in infos.iter().chain(outputs) {
            if let Some(id) = self.by_name.get(info.name()) {
                self.values[id.0].stated.get_or_insert_with(|| info.clone());
            }
        }
    }

    /// Sorts the nodes in topological order and renumbers them.
    fn sort_nodes(&mut self) -> Result<(), ImportError> {
        let mut successors = vec![Vec::new(); self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            for value in node.input_values() {
                if let Some(producer) = self.values[value.0].producer() {
                    successors[producer.0].push(index);
                }
            }
        }
        let order = topological_order(&successors).map_err(|node| ImportError::Cycle {
            node: self.nodes[node].name().to_owned(),
            operator: self.nodes[node].operator_name(),
        })?;
        let mut slots: Vec<_> = std::mem::take(&mut self.nodes)
            .into_iter()
            .map(Some)
            .collect();
        let taken = order
            .iter()
            .map(|&old| slots[old].take().expect("each node comes once"));
        self.nodes = taken.collect();
        for (new, node) in self.nodes.iter().enumerate() {
            for value in node.outputs.iter().flatten() {
                self.values[value.0].source = Source::Node(NodeId(new));
            }
        }
        Ok(())
    }

    fn bind_inputs(&mut self, bindings: &Bindings) -> Result<(), ImportError> {
        let known: BTreeSet<&str> = self.declared.iter().map(ValueInfoProto::name).collect();
        if let Some(unknown) = bindings
            .input_names()
            .find(|name| !known.contains(name.as_str()))
        {
            return Err(ImportError::UnknownInput {
                name: unknown.clone(),
                known: self
                    .declared
                    .iter()
                    .map(|input| input.name().to_owned())
                    .collect(),
            });
        }
        let mut binder = Binder::new(bindings);
        for declared in &self.declared {
            binder.check_input(declared)?;
        }
        for (id, declared) in self.inputs.iter().zip(&self.declared) {
            self.values[id.0].fact = binder.input_fact(declared);
        }
        for value in self
            .values
            .iter_mut()
            .filter(|value| value.producer().is_some())
        {
            if let Some(stated) = &value.stated {
                value.fact = binder.declared_fact(stated);
            }
        }
        Ok(())
    }

    /// Infers the types and extents of all node outputs. The model's own declarations fill the
    /// gaps.
    fn infer_outputs(&mut self, opset: i64) -> Result<(), ImportError> {
        let outputs: BTreeSet<ValueId> = self.outputs.iter().copied().collect();
        let steps = InferenceBudget::default();
        for index in 0..self.nodes.len() {
            let node = &self.nodes[index];
            let inputs: Vec<Option<&Fact>> = node
                .inputs
                .iter()
                .map(|id| id.map(|id| &self.values[id.0].fact))
                .collect();
            let captured = node.captures.iter().map(|id| &self.values[id.0]);
            let outer = captured.map(|value| (value.name.clone(), value.fact.clone()));
            let outer = Scope::new(outer.collect(), &steps);
            let facts = infer_outputs(&node.proto, opset, &inputs, &outer).map_err(|fault| {
                ImportError::Shape {
                    node: node.name().to_owned(),
                    operator: node.operator_name(),
                    fault,
                }
            })?;
            self.bodies
                .push(bodies_work(&node.proto, opset, &inputs, &outer));
            steps.check_limit()?;
            let read = node.inputs.iter().flatten().chain(&node.captures);
            let is_inferred = read.into_iter().all(|id| self.values[id.0].is_inferred);
            let made: Vec<_> = node.outputs.iter().copied().zip(facts).collect();
            for (id, fact) in made {
                let Some(id) = id else { continue };
                let value = &mut self.values[id.0];
                let stated = std::mem::take(&mut value.fact);
                value.is_inferred = is_inferred && fact.is_whole();
                value.fact = fact.filled_by(stated);
            }
            self.fold_constants(index, &outputs);
        }
        Ok(())
    }

    /// Turns a node's outputs into constants if all of them are known and none is an output of the
    /// model.
    fn fold_constants(&mut self, index: usize, outputs: &BTreeSet<ValueId>) {
        let made: Vec<ValueId> = self.nodes[index].output_values().collect();
        if made.iter().any(|id| outputs.contains(id)) {
            return;
        }
        let constants: Option<Vec<_>> = made
            .iter()
            .map(|id| fold::known_constant(&self.values[id.0]))
            .collect();
        for (id, constant) in made.iter().zip(constants.into_iter().flatten()) {
            self.values[id.0].source = Source::Constant(Box::new(constant));
        }
    }

    /// Keeps the nodes that the outputs need, renumbers them and computes costs.
    fn into_graph(self) -> Graph {
        let (live_nodes, live_values) = self.find_live_nodes_and_values();
        let mut numbers = vec![ValueId(usize::MAX); self.values.len()];
        let mut values = Vec::new();
        for (old, value) in self.values.into_iter().enumerate() {
            if live_values[old] {
                numbers[old] = ValueId(values.len());
                values.push(value);
            }
        }
        let renumber = |id: &mut ValueId| *id = numbers[id.0];
        let mut nodes: Vec<Node> = Vec::new();
        let nodes_bodies = self.nodes.into_iter().zip(self.bodies);
        for ((mut node, bodies), _) in nodes_bodies.zip(live_nodes).filter(|(_, live)| *live) {
            node.inputs.iter_mut().flatten().for_each(renumber);
            node.captures.iter_mut().for_each(renumber);
            for output in &mut node.outputs {
                *output = output
                    .filter(|id| live_values[id.0])
                    .map(|id| numbers[id.0]);
            }
            for id in node.output_values() {
                values[id.0].source = Source::Node(NodeId(nodes.len()));
            }
            for id in node.input_values() {
                let readers: &mut Vec<NodeId> = &mut values[id.0].readers;
                if readers.last() != Some(&NodeId(nodes.len())) {
                    readers.push(NodeId(nodes.len()));
                }
            }
            node.cost = Cost::for_node(&node, &values, bodies);
            nodes.push(node);
        }
        Graph {
            name: self.name,
            ir_version: 0,
            opsets: Vec::new(),
            dropped_nodes: self.found_nodes.saturating_sub(nodes.len()),
            open: BTreeMap::new(),
            turns: 1.0,
            nodes,
            values,
            inputs: self.inputs.iter().map(|id| numbers[id.0]).collect(),
            outputs: self.outputs.iter().map(|id| numbers[id.0]).collect(),
        }
    }

    fn find_live_nodes_and_values(&self) -> (Vec<bool>, Vec<bool>) {
        let mut nodes = vec![false; self.nodes.len()];
        let mut values = vec![false; self.values.len()];
        for id in self.outputs.iter().chain(&self.inputs) {
            values[id.0] = true;
        }
        for (index, node) in self.nodes.iter().enumerate().rev() {
            let produced = |id: &ValueId| self.values[id.0].producer() == Some(NodeId(index));
            if node.output_values().any(|id| values[id.0] && produced(&id)) {
                nodes[index] = true;
                node.output_values().for_each(|id| values[id.0] = true);
                node.input_values().for_each(|id| values[id.0] = true);
            }
        }
        (nodes, values)
    }
}

/// Node names in use.
#[derive(Default)]
struct NodeNames {
    taken: BTreeSet<String>,
    /// The next number to try as a suffix of each name.
    next: BTreeMap<String, u64>,
}

impl NodeNames {
    /// Returns the node's own name, or its operator with a number, made unique.
    fn unique_name(&mut self, proto: &NodeProto) -> String {
        let own = proto.name();
        if !own.is_empty() && self.taken.insert(own.to_owned()) {
            return own.to_owned();
        }
        let wanted = if own.is_empty() { proto.op_type() } else { own };
        let next = self.next.entry(wanted.to_owned()).or_insert(1);
        loop {
            let name = format!("{wanted}_{next}");
            *next += 1;
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use souk_memory::DType;
    use souk_onnx::{ModelProto, OperatorSetIdProto, encode_model};

    use super::*;
    use crate::graph::Graph;

    #[test]
    fn a_declared_shape_is_not_inferred_nor_is_what_follows_from_it() {
        let port = |name: &str, dtype: DType, dims: &[i64]| {
            let dims = dims.iter().map(|dim| souk_onnx::Dimension {
                value: Some(souk_onnx::DimensionValue::DimValue(*dim)),
                ..souk_onnx::Dimension::default()
            });
            ValueInfoProto::new_tensor(name, dtype.onnx_code(), Some(dims.collect()))
        };
        let graph = GraphProto {
            node: vec![
                NodeProto::for_operator("Relu", &["x"], "positive"),
                NodeProto::for_operator("NonZero", &["positive"], "found"),
                NodeProto::for_operator("Neg", &["found"], "y"),
            ],
            input: vec![port("x", DType::F32, &[2, 2])],
            output: vec![
                port("positive", DType::F32, &[2, 2]),
                port("y", DType::I64, &[2, 3]),
            ],
            ..GraphProto::default()
        };
        let model = ModelProto {
            ir_version: Some(9),
            opset_import: vec![OperatorSetIdProto {
                domain: None,
                version: Some(17),
            }],
            graph: Some(graph),
            ..ModelProto::default()
        };
        let bindings = Bindings::new().with_input("x", DType::F32, &[2, 2]);
        let graph = Graph::import(encode_model(&model), &bindings).unwrap();
        let value = |name: &str| graph.values().iter().find(|it| it.name == name).unwrap();
        assert_eq!(value("y").dims(), Some(vec![2, 3]));
        let inferred = ["positive", "found", "y"].map(|name| value(name).is_inferred);
        assert_eq!(inferred, [true, false, false]);
    }
}
