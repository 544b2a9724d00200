//! Encodes and verifies the proof that a receipt was settled, which anyone can check offline with
//! the market's genesis.
//!
//! It has the form of C2SP `tlog-proof`: the number of a leaf, its path in the tree, and a head
//! that validators cosigned. The extra data contains everything that the leaf hashes except the
//! receipt, which the reader must already have. So it proves that exactly this receipt was settled,
//! not only its lease. Behind it, the extra data can have the operators' orders that show who the
//! validators are; this crate does not read them.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use souk_market::{Acceptance, Command, Credits, LeaseId, MarketId, Receipt, Refusal, SignedBatch};

use crate::digest::Digest;
use crate::history::{Leaf, SealedLeaf};
use crate::inclusion;
use crate::note::{CosigningRoster, NoteFault, TreeNote};
use crate::place::{LogIndex, LogTime, Position};

/// The first line.
const FIRST_LINE: &str = "c2sp.org/tlog-proof@v1";

/// The largest proof that is read: a batch of 64 receipts with the most tensors fits.
pub const PROOF_BYTES_MAX: usize = 4 << 20;

/// The most hashes of a path.
const PATH_MAX: usize = 63;

/// A command of the log that settled receipts, in the form in which validators store and send it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettlementRecord {
    /// The number of leaves before its own.
    pub leaf: u64,
    place: LeafPlace,
    command: Vec<u8>,
    result: Vec<u8>,
}

/// The fields of a leaf that are not hashed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LeafPlace {
    index: u64,
    offset: u32,
    time: u64,
    events: [u8; 32],
}

impl LeafPlace {
    fn to_leaf(&self, command: &[u8], result: &[u8]) -> Leaf {
        Leaf {
            at: Position {
                index: LogIndex(self.index),
                offset: self.offset,
            },
            time: LogTime(self.time),
            command: Digest::for_content(command),
            result: Leaf::hash_result(result, Digest(self.events)),
        }
    }
}

/// The payments of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Payment {
    /// Credits paid to the provider.
    pub paid: Credits,
    /// The market's fee.
    pub fee: Credits,
    /// Credits returned to the buyer.
    pub refunded: Credits,
}

impl SettlementRecord {
    /// Returns the record of a leaf.
    #[must_use]
    pub fn new(sealed: SealedLeaf) -> Self {
        Self {
            leaf: sealed.number,
            place: LeafPlace {
                index: sealed.at.index.0,
                offset: sealed.at.offset,
                time: sealed.time.0,
                events: sealed.events.0,
            },
            command: sealed.command,
            result: sealed.result,
        }
    }

    /// Returns the leases that it settled.
    #[must_use]
    pub fn list_leases(&self) -> Vec<LeaseId> {
        let settled = settlements(&self.command, &self.result).into_iter();
        settled.map(|(receipt, _)| receipt.body.lease).collect()
    }

    /// Returns the receipt by which it settled a lease.
    #[must_use]
    pub fn find_receipt(&self, lease: LeaseId) -> Option<Receipt> {
        let settled = settlements(&self.command, &self.result).into_iter();
        let mut receipts = settled.map(|(receipt, _)| receipt);
        receipts.find(|receipt| receipt.body.lease == lease)
    }
}

/// Returns the receipts that a command settled, with the payment of each.
fn settlements(command: &[u8], result: &[u8]) -> Vec<(Receipt, Payment)> {
    // The result of a batch begins with zero, that of an order with one.
    let results = result.strip_prefix(&[0]).unwrap_or_default();
    let results: Result<Vec<Result<Acceptance, Refusal>>, _> = postcard::from_bytes(results);
    let (Ok(signed), Ok(results)) = (SignedBatch::decode(command), results) else {
        return Vec::new();
    };
    let both = signed.batch.commands.into_iter().zip(results);
    let settled = both.filter_map(|it| match it {
        (
            Command::Settle(receipt),
            Ok(Acceptance::Closed {
                paid,
                fee,
                refunded,
            }),
        ) => Some((
            *receipt,
            Payment {
                paid,
                fee,
                refunded,
            },
        )),
        _ => None,
    });
    settled.collect()
}

/// The extra data: the leaf, with the command around the receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Extra {
    place: LeafPlace,
    before: Vec<u8>,
    after: Vec<u8>,
    result: Vec<u8>,
}

/// A proof that a receipt was settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptProof {
    leaf: u64,
    extra: Extra,
    path: Vec<Digest>,
    note: TreeNote,
    orders: Vec<u8>,
}

/// A proven settlement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The number of leaves up to this one: the size of the history that it completed.
    pub step: u64,
    /// The log's time when it was settled.
    pub time: LogTime,
    /// The payment for the lease.
    pub payment: Payment,
    /// The validators that signed the head, in order.
    pub signers: Vec<u64>,
    /// When enough validators had signed it, in seconds since 1970.
    pub certified_s: u64,
}

/// Why bytes are not a proof, or do not prove a receipt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProofFault {
    /// It is too long.
    #[error("a proof of {0} bytes; at most {PROOF_BYTES_MAX} are read")]
    Long(usize),
    /// A line is not as expected.
    #[error("the proof has no line with {0}")]
    Line(&'static str),
    /// The head does not decode.
    #[error("the head in the proof: {0}")]
    Note(#[from] NoteFault),
    /// It is of another market.
    #[error("the proof is of the market {0}, not of this one")]
    Market(MarketId),
    /// The receipt is of another market.
    #[error("the receipt is of the market {0}, not of this one")]
    ReceiptMarket(MarketId),
    /// The command in the proof did not settle the receipt.
    #[error("the proof is not of this receipt")]
    Receipt,
    /// The path does not lead to the root.
    #[error(
        "the proof is not of this receipt, or was changed: its path does not lead to the root that \
         the validators signed"
    )]
    Path,
    /// Too few validators signed.
    #[error("{signed} of {members} validators signed the head, and {needed} must")]
    Signers {
        /// The validators that signed.
        signed: usize,
        /// The number of validators that the market has.
        members: usize,
        /// The number of validators that must sign.
        needed: usize,
    },
}

impl ReceiptProof {
    /// Makes the proof of a receipt from a record, the path of its leaf and a signed head; none if
    /// the record does not have the receipt.
    #[must_use]
    pub fn new(
        record: SettlementRecord,
        receipt: &Receipt,
        path: Vec<Digest>,
        note: TreeNote,
    ) -> Option<Self> {
        let bytes = encode(receipt);
        let mut windows = record.command.windows(bytes.len());
        let start = windows.position(|window| window == bytes)?;
        let extra = Extra {
            place: record.place,
            before: record.command[..start].to_vec(),
            after: record.command[start + bytes.len()..].to_vec(),
            result: record.result,
        };
        Some(Self {
            leaf: record.leaf,
            extra,
            path,
            note,
            orders: Vec::new(),
        })
    }

    /// Adds the operators' orders that show who the validators are, in the form of the roles.
    #[must_use]
    pub fn with_orders(mut self, orders: Vec<u8>) -> Self {
        self.orders = orders;
        self
    }

    /// Returns the operators' orders of [`ReceiptProof::with_orders`]; you must check them. They
    /// are empty in a proof that has none, such as one of an earlier release.
    #[must_use]
    pub fn orders(&self) -> &[u8] {
        &self.orders
    }

    /// Checks that the receipt was settled in this market's history, which enough of the roster
    /// certify. It does not check the receipt's own signatures: the market did.
    ///
    /// # Errors
    /// The first fault found.
    pub fn verify(
        &self,
        receipt: &Receipt,
        market: MarketId,
        roster: &CosigningRoster,
    ) -> Result<Settlement, ProofFault> {
        if receipt.body.market != market {
            return Err(ProofFault::ReceiptMarket(receipt.body.market));
        }
        if self.note.market != market {
            return Err(ProofFault::Market(self.note.market));
        }
        let Extra {
            place,
            before,
            after,
            result,
        } = &self.extra;
        let command = [&before[..], &encode(receipt), after].concat();
        let mut settled = settlements(&command, result).into_iter();
        let found = settled.find(|(found, _)| found == receipt);
        let (_, payment) = found.ok_or(ProofFault::Receipt)?;
        let hash = place.to_leaf(&command, result).hash();
        let head = self.note.head;
        if !inclusion::verify(self.leaf, hash, (head.size, head.root), &self.path) {
            return Err(ProofFault::Path);
        }
        let signers = self.note.list_signers(&roster.cosigners);
        let certified_s = self.note.certified_s(roster);
        let certified_s = certified_s.ok_or(ProofFault::Signers {
            signed: signers.len(),
            members: roster.members,
            needed: roster.certifying_count(),
        })?;
        Ok(Settlement {
            step: self.leaf + 1,
            time: LogTime(place.time),
            payment,
            certified_s,
            signers,
        })
    }

    /// Encodes the proof as text.
    #[must_use]
    pub fn encode(&self) -> String {
        let extra = [&encode(&self.extra)[..], &self.orders].concat();
        let extra = BASE64_STANDARD.encode(extra);
        let mut text = format!("{FIRST_LINE}\nextra {extra}\nindex {}\n", self.leaf);
        for hash in &self.path {
            text.push_str(&BASE64_STANDARD.encode(hash.0));
            text.push('\n');
        }
        text.push('\n');
        text.push_str(&self.note.encode());
        text
    }

    /// Reads a proof.
    ///
    /// # Errors
    /// If the bytes are not a proof of a receipt.
    pub fn decode(bytes: &[u8]) -> Result<Self, ProofFault> {
        if bytes.len() > PROOF_BYTES_MAX {
            return Err(ProofFault::Long(bytes.len()));
        }
        let missing = ProofFault::Line;
        let text = std::str::from_utf8(bytes).map_err(|_| missing("UTF-8 text"))?;
        let parts = text.split_once("\n\n");
        let (head, note) = parts.ok_or(missing("nothing before the head"))?;
        let mut lines = head.split('\n');
        if lines.next() != Some(FIRST_LINE) {
            return Err(missing(FIRST_LINE));
        }
        let extra = lines.next().and_then(|line| line.strip_prefix("extra "));
        let extra = extra.and_then(|line| BASE64_STANDARD.decode(line).ok());
        let extra = extra.and_then(|bytes| {
            let (extra, orders) = postcard::take_from_bytes::<Extra>(&bytes).ok()?;
            // Each proof has one form.
            let is_canonical = bytes.strip_suffix(orders)? == encode(&extra);
            is_canonical.then(|| (extra, orders.to_vec()))
        });
        let (extra, orders) = extra.ok_or(missing("extra data of a receipt"))?;
        let leaf = lines.next().and_then(|line| line.strip_prefix("index "));
        let number = |line: &str| {
            let number: u64 = line.parse().ok()?;
            (number.to_string() == line).then_some(number)
        };
        let leaf = leaf.and_then(number).ok_or(missing("the leaf's index"))?;
        let hash = |line| {
            let bytes = BASE64_STANDARD.decode(line).ok()?;
            Some(Digest(bytes.try_into().ok()?))
        };
        let path: Option<Vec<Digest>> = lines.map(hash).collect();
        let path = path.filter(|path| path.len() <= PATH_MAX);
        Ok(Self {
            leaf,
            extra,
            path: path.ok_or(missing("the path"))?,
            note: TreeNote::decode(note.as_bytes())?,
            orders,
        })
    }
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(value).expect("plain data in memory always encodes")
}

#[cfg(test)]
mod tests;
