//! Remembers the votes and acknowledgements that each replica has sent to others, and checks that
//! it still knows them after a crash: a replica that forgets one can break the group.

use std::collections::BTreeMap;

use bytes::Bytes;
use souk_consensus::wire::PeerMessage;
use souk_consensus::{LogIndex, ReplicaId, Term};

/// raft's message types of an acknowledgement of entries, a candidacy, and a vote.
const ACKNOWLEDGEMENT: i32 = 4;
const CANDIDACY: i32 = 5;
const VOTE: i32 = 6;

/// Maximum bytes of these messages, which hold a few numbers: a longer frame is another message.
const PLEDGE_BYTES_MAX: usize = 128;

/// A replica's pledges in a term.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pledge {
    pub term: u64,
    /// The last acknowledged entry.
    pub last: u64,
    /// The id of the replica that it voted for, or 0.
    pub vote: u64,
}

impl Pledge {
    /// Returns the pledge in a message, if there is one.
    pub fn from_message(bytes: &Bytes) -> Option<Self> {
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

/// Each replica's pledges in its latest term.
#[derive(Debug, Default)]
pub struct Pledges {
    last: BTreeMap<ReplicaId, Pledge>,
}

impl Pledges {
    /// Records a replica's pledge and returns its contradiction to an earlier one, if any.
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

    /// Checks a replica that starts from its disk, and returns the pledge that it has lost, if any.
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
