//! Defines the batch, in which an account sends up to 64 commands to the exchange under one
//! signature and one nonce.
//!
//! Checking signatures is the most expensive step, so callers must do it before and outside the
//! exchange: [`SignedBatch::verify`] makes the [`VerifiedBatch`] that [`crate::Exchange::apply`]
//! takes.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::command::Command;
use crate::ids::{AccountKey, MarketId, Nonce, Signature, SigningKey, canonical_bytes};
use crate::receipt::ReceiptFault;
use crate::signing::{Claim, Judge, NotedClaim, holds_alone, sign_bytes, signed_by};
use crate::units::Millis;

const DOMAIN: &str = "souk batch v1";

/// The most commands under one signature.
pub const COMMANDS_MAX: usize = 64;

/// The part of a batch that the account signs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The market that the batch is for; any other market will refuse it.
    pub market: MarketId,
    /// The account that gives the commands.
    pub account: AccountKey,
    /// A number that the account must use only once: the exchange will refuse a second batch with
    /// it.
    pub nonce: Nonce,
    /// The log time from which the exchange no longer applies the batch.
    pub expires: Millis,
    /// 1 to [`COMMANDS_MAX`] commands, applied in order, each independently of the others.
    pub commands: Vec<Command>,
}

/// A batch with its account's signature, as nodes send it and as the log holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedBatch {
    /// The signed part.
    pub batch: Batch,
    /// The account's signature.
    pub signature: Signature,
}

/// Why a batch is rejected before the exchange sees it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchFault {
    /// The batch has no commands, or too many.
    #[error("a batch holds 1 to {COMMANDS_MAX} commands, this one {count}")]
    Count {
        /// The number of commands.
        count: usize,
    },
    /// The account's key did not make the signature over this batch.
    #[error("the signature is not that of {account} over this batch")]
    Signature {
        /// The account whose key should have signed.
        account: AccountKey,
    },
    /// The bytes do not decode to a signed batch.
    #[error("{bytes} bytes are not a signed batch")]
    Bytes {
        /// The number of bytes.
        bytes: usize,
    },
}

/// A batch whose signature, and those of the receipts in it, are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedBatch {
    batch: Batch,
    /// For each receipt that is not valid: the index of its command, and the fault.
    receipt_faults: Vec<(usize, ReceiptFault)>,
}

impl Batch {
    /// Signs the batch with the key of `self.account`.
    pub fn sign(self, key: &SigningKey) -> SignedBatch {
        let signature = sign_bytes(key, DOMAIN, &canonical_bytes(&self));
        SignedBatch {
            batch: self,
            signature,
        }
    }
}

impl SignedBatch {
    /// Returns the canonical bytes, as nodes send them and as the log holds them.
    pub fn encode(&self) -> Vec<u8> {
        canonical_bytes(self)
    }

    /// Decodes the bytes that [`Self::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are anything else, or if more bytes follow the batch.
    pub fn decode(bytes: &[u8]) -> Result<Self, BatchFault> {
        match postcard::take_from_bytes(bytes) {
            Ok((batch, [])) => Ok(batch),
            _ => Err(BatchFault::Bytes { bytes: bytes.len() }),
        }
    }

    /// Checks the batch's signature and those of the receipts inside.
    ///
    /// A receipt that is not valid does not invalidate the batch: the exchange refuses its command.
    ///
    /// # Errors
    /// If the batch is empty, too long or not signed by its account.
    pub fn verify(self) -> Result<VerifiedBatch, BatchFault> {
        self.verify_by(&mut holds_alone)
    }

    /// Gives the results of [`Self::verify`] for each batch. If all signatures are valid it takes a
    /// third to a half of the time, because it checks them together.
    pub fn verify_each(batches: Vec<Self>) -> Vec<Result<VerifiedBatch, BatchFault>> {
        let mut noted = Vec::new();
        let note = |batch: Self| {
            let (account, begin) = (batch.batch.account, noted.len());
            let supposed = batch.verify_by(&mut |claim| {
                noted.push(NotedClaim::new(claim));
                true
            });
            (account, supposed, begin..noted.len())
        };
        let supposed: Vec<_> = batches.into_iter().map(note).collect();
        let claims: Vec<Claim<'_>> = noted.iter().map(NotedClaim::as_claim).collect();
        let holds = Claim::each_holds(&claims);
        let judged =
            |(account, supposed, claims): (_, Result<VerifiedBatch, _>, Range<usize>)| match (
                supposed,
                &holds[claims],
            ) {
                (_, [false, ..]) => Err(BatchFault::Signature { account }),
                (Ok(supposed), holds) if holds.contains(&false) => {
                    VerifiedBatch::check_batch(supposed.batch, &mut holds_alone)
                }
                (supposed, _) => supposed,
            };
        supposed.into_iter().map(judged).collect()
    }

    /// Checks the batch; `judge` sees the batch's own signature first.
    fn verify_by(self, judge: &mut Judge<'_>) -> Result<VerifiedBatch, BatchFault> {
        let account = self.batch.account;
        let bytes = canonical_bytes(&self.batch);
        if !signed_by(judge, account, DOMAIN, &bytes, &self.signature) {
            return Err(BatchFault::Signature { account });
        }
        VerifiedBatch::check_batch(self.batch, judge)
    }
}

impl VerifiedBatch {
    fn check_batch(batch: Batch, judge: &mut Judge<'_>) -> Result<Self, BatchFault> {
        let count = batch.commands.len();
        if count == 0 || count > COMMANDS_MAX {
            return Err(BatchFault::Count { count });
        }
        let fault = |(place, command): (usize, &Command)| {
            let verified = match command {
                Command::Settle(receipt) => receipt.verify_by(judge),
                Command::ProveFault(pair) => {
                    let mut each = pair.iter().map(|one| one.verify_provider_by(judge));
                    each.find(Result::is_err).unwrap_or(Ok(()))
                }
                Command::Accuse(accusation) => accusation.receipt.verify_provider_by(judge),
                _ => Ok(()),
            };
            verified.err().map(|fault| (place, fault))
        };
        let receipt_faults: Vec<_> = batch
            .commands
            .iter()
            .enumerate()
            .filter_map(fault)
            .collect();
        debug_assert!(receipt_faults.len() <= count, "one fault a command");
        Ok(Self {
            batch,
            receipt_faults,
        })
    }

    /// Accepts a batch from the caller's own log. The caller must have verified the batch before it
    /// went into that log, because this checks only the receipts' signatures, not the batch's.
    ///
    /// # Errors
    /// If the batch is empty or too long.
    pub fn from_own_log(signed: SignedBatch) -> Result<Self, BatchFault> {
        Self::check_batch(signed.batch, &mut holds_alone)
    }

    /// Returns the batch.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    pub(crate) fn receipt_fault(&self, place: usize) -> Option<&ReceiptFault> {
        self.receipt_faults
            .iter()
            .find(|(at, _)| *at == place)
            .map(|(_, fault)| fault)
    }
}
