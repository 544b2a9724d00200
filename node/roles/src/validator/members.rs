//! Decides on membership orders (an operator adds or removes a validator, or names a new leader)
//! before they enter the log, lists the validators, and decides who can get a backup. A validator's
//! request server calls it.
//!
//! Every replica decides from the log alone whether an order is allowed. Only the leader knows
//! which validators run, so the leader also checks here that a quorum of running validators would
//! remain.

use souk_consensus::ReplicaId;
use souk_consensus::replica::{Role, Status};
use souk_market::{AccountKey, Millis};

use super::steps::Group;
use crate::market::market_protocol::{Answer, Member, Members, OrderRefusal, Standing};
use crate::market::roster::{MembershipOrder, Roster, SignedMembershipOrder};

/// What the leader must do with a membership order.
#[derive(Clone, Debug)]
pub enum OrderDecision {
    /// Answer at once; the order does not enter the log.
    Answer(Box<Answer>),
    /// Dial the new validator, and propose the order for the log if it answers.
    DialThenPropose {
        /// The new validator's account.
        account: AccountKey,
        /// The new validator's address.
        address: String,
    },
    /// Propose the order for the log.
    Propose,
}

/// Decides what a validator does with an order that it receives. An order that the roster refuses
/// for good never enters the log, so that strangers cannot fill it.
pub fn decide_order(
    order: &SignedMembershipOrder,
    roster: &Roster,
    status: &Status,
) -> OrderDecision {
    let refuse = |refusal| OrderDecision::Answer(Box::new(Answer::Ordered(Err(refusal))));
    if let Err(refusal) = order.verify() {
        return refuse(refusal.into());
    }
    if status.role != Role::Leader {
        let leader = status.leader.map_or(0, ReplicaId::get);
        return OrderDecision::Answer(Box::new(Answer::Elsewhere { leader }));
    }
    if let Err(refusal) = roster.check_operator_order(&order.body) {
        return refuse(refusal.into());
    }
    if let MembershipOrder::Admit { account, address } = &order.body.order {
        return OrderDecision::DialThenPropose {
            account: *account,
            address: address.clone(),
        };
    }
    match check_harm(&order.body.order, &Group::from_status(status)) {
        Ok(()) => OrderDecision::Propose,
        Err(harm) => refuse(harm),
    }
}

/// Checks that an order leaves a running quorum, and that a new leader can lead.
fn check_harm(order: &MembershipOrder, group: &Group) -> Result<(), OrderRefusal> {
    match order {
        // The roster itself refuses to remove the last voter, with a clearer reason.
        MembershipOrder::Remove { raft_id } if group.voters.len() > 1 => {
            let raft_id = *raft_id;
            let quorum = group.check_quorum_without(raft_id);
            quorum.map_err(|shortage| OrderRefusal::Quorum {
                raft_id,
                running: shortage.running,
                needed: shortage.needed,
            })
        }
        MembershipOrder::Lead { raft_id } if group.leader == *raft_id => {
            Err(OrderRefusal::AlreadyLeader(*raft_id))
        }
        MembershipOrder::Lead { raft_id } if !group.voters.contains(raft_id) => {
            Err(OrderRefusal::NotAVoter(*raft_id))
        }
        MembershipOrder::Lead { raft_id } if !group.is_running(*raft_id) => {
            Err(OrderRefusal::NotRunning(*raft_id))
        }
        _ => Ok(()),
    }
}

/// Returns whether the signer of this order can get a backup of the validator.
pub fn may_have_backup(
    order: &SignedMembershipOrder,
    roster: &Roster,
    validator: ReplicaId,
    now: Millis,
) -> bool {
    let (body, raft_id) = (&order.body, validator.get());
    let own_account = roster.entries().get(&raft_id).map(|entry| entry.account);
    let is_entitled = roster.is_operator(body.signer) || Some(body.signer) == own_account;
    let is_this_backup = body.order == MembershipOrder::Backup { raft_id };
    order.verify().is_ok() && is_entitled && is_this_backup && body.expires > now
}

/// Returns the present and former validators, as this one sees them.
pub fn members_of(roster: &Roster, status: &Status) -> Members {
    let group = Group::from_status(status);
    let is_leader = status.role == Role::Leader;
    let standing = |id: &u64, leaving: bool| match (group.voters.contains(id), leaving) {
        (true, true) => Standing::Leaving,
        (true, false) => Standing::Voter,
        (false, _) if group.learners.contains(id) => Standing::Learner,
        (false, true) => Standing::Removed,
        (false, false) => Standing::Waiting,
    };
    let replicated_index = |id: &u64| match *id == group.leader {
        true => Some(status.last.0),
        false => group.others.get(id).map(|other| other.replicated_index),
    };
    let entries = roster.entries().iter();
    let validators = entries.map(|(id, entry)| Member {
        raft_id: *id,
        account: entry.account,
        address: entry.address.clone(),
        standing: standing(id, entry.leaving),
        begun: entry.begun,
        speaks: entry.speaks,
        reached: replicated_index(id).filter(|_| is_leader),
        running: is_leader.then(|| group.is_running(*id)),
    });
    Members {
        answered_by: status.id.get(),
        leader: status.leader.map_or(0, ReplicaId::get),
        operators: roster.operators().to_vec(),
        validators: validators.collect(),
        orders: roster.orders().cloned().collect(),
    }
}

#[cfg(test)]
mod tests {
    use souk_consensus::Term;
    use souk_market::{Genesis, SigningKey};

    use super::*;
    use crate::market::roster::{Body, RosterRefusal};

    const OPERATOR: [u8; 32] = [1; 32];
    const STRANGER: [u8; 32] = [2; 32];
    const NEWCOMER: [u8; 32] = [3; 32];

    fn genesis() -> Genesis {
        let operator = AccountKey::from(&SigningKey::from_bytes(&OPERATOR));
        Genesis::new("m".try_into().unwrap(), operator)
    }

    fn sign_admission(key: [u8; 32], number: u64) -> SignedMembershipOrder {
        let key = SigningKey::from_bytes(&key);
        let body = Body {
            market: genesis().market_id(),
            signer: AccountKey::from(&key),
            number,
            expires: Millis(u64::MAX),
            order: MembershipOrder::Admit {
                account: AccountKey::from(&SigningKey::from_bytes(&NEWCOMER)),
                address: "/ip4/127.0.0.1/tcp/1".to_owned(),
            },
        };
        SignedMembershipOrder::sign(body, &key)
    }

    /// The status of a leader without other members.
    fn leading() -> Status {
        let id = ReplicaId::new(1).unwrap();
        Status {
            id,
            role: Role::Leader,
            term: Term(1),
            leader: Some(id),
            commit: Default::default(),
            applied: Default::default(),
            last: Default::default(),
            snapshot: Default::default(),
            time: Default::default(),
            checkpoint: None,
            proposals: 0,
            members: Default::default(),
            member: true,
            peers: Vec::new(),
            accusation: None,
        }
    }

    fn find_refusal(decision: OrderDecision) -> Option<RosterRefusal> {
        match decision {
            OrderDecision::Answer(answer) => match *answer {
                Answer::Ordered(Err(OrderRefusal::Refused(refusal))) => Some(refusal),
                other => panic!("{other:?}"),
            },
            _ => None,
        }
    }

    #[test]
    fn an_order_of_a_stranger_never_enters_the_log() {
        let order = sign_admission(STRANGER, 1);
        let decision = decide_order(&order, &Roster::new(&genesis()), &leading());
        let refusal = find_refusal(decision);
        assert_eq!(refusal, Some(RosterRefusal::Operator(order.body.signer)));
    }

    #[test]
    fn a_repeated_order_never_enters_the_log() {
        let (order, mut roster) = (sign_admission(OPERATOR, 1), Roster::new(&genesis()));
        let decision = decide_order(&order, &roster, &leading());
        assert!(matches!(decision, OrderDecision::DialThenPropose { .. }));
        roster.apply_order(Millis(0), &order).unwrap();
        let refusal = find_refusal(decide_order(&order, &roster, &leading()));
        let (number, last) = (1, 1);
        assert_eq!(refusal, Some(RosterRefusal::Number { number, last }));
    }
}
