//! The state of one call of a client, from the first validator that it asks to the reply.

use serde::Serialize;
use souk_market::Command;

use super::refused_batch::RefusedBatch;
use super::{NoReply, RequestAttempt};
use crate::clock::Micros;
use crate::market::market_protocol::Request;

/// The kind of a call: a question, or commands to sign.
#[derive(Clone, Debug, Serialize)]
pub(super) enum PendingCall {
    Question,
    /// Commands, with the number of signatures so far and what validators stated about the last
    /// one's batch.
    Commands {
        commands: Vec<Command>,
        signed: u32,
        refused: RefusedBatch,
    },
}

impl PendingCall {
    /// Returns commands that no signature covers yet.
    pub(super) fn of_commands(commands: Vec<Command>) -> PendingCall {
        PendingCall::Commands {
            commands,
            signed: 0,
            refused: RefusedBatch::default(),
        }
    }
}

/// A question under way.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Open {
    pub(super) matter: PendingCall,
    /// The question to put; none until the batch is signed.
    pub(super) question: Option<Box<Request>>,
    pub(super) began: Micros,
    /// The number of validators tried, beginning with `first`.
    pub(super) tried: usize,
    pub(super) first: usize,
    pub(super) putting: Option<RequestAttempt>,
    /// Whether a validator may have accepted it that did not answer, or refused it.
    pub(super) repeated: bool,
    pub(super) last: NoReply,
}
