//! The segments of an audited training run (the steps from one kept states to the next): which of
//! them another provider runs again, and from which states the run continues if a provider lied.

use serde::{Deserialize, Serialize};
use souk_market::{AccountKey, Permille};
use souk_memory::ContentId;

use super::{Checkpoint, FactError, LossBits, Past, States};

/// How a buyer audits the steps of a training run, or the requests of an exact job. It has no
/// effect on results if nobody lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditSpec {
    /// The share of the segments or requests that are run again.
    pub share: Permille,
    /// The secret that determines which segments; only the buyer must know it.
    pub secret: [u8; 32],
}

/// The steps from one kept states to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Where they begin.
    pub from: Checkpoint,
    /// The provider that made them.
    pub by: AccountKey,
    /// What it made.
    pub claim: SegmentClaim,
}

/// A provider's claim about the results of steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentClaim {
    /// The loss of each of them.
    pub losses: Vec<LossBits>,
    /// The states after the last of them. Without losses and states, the claim is that a number is
    /// infinite or no number.
    pub states: States,
}

/// Where a provider began to make steps of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    /// The provider.
    pub provider: AccountKey,
    /// The states before its first step.
    pub from: Checkpoint,
    /// The head of the chain there.
    pub link: ContentId,
}

/// What audits found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditFindings {
    /// The steps that another provider made too.
    pub confirmed_steps: u64,
    /// The steps that were to be run again, for which there was no other provider.
    pub unaudited_steps: u64,
    /// The providers that lied.
    pub convicted: Vec<AccountKey>,
}

impl AuditSpec {
    /// Returns whether a segment or a request is run again. `link` is unknown before the provider
    /// has answered: the head of the chain after a segment, or the hash of a request's outputs.
    #[must_use]
    pub fn draws(&self, link: ContentId) -> bool {
        let drawn = ContentId::for_content(&[&self.secret[..], link.as_bytes()].concat());
        let first: [u8; 8] = drawn.as_bytes()[..8].try_into().expect("a hash is longer");
        u64::from_le_bytes(first) % 1_000 < u64::from(self.share.0)
    }
}

impl Segment {
    /// Returns the number of its steps.
    #[must_use]
    pub fn step_count(&self) -> u64 {
        self.claim.losses.len() as u64
    }

    /// Returns the position after its last step.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.from.position + self.step_count()
    }
}

impl Anchor {
    /// Returns the anchor of a provider that begins now.
    pub(in crate::train) fn at(provider: AccountKey, past: &Past) -> Anchor {
        Anchor {
            provider,
            from: past.kept.clone(),
            link: past.link,
        }
    }
}

impl Past {
    /// Notes who made the last kept segment, which began at this anchor, and draws whether it is
    /// run again.
    pub(in crate::train) fn note_segment(&mut self, before: Anchor) {
        let position = before.from.position;
        let first = usize::try_from(position).unwrap_or(usize::MAX);
        if self.audits.is_some_and(|spec| spec.draws(self.link)) {
            self.due_audits.push(Segment {
                from: before.from.clone(),
                by: before.provider,
                claim: SegmentClaim {
                    losses: self.losses[first..].to_vec(),
                    states: self.kept.states.clone(),
                },
            });
        }
        let mut anchors = self.anchors.iter();
        if !anchors.any(|anchor| anchor.provider == before.provider) {
            self.anchors.push(before);
        }
    }

    /// Closes an audit: its steps are confirmed or not, and these providers lied.
    pub(in crate::train) fn take_verdict(
        &mut self,
        from: u64,
        is_confirmed: bool,
        liars: Vec<AccountKey>,
    ) -> Result<(), FactError> {
        let steps = self.close_audit(from)?;
        if is_confirmed {
            self.audit_findings.confirmed_steps += steps;
        }
        liars.into_iter().for_each(|it| self.convict_provider(it));
        Ok(())
    }

    /// Removes an audit that is over. Returns its number of steps.
    pub(in crate::train) fn close_audit(&mut self, from: u64) -> Result<u64, FactError> {
        let due = self.due_audits.iter();
        let place = due.clone().position(|it| it.from.position == from);
        let place = place.ok_or(FactError::Position {
            found: from,
            expected: self.kept.position,
        })?;
        Ok(self.due_audits.remove(place).step_count())
    }

    /// Goes back to the states before the first step that a provider made, if it made one.
    fn convict_provider(&mut self, provider: AccountKey) {
        self.banned.insert(provider);
        self.audit_findings.convicted.push(provider);
        let place = self.anchors.iter().position(|it| it.provider == provider);
        let Some(place) = place else {
            return;
        };
        let Anchor { from, link, .. } = self.anchors.swap_remove(place);
        let position = from.position;
        self.anchors.retain(|it| it.from.position < position);
        self.due_audits.retain(|it| it.end() <= position);
        let count = usize::try_from(position).unwrap_or(usize::MAX);
        self.losses.truncate(count);
        // The liar may have evaluated the states from which it began.
        self.held_out.retain(|(at, _)| *at < position);
        self.seen.retain(|_, at| *at <= position);
        (self.kept, self.link) = (from, link);
    }

    /// Returns the states that a later life needs: the last kept ones, those of audits, and those
    /// to which a conviction goes back.
    #[must_use]
    pub fn needed_states(&self) -> States {
        let of_audits = self.due_audits.iter();
        let of_audits = of_audits.flat_map(|it| [&it.from.states, &it.claim.states]);
        let of_anchors = self.anchors.iter().map(|it| &it.from.states);
        let all = of_audits.chain(of_anchors).chain([&self.kept.states]);
        let mut all: States = all.flatten().cloned().collect();
        all.sort_unstable_by_key(|(_, id)| *id);
        all.dedup_by_key(|(_, id)| *id);
        all
    }
}
