//! Builds the failure of commands that need a certified head (a size and root hash of the market's
//! history that over two thirds of the validators signed), when too few signed one.

use std::fmt::Display;

use souk_node::client::history::GatheredHistory;

use crate::failure::{Failure, Kind};
use crate::show::certification::Certification;

/// Returns the failure: how far validators have certified the history, who holds it up, and what
/// to do.
pub fn fail_uncertified(what: &impl Display, history: &GatheredHistory) -> Failure {
    let found = Certification::of_history(history);
    let cause = format!("{what}: {}", found.describe());
    let facts = [("validators", found.validators_to_json())];
    Failure::new(Kind::Verification, cause, found.suggest_remedy()).with(facts)
}
