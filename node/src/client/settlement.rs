//! Proves to a client that the market settled a receipt and what it paid. The client fetches the
//! command that settled the receipt and the tiles (pieces of the history's tree) from any
//! validator, and the signed heads from all, and verifies each of them.

use std::collections::BTreeMap;

use souk_consensus::{Tile, TileId};
use souk_folder::key;
use souk_market::{AccountKey, Genesis, Receipt};
use souk_network::protocols::market::{Answer, Request};
pub use souk_proof::inclusion::Inclusion;
use souk_proof::note::CosigningRoster;
pub use souk_proof::receipt_proof::{ProofFault, ReceiptProof, Settlement, SettlementRecord};
use souk_roles::market::roster_proof::RosterProof;

use super::broker::Broker;
use super::history::{GatheredHistory, gather_heads, read_tile};

/// The greatest number of leaves that a log will ever have.
const LEAVES_MAX: u64 = 1 << 56;

/// Why the settlement of a receipt could not be proven.
#[derive(Debug, thiserror::Error)]
pub enum SettlementError {
    /// No validator has a command that settled the lease.
    #[error("none of the {asked} validators that answered shows that lease {lease} was settled")]
    Unknown {
        /// The validators that answered.
        asked: usize,
        /// The receipt's lease.
        lease: u64,
    },
    /// No validator answered.
    #[error("no validator answers whether lease {0} was settled")]
    Silent(u64),
    /// The lease was settled by another receipt.
    #[error("lease {0} was settled by another receipt, for {1} micro-credits")]
    Other(u64, u64),
    /// No certified head covers the settlement yet.
    #[error(
        "a validator has the receipt's settlement, and {} validators have not yet certified it",
        .0.check.needed
    )]
    Uncertified(Box<GatheredHistory>),
    /// No validator gave tiles that prove it.
    #[error("no validator proves that the history has the settlement: {0}")]
    Unproven(#[source] ProofFault),
}

/// A proof that a receipt was settled, with the facts that it proves.
#[derive(Debug)]
pub struct ProvenReceipt {
    /// The proof, which can be checked offline.
    pub proof: ReceiptProof,
    /// The proven settlement.
    pub settlement: Settlement,
    /// How many validators there are.
    pub members: usize,
    /// The operators' orders that admitted and removed validators.
    pub orders: RosterProof,
}

/// Proves that a receipt was settled, by heads that enough of today's validators signed.
///
/// # Errors
/// If it is not settled, not certified yet, or nobody proves it.
pub async fn prove_receipt(
    broker: &Broker,
    genesis: &Genesis,
    receipt: &Receipt,
) -> Result<ProvenReceipt, SettlementError> {
    let history = gather_heads(broker, genesis, Vec::new()).await;
    let lease = receipt.body.lease;
    let (mut asked, mut is_early, mut fault) = (0, false, None);
    for (_, account) in answering_accounts(&history) {
        let Ok(peer) = key::peer_of(&account.0) else {
            continue;
        };
        let request = Request::Settlement(lease);
        let Ok(Answer::Settlement(record)) = broker.ask_one(peer, &request).await else {
            continue;
        };
        asked += 1;
        let Some(record) = record.filter(|record| record.leaf < LEAVES_MAX) else {
            continue;
        };
        let Some(found) = record.find_receipt(lease) else {
            continue;
        };
        match prove_record(broker, &history, account, *record, &found).await {
            Ok(proven) if found == *receipt => return Ok(proven),
            Ok(_) => return Err(SettlementError::Other(lease.0, found.body.amount.0)),
            Err(Some(found)) => fault = Some(found),
            Err(None) => is_early |= found == *receipt,
        }
    }
    Err(match fault {
        Some(fault) => SettlementError::Unproven(fault),
        None if is_early => SettlementError::Uncertified(Box::new(history)),
        None if asked == 0 => SettlementError::Silent(lease.0),
        None => SettlementError::Unknown {
            asked,
            lease: lease.0,
        },
    })
}

/// Returns the validators that answered and whose signatures count, by raft id.
pub(super) fn answering_accounts(history: &GatheredHistory) -> Vec<(u64, AccountKey)> {
    let answered = history.answers.iter().filter(|answer| answer.notes.is_ok());
    let account = |raft_id| Some((raft_id, *history.check.members.get(&raft_id)?));
    answered.filter_map(|it| account(it.raft_id)).collect()
}

/// Proves a validator's record with its tiles. The error is none if the certified head does not
/// cover the record.
async fn prove_record(
    broker: &Broker,
    history: &GatheredHistory,
    account: AccountKey,
    record: SettlementRecord,
    receipt: &Receipt,
) -> Result<ProvenReceipt, Option<ProofFault>> {
    let covers = |size: u64| record.leaf < size;
    let certified = history.check.find_certified();
    let certified = certified.filter(|it| covers(it.head().size)).ok_or(None)?;
    let plan = Inclusion::of_leaf(record.leaf, certified.head().size);
    let peer = key::peer_of(&account.0).map_err(|_| None)?;
    let mut tiles: BTreeMap<TileId, Tile> = BTreeMap::new();
    for id in plan.needed_tiles().into_keys() {
        let TileId { level, index } = id;
        let told = broker.ask_one(peer, &Request::Tile { level, index }).await;
        tiles.extend(read_tile(id, told).map(|tile| (id, tile)));
    }
    let path = plan.build(&tiles).map_err(|_| ProofFault::Path)?;
    let proof = ReceiptProof::new(record, receipt, path, certified.note.clone());
    let proof = proof.ok_or(ProofFault::Receipt)?;
    let roster = CosigningRoster::from(history.check.members.clone());
    let settlement = proof.verify(receipt, certified.note.market, &roster)?;
    let orders = history.orders.clone();
    Ok(ProvenReceipt {
        proof: proof.with_orders(orders.to_proof_bytes()),
        settlement,
        members: roster.members,
        orders,
    })
}
