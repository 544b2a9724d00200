//! Builds the graph of one training step from a model: the forward pass, the loss, the gradients
//! and the optimiser.
//!
//! All parameters are one vector, and so is each state of the optimiser: these few tensors are
//! outputs that feed the next request (`souk_onnx::states`), so a provider keeps them from step to
//! step, and nothing in the protocol knows of training. The optimiser is a few nodes, however many
//! parameters there are.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use souk_memory::{DType, Tensor};
use souk_onnx::{
    Dimension, GraphProto, ModelProto, NodeProto, ValueInfoProto, decode_model, encode_model,
    states,
};

use super::GradientError;
use super::adamw::AdamW;
use super::node_view::known_dims;
use super::parameters::{Candidate, Parameters, Selection, take_candidates};
use super::rules::loss::{Loss, LossValue};
use super::sgd::Sgd;
use super::tape::Tape;
use super::writer::{PREFIX, Writer};
use crate::graph::{Bindings, Graph, ImportError, InputType, ValueId, cut};

/// The oldest operator set that the rules write.
const OPSET_MIN: i64 = 13;

/// The name of the output that is the loss.
pub const LOSS: &str = "souk.train/loss";

/// The name of the state that holds the parameters.
const PARAMETERS: &str = "parameters";

/// The name of the input with the numbers that depend on the position of the step.
const SCHEDULE: &str = "schedule";

/// The last number of a schedule, if there are evaluations: it distinguishes a step from an
/// evaluation.
const APPLIED: f32 = 1.0;
const NOT_APPLIED: f32 = 0.0;

/// The optimiser of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// Stochastic gradient descent.
    Sgd(Sgd),
    /// AdamW.
    AdamW(AdamW),
}

/// The settings of a training: the loss, the optimiser, and the parameters to train.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// The loss that training minimises.
    pub loss: Loss,
    /// The optimiser, which changes the parameters by their gradients.
    pub optimizer: Optimizer,
    /// The output of which the loss is taken; none for the model's only one.
    pub output: Option<String>,
    /// The initialisers to train.
    pub selection: Selection,
    /// The largest norm of the gradient of all parameters, a positive number; a longer gradient is
    /// scaled down to it.
    pub gradient_norm_max: Option<f64>,
    /// Whether a request can also be an evaluation: it returns the loss of other examples and
    /// leaves all states unchanged.
    pub has_evaluations: bool,
}

/// The graph of one training step.
#[derive(Clone, Debug)]
pub struct StepGraph {
    /// The ONNX model of the step.
    pub model: Bytes,
    /// The trained initialisers.
    pub parameters: Parameters,
    /// The value of which the loss is taken.
    pub output: String,
    /// The number of classes among which labels choose; none if the targets are no labels.
    pub classes: Option<usize>,
    /// The values of the fed inputs before the first step.
    pub states: BTreeMap<String, Tensor>,
    optimizer: Optimizer,
    has_evaluations: bool,
}

impl Optimizer {
    /// Returns the name for people.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Optimizer::Sgd(_) => "sgd",
            Optimizer::AdamW(_) => "adamw",
        }
    }

    fn state_names(&self) -> &'static [&'static str] {
        match self {
            Optimizer::Sgd(sgd) => sgd.state_names(),
            Optimizer::AdamW(adamw) => adamw.state_names(),
        }
    }

    fn schedule(&self, position: u64, learning_rate: f64) -> Vec<f32> {
        match self {
            Optimizer::Sgd(sgd) => sgd.schedule(learning_rate),
            Optimizer::AdamW(adamw) => adamw.schedule(position, learning_rate),
        }
    }
}

impl StepGraph {
    /// Returns the name of the input with the numbers that depend on the position of the step.
    #[must_use]
    pub fn schedule_input() -> String {
        format!("{PREFIX}{SCHEDULE}")
    }

    /// Returns the numbers for that input in the step at a position, from 0.
    #[must_use]
    pub fn schedule(&self, position: u64, learning_rate: f64) -> Tensor {
        let numbers = self.optimizer.schedule(position, learning_rate);
        self.schedule_tensor(numbers, APPLIED)
    }

    /// Returns the numbers for that input in an evaluation, which computes the loss of a step and
    /// leaves the states unchanged.
    ///
    /// # Panics
    /// If the graph was built for steps alone.
    #[must_use]
    pub fn evaluation_schedule(&self) -> Tensor {
        assert!(self.has_evaluations, "the graph was built for evaluations");
        self.schedule_tensor(self.optimizer.schedule(0, 0.0), NOT_APPLIED)
    }

    fn schedule_tensor(&self, mut numbers: Vec<f32>, applied: f32) -> Tensor {
        numbers.extend(self.has_evaluations.then_some(applied));
        let tensor = Tensor::from_vec([numbers.len()], numbers);
        tensor.expect("a list has the length of its values")
    }

    /// Returns the name of the input that holds the parameters.
    #[must_use]
    pub fn parameters_input() -> String {
        format!("{PREFIX}{PARAMETERS}")
    }

    /// Returns the states after a step, under the names of the inputs that they feed; none if an
    /// output is missing, or has another type or shape than the state before the step.
    #[must_use]
    pub fn next_states(
        &self,
        outputs: &BTreeMap<String, Tensor>,
    ) -> Option<BTreeMap<String, Tensor>> {
        let next = |(name, before): (&String, &Tensor)| {
            let next = outputs.get(&next_name(name))?;
            let is_like = next.dtype() == before.dtype() && next.dims() == before.dims();
            is_like.then(|| (name.clone(), next.clone()))
        };
        self.states.iter().map(next).collect()
    }
}

/// Returns the name of the output that feeds an input.
fn next_name(input: &str) -> String {
    format!("{input}.next")
}

/// Builds the graph of a training step. `batch` are the inputs of the model with the extents of a
/// batch, and `target` is the name and the type of the targets.
///
/// # Errors
/// [`GradientError`]; nothing has been bought by then.
pub fn build_step_graph(
    model: Bytes,
    batch: &BTreeMap<String, InputType>,
    target: (&str, &InputType),
    recipe: &Recipe,
) -> Result<StepGraph, GradientError> {
    let mut decoded = decode_model(model)?;
    let opset = decoded.opset("").unwrap_or(OPSET_MIN);
    if opset < OPSET_MIN {
        return Err(GradientError::Opset {
            found: opset,
            oldest: OPSET_MIN,
        });
    }
    check_inputs(&decoded, batch)?;
    let candidates = take_candidates(&mut decoded, &recipe.selection)?;
    let graph = import_forward(&decoded, batch, &candidates)?;
    let (output, value) = find_output(&graph, recipe)?;
    let target = LossValue {
        name: target.0.to_owned(),
        dtype: target.1.dtype,
        dims: target.1.dims.clone(),
    };
    if graph.find_value(&target.name).is_some() || target.name == LOSS {
        return Err(GradientError::Name { name: target.name });
    }
    recipe.loss.check_target(&value, &target)?;
    let mut writer = Writer::new(opset, value.dtype);
    let loss = recipe.loss.write(&value, &target, &mut writer);
    let parameters = candidate_values(&graph, &candidates);
    let tape = Tape::new(&graph, &parameters.values().copied().collect());
    let gradients = tape.differentiate(output, loss.gradient, &mut writer)?;
    let is_reached = |it: &Candidate| gradients.contains_key(&parameters[&it.name]);
    let (trained, constant): (Vec<_>, Vec<_>) = candidates.into_iter().partition(is_reached);
    if trained.is_empty() {
        return Err(GradientError::NothingToTrain { output: value.name });
    }
    let gradients = trained
        .iter()
        .map(|it| gradients[&parameters[&it.name]].clone());
    let gradients: Vec<String> = gradients.collect();
    let (parameters, vector) = Parameters::pack(&trained)?;
    let mut draft = StepDraft {
        proto: forward_model(&graph)?,
        parameters: &parameters,
        optimizer: recipe.optimizer,
        gradient_norm_max: recipe.gradient_norm_max,
        has_evaluations: recipe.has_evaluations,
        writer,
    };
    draft.fix_constants(&constant);
    let step = draft.finish(&gradients, &loss.loss, &target);
    let states = initial_states(&recipe.optimizer, vector);
    let is_classes = recipe.loss.has_labels();
    Ok(StepGraph {
        classes: value.dims.last().copied().filter(|_| is_classes),
        model: encode_model(&step),
        parameters,
        output: value.name,
        states,
        optimizer: recipe.optimizer,
        has_evaluations: recipe.has_evaluations,
    })
}

/// Returns the states before the first step.
fn initial_states(optimizer: &Optimizer, vector: Tensor) -> BTreeMap<String, Tensor> {
    let elements = vector.shape().element_count();
    let zeros = || Tensor::from_vec([elements], vec![0.0_f32; elements]);
    let more = optimizer.state_names().iter().map(|name| {
        let zeros = zeros().expect("a list has the length of its values");
        (format!("{PREFIX}{name}"), zeros)
    });
    let mut states: BTreeMap<String, Tensor> = more.collect();
    states.insert(StepGraph::parameters_input(), vector);
    states
}

/// Checks that the model has each input of the batch. After that, parameters are inputs too.
fn check_inputs(
    model: &ModelProto,
    batch: &BTreeMap<String, InputType>,
) -> Result<(), GradientError> {
    let graph = model.graph.iter();
    let constants = graph.clone().flat_map(|graph| &graph.initializer);
    let constants: BTreeSet<&str> = constants.map(|it| it.name()).collect();
    let inputs = graph.flat_map(|graph| &graph.input);
    let inputs = inputs.map(|input| input.name().to_owned());
    let inputs: Vec<String> = inputs
        .filter(|it| !constants.contains(it.as_str()))
        .collect();
    match batch.keys().find(|name| !inputs.contains(name)) {
        Some(wanted) => Err(GradientError::Input {
            wanted: wanted.clone(),
            found: inputs,
        }),
        None => Ok(()),
    }
}

fn import_forward(
    model: &ModelProto,
    batch: &BTreeMap<String, InputType>,
    candidates: &[Candidate],
) -> Result<Graph, GradientError> {
    let mut bindings = Bindings::new();
    for (name, input) in batch {
        bindings = bindings.with_input(name.as_str(), input.dtype, &input.dims);
    }
    for Candidate { name, value } in candidates {
        bindings = bindings.with_input(name.as_str(), value.dtype(), value.dims());
    }
    let graph = Graph::import(encode_model(model), &bindings)?;
    let mut values = graph.values().iter();
    if let Some(value) = values.find(|value| value.name.starts_with(PREFIX)) {
        let name = value.name.clone();
        return Err(GradientError::Name { name });
    }
    Ok(graph)
}

/// Returns the inputs of the graph that are candidates, by name.
fn candidate_values(graph: &Graph, candidates: &[Candidate]) -> BTreeMap<String, ValueId> {
    let names: BTreeSet<&str> = candidates.iter().map(|it| it.name.as_str()).collect();
    let inputs = graph.inputs().iter().copied();
    let named = inputs.map(|id| (graph.value(id).name.clone(), id));
    named
        .filter(|(name, _)| names.contains(name.as_str()))
        .collect()
}

/// Returns the value of which the loss is taken. If the model ends in a `Softmax`, the
/// cross-entropy takes the logits before it.
fn find_output(graph: &Graph, recipe: &Recipe) -> Result<(ValueId, LossValue), GradientError> {
    let outputs = graph.outputs();
    let names = || outputs.iter().map(|id| graph.value(*id).name.clone());
    let mut output = match (&recipe.output, outputs) {
        (Some(wanted), _) => {
            let named = outputs.iter().find(|id| graph.value(**id).name == *wanted);
            *named.ok_or_else(|| GradientError::Output {
                wanted: wanted.clone(),
                found: names().collect(),
            })?
        }
        (None, [only]) => *only,
        (None, _) => {
            return Err(GradientError::Outputs {
                found: names().collect(),
            });
        }
    };
    let producer = graph.value(output).producer().map(|id| graph.node(id));
    if let Some(node) = producer.filter(|_| recipe.loss.has_labels())
        && node.operator_name() == "Softmax"
        && let Some(Some(logits)) = node.inputs.first()
    {
        let rank = known_dims(graph, output)?.len() as i64;
        let axis = node.proto.int("axis").unwrap_or(-1);
        if axis == -1 || axis == rank - 1 {
            output = *logits;
        }
    }
    let name = graph.value(output).name.clone();
    let dtype = graph.value(output).dtype().filter(|it| *it == DType::F32);
    let Some(dtype) = dtype else {
        let found = graph.value(output).dtype();
        return Err(match found {
            Some(found) => GradientError::Type { value: name, found },
            None => GradientError::UnknownShape { value: name },
        });
    };
    let dims = known_dims(graph, output)?;
    Ok((output, LossValue { name, dtype, dims }))
}

/// Returns the model of the forward pass with its weights inside.
fn forward_model(graph: &Graph) -> Result<ModelProto, GradientError> {
    let whole = cut::whole_graph(graph).map_err(|_| ImportError::NothingToCompute)?;
    let mut model = decode_model(whole.model)?;
    let weights: BTreeMap<_, _> = cut::weight_bytes(graph).collect();
    let inlined = cut::inline_weights(&mut model, |id| weights.get(id).cloned());
    inlined.expect("the graph was imported from a model with all weights inside");
    Ok(model)
}

/// A step graph during its construction.
struct StepDraft<'a> {
    proto: ModelProto,
    parameters: &'a Parameters,
    optimizer: Optimizer,
    gradient_norm_max: Option<f64>,
    has_evaluations: bool,
    writer: Writer,
}

impl StepDraft<'_> {
    /// Makes constants again of the candidates that are not trained.
    fn fix_constants(&mut self, constant: &[Candidate]) {
        let graph = self.proto.graph.get_or_insert_default();
        for Candidate { name, value } in constant {
            let has_input = graph.input.iter().any(|input| input.name() == name);
            graph.input.retain(|input| input.name() != name);
            if has_input {
                let constant = souk_onnx::tensor_to_proto(name.clone(), value);
                graph.initializer.push(constant);
            }
        }
    }

    /// Adds the optimiser, and puts all together.
    fn finish(mut self, gradients: &[String], loss: &str, target: &LossValue) -> ModelProto {
        let mut graph = self.proto.graph.take().unwrap_or_default();
        let is_parameter = |name: &str| {
            self.parameters
                .iter()
                .any(|parameter| parameter.name == name)
        };
        graph.input.retain(|input| !is_parameter(input.name()));
        let elements = self.parameters.elements();
        let mut nodes = self.write_parts();
        nodes.append(&mut graph.node);
        let numbers = self.optimizer.schedule(0, 0.0).len();
        let next = self.write_optimizer(gradients, numbers);
        let next = self.write_gate(next, numbers);
        let schedule_length = numbers + usize::from(self.has_evaluations);
        nodes.append(&mut self.writer.nodes);
        let vector = |name: &str| declare(name, DType::F32, &[elements]);
        let mut outputs = vec![declare(LOSS, DType::F32, &[])];
        for (input, next) in self.state_inputs().zip(next) {
            let output = next_name(&input);
            graph.input.push(vector(&input));
            outputs.push(vector(&output));
            let node = NodeProto::for_operator("Identity", &[&next], &output);
            nodes.push(NodeProto {
                name: Some(output),
                metadata_props: vec![states::fed_entry(0, &input)],
                ..node
            });
        }
        let node = NodeProto::for_operator("Identity", &[loss], LOSS);
        nodes.push(NodeProto {
            name: Some(format!("{PREFIX}{LOSS}")),
            ..node
        });
        graph
            .input
            .push(declare(&target.name, target.dtype, &target.dims));
        let schedule = StepGraph::schedule_input();
        graph
            .input
            .push(declare(&schedule, DType::F32, &[schedule_length]));
        graph.initializer.append(&mut self.writer.constants);
        ModelProto {
            graph: Some(GraphProto {
                node: nodes,
                output: outputs,
                value_info: Vec::new(),
                ..graph
            }),
            ..self.proto
        }
    }

    /// Returns the names of the fed inputs: the parameters, then the optimiser's states.
    fn state_inputs(&self) -> impl Iterator<Item = String> + use<> {
        let states = self.optimizer.state_names().iter().copied();
        let all = std::iter::once(PARAMETERS).chain(states);
        all.map(|state| format!("{PREFIX}{state}"))
    }

    /// Writes the nodes that return the previous states if the request is an evaluation, which the
    /// number after the optimiser's ones says. In a step the result has the same bits as without
    /// these nodes, because the choice computes nothing.
    fn write_gate(&mut self, next: Vec<String>, place: usize) -> Vec<String> {
        if !self.has_evaluations {
            return next;
        }
        let inputs = self.state_inputs();
        let writer = &mut self.writer;
        let place = writer.add_int(place as i64);
        let number = writer.add("Gather", &[&StepGraph::schedule_input(), &place]);
        let no = writer.add_float(f64::from(NOT_APPLIED));
        let is_applied = writer.add("Greater", &[&number, &no]);
        inputs
            .zip(next)
            .map(|(before, after)| writer.add("Where", &[&is_applied, &after, &before]))
            .collect()
    }

    /// Writes the nodes that cut the vector into the parameters.
    fn write_parts(&mut self) -> Vec<NodeProto> {
        let sizes: Vec<i64> = self
            .parameters
            .iter()
            .map(|it| it.elements() as i64)
            .collect();
        let sizes = self.writer.add_ints(&sizes);
        let vector = StepGraph::parameters_input();
        let part = |place: usize| format!("{PREFIX}part/{place}");
        let split = NodeProto::for_operator("Split", &[&vector, &sizes], "");
        let mut nodes = vec![NodeProto {
            name: Some(format!("{PREFIX}parts")),
            output: (0..self.parameters.count()).map(part).collect(),
            ..split.with("axis", 0)
        }];
        for (place, parameter) in self.parameters.iter().enumerate() {
            let dims: Vec<i64> = parameter.dims.iter().map(|dim| *dim as i64).collect();
            let dims = self.writer.add_ints(&dims);
            let node = NodeProto::for_operator("Reshape", &[&part(place), &dims], &parameter.name);
            nodes.push(NodeProto {
                name: Some(format!("{PREFIX}reshape/{place}")),
                ..node
            });
        }
        nodes
    }

    /// Writes the optimiser, and returns the next parameters and states.
    fn write_optimizer(&mut self, gradients: &[String], schedule_length: usize) -> Vec<String> {
        let writer = &mut self.writer;
        let flat: Vec<String> = gradients
            .iter()
            .zip(self.parameters.iter())
            .map(|(gradient, parameter)| writer.reshape(gradient, &[parameter.elements()]))
            .collect();
        let flat: Vec<&str> = flat.iter().map(String::as_str).collect();
        let gradient = NodeProto::for_operator("Concat", &flat, "").with("axis", 0);
        let gradient = writer.add_node(gradient);
        let gradient = match self.gradient_norm_max {
            Some(norm_max) => write_clipping(&gradient, norm_max, writer),
            None => gradient,
        };
        let numbers = StepGraph::schedule_input();
        let number = |place: usize| {
            let place = writer.add_int(place as i64);
            writer.add("Gather", &[&numbers, &place])
        };
        let schedule: Vec<String> = (0..schedule_length).map(number).collect();
        let states = self.optimizer.state_names().iter();
        let states: Vec<String> = states.map(|name| format!("{PREFIX}{name}")).collect();
        let parameters = StepGraph::parameters_input();
        match self.optimizer {
            Optimizer::Sgd(sgd) => sgd.write(&parameters, &gradient, &states, &schedule, writer),
            Optimizer::AdamW(adamw) => {
                adamw.write(&parameters, &gradient, &states, &schedule, writer)
            }
        }
    }
}

/// Writes the nodes that scale a gradient down to a norm if it is longer, by the formula of
/// PyTorch's `clip_grad_norm_`.
fn write_clipping(gradient: &str, norm_max: f64, writer: &mut Writer) -> String {
    let squares = writer.add("Mul", &[gradient, gradient]);
    let sum = writer.reduce_sum(&squares, &[0]);
    let norm = writer.add("Sqrt", &[&sum]);
    let margin = writer.add_float(1e-6);
    let divisor = writer.add("Add", &[&norm, &margin]);
    let limit = writer.add_float(norm_max);
    let factor = writer.add("Div", &[&limit, &divisor]);
    let one = writer.add_float(1.0);
    let factor = writer.add("Min", &[&factor, &one]);
    writer.add("Mul", &[gradient, &factor])
}

/// Returns the declaration of a tensor.
fn declare(name: &str, dtype: DType, dims: &[usize]) -> ValueInfoProto {
    let dims = dims.iter().map(|dim| Dimension::new_fixed(*dim as i64));
    ValueInfoProto::new_tensor(name, dtype.onnx_code(), Some(dims.collect()))
}
