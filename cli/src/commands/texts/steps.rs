//! Steps of one sequence, wherever they are done, as a session of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use souk_node::memory::Tensor;
use souk_vocabulary::processor::session::{SequenceStep, Session};
use souk_vocabulary::processor::{Engine, Outcome, RunError};

/// What does a step.
type Step<'a> = Box<dyn FnMut(&BTreeMap<String, Tensor>) -> Result<Outcome, RunError> + Send + 'a>;

/// What a step of a session that is bought gives: how long it was at work is on its bill.
pub fn bought(outputs: BTreeMap<String, Tensor>) -> Outcome {
    Outcome {
        outputs,
        busy: Duration::ZERO,
        energy: None,
        operators: 0,
        engine: Engine::Own,
    }
}

/// Steps of one sequence, whose states stay where they are.
pub struct Steps<'a>(pub Step<'a>);

impl Session for Steps<'_> {
    fn step_all(&mut self, steps: &[SequenceStep]) -> Vec<Result<Outcome, RunError>> {
        steps.iter().map(|step| (self.0)(&step.inputs)).collect()
    }

    fn export(&self, _: u32) -> Result<BTreeMap<String, Tensor>, RunError> {
        Err(RunError::Engine {
            engine: "session",
            reason: "states stay where they are".to_owned(),
        })
    }
}
