//! Remembers the callers that wait for a response of the validator's core, each under a number, and
//! sends each its response. The validator's task uses it for proposals, queries and changes of
//! members.

use slab::Slab;
use souk_consensus::replica::{Answer, ChangeError, NoAnswer, ProposalRefusal};
use souk_roles::validator::action::Response;
use souk_roles::validator::event::{Caller, ReadMoment};
use souk_roles::validator::questions::AnsweringMachine;
use tokio::sync::oneshot;

/// The outcome of commands that were proposed together: the result of each.
pub(super) type ProposalEnd = Result<Vec<Result<Vec<u8>, NoAnswer>>, ProposalRefusal>;

/// A waiting caller. It may have gone away; the response is then dropped.
pub(super) enum WaitingCaller<M: AnsweringMachine> {
    /// It proposed commands.
    Proposal(oneshot::Sender<ProposalEnd>),
    /// It queried the machine.
    Question(oneshot::Sender<(M::Reply, ReadMoment)>),
    /// It requested a change of members.
    Members(oneshot::Sender<Result<(), ChangeError>>),
}

/// All waiting callers, each under a number that is reused after the response.
pub(super) struct Callers<M: AnsweringMachine>(Slab<WaitingCaller<M>>);

impl<M: AnsweringMachine> Callers<M> {
    pub(super) fn new() -> Self {
        Self(Slab::new())
    }

    /// Assigns a number to a caller.
    pub(super) fn insert(&mut self, waiting: WaitingCaller<M>) -> Caller {
        Caller(self.0.insert(waiting) as u64)
    }

    /// Sends a caller its response, and removes the caller. The response must be of the kind that
    /// the caller asked for.
    pub(super) fn send_response(&mut self, caller: Caller, response: Response<M>) {
        let place = usize::try_from(caller.0).expect("it was a place here");
        match (self.0.remove(place), response) {
            (WaitingCaller::Proposal(reply), Response::Proposed(answers)) => {
                let result = |answer: Answer| answer.result;
                drop(reply.send(Ok(answers.into_iter().map(result).collect())));
            }
            (WaitingCaller::Proposal(reply), Response::Foreseen { results, .. }) => {
                drop(reply.send(Ok(results.into_iter().map(Ok).collect())));
            }
            (WaitingCaller::Proposal(reply), Response::Refused(refused)) => {
                drop(reply.send(Err(refused)));
            }
            // The caller of a question learns of the refusal because the channel closes.
            (WaitingCaller::Question(reply), Response::Refused(_)) => drop(reply),
            (
                WaitingCaller::Question(reply),
                Response::Answered {
                    reply: said,
                    moment,
                },
            ) => {
                drop(reply.send((said, moment)));
            }
            (WaitingCaller::Members(reply), Response::Members(changed)) => {
                drop(reply.send(changed))
            }
            _ => unreachable!("the response is to what was asked"),
        }
    }
}
