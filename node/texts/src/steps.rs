//! Adapts a function that computes one step of one sequence to the trait [`Session`], so that a
//! decoder uses it in the same way on this machine and through leased providers.

use std::collections::BTreeMap;
use std::time::Duration;

use souk_node::memory::Tensor;
use souk_vocabulary::processor::session::{SequenceStep, Session};
use souk_vocabulary::processor::{Engine, Outcome, RunError};

/// A function that computes a step.
type Step<'a> = Box<dyn FnMut(&BTreeMap<String, Tensor>) -> Result<Outcome, RunError> + Send + 'a>;

/// Returns the outcome of a step of a leased session, without its busy time: only the bill has it.
pub fn step_outcome(outputs: BTreeMap<String, Tensor>) -> Outcome {
    Outcome {
        outputs,
        busy: Duration::ZERO,
        energy: None,
        operators: 0,
        engine: Engine::Own,
    }
}

/// A session of one sequence, which calls a function for each step. The sequence's states stay
/// where the function computes them.
pub struct Steps<'a>(pub Step<'a>);

impl Session for Steps<'_> {
    fn step_all(&mut self, steps: &[SequenceStep]) -> Vec<Result<Outcome, RunError>> {
        steps.iter().map(|step| (self.0)(&step.inputs)).collect()
    }

    fn export_states(&self, _: u32) -> Result<BTreeMap<String, Tensor>, RunError> {
        Err(RunError::Engine {
            engine: "session",
            reason: "states stay where they are".to_owned(),
        })
    }
}
