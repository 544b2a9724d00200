//! Defines the facts of a training run, which are the lines of its journal, and [`Past`], the state
//! that they add up to.
//!
//! A step counts once a [`Fact::Kept`] names its loss, beside the states after it. Each of these
//! facts names the position (number of steps done) from which it continues, so the journal has each
//! step once.

mod segments;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, Credits, JobId, MarketId, Millis, Receipt};
use souk_memory::ContentId;

use super::LOST_LEASES_MAX;
pub use segments::{Anchor, AuditFindings, AuditSpec, Segment, SegmentClaim};

/// The values that a step leaves to the next one: the names of inputs, and contents.
pub type States = Vec<(String, ContentId)>;

/// The bits of a loss, a number in 32 bits. A core computes with no such number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossBits(pub u32);

/// A position in a run, and the states there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The number of steps done.
    pub position: u64,
    /// The states after these steps.
    pub states: States,
}

/// The account that pays for a run, and its market. Only this market knows the run's leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payer {
    /// The market in which the run buys leases.
    pub market: MarketId,
    /// The account that buys them.
    pub account: AccountKey,
}

/// How a lease ended, as far as its provider is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// The provider is not to blame.
    Nothing,
    /// It did not serve the lease to its end: some leases may end so.
    Lost,
    /// It did not do one step, or was far slower than its ask states: this life of the run buys no
    /// more from it, if another provider is left.
    #[serde(alias = "no_step")]
    Avoided,
    /// It gave an answer that is no step: no life of the run buys from it again.
    Banned,
}

/// The reason why the run cannot buy a lease: too few offers, or too little money.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shortage {
    /// No other provider offers a device that suits.
    #[default]
    Offers,
    /// A device is on offer, and the budget of the lease does not pay it.
    Money,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// All steps are done. The last evaluation can be missing: it failed, or the caller stopped it.
    Done,
    /// The caller stopped it.
    Stopped,
    /// A step made an infinite number or no number.
    NotFinite {
        /// The position of the step, from 0.
        step: u64,
        /// The loss of its batch, which can be finite if a state is not.
        loss: LossBits,
    },
    /// No provider offers a lease.
    NoLease,
    /// The budget does not pay the next lease.
    NoMoney,
    /// The budget does not pay the next audit, which stays due.
    AuditUnpaid {
        /// The position of the first of its steps.
        step: u64,
    },
    /// Several leases in a row brought no states.
    Lost,
    /// Two providers made different states in the same steps, and no third one can be asked.
    Disputed {
        /// The position of the first of these steps.
        step: u64,
        /// What there is too little of to ask a third one.
        #[serde(default)]
        short_of: Shortage,
    },
    /// The journal could not be written.
    Journal,
}

/// One fact in the journal of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Fact {
    /// The run begins.
    Began {
        /// The hash of all that determines the result: the graph of a step, the data, the order.
        subject: ContentId,
        /// The account that pays for it.
        payer: Payer,
        /// How many steps the run must do.
        steps: u64,
        /// The states before the first step.
        states: States,
        /// The caller's command, which the run does not interpret.
        command: String,
        /// The time of the record.
        at: Millis,
        /// How its steps are audited; none if no step is run again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        audits: Option<AuditSpec>,
    },
    /// A lease will be bought under this id.
    Leasing {
        /// The id of the lease's job.
        job: JobId,
        /// Its provider, unless the market sells another one's device.
        provider: AccountKey,
    },
    /// Steps are done, and the states after them are on the disk.
    Kept {
        /// The position from which these steps continued.
        from: u64,
        /// The loss of each of them.
        losses: Vec<LossBits>,
        /// The states after the last of them.
        states: States,
        /// The head of the chain after them.
        link: ContentId,
        /// The provider that made them, in a run that audits its steps.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<AccountKey>,
    },
    /// All workers did their steps of a round, and the states after the average are on the disk.
    Round {
        /// The position from which these steps continued.
        from: u64,
        /// The mean loss of all workers at each of their steps; none if the round only evaluated.
        losses: Vec<LossBits>,
        /// The states after the average: of the run and of each worker.
        states: States,
        /// The head of the chain after them.
        link: ContentId,
        /// What the round's leases cost, or can still cost.
        cost: Credits,
        /// The receipts that both parties signed for them.
        receipts: Vec<Receipt>,
    },
    /// The held-out examples were evaluated with the last kept states.
    HeldOut {
        /// The number of steps done.
        position: u64,
        /// Their loss.
        loss: LossBits,
    },
    /// A lease is over.
    LeaseOver {
        /// The provider that sold it, as far as the run knows.
        provider: AccountKey,
        /// What it cost, or can still cost.
        cost: Credits,
        /// The receipts that both parties signed for it.
        receipts: Vec<Receipt>,
        /// Whether its provider is to blame.
        blame: Blame,
    },
    /// A provider is no longer bought from, after another one did its steps otherwise.
    Banned {
        /// The provider whose claim the other one refuted.
        provider: AccountKey,
    },
    /// Two providers made the same in the steps of an audit. This is the whole verdict, so a later
    /// life knows all of it or makes the audit again.
    Judged {
        /// The position of the first of these steps.
        from: u64,
        /// The provider that was the second one to make the same.
        by: AccountKey,
        /// Whether it made what the steps had made that count.
        is_confirmed: bool,
        /// Those that made something else. The run goes back to the states before the first step
        /// that one of them made, and buys no more from them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        liars: Vec<AccountKey>,
    },
    /// No other provider could run the steps of an audit again.
    Unaudited {
        /// The position of the first of these steps.
        from: u64,
    },
    /// The run is over. A later life can continue it, unless all steps are done.
    Over {
        /// How it ended.
        how: End,
    },
}

/// What the facts of a run add up to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// The hash of all that determines the result.
    pub subject: ContentId,
    /// The account that pays for it.
    pub payer: Payer,
    /// How many steps the run must do.
    pub steps: u64,
    /// The caller's command, by which a later life can prepare the same run.
    pub command: String,
    /// When the run began.
    pub at: Millis,
    /// The last kept states.
    pub kept: Checkpoint,
    /// The loss of each step that counts.
    pub losses: Vec<LossBits>,
    /// The positions at which the held-out examples were evaluated, and their losses.
    pub held_out: Vec<(u64, LossBits)>,
    /// The head of the chain of steps.
    pub link: ContentId,
    /// How many rounds of several workers are over.
    pub rounds: u64,
    /// What the leases cost, or can still cost.
    pub spent: Credits,
    /// The receipts of all leases.
    pub receipts: Vec<Receipt>,
    /// The lease that is not over, and its provider.
    pub open_lease: Option<(JobId, AccountKey)>,
    /// How many leases of this life ended early, by provider.
    pub lost: BTreeMap<AccountKey, u32>,
    /// The providers from which the run buys no more.
    pub banned: BTreeSet<AccountKey>,
    /// The hash of each states that the run kept, and their position.
    pub seen: BTreeMap<ContentId, u64>,
    /// How its steps are audited.
    pub audits: Option<AuditSpec>,
    /// The steps that another provider must run again, in their order.
    pub due_audits: Vec<Segment>,
    /// For each provider that made steps of an audited run: where it began.
    pub anchors: Vec<Anchor>,
    /// What the audits found.
    pub audit_findings: AuditFindings,
    /// How it ended, unless a later life continued it.
    pub how: Option<End>,
}

/// A fact that does not follow from those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FactError {
    /// The journal does not begin with a run.
    #[error("the journal begins with no run")]
    NoBegin,
    /// Steps do not begin at the position where the earlier ones ended.
    #[error("the journal goes on from step {found}, and the steps before end at {expected}")]
    Position {
        /// The position that the fact states.
        found: u64,
        /// The position of the last kept states.
        expected: u64,
    },
    /// The chain does not hold.
    #[error("the chain of the steps is broken at step {position}")]
    Link {
        /// The position after the steps.
        position: u64,
    },
}

impl Past {
    fn begin(subject: ContentId, payer: Payer, steps: u64, states: States) -> Past {
        Past {
            subject,
            payer,
            steps,
            command: String::new(),
            at: Millis(0),
            link: subject,
            seen: BTreeMap::from([(states_root(&states), 0)]),
            audits: None,
            due_audits: Vec::new(),
            anchors: Vec::new(),
            audit_findings: AuditFindings::default(),
            kept: Checkpoint {
                position: 0,
                states,
            },
            losses: Vec::new(),
            held_out: Vec::new(),
            rounds: 0,
            spent: Credits::ZERO,
            receipts: Vec::new(),
            open_lease: None,
            lost: BTreeMap::new(),
            banned: BTreeSet::new(),
            how: None,
        }
    }

    /// Adds up the facts of a journal.
    ///
    /// # Errors
    /// [`FactError`] if one does not follow from those before it.
    pub fn from_facts(facts: impl IntoIterator<Item = Fact>) -> Result<Past, FactError> {
        let mut facts = facts.into_iter();
        let Some(Fact::Began {
            subject,
            payer,
            steps,
            states,
            command,
            at,
            audits,
        }) = facts.next()
        else {
            return Err(FactError::NoBegin);
        };
        let mut past = Past {
            command,
            at,
            audits,
            ..Past::begin(subject, payer, steps, states)
        };
        facts.try_for_each(|fact| past.apply(fact))?;
        Ok(past)
    }

    /// Adds one fact.
    ///
    /// # Errors
    /// [`FactError`] if it does not follow from those before it.
    pub fn apply(&mut self, fact: Fact) -> Result<(), FactError> {
        self.how = None;
        match fact {
            Fact::Began { .. } => return Err(FactError::NoBegin),
            Fact::Leasing { job, provider } => self.open_lease = Some((job, provider)),
            Fact::Kept {
                from,
                losses,
                states,
                link,
                by,
            } => {
                let expected = self.kept.position;
                if losses.is_empty() {
                    let found = from;
                    return Err(FactError::Position { found, expected });
                }
                let before = Anchor::at(by.unwrap_or(self.payer.account), self);
                self.keep_steps(from, losses, states, link)?;
                if by.is_some() {
                    self.note_segment(before);
                }
            }
            Fact::Round {
                from,
                losses,
                states,
                link,
                cost,
                receipts,
            } => {
                self.keep_steps(from, losses, states, link)?;
                self.rounds += 1;
                self.spent = Credits(self.spent.0.saturating_add(cost.0));
                self.receipts.extend(receipts);
            }
            Fact::HeldOut { position, loss } => {
                let expected = self.kept.position;
                if position != expected || self.is_evaluated() {
                    let found = position;
                    return Err(FactError::Position { found, expected });
                }
                self.held_out.push((position, loss));
            }
            Fact::LeaseOver {
                provider,
                cost,
                receipts,
                blame,
            } => {
                self.spent = Credits(self.spent.0.saturating_add(cost.0));
                self.receipts.extend(receipts);
                self.open_lease = None;
                self.note_blame(provider, blame);
            }
            Fact::Banned { provider } => drop(self.banned.insert(provider)),
            Fact::Judged {
                from,
                is_confirmed,
                liars,
                ..
            } => self.take_verdict(from, is_confirmed, liars)?,
            Fact::Unaudited { from } => {
                self.audit_findings.unaudited_steps += self.close_audit(from)?;
            }
            Fact::Over { how } => self.how = Some(how),
        }
        Ok(())
    }

    fn note_blame(&mut self, provider: AccountKey, blame: Blame) {
        match blame {
            Blame::Nothing => {}
            Blame::Lost => *self.lost.entry(provider).or_default() += 1,
            Blame::Avoided => *self.lost.entry(provider).or_default() += LOST_LEASES_MAX,
            Blame::Banned => drop(self.banned.insert(provider)),
        }
    }

    /// Adds steps and the states after them.
    fn keep_steps(
        &mut self,
        from: u64,
        losses: Vec<LossBits>,
        states: States,
        link: ContentId,
    ) -> Result<(), FactError> {
        let expected = self.kept.position;
        let position = from.saturating_add(losses.len() as u64);
        if from != expected || position > self.steps {
            let found = from;
            return Err(FactError::Position { found, expected });
        }
        if link != next_link(self.link, from, &losses, &states) {
            return Err(FactError::Link { position });
        }
        self.link = link;
        self.losses.extend(losses);
        self.seen.entry(states_root(&states)).or_insert(position);
        self.kept = Checkpoint { position, states };
        Ok(())
    }

    /// Returns whether the held-out examples were evaluated with the last kept states.
    #[must_use]
    pub fn is_evaluated(&self) -> bool {
        let last = self.held_out.last();
        last.is_some_and(|(position, _)| *position == self.kept.position)
    }

    /// Returns whether all steps are done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.kept.position == self.steps
    }
}

/// Returns the hash of some states: of their names and contents, in the order of names.
#[must_use]
pub fn states_root(states: &States) -> ContentId {
    let mut sorted: Vec<&(String, ContentId)> = states.iter().collect();
    sorted.sort_unstable();
    let mut bytes = Vec::new();
    for (name, id) in sorted {
        bytes.extend_from_slice(&(name.len() as u64).to_le_bytes());
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(id.as_bytes());
    }
    ContentId::for_content(&bytes)
}

/// Returns the head of the chain after some steps: the hash of the head before them, their
/// position, the bits of their losses, and the states after them.
#[must_use]
pub fn next_link(link: ContentId, from: u64, losses: &[LossBits], states: &States) -> ContentId {
    let mut bytes = link.as_bytes().to_vec();
    bytes.extend_from_slice(&from.to_le_bytes());
    losses
        .iter()
        .for_each(|loss| bytes.extend_from_slice(&loss.0.to_le_bytes()));
    bytes.extend_from_slice(states_root(states).as_bytes());
    ContentId::for_content(&bytes)
}
