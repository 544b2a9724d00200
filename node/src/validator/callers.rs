//! Who waits for a response of the core, and how each is reached.

use slab::Slab;
use souk_consensus::replica::{Answer, ChangeError, ProposalRefusal};
use souk_roles::validator::action::Response;
use souk_roles::validator::event::{Caller, ReadMoment};
use souk_roles::validator::questions::AnsweringMachine;
use tokio::sync::oneshot;

/// What became of commands that were proposed together.
pub(super) type ProposalEnd = Result<Vec<Answer>, ProposalRefusal>;

/// One who waits. One who no longer does is no error.
pub(super) enum Waiting<M: AnsweringMachine> {
    /// For commands.
    Proposal(oneshot::Sender<ProposalEnd>),
    /// For what the machine says.
    Question(oneshot::Sender<(M::Reply, ReadMoment)>),
    /// For a change of members.
    Members(oneshot::Sender<Result<(), ChangeError>>),
}

/// All that wait, each under a number that is given again once it has its response.
pub(super) struct Callers<M: AnsweringMachine>(Slab<Waiting<M>>);

impl<M: AnsweringMachine> Callers<M> {
    pub(super) fn new() -> Self {
        Self(Slab::new())
    }

    /// Names one who waits.
    pub(super) fn insert(&mut self, waiting: Waiting<M>) -> Caller {
        Caller(self.0.insert(waiting) as u64)
    }

    /// Tells one, who then waits no more.
    pub(super) fn respond(&mut self, caller: Caller, response: Response<M>) {
        let place = usize::try_from(caller.0).expect("it was a place here");
        match (self.0.remove(place), response) {
            (Waiting::Proposal(reply), Response::Proposed(answers)) => {
                drop(reply.send(Ok(answers)));
            }
            (Waiting::Proposal(reply), Response::Refused(refused)) => {
                drop(reply.send(Err(refused)));
            }
            // Who asked a question sees that it is not answered.
            (Waiting::Question(reply), Response::Refused(_)) => drop(reply),
            (
                Waiting::Question(reply),
                Response::Answered {
                    reply: said,
                    moment,
                },
            ) => {
                drop(reply.send((said, moment)));
            }
            (Waiting::Members(reply), Response::Members(changed)) => drop(reply.send(changed)),
            _ => unreachable!("the response is to what was asked"),
        }
    }
}
