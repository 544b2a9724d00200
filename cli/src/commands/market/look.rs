//! Looks at the history of a market as all of its validators show it, and proves that the heads
//! they signed belong to one history. `souk market verify` and `souk market witness` judge what one
//! look shows.

use std::collections::BTreeSet;

use souk_node::client::broker::Broker;
use souk_node::client::history::{
    Continuation, ContinuationCheck, GatheredHistory, ShownContinuation, SignedHead, StoredHistory,
    TreeNote, gather_heads, prove_continuation,
};
use souk_node::market::Genesis;

/// The most continuations that one look proves.
const PROOFS_MAX: usize = 64;

/// A continuation and what was shown of it.
pub type ShownProof = (ContinuationCheck, Option<ShownContinuation>);

/// What the validators of a market show at one time.
pub struct HistoryLook<'a> {
    broker: &'a Broker,
    pub history: GatheredHistory,
    /// Proofs that each signed head continues the next smaller one.
    pub proofs: Vec<ShownProof>,
    /// The validators that gave no tiles.
    silent: BTreeSet<u64>,
}

/// How a head that somebody saw relates to the one that validators certify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// It is the same, or a proof shows that the larger one continues the smaller one.
    OneHistory,
    /// A proof shows that they are of two histories.
    Contradicts,
    /// Nobody shows either.
    Unproven,
}

/// How to find out how a head relates to the certified one.
enum RelationPlan {
    /// The heads alone show it.
    Known(Relation),
    /// This proof shows it.
    Prove(Box<ContinuationCheck>),
}

impl RelationPlan {
    fn new(certified: Option<&SignedHead>, seen: &TreeNote) -> RelationPlan {
        let Some(certified) = certified else {
            return RelationPlan::Known(Relation::Unproven);
        };
        let (head, other) = (seen.head, certified.head());
        if head.size == other.size {
            return RelationPlan::Known(match head.contradicts(&other) {
                true => Relation::Contradicts,
                false => Relation::OneHistory,
            });
        }
        if head.size == 0 || other.size == 0 {
            return RelationPlan::Known(Relation::OneHistory);
        }
        let seen = SignedHead {
            note: seen.clone(),
            signers: Vec::new(),
        };
        RelationPlan::Prove(Box::new(match head.size < other.size {
            true => ContinuationCheck::new(&seen, certified),
            false => ContinuationCheck::new(certified, &seen),
        }))
    }
}

impl Relation {
    fn from_continuation(shown: Option<Continuation>) -> Relation {
        match shown {
            Some(Continuation::Proven { .. }) => Relation::OneHistory,
            Some(Continuation::Refuted) => Relation::Contradicts,
            Some(Continuation::Contradicted | Continuation::Missing(_)) | None => {
                Relation::Unproven
            }
        }
    }

    /// Returns how a head relates to the certified one of saved files; unproven if none is
    /// certified, or if the files lack a tile of the proof.
    pub fn in_folders(
        stored: &StoredHistory,
        certified: Option<&SignedHead>,
        seen: &TreeNote,
    ) -> Relation {
        match RelationPlan::new(certified, seen) {
            RelationPlan::Known(relation) => relation,
            RelationPlan::Prove(check) => {
                let shown = stored.prove_continuation(&check);
                Relation::from_continuation(shown.map(|it| it.continuation))
            }
        }
    }
}

impl<'a> HistoryLook<'a> {
    /// Asks all validators. `known` are heads that somebody saw before.
    pub async fn take(broker: &'a Broker, genesis: &Genesis, known: Vec<TreeNote>) -> Self {
        let history = gather_heads(broker, genesis, known).await;
        let mut silent = BTreeSet::new();
        let mut proofs = Vec::new();
        for check in history.check.plan_proofs().into_iter().take(PROOFS_MAX) {
            let shown = prove_continuation(broker, &history, &check, &mut silent).await;
            proofs.push((check, shown));
        }
        Self {
            broker,
            history,
            proofs,
            silent,
        }
    }

    /// Returns how a head relates to the certified one; unproven if none is certified.
    pub async fn relate_head(&mut self, seen: &TreeNote) -> Relation {
        let check = match RelationPlan::new(self.history.check.find_certified(), seen) {
            RelationPlan::Known(relation) => return relation,
            RelationPlan::Prove(check) => check,
        };
        let mut shown = self.prove(&check).await;
        if matches!(shown, Some(Continuation::Missing(_)) | None) {
            // A tile that just became full may have been missing.
            self.silent.clear();
            shown = self.prove(&check).await;
        }
        Relation::from_continuation(shown)
    }

    async fn prove(&mut self, check: &ContinuationCheck) -> Option<Continuation> {
        let shown = prove_continuation(self.broker, &self.history, check, &mut self.silent).await;
        shown.map(|shown| shown.continuation)
    }
}
