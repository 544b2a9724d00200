//! Runs the sessions of the lease (device time that a buyer has bought) that this process serves.
//! In a session, such as the generation of a text, the device keeps a model's states from one
//! request to the next. Each session has a thread that holds its program and the states of its
//! sequences.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use souk_memory::{ContentId, DType, Tensor};
use souk_onnx as onnx;
use souk_onnx::states::StatePort;
use souk_onnx::subgraph::Port;
use souk_vocabulary::processor::session::State;
use souk_vocabulary::processor::stepped_session::SteppedSession;
use souk_vocabulary::processor::{Outcome, Program};

use super::error::{SessionError, TaskError};
use super::task::Task;

/// The open sessions, by model.
#[derive(Default)]
pub(super) struct Sessions(Mutex<BTreeMap<ContentId, Arc<SteppedSession>>>);

impl Sessions {
    /// Returns whether a task lacks inputs of its model, so that it can be a step of a session.
    pub(super) fn may_step(task: &Task, program: &dyn Program) -> bool {
        let mut inputs = program.inputs().iter();
        inputs.any(|input| !task.inputs.contains_key(&input.name))
    }

    /// Runs a step of a sequence in the session of a task's model. Returns none if the task brings
    /// all inputs, or the model has no states. The first step opens the session.
    pub(super) fn run_step(
        &self,
        task: &Task,
        program: &Arc<dyn Program>,
        model: impl Fn() -> Result<Bytes, TaskError>,
    ) -> Result<Option<Outcome>, TaskError> {
        if !Self::may_step(task, &**program) {
            return Ok(None);
        }
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let open = match sessions.get(&task.model) {
            Some(open) => open.clone(),
            None => {
                let ports = state_ports(model()?, task.model)?;
                if ports.is_empty() {
                    return Ok(None);
                }
                let open = Arc::new(open_session(program.clone(), ports)?);
                sessions.insert(task.model, open.clone());
                open
            }
        };
        drop(sessions);
        let stepped = open.step_sequence(task.sequence, task.inputs.clone());
        Ok(Some(stepped.map_err(SessionError::Step)?))
    }
}

fn state_ports(model: Bytes, id: ContentId) -> Result<Vec<StatePort>, TaskError> {
    let decoded = onnx::decode_model(model).map_err(|cause| TaskError::Model { id, cause })?;
    onnx::states::model_states(&decoded).map_err(|cause| SessionError::States(cause).into())
}

/// Opens a session whose states are zeros of the sizes that the model declares.
fn open_session(
    program: Arc<dyn Program>,
    ports: Vec<StatePort>,
) -> Result<SteppedSession, SessionError> {
    let states = ports.into_iter().map(|port| {
        let stated = program.inputs().iter().find(|it| it.name == port.input);
        let value = stated.and_then(zero_tensor);
        let unsized_state = || SessionError::Sizes {
            name: port.input.clone(),
        };
        let value = value.ok_or_else(unsized_state)?;
        Ok(State { port, value })
    });
    let states: Vec<State> = states.collect::<Result<_, SessionError>>()?;
    Ok(SteppedSession::open(program, states)?)
}

/// Returns zeros of an input's declared sizes, if it declares all of them.
fn zero_tensor(port: &Port) -> Option<Tensor> {
    let dims: Vec<usize> = port.dims.as_ref()?.iter().copied().collect::<Option<_>>()?;
    let elements = dims
        .iter()
        .try_fold(1_usize, |all, size| all.checked_mul(*size))?;
    if port.dtype != DType::F32 {
        return None;
    }
    let mut floats = Vec::new();
    floats.try_reserve_exact(elements).ok()?;
    floats.resize(elements, 0.0_f32);
    Tensor::from_vec(dims, floats).ok()
}
