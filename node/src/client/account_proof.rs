//! Proves an account's balances, or that the account does not exist, to a client that trusts only
//! the market's genesis. It takes a head (a summary of the market's state) that enough validators
//! signed, and the account's path in the state's tree from any validator, and verifies both.

use souk_folder::key;
use souk_market::{AccountKey, Digest, Genesis};
use souk_network::protocols::market::{Answer, Request};
pub use souk_proof::account_proof::{AccountFault, AccountProof, CertifiedAccount};
use souk_proof::note::CosigningRoster;

use super::broker::Broker;
use super::history::{GatheredHistory, gather_heads};
use super::settlement::answering_accounts;

/// Why an account's balances could not be proven.
#[derive(Debug, thiserror::Error)]
pub enum ProveAccountError {
    /// No validator answered.
    #[error("no validator answers")]
    Silent,
    /// Too few validators signed one head.
    #[error("no state is certified: {} validators must sign one, and too few did", .0.check.needed)]
    Uncertified(Box<GatheredHistory>),
    /// The certified head has no state.
    #[error("the validators certify no states yet: they run a release of souk before that")]
    Stateless,
    /// No validator has the certified state any more.
    #[error("none of the {asked} validators that answered proves the last certified state")]
    Gone {
        /// The validators that answered.
        asked: usize,
        /// The heads that the validators signed.
        history: Box<GatheredHistory>,
    },
    /// A validator sent a proof that is not valid.
    #[error("validator {by} sent a proof that does not hold: {fault}")]
    Unproven {
        /// The raft id of the validator.
        by: u64,
        /// The fault of the proof.
        #[source]
        fault: AccountFault,
    },
}

/// A proof about an account, with the facts that it proves.
#[derive(Debug)]
pub struct ProvenAccount {
    /// The proof, which can be checked offline.
    pub proof: AccountProof,
    /// The proven account.
    pub account: CertifiedAccount,
    /// The heads that the validators signed.
    pub history: GatheredHistory,
}

/// Proves the balances of an account, or that the market has no such account, by the last state
/// that enough of today's validators signed.
///
/// # Errors
/// If no state is certified, or nobody proves it.
pub async fn prove_account(
    broker: &Broker,
    genesis: &Genesis,
    account: AccountKey,
) -> Result<ProvenAccount, ProveAccountError> {
    let history = gather_heads(broker, genesis, Vec::new()).await;
    let validators = answering_accounts(&history);
    if validators.is_empty() {
        return Err(ProveAccountError::Silent);
    }
    let check = &history.check;
    let certified = check.find_certified();
    let Some(certified) = certified else {
        return Err(ProveAccountError::Uncertified(Box::new(history)));
    };
    let root = certified.head().state.ok_or(ProveAccountError::Stateless)?;
    let roster = CosigningRoster::from(check.members.clone());
    let (mut asked, mut unproven) = (0, None);
    for (by, validator) in validators {
        let Ok(peer) = key::peer_of(&validator.0) else {
            continue;
        };
        let request = Request::AccountProof(account, Digest(root.0));
        let Ok(Answer::AccountProof(path)) = broker.ask_one(peer, &request).await else {
            continue;
        };
        asked += 1;
        let Some(path) = path else { continue };
        let proof = AccountProof::new(*path, certified.note.clone());
        let verified = match proof.account() == account {
            true => proof.verify(genesis.market_id(), &roster),
            false => Err(AccountFault::Account(proof.account())),
        };
        match verified {
            Ok(account) => {
                let orders = history.orders.to_proof_bytes();
                return Ok(ProvenAccount {
                    proof: proof.with_orders(orders),
                    account,
                    history,
                });
            }
            Err(fault) => unproven = Some((by, fault)),
        }
    }
    Err(match unproven {
        Some((by, fault)) => ProveAccountError::Unproven { by, fault },
        None => ProveAccountError::Gone {
            asked,
            history: Box::new(history),
        },
    })
}
