//! Checks who vouches for a state that another replica offers: which validators must sign it, by
//! the operators' orders, and whether they did. Also signs this validator's own statements.
//!
//! A replica may lag behind changes of the roster, or know the genesis alone. It then learns from
//! the state that another replica offers who joined and who left since, but believes each of these
//! only with the operators' signatures. So a state needs the signatures of a majority of these
//! validators: those that this replica knows and the operators have not removed, and those that
//! they have admitted since.

use std::collections::{BTreeMap, BTreeSet};

use ed25519_dalek::{Signature, Signer, VerifyingKey};
use souk_consensus::{ChangeStanding, MemberChange, OfferedState, ReplicaId, Tally};
use souk_market::{AccountKey, MarketId, SigningKey};

use crate::market::roster::Roster;

/// A signature for a state begins with this, so that no other signature of the same key fits.
const DOMAIN: &[u8] = b"souk voucher v1";

/// The count of an offer that nobody can vouch for.
pub(super) const NOBODY: Tally = Tally {
    members: 1,
    vouched: 0,
};

/// Decides whether the roster has ordered a change of raft's members. Nobody joins twice and nobody
/// who left comes back, so only [`ChangeStanding::Unordered`] is ever followed by another answer.
pub(super) fn judge_change(roster: &Roster, change: MemberChange) -> ChangeStanding {
    let entry = |id: ReplicaId| roster.entries().get(&id.get());
    match change {
        MemberChange::AddLearner(id) | MemberChange::Promote(id) => match entry(id) {
            None => ChangeStanding::Unordered,
            Some(entry) if entry.leaving => ChangeStanding::Outdated,
            Some(_) => ChangeStanding::Ordered,
        },
        MemberChange::Remove(id) => match entry(id) {
            Some(entry) if entry.leaving => ChangeStanding::Ordered,
            _ => ChangeStanding::Unordered,
        },
    }
}

fn signed_bytes(market: MarketId, statement: &[u8]) -> Vec<u8> {
    [DOMAIN, market.0.as_slice(), statement].concat()
}

/// Returns a validator's signature under a statement about its market's state.
pub(super) fn sign_statement(market: MarketId, statement: &[u8], key: &SigningKey) -> Vec<u8> {
    key.sign(&signed_bytes(market, statement))
        .to_bytes()
        .to_vec()
}

/// Returns whether a key signed a statement.
pub(super) fn has_signed(
    market: MarketId,
    statement: &[u8],
    account: AccountKey,
    signature: &[u8],
) -> bool {
    let holds = || {
        let key = VerifyingKey::from_bytes(&account.0).ok()?;
        let signature = Signature::from_slice(signature).ok()?;
        key.verify_strict(&signed_bytes(market, statement), &signature)
            .ok()
    };
    holds().is_some()
}

/// Counts the members that must vouch for an offered state, and those that have. `mine` is the
/// roster here, `theirs` the one in the state.
pub(super) fn tally_vouchers(
    market: MarketId,
    mine: &Roster,
    theirs: &Roster,
    offered: &OfferedState<'_>,
) -> Tally {
    let Some(members) = vouching_members(mine, theirs, offered) else {
        return NOBODY;
    };
    let statement = offered.certificate.statement.signing_bytes();
    let vouchers = offered.certificate.vouchers.iter();
    let valid = vouchers.filter(|voucher| {
        let account = members.get(&voucher.by);
        account.is_some_and(|account| has_signed(market, &statement, *account, &voucher.signature))
    });
    Tally {
        members: members.len(),
        vouched: valid.map(|it| it.by).collect::<BTreeSet<_>>().len(),
    }
}

/// Returns the members of whom a majority must vouch, each with its own key; none if a voter of
/// the state was never admitted, or two share a key.
fn vouching_members(
    mine: &Roster,
    theirs: &Roster,
    offered: &OfferedState<'_>,
) -> Option<BTreeMap<ReplicaId, AccountKey>> {
    // Before its first state a replica knows those that the genesis names.
    let founders = mine.staying_ids().filter_map(ReplicaId::new);
    let known: BTreeSet<ReplicaId> = match offered.known.is_empty() {
        true => founders.collect(),
        false => offered.known.clone(),
    };
    let has_left = |id: &ReplicaId| {
        let entry = theirs.entries().get(&id.get());
        let removal = entry.map_or(&[][..], |entry| &entry.removal);
        !offered.voters.contains(id) && mine.proves_removal(id.get(), removal)
    };
    let stayed = known.iter().filter(|id| !has_left(id));
    let ids: BTreeSet<ReplicaId> = stayed.chain(offered.voters).copied().collect();
    let account = |id: ReplicaId| {
        if let Some(entry) = mine.entries().get(&id.get()) {
            return Some((id, entry.account));
        }
        let entry = theirs.entries().get(&id.get())?;
        let is_admitted = mine.proves_admission(entry.account, &entry.admission);
        is_admitted.then_some((id, entry.account))
    };
    let members: Option<BTreeMap<_, _>> = ids.into_iter().map(account).collect();
    let members = members?;
    let keys: BTreeSet<AccountKey> = members.values().copied().collect();
    (keys.len() == members.len()).then_some(members)
}

#[cfg(test)]
mod tests;
