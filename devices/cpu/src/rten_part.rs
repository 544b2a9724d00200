//! Runs a part of a graph on rten, and checks whether its result can be trusted. If it is doubtful,
//! the caller computes the same nodes on the reference kernels, where those have all of them.
//!
//! rten can lose a NaN (its largest of several is a number if any is), or produce one where a
//! rewritten activation meets minus infinity. The second shows in the outputs. For the first, this
//! module checks the values that go into nodes which would lose a NaN.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use rten::ThreadPool;
use souk_memory::{DType, Tensor};
use souk_onnx::graph::Graph;
use souk_onnx::schema::{OperatorSchema, RtenClass};
use souk_onnx::subgraph::{CompileError, Port};
use souk_onnx::types::Types;
use souk_onnx::{NodeProto, ValueInfoProto};
use souk_reference::Scope;
use souk_reference::extents::{self, ExtentsError, ValueSummary, summarise_tensor};
use souk_vocabulary::processor::RunError;

use super::rten_engine::{ENGINE, RtenModel};

/// Operators whose result rten may make a number although an element is NaN.
const LOSES: &[&str] = &["GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMin"];

/// A part of a graph loaded by rten.
pub(super) struct RtenPart {
    model: RtenModel,
    types: Types,
    opset: i64,
    /// Names of the inputs, and their summaries in the last run whose sizes were all correct.
    input_names: Vec<String>,
    last_summaries: Mutex<Option<Vec<ValueSummary>>>,
    /// Floats that go into nodes which lose a NaN without trace.
    watched: BTreeSet<String>,
    /// The watched values that are outputs only to be watched.
    unwanted: Vec<String>,
}

/// The result of a run by rten.
pub(super) struct PartResult {
    pub outputs: BTreeMap<String, Tensor>,
    /// Whether the reference kernels may compute another result, because some value is NaN.
    pub is_doubtful: bool,
}

impl RtenPart {
    /// Loads a part of a graph; rten rewrites it only if `optimise` is set.
    pub fn load_graph(
        mut part: Graph,
        threads: Arc<ThreadPool>,
        optimise: bool,
    ) -> Result<Self, CompileError> {
        let watched = nan_sensitive_inputs(&part);
        let made = |name: &&String| part.nodes().iter().any(|node| node.output.contains(name));
        let is_output = |name: &str| part.outputs.iter().any(|port| port.name == name);
        let unwanted = watched.iter().filter(made).filter(|name| !is_output(name));
        let unwanted: Vec<String> = unwanted.cloned().collect();
        let ports = unwanted.iter().map(|name| Port {
            name: name.clone(),
            dtype: DType::F32,
            dims: None,
        });
        let outputs: Vec<Port> = part.outputs.iter().cloned().chain(ports).collect();
        let code = DType::F32.onnx_code();
        let stated = unwanted
            .iter()
            .map(|name| ValueInfoProto::new_tensor(name.as_str(), code, None));
        part.model
            .graph
            .get_or_insert_default()
            .output
            .extend(stated);
        let inputs = part.inputs.iter().map(|port| port.name.clone());
        Ok(Self {
            input_names: inputs.collect(),
            last_summaries: Mutex::new(None),
            opset: part.opset,
            model: RtenModel::load_with(&part, threads, &outputs, optimise)?,
            types: part.dtypes,
            watched,
            unwanted,
        })
    }

    /// Runs once; `inputs` must have been checked against the ports, and `nodes` must be those it
    /// was loaded from.
    pub fn run(
        &self,
        nodes: &[NodeProto],
        inputs: &Scope,
        weights: &Scope,
    ) -> Result<PartResult, RunError> {
        self.look_ahead(nodes, inputs, weights)?;
        let mut outputs = self.model.run(inputs)?;
        let watched = self
            .watched
            .iter()
            .filter(|name| !outputs.contains_key(*name));
        let mut given = watched.filter_map(|name| inputs.get(name).or_else(|| weights.get(name)));
        let is_doubtful = given.any(has_nan) || outputs.values().any(has_nan);
        for name in &self.unwanted {
            outputs.remove(name);
        }
        Ok(PartResult {
            outputs,
            is_doubtful,
        })
    }
}

impl RtenPart {
    /// Checks that no value gets too large and no integer leaves 32 bits, because rten checks
    /// neither.
    fn look_ahead(
        &self,
        nodes: &[NodeProto],
        inputs: &Scope,
        weights: &Scope,
    ) -> Result<(), RunError> {
        let summaries = self
            .input_names
            .iter()
            .map(|name| inputs.get(name).map(summarise_tensor));
        let summaries: Option<Vec<ValueSummary>> = summaries.collect();
        let mut last = self
            .last_summaries
            .lock()
            .unwrap_or_else(|held| held.into_inner());
        if summaries.is_some() && *last == summaries {
            return Ok(());
        }
        let unknown = || RunError::Engine {
            engine: ENGINE,
            reason: "it cannot be told how large its values are".to_owned(),
        };
        match extents::infer_shapes(nodes, &self.types, self.opset, inputs, weights) {
            Ok(_) => *last = summaries,
            Err(ExtentsError::TooLarge(error)) => return Err(error),
            Err(ExtentsError::Unknown) => return Err(unknown()),
        }
        Ok(())
    }
}

/// Returns the floats that go into nodes of a part which lose a NaN without trace.
fn nan_sensitive_inputs(part: &Graph) -> BTreeSet<String> {
    let loses = |node: &&NodeProto| {
        LOSES.contains(&node.op_type())
            || OperatorSchema::for_operator(node.op_type()).rten == Some(RtenClass::Compare)
    };
    let read = part
        .nodes()
        .iter()
        .filter(loses)
        .flat_map(|node| &node.input);
    let is_float = |name: &&String| part.dtypes.get(*name) == Some(&DType::F32);
    read.filter(is_float).cloned().collect()
}

/// Whether a tensor of 32-bit floats has a NaN.
fn has_nan(tensor: &Tensor) -> bool {
    tensor
        .elements::<f32>()
        .is_ok_and(|values| values.iter().any(|value| value.is_nan()))
}
