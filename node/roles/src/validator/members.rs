//! Answers orders about the members before they enter the log, lists the validators, and decides
//! who can get a backup. A validator's request server calls it.
//!
//! Every replica decides from the log alone whether an order is allowed. Only the leader can tell
//! whether it would do harm just now, for example because too few running validators would be left,
//! so the leader checks that here.

use souk_consensus::ReplicaId;
use souk_consensus::replica::{Role, Status};
use souk_market::{AccountKey, Millis};

use super::steps::Group;
use crate::market::market_protocol::{Answer, Member, Members, OrderRefusal, Standing};
use crate::market::roster::{Order, Roster, SignedOrder};

/// What a validator must do with an order before it enters the log.
#[derive(Clone, Debug)]
pub enum OrderEntry {
    /// Answer at once; the order does not enter the log.
    Answer(Box<Answer>),
    /// Connect to the newcomer first, and propose the order if that succeeds.
    Reach {
        /// The newcomer's account.
        account: AccountKey,
        /// The newcomer's address.
        address: String,
    },
    /// Propose the order.
    Propose,
}

/// Decides what a validator does with an order that it receives.
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

/// Checks that an order does no harm in the group's present state.
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

/// Returns whether the signer of this order can get a backup of the validator.
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

/// Returns the present and former validators, as this one sees them.
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
