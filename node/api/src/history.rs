//! Defines the public JSON of a market's history: the tree heads (hashes of all commands so far)
//! and the validators that signed each.

use serde::Serialize;
use souk_roles::market::history_check::{Fork, HistoryCheck, SignedHead};

/// The history of a market as its validators signed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HistoryView {
    /// The market's id.
    pub market: String,
    /// The number of validators whose signatures count.
    pub validators: usize,
    /// How many of them must sign a head to certify it.
    pub needed: usize,
    /// The largest certified head; null if there is none.
    pub certified: Option<SignedHeadView>,
    /// All signed heads that were found, the largest first.
    pub heads: Vec<SignedHeadView>,
    /// The pairs of heads of one size with different roots, of the history or the state.
    pub forks: Vec<ForkView>,
}

/// A head of the history's tree, and who signed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SignedHeadView {
    /// The number of leaves: commands and ticks.
    pub size: u64,
    /// The root of the tree, in hexadecimal.
    pub root: String,
    /// The root of the state there, in hexadecimal; null in a head of an earlier release.
    pub state: Option<String>,
    /// The last entry of the log that it covers.
    pub index: u64,
    /// The log's time at that entry, in milliseconds since 1970.
    pub time_ms: u64,
    /// The ids of the validators that signed it.
    pub signed_by: Vec<u64>,
}

/// Two heads of one size with different roots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ForkView {
    /// The number of leaves.
    pub size: u64,
    /// Both heads.
    pub heads: [SignedHeadView; 2],
    /// The ids of the validators that signed both, and so lied.
    pub liars: Vec<u64>,
}

impl HistoryView {
    /// Returns the view of what was found about a market.
    #[must_use]
    pub fn from_check(market: String, check: &HistoryCheck) -> Self {
        Self {
            market,
            validators: check.members.len(),
            needed: check.needed,
            certified: check.find_certified().map(SignedHeadView::from),
            heads: check.heads.iter().map(SignedHeadView::from).collect(),
            forks: check.forks.iter().map(ForkView::from).collect(),
        }
    }
}

impl From<&SignedHead> for SignedHeadView {
    fn from(signed: &SignedHead) -> Self {
        let head = signed.head();
        Self {
            size: head.size,
            root: head.root.to_string(),
            state: head.state.map(|state| state.to_string()),
            index: head.index.0,
            time_ms: head.time.0,
            signed_by: signed.signers.clone(),
        }
    }
}

impl From<&Fork> for ForkView {
    fn from(fork: &Fork) -> Self {
        let [one, other] = &fork.heads;
        Self {
            size: one.head().size,
            heads: [one.into(), other.into()],
            liars: fork.liars(),
        }
    }
}
