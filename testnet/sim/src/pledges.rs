//! What replicas told each other, and must still know after any crash: whom they voted for, and
//! what they acknowledged.

use std::collections::BTreeMap;

use bytes::Bytes;
use souk_consensus::wire::PeerMessage;
use souk_consensus::{LogIndex, ReplicaId, Term};

/// raft's numbers for an acknowledgement of entries, for who stands for election, and for a vote.
const ACKNOWLEDGEMENT: i32 = 4;
const CANDIDACY: i32 = 5;
const VOTE: i32 = 6;

/// Each of these is a handful of numbers: a longer frame is none.
const PLEDGE_BYTES_MAX: usize = 128;

/// What a replica told others in a term.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pledge {
    pub term: u64,
    /// The last entry that it acknowledged.
    pub last: u64,
    /// Whom it voted for; nobody is 0.
    pub vote: u64,
}

impl Pledge {
    /// What a message pledges, if anything.
    pub fn of(bytes: &Bytes) -> Option<Self> {
        if bytes.len() > PLEDGE_BYTES_MAX {
            return None;
        }
        let Ok(PeerMessage::Raft(message)) = PeerMessage::decode(bytes.clone()) else {
            return None;
        };
        let (last, vote) = match message.msg_type as i32 {
            ACKNOWLEDGEMENT if !message.reject => (message.index, 0),
            CANDIDACY => (0, message.from),
            VOTE if !message.reject => (0, message.to),
            _ => return None,
        };
        let term = message.term;
        Some(Self { term, last, vote })
    }
}

/// What each replica pledged in the last term in which it did.
#[derive(Debug, Default)]
pub struct Pledges {
    last: BTreeMap<ReplicaId, Pledge>,
}

impl Pledges {
    /// A replica pledges something. Gives what it contradicts.
    pub fn on_told(&mut self, id: ReplicaId, told: Pledge) -> Option<String> {
        let known = self.last.entry(id).or_default();
        if told.term > known.term {
            *known = told;
        }
        if told.term < known.term {
            return None;
        }
        known.last = known.last.max(told.last);
        if known.vote == 0 {
            known.vote = told.vote;
        }
        let Pledge { term, vote, .. } = *known;
        let is_other = told.vote != 0 && told.vote != vote;
        is_other.then(|| format!("in term {term} it votes for {vote} and for {}", told.vote))
    }

    /// A replica starts from its disk. Gives what it does not know any more.
    pub fn on_start(&self, id: ReplicaId, term: Term, last: LogIndex) -> Option<String> {
        let told = self.last.get(&id)?;
        let is_known = term.0 > told.term || (term.0 == told.term && last.0 >= told.last);
        (!is_known).then(|| {
            format!(
                "it spoke in term {} of entry {}, and knows of term {} and entry {}",
                told.term, told.last, term.0, last.0
            )
        })
    }
}
