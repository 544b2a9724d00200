//! Who the validators are, and orders that change it.
//!
//! Whether an order may be given is decided by every replica alike, from what the log holds.
//! Whether it would do harm just now (a newcomer that nobody reaches, too few left that run) only
//! the leader can tell, so it looks before it puts an order into the log.

use std::time::Duration;

use souk_consensus::ReplicaId;
use souk_consensus::replica::{Proposal, Role, Status};
use souk_market::AccountKey;

use super::{Door, unavailable};
use crate::folder::contact::Contact;
use crate::network::OpenError;
use crate::protocols::market::{Answer, Member, Members, OrderRefusal, Standing};
use crate::protocols::roster::{Order, Roster, SignedOrder};
use crate::validator::exchange_machine::{BatchResult, LogCommand};
use crate::validator::raft_link;
use souk_roles::validator::steps::Group;

/// How long a newcomer may take to answer: less than whoever gave the order waits.
const REACH_TIMEOUT: Duration = Duration::from_secs(2);

impl Door {
    /// Who the validators are, as this one sees it.
    pub(super) async fn members(&self) -> Answer {
        match self.look().await {
            Some((roster, status)) => Answer::Members(members_of(&roster, &status)),
            None => unavailable(),
        }
    }

    /// Carries an order out, if this validator leads.
    pub(super) async fn order(&self, order: SignedOrder) -> Answer {
        if let Err(refusal) = order.verify() {
            return Answer::Ordered(Err(refusal.into()));
        }
        let Some((roster, status)) = self.look().await else {
            return unavailable();
        };
        if status.role != Role::Leader {
            let leader = status.leader.map_or(0, ReplicaId::get);
            return Answer::Elsewhere { leader };
        }
        // What a stranger signs is refused by the roster; nobody is dialled for it.
        if order.body.signer == roster.operator()
            && let Err(declined) = self.consider(&order.body.order, &status).await
        {
            return Answer::Ordered(Err(declined));
        }
        let proposal = Proposal {
            bytes: order.encode().into(),
            command: LogCommand::Order(order.clone()),
        };
        let result = match self.validator.propose(proposal).await {
            Ok(result) => result,
            Err(error) => return Answer::Unavailable(error.to_string()),
        };
        match postcard::from_bytes(&result) {
            Ok(BatchResult::Ordered(Ok(raft_id))) => self.after(&order.body.order, raft_id).await,
            Ok(BatchResult::Ordered(Err(refusal))) => Answer::Ordered(Err(refusal.into())),
            _ => Answer::Unavailable("the result does not decode".to_owned()),
        }
    }

    /// Whether an order would do harm as things stand.
    async fn consider(&self, order: &Order, status: &Status) -> Result<(), OrderRefusal> {
        let group = Group::of(status);
        match order {
            Order::Admit { account, address } => self.reach(*account, address).await,
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
            Order::Lead { raft_id } if group.leader == *raft_id => {
                Err(OrderRefusal::Leads(*raft_id))
            }
            Order::Lead { raft_id } if !group.voters.contains(raft_id) => {
                Err(OrderRefusal::NoVoter(*raft_id))
            }
            Order::Lead { raft_id } if !group.runs(*raft_id) => Err(OrderRefusal::Silent(*raft_id)),
            _ => Ok(()),
        }
    }

    /// Whether the leader reaches a newcomer.
    async fn reach(&self, account: AccountKey, address: &str) -> Result<(), OrderRefusal> {
        let contact = Contact::parse(address)
            .ok()
            .filter(|c| c.account == account.0);
        let contact = contact.ok_or_else(|| OrderRefusal::Address(address.to_owned()))?;
        let unreached = |error: OpenError| OrderRefusal::Unreached(error.to_string());
        self.network.learn(&contact).await.map_err(unreached)?;
        let peer = contact.peer().map_err(|error| unreached(error.into()))?;
        let opening = self.network.open(peer, raft_link::PROTOCOL);
        match tokio::time::timeout(REACH_TIMEOUT, opening).await {
            // It is there, and waits for its raft id before it speaks raft.
            Ok(Ok(_) | Err(OpenError::Protocol { .. })) => Ok(()),
            Ok(Err(error)) => Err(unreached(error)),
            Err(_) => Err(unreached(OpenError::Timeout { peer })),
        }
    }

    async fn after(&self, order: &Order, raft_id: u64) -> Answer {
        let to = ReplicaId::new(raft_id).filter(|_| matches!(order, Order::Lead { .. }));
        let Some(to) = to else {
            return Answer::Ordered(Ok(raft_id));
        };
        let handed = self.validator.transfer_leadership(to).await;
        Answer::Ordered(match handed {
            Ok(()) => Ok(raft_id),
            Err(error) => Err(OrderRefusal::NotHandedOver {
                raft_id,
                cause: error.to_string(),
            }),
        })
    }

    async fn look(&self) -> Option<(Roster, Status)> {
        let roster = self.validator.roster().await.ok()?;
        Some((roster, self.validator.status().await.ok()?))
    }

    /// Whether a backup may be given to whoever signed this.
    pub(super) async fn admits_backup(&self, order: &SignedOrder, now_ms: u64) -> bool {
        let Some((roster, status)) = self.look().await else {
            return false;
        };
        let (body, me) = (&order.body, status.id.get());
        let own = roster.seats().get(&me).map(|seat| seat.account);
        let may = body.signer == roster.operator() || Some(body.signer) == own;
        let mine = body.order == Order::Backup { raft_id: me };
        order.verify().is_ok() && may && mine && body.expires.0 > now_ms
    }
}

fn members_of(roster: &Roster, status: &Status) -> Members {
    let group = Group::of(status);
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
    let seats = roster.seats().iter();
    let validators = seats.map(|(id, seat)| Member {
        raft_id: *id,
        account: seat.account,
        address: seat.address.clone(),
        standing: standing(id, seat.leaving),
        begun: seat.begun,
        reached: reached(id).filter(|_| leads),
        running: leads.then(|| group.runs(*id)),
    });
    Members {
        answered_by: status.id.get(),
        leader: status.leader.map_or(0, ReplicaId::get),
        operator: roster.operator(),
        validators: validators.collect(),
    }
}
