//! Sessions of the lease that a process is for: each is stepped by a thread of its own, which holds
//! its program and its states.

use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use souk_memory::{ContentId, DType, Tensor};
use souk_onnx as onnx;
use souk_onnx::states::StatePort;
use souk_onnx::subgraph::Port;
use souk_vocabulary::processor::session::State;
use souk_vocabulary::processor::{Outcome, Program, RunError};

use super::error::{SessionError, TaskError};
use super::task::Task;

/// The sessions by the models that they are of.
#[derive(Default)]
pub(super) struct Sessions(Mutex<BTreeMap<ContentId, Arc<OpenSession>>>);

/// A session that is open.
pub(super) struct OpenSession(Sender<Step>);

/// The inputs of a step, and who waits for what it gives.
type Step = (BTreeMap<String, Tensor>, Sender<Result<Outcome, RunError>>);

impl Sessions {
    /// Steps the session of a task's model; none where the task brings all that the model reads,
    /// or reads no states. The first step opens the session.
    pub(super) fn step(
        &self,
        task: &Task,
        program: &Arc<dyn Program>,
        model: impl Fn() -> Result<Bytes, TaskError>,
    ) -> Result<Option<Outcome>, TaskError> {
        let mut inputs = program.inputs().iter();
        if inputs.all(|input| task.inputs.contains_key(&input.name)) {
            return Ok(None);
        }
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let open = match sessions.get(&task.model) {
            Some(open) => open.clone(),
            None => {
                let ports = ports(model()?, task.model)?;
                if ports.is_empty() {
                    return Ok(None);
                }
                let open = Arc::new(OpenSession::new(program.clone(), ports)?);
                sessions.insert(task.model, open.clone());
                open
            }
        };
        drop(sessions);
        Ok(Some(open.step(task.inputs.clone())?))
    }
}

fn ports(model: Bytes, id: ContentId) -> Result<Vec<StatePort>, TaskError> {
    let decoded = onnx::decode(model).map_err(|cause| TaskError::Model { id, cause })?;
    onnx::states::states(&decoded).map_err(|cause| SessionError::States(cause).into())
}

impl OpenSession {
    /// A session whose states are zeros of the sizes that the model states.
    fn new(program: Arc<dyn Program>, ports: Vec<StatePort>) -> Result<Self, SessionError> {
        let states = ports.into_iter().map(|port| {
            let stated = program.inputs().iter().find(|it| it.name == port.input);
            let value = stated.and_then(zeros);
            let unsized_state = || SessionError::Sizes {
                name: port.input.clone(),
            };
            let value = value.ok_or_else(unsized_state)?;
            Ok(State { port, value })
        });
        let states: Vec<State> = states.collect::<Result<_, SessionError>>()?;
        let (give, steps) = channel::<Step>();
        let (opened, told) = channel();
        let thread = std::thread::Builder::new().name("session".to_owned());
        let stepping = move || {
            let mut session = match program.session(states) {
                Ok(session) => session,
                Err(error) => return drop(opened.send(Err(error))),
            };
            // Who opened it waits for this.
            let _ = opened.send(Ok(()));
            for (inputs, answer) in steps {
                // Who gave up waiting wants no answer.
                let _ = answer.send(session.step(&inputs));
            }
        };
        thread.spawn(stepping).map_err(SessionError::Thread)?;
        told.recv().map_err(|_| SessionError::Gone)??;
        Ok(Self(give))
    }

    fn step(&self, inputs: BTreeMap<String, Tensor>) -> Result<Outcome, TaskError> {
        let (answer, told) = channel();
        let given = self.0.send((inputs, answer));
        given.map_err(|_| SessionError::Gone)?;
        Ok(told.recv().map_err(|_| SessionError::Gone)??)
    }
}

/// Zeros of the sizes that an input states, if it states all.
fn zeros(port: &Port) -> Option<Tensor> {
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
