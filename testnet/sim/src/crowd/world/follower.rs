//! Follows the leases of all jobs of a buyer, in the same way as a node does in
//! `buyer/lease_follower.rs`: one question about all open leases whenever the account changed, and
//! one question about each lease that is no longer open.

use std::collections::BTreeMap;

use souk_market::{Lease, LeaseId};
use souk_roles::job::Event;
use souk_roles::market::client::{Event as ClientEvent, Reply};
use souk_roles::market::market_protocol::{Answer, Request};

use super::{Crowd, CrowdEvent};

/// The pause between two rounds of questions, in microseconds; one round finds all changes since
/// the last one.
const LOOK_PAUSE_US: u64 = 250_000;

/// The leases that the jobs of one buyer follow.
#[derive(Default)]
pub struct LeaseFollower {
    /// Each with the number of its job, and its last known state.
    followed: BTreeMap<LeaseId, (u64, Option<Box<Lease>>)>,
    /// The leases that the current round of questions has not asked about yet.
    left: Vec<LeaseId>,
    /// Whether a round of questions or the pause after it is in progress, and whether another one
    /// must follow.
    is_looking: bool,
    looks_again: bool,
}

/// A question about followed leases.
pub enum FollowerQuestion {
    /// All open leases of the account.
    Open,
    /// One lease that is not open.
    One,
}

impl Crowd {
    /// Follows these leases for a job from now on, and no others.
    pub fn follow_leases(&mut self, buyer: usize, job: u64, leases: &[LeaseId]) {
        let followed = &mut self.customer_mut(buyer).follower.followed;
        followed.retain(|lease, (of, _)| *of != job || leases.contains(lease));
        let before = followed.len();
        for lease in leases {
            followed.entry(*lease).or_insert((job, None));
        }
        if followed.len() > before {
            self.look_at_followed(buyer);
        }
    }

    /// Asks for a buyer's followed leases, because its account changed or another one is followed.
    pub fn look_at_followed(&mut self, buyer: usize) {
        let follower = &mut self.customer_mut(buyer).follower;
        if follower.is_looking {
            follower.looks_again = true;
            return;
        }
        if follower.followed.is_empty() {
            return;
        }
        follower.is_looking = true;
        follower.left = follower.followed.keys().copied().collect();
        let account = self.machines[buyer].account;
        self.ask_for_follower(buyer, FollowerQuestion::Open, Request::Leases(account));
    }

    /// Ends the pause after a look.
    pub fn end_look_pause(&mut self, buyer: usize) {
        let follower = &mut self.customer_mut(buyer).follower;
        follower.is_looking = false;
        if std::mem::take(&mut follower.looks_again) {
            self.look_at_followed(buyer);
        }
    }

    pub fn on_followed_reply(&mut self, buyer: usize, what: FollowerQuestion, reply: Reply) {
        let word = match reply {
            Reply::Answer(word) => *word,
            // The look is over, and another one follows its pause.
            _ => {
                let follower = &mut self.customer_mut(buyer).follower;
                follower.left.clear();
                follower.looks_again = true;
                return self.ask_next_followed(buyer);
            }
        };
        match (what, word) {
            (FollowerQuestion::Open, Answer::Leases(leases)) => {
                let left = &mut self.customer_mut(buyer).follower.left;
                left.retain(|id| leases.iter().all(|lease| lease.id != *id));
                for lease in leases {
                    self.report_lease(buyer, Box::new(lease));
                }
            }
            (FollowerQuestion::One, Answer::Lease(Some(lease))) => self.report_lease(buyer, lease),
            _ => {}
        }
        self.ask_next_followed(buyer);
    }

    /// Asks for the next lease that is not open, or pauses.
    fn ask_next_followed(&mut self, buyer: usize) {
        match self.customer_mut(buyer).follower.left.pop() {
            Some(lease) => {
                self.ask_for_follower(buyer, FollowerQuestion::One, Request::Lease(lease))
            }
            None => self.add_event(self.now + LOOK_PAUSE_US, CrowdEvent::LookPause(buyer)),
        }
    }

    /// Reports a followed lease to its job, if it changed.
    fn report_lease(&mut self, buyer: usize, lease: Box<Lease>) {
        let followed = &mut self.customer_mut(buyer).follower.followed;
        let Some((job, known)) = followed.get_mut(&lease.id) else {
            return;
        };
        if known.as_ref() != Some(&lease) {
            let job = *job;
            *known = Some(lease.clone());
            self.tell_job(job, Event::Changed(lease));
        }
    }

    fn ask_for_follower(&mut self, buyer: usize, what: FollowerQuestion, request: Request) {
        let asked = self.note_follower_question(buyer, what);
        let question = Box::new(request);
        self.tell_client(buyer, ClientEvent::Ask { asked, question });
    }
}
