//! The CPU's engine for decoders of language models: graphs with states, which keep the keys and
//! values of earlier tokens. The compiler of a program offers every graph to [`DecoderModel`]
//! first, and gives those that it does not know as decoders to the other engines.
//!
//! Rows of tokens go through norms, products and attention over caches that are written in place.
//! Weights stay as narrow as in the model, because reading them bounds the time of a token. The
//! order of sums in each row does not depend on the rows computed with it, so a text depends
//! neither on how its prompt was cut nor on its batch.

mod attention;
mod cache;
mod lanes;
mod matrix;
mod plan;
mod products;
mod rows;
mod run;
mod session;

use std::collections::BTreeMap;
use std::sync::Arc;

use rten::ThreadPool;
use souk_host::isa::Isa;
use souk_memory::{DType, Tensor};
use souk_onnx::graph::Graph;
use souk_vocabulary::processor::RunError;
use souk_vocabulary::processor::session::{SequenceStep, State};

use lanes::LaneIsa;
use matrix::Matrix;
use plan::{Action, DecoderPlan};
pub(super) use session::{DecoderSession, StepResult};

/// A decoder ready to run.
pub(super) struct DecoderModel {
    plan: DecoderPlan,
    matrices: Vec<Matrix>,
    threads: Arc<ThreadPool>,
    isa: Isa,
    lane_isa: LaneIsa,
}

impl DecoderModel {
    /// Builds the model of a graph, if this engine knows it as a decoder; otherwise returns the
    /// graph unchanged, so that another engine can compile it. Frees weights as it packs them.
    pub fn new(graph: Graph, threads: &Arc<ThreadPool>) -> Result<Self, Box<Graph>> {
        let Some(mut plan) = DecoderPlan::new(&graph) else {
            return Err(Box::new(graph));
        };
        drop(graph);
        let given = std::mem::take(&mut plan.matrices).into_iter();
        let packed = threads.run(|| given.map(|given| Matrix::pack_source(&given)).collect());
        let packed: Option<Vec<Matrix>> = packed;
        Ok(Self {
            plan,
            matrices: packed.expect("each was checked when the plan was made"),
            threads: threads.clone(),
            isa: Isa::detect_widest(),
            lane_isa: LaneIsa::best_supported(),
        })
    }

    /// A session whose sequences begin with these states.
    pub fn open_session(&self, states: Vec<State>) -> Result<DecoderSession<'_>, RunError> {
        DecoderSession::new(self, states)
    }

    /// Runs once with the states as inputs, and returns the new states among the outputs. You
    /// should open a session for more than one step, because each run packs all states anew.
    pub fn run(
        &self,
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<BTreeMap<String, Tensor>, RunError> {
        let mut inputs = inputs.clone();
        let states = self.plan.states.iter().map(|state| {
            let value = inputs.remove(&state.port.input);
            let value = value.ok_or_else(|| RunError::InputMissing {
                name: state.port.input.clone(),
                dtype: DType::F32,
            });
            Ok(State {
                port: state.port.clone(),
                value: value?,
            })
        });
        let mut session = self.open_session(states.collect::<Result<_, RunError>>()?)?;
        let step = SequenceStep {
            sequence: 0,
            inputs,
        };
        let stepped = session.run_steps(&[step]).pop();
        let (mut outputs, _) = stepped.expect("a step has an outcome")?;
        outputs.extend(session.outputs_of_states(0));
        Ok(outputs)
    }

    /// Tokens there are.
    fn vocabulary_size(&self) -> usize {
        let embeds = self.plan.steps.iter().filter_map(|step| match step.action {
            Action::Embed { matrix } => Some(self.matrices[matrix].rows),
            _ => None,
        });
        embeds.min().unwrap_or(0)
    }
}
