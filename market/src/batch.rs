//! One signature over up to 64 commands of one account.
//!
//! Checking signatures is the dearest step of all, so it happens before and outside the exchange:
//! [`SignedBatch::verify`] makes the [`VerifiedBatch`] that [`crate::Exchange::apply`] takes.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::command::Command;
use crate::ids::{AccountKey, MarketId, Nonce, Signature, SigningKey, canonical};
use crate::receipt::ReceiptFault;
use crate::signing::{Claim, Judge, NotedClaim, holds_alone, sign, signed_by};
use crate::units::Millis;

const DOMAIN: &str = "souk batch v1";

/// The most commands under one signature.
pub const COMMANDS_MAX: usize = 64;

/// What is signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The market it is for; any other refuses it.
    pub market: MarketId,
    /// Who commands.
    pub account: AccountKey,
    /// Used once per account: a second batch under it is absorbed.
    pub nonce: Nonce,
    /// The log time at which it is no longer applied.
    pub expires: Millis,
    /// 1 to [`COMMANDS_MAX`] commands, applied in order, each by itself.
    pub commands: Vec<Command>,
}

/// A batch with its account's signature: what travels and what the log holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedBatch {
    /// What is signed.
    pub batch: Batch,
    /// The account's signature.
    pub signature: Signature,
}

/// Why a batch is not even looked at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchFault {
    /// No commands, or too many.
    #[error("a batch holds 1 to {COMMANDS_MAX} commands, this one {count}")]
    Count {
        /// How many.
        count: usize,
    },
    /// The signature is not the account's over this batch.
    #[error("the signature is not that of {account} over this batch")]
    Signature {
        /// Whose it should be.
        account: AccountKey,
    },
    /// The bytes are no batch.
    #[error("{bytes} bytes are not a signed batch")]
    Bytes {
        /// How many bytes were given.
        bytes: usize,
    },
}

/// A batch whose signatures have been checked, those of the receipts in it as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedBatch {
    batch: Batch,
    /// For each receipt that is not valid: its command's place, and why.
    receipt_faults: Vec<(usize, ReceiptFault)>,
}

impl Batch {
    /// Signs with the key of `self.account`.
    pub fn sign(self, key: &SigningKey) -> SignedBatch {
        let signature = sign(key, DOMAIN, &canonical(&self));
        SignedBatch {
            batch: self,
            signature,
        }
    }
}

impl SignedBatch {
    /// The canonical bytes: what travels and what the log holds.
    pub fn encode(&self) -> Vec<u8> {
        canonical(self)
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are anything else, including a batch with bytes after it.
    pub fn decode(bytes: &[u8]) -> Result<Self, BatchFault> {
        match postcard::take_from_bytes(bytes) {
            Ok((batch, [])) => Ok(batch),
            _ => Err(BatchFault::Bytes { bytes: bytes.len() }),
        }
    }

    /// Checks the signature, and those of the receipts inside.
    ///
    /// A receipt that is not valid does not spoil the batch: its command will be refused.
    ///
    /// # Errors
    /// When the batch is empty, too long or not signed by its account.
    pub fn verify(self) -> Result<VerifiedBatch, BatchFault> {
        self.verify_by(&mut holds_alone)
    }

    /// What [`Self::verify`] says of each, in a third to a half of the time if all signatures hold:
    /// they are checked together.
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
        let claims: Vec<Claim<'_>> = noted.iter().map(NotedClaim::claim).collect();
        let holds = Claim::each_holds(&claims);
        let judged =
            |(account, supposed, claims): (_, Result<VerifiedBatch, _>, Range<usize>)| match (
                supposed,
                &holds[claims],
            ) {
                (_, [false, ..]) => Err(BatchFault::Signature { account }),
                (Ok(supposed), holds) if holds.contains(&false) => {
                    VerifiedBatch::check(supposed.batch, &mut holds_alone)
                }
                (supposed, _) => supposed,
            };
        supposed.into_iter().map(judged).collect()
    }

    /// The batch's own signature is the first that is judged.
    fn verify_by(self, judge: &mut Judge<'_>) -> Result<VerifiedBatch, BatchFault> {
        let account = self.batch.account;
        let bytes = canonical(&self.batch);
        if !signed_by(judge, account, DOMAIN, &bytes, &self.signature) {
            return Err(BatchFault::Signature { account });
        }
        VerifiedBatch::check(self.batch, judge)
    }
}

impl VerifiedBatch {
    fn check(batch: Batch, judge: &mut Judge<'_>) -> Result<Self, BatchFault> {
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

    /// Takes a batch out of the caller's own log, where it was verified before it went in: the
    /// batch's signature is not checked again, the receipts' are.
    ///
    /// # Errors
    /// When the batch is empty or too long.
    pub fn from_own_log(signed: SignedBatch) -> Result<Self, BatchFault> {
        Self::check(signed.batch, &mut holds_alone)
    }

    /// The batch.
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
