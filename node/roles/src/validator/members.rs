//! Who the validators are, as one of them sees it, and what the leader says to an order about them
//! before it puts it into the log.
//!
//! Whether an order may be given is decided by every replica alike, from what the log holds.
//! Whether it would do harm just now (too few left that run, a leader that is gone) only the leader
//! can tell.

use souk_consensus::ReplicaId;
use souk_consensus::replica::{Role, Status};
use souk_market::{AccountKey, Millis};

use super::steps::Group;
use crate::market::market_protocol::{Answer, Member, Members, OrderRefusal, Standing};
use crate::market::roster::{Order, Roster, SignedOrder};

/// What comes before an order is proposed.
#[derive(Clone, Debug)]
pub enum OrderEntry {
    /// It is answered at once.
    Answer(Box<Answer>),
    /// The newcomer is to be reached first: it is proposed if it is.
    Reach {
        /// Who.
        account: AccountKey,
        /// Where.
        address: String,
    },
    /// It is proposed.
    Propose,
}

/// What a validator does about an order that somebody gives it.
pub fn receive_order(order: &SignedOrder, roster: &Roster, status: &Status) -> OrderEntry {
    let declined = |declined| OrderEntry::Answer(Box::new(Answer::Ordered(Err(declined))));
    if let Err(refusal) = order.verify() {
        return declined(refusal.into());
    }
    if status.role != Role::Leader {
        let leader = status.leader.map_or(0, ReplicaId::get);
        return OrderEntry::Answer(Box::new(Answer::Elsewhere { leader }));
    }
    // What a stranger signs is refused by the roster; nobody is dialled for it.
    if !roster.is_operator(order.body.signer) {
        return OrderEntry::Propose;
    }
    if let Order::Admit { account, address } = &order.body.order {
        return OrderEntry::Reach {
            account: *account,
            address: address.clone(),
        };
    }
    match check_harm(&order.body.order, &Group::from_status(status)) {
        Ok(()) => OrderEntry::Propose,
        Err(harm) => declined(harm),
    }
}

/// Whether an order would do harm as things stand.
fn check_harm(order: &Order, group: &Group) -> Result<(), OrderRefusal> {
    match order {
        // That the last one stays is a rule of the roster, and the better reason.
        Order::Remove { raft_id } if group.voters.len() > 1 => {
            let raft_id = *raft_id;
            let short = group.goes_on_without(raft_id);
            short.map_err(|short| OrderRefusal::Quorum {
                raft_id,
                running: short.running,
                needed: short.needed,
            })
        }
        Order::Lead { raft_id } if group.leader == *raft_id => Err(OrderRefusal::Leads(*raft_id)),
        Order::Lead { raft_id } if !group.voters.contains(raft_id) => {
            Err(OrderRefusal::NoVoter(*raft_id))
        }
        Order::Lead { raft_id } if !group.is_running(*raft_id) => {
            Err(OrderRefusal::Silent(*raft_id))
        }
        _ => Ok(()),
    }
}

/// Whether a backup of a validator may be given to whoever signed this.
pub fn may_have_backup(
    order: &SignedOrder,
    roster: &Roster,
    validator: ReplicaId,
    now: Millis,
) -> bool {
    let (body, raft_id) = (&order.body, validator.get());
    let own = roster.entries().get(&raft_id).map(|entry| entry.account);
    let may = roster.is_operator(body.signer) || Some(body.signer) == own;
    let is_this = body.order == Order::Backup { raft_id };
    order.verify().is_ok() && may && is_this && body.expires > now
}

/// The validators there are and were, as this one sees them.
pub fn members_of(roster: &Roster, status: &Status) -> Members {
    let group = Group::from_status(status);
    let leads = status.role == Role::Leader;
    let standing = |id: &u64, leaving: bool| match (group.voters.contains(id), leaving) {
        (true, true) => Standing::Leaving,
        (true, false) => Standing::Voter,
        (false, _) if group.learners.contains(id) => Standing::Learner,
        (false, true) => Standing::Removed,
        (false, false) => Standing::Waiting,
    };
    let reached = |id: &u64| match *id == group.leader {
        true => Some(status.last.0),
        false => group.others.get(id).map(|(reached, _)| *reached),
    };
    let entries = roster.entries().iter();
    let validators = entries.map(|(id, entry)| Member {
        raft_id: *id,
        account: entry.account,
        address: entry.address.clone(),
        standing: standing(id, entry.leaving),
        begun: entry.begun,
        speaks: entry.speaks,
        reached: reached(id).filter(|_| leads),
        running: leads.then(|| group.is_running(*id)),
    });
    Members {
        answered_by: status.id.get(),
        leader: status.leader.map_or(0, ReplicaId::get),
        operators: roster.operators().to_vec(),
        validators: validators.collect(),
        orders: roster.orders().cloned().collect(),
    }
}
