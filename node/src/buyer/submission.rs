//! Defines the channels between a job and its caller: requests, answers, events, and two signals
//! (cancel, and a warning before the leases of a session end).

use std::collections::BTreeMap;
use std::sync::Arc;

use souk_memory::Tensor;
use souk_roles::job::JobEvent;
use tokio::sync::{Notify, mpsc, oneshot};

use super::job::RequestInputs;

/// Requests of the same shapes. A job of one request is a stream of one.
#[derive(Debug)]
pub struct Requests {
    /// How many requests will come; the plan and the length of leases depend on it.
    pub count: u32,
    /// How many requests can run at a time; at most [`WINDOW_MAX`](super::WINDOW_MAX).
    pub window: u32,
    /// The inputs of each request. You must drop the sender after the last one.
    pub inputs: mpsc::Receiver<RequestInputs>,
}

/// The answer to one request.
#[derive(Debug)]
pub struct Answer {
    /// The request's number, from 0. Answers come in this order, except those of a session.
    pub number: u32,
    /// The outputs by name.
    pub outputs: BTreeMap<String, Tensor>,
    kept: oneshot::Sender<()>,
}

/// The requests of a job and the channels to its caller.
#[derive(Debug)]
pub struct Submission {
    /// The requests to answer.
    pub requests: Requests,
    /// Receives the answers. You must [confirm](Answer::confirm_stored) each, or the job ends.
    pub answers: mpsc::Sender<Answer>,
    /// Receives the events of the job, for display.
    pub progress: mpsc::Sender<JobEvent>,
    /// Stops the job when you notify it.
    pub cancel: Arc<Notify>,
    /// Notifies you when the leases of a session end soon: your next request must keep the states
    /// that you want, and be the last one. You can ignore it.
    pub warning: Arc<Notify>,
    /// Whether the lease of the plan was already bought, under the lease's id.
    pub is_bought: bool,
}

impl Answer {
    /// Returns an answer, and a receiver that fires when the caller keeps it.
    pub(super) fn new(
        number: u32,
        outputs: BTreeMap<String, Tensor>,
    ) -> (Answer, oneshot::Receiver<()>) {
        let (kept, told) = oneshot::channel();
        let answer = Answer {
            number,
            outputs,
            kept,
        };
        (answer, told)
    }

    /// Confirms that you stored the answer: the job will not compute it again.
    pub fn confirm_stored(self) -> BTreeMap<String, Tensor> {
        // If the job has ended, nothing waits for this.
        let _ = self.kept.send(());
        self.outputs
    }
}
