//! Encodes and verifies the proof of an account's balances, or of the account's absence. Anyone can
//! check it offline with the market's genesis.
//!
//! It has the path of the account in the state's tree ([`souk_market::AccountProof`]) and the head
//! that validators cosigned, which states the tree's root:
//!
//! ```text
//! souk/account-proof@v1
//! extra AAAAAAAAAA…=                 the path, encoded by postcard, then the operators' orders
//!                                    that show who the validators are; in base64
//!
//! souk/4be8…c1                       the head, as in a proof of a receipt
//! …
//! ```

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
pub use souk_market::StateBalances;
use souk_market::{AccountKey, AccountProof as StatePath, AccountProofFault, MarketId};

use crate::note::{CosigningRoster, NoteFault, TreeNote};
use crate::place::{LogIndex, LogTime};

/// The first line of a proof.
const FIRST_LINE: &str = "souk/account-proof@v1";

/// The largest proof that is read: a path of all branches with all hashes and the orders of the
/// largest roster fit.
pub const PROOF_BYTES_MAX: usize = 512 << 10;

/// A proof of an account's balances, or that there is no such account, in a certified state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountProof {
    path: StatePath,
    note: TreeNote,
    orders: Vec<u8>,
}

/// The facts about an account that a proof has proven.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CertifiedAccount {
    /// The key of the account that the proof is about.
    pub account: AccountKey,
    /// Its balances; none if the market had no such account.
    pub balances: Option<StateBalances>,
    /// The last entry of the log that the state covers.
    #[serde(serialize_with = "serialize_index")]
    pub index: LogIndex,
    /// The log's time there.
    #[serde(serialize_with = "serialize_time")]
    pub time: LogTime,
    /// The validators that signed the head, in order.
    pub signers: Vec<u64>,
    /// When enough validators had signed it, in seconds since 1970.
    pub certified_s: u64,
}

fn serialize_index<S: serde::Serializer>(index: &LogIndex, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(index.0)
}

fn serialize_time<S: serde::Serializer>(time: &LogTime, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(time.0)
}

/// Why bytes are not a proof, or do not prove the account's balances.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountFault {
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
    /// It is of another account.
    #[error("the proof is of the account {0}, not of the one asked for")]
    Account(AccountKey),
    /// The head states no state.
    #[error("its head has no root of the state: a release of souk before this proof signed it")]
    Stateless,
    /// The path is malformed.
    #[error("the proof was changed: {0}")]
    Path(#[from] AccountProofFault),
    /// The path does not lead to the root.
    #[error(
        "the proof was changed: its path does not lead to the state that the validators signed"
    )]
    Root,
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

impl AccountProof {
    /// Makes a proof from the path of an account and a signed head. You must verify it.
    #[must_use]
    pub fn new(path: StatePath, note: TreeNote) -> Self {
        let orders = Vec::new();
        Self { path, note, orders }
    }

    /// Adds the operators' orders that show who the validators are, in the form of the roles.
    #[must_use]
    pub fn with_orders(mut self, orders: Vec<u8>) -> Self {
        self.orders = orders;
        self
    }

    /// Returns the operators' orders of [`AccountProof::with_orders`]; you must check them. They
    /// are empty in a proof that has none, such as one of an earlier release.
    #[must_use]
    pub fn orders(&self) -> &[u8] {
        &self.orders
    }

    /// Returns the account of the proof.
    #[must_use]
    pub fn account(&self) -> AccountKey {
        self.path.key
    }

    /// Checks that the state of this market, which enough of the roster certify, says this about
    /// the account.
    ///
    /// # Errors
    /// The first fault found.
    pub fn verify(
        &self,
        market: MarketId,
        roster: &CosigningRoster,
    ) -> Result<CertifiedAccount, AccountFault> {
        if self.note.market != market {
            return Err(AccountFault::Market(self.note.market));
        }
        let head = self.note.head;
        let state = head.state.ok_or(AccountFault::Stateless)?;
        if self.path.state_root()?.0 != state.0 {
            return Err(AccountFault::Root);
        }
        let signers = self.note.list_signers(&roster.cosigners);
        let certified_s = self.note.certified_s(roster);
        let certified_s = certified_s.ok_or(AccountFault::Signers {
            signed: signers.len(),
            members: roster.members,
            needed: roster.certifying_count(),
        })?;
        Ok(CertifiedAccount {
            account: self.path.key,
            balances: self.path.balances(),
            index: head.index,
            time: head.time,
            signers,
            certified_s,
        })
    }

    /// Encodes the proof as text.
    #[must_use]
    pub fn encode(&self) -> String {
        let path = [&encode(&self.path)[..], &self.orders].concat();
        let path = BASE64_STANDARD.encode(path);
        format!("{FIRST_LINE}\nextra {path}\n\n{}", self.note.encode())
    }

    /// Reads a proof.
    ///
    /// # Errors
    /// If the bytes are not a proof of an account.
    pub fn decode(bytes: &[u8]) -> Result<Self, AccountFault> {
        if bytes.len() > PROOF_BYTES_MAX {
            return Err(AccountFault::Long(bytes.len()));
        }
        let missing = AccountFault::Line;
        let text = std::str::from_utf8(bytes).map_err(|_| missing("UTF-8 text"))?;
        let rest = text.strip_prefix(FIRST_LINE);
        let rest = rest.and_then(|rest| rest.strip_prefix("\nextra "));
        let rest = rest.ok_or(missing(FIRST_LINE))?;
        let (path, note) = rest.split_once("\n\n").ok_or(missing("the head"))?;
        let bytes = BASE64_STANDARD.decode(path).ok();
        let path = bytes.and_then(|bytes| {
            let (path, orders) = postcard::take_from_bytes::<StatePath>(&bytes).ok()?;
            // Each proof has one form.
            let is_canonical = bytes.strip_suffix(orders)? == encode(&path);
            is_canonical.then(|| (path, orders.to_vec()))
        });
        let (path, orders) = path.ok_or(missing("the path of an account"))?;
        let note = TreeNote::decode(note.as_bytes())?;
        Ok(Self { path, note, orders })
    }
}

fn encode(path: &StatePath) -> Vec<u8> {
    postcard::to_allocvec(path).expect("plain data in memory always encodes")
}

#[cfg(test)]
mod tests {
    use souk_market::{Credits, Exchange, Genesis, Name, SigningKey};

    use super::*;
    use crate::digest::Digest;
    use crate::note::Cosigners;
    use crate::place::TreeHead;

    fn key(by: u64) -> SigningKey {
        SigningKey::from_bytes(&[by as u8; 32])
    }

    fn account(by: u64) -> AccountKey {
        AccountKey::from(&key(by))
    }

    fn members() -> CosigningRoster {
        Cosigners::from_iter((1..=4).map(|by| (by, account(by)))).into()
    }

    fn exchange() -> Exchange {
        let mut genesis = Genesis::new("m".try_into().unwrap(), account(9));
        for by in 9..60 {
            let credits = Credits(1_000_000 * by);
            genesis
                .accounts
                .push((account(by), Name::default(), credits));
        }
        Exchange::new(genesis)
    }

    fn note(market: MarketId, state: Option<Digest>, signers: u64) -> TreeNote {
        let head = TreeHead {
            index: LogIndex(99),
            time: LogTime(1_764_428_531_500),
            size: 300,
            root: Digest([6; 32]),
            state,
        };
        let mut note = TreeNote::new(market, head);
        for by in 1..=signers {
            note.insert(note.cosign(by, 1_764_428_530 + by, &key(by)));
        }
        note
    }

    fn prove(of: u64, signers: u64) -> (AccountProof, MarketId) {
        let mut exchange = exchange();
        let root = exchange.state_root(souk_market::Digest([1; 32]));
        let path = exchange.prove_account(account(of), root).unwrap();
        let note = note(exchange.market(), Some(Digest(root.0)), signers);
        (AccountProof::new(path, note), exchange.market())
    }

    #[test]
    fn a_balance_and_an_absence_are_proven_with_index_time_and_signers() {
        for of in [17, 77] {
            let (proof, market) = prove(of, 3);
            let text = proof.encode();
            let read = AccountProof::decode(text.as_bytes()).unwrap();
            assert_eq!(read, proof);
            let found = read.verify(market, &members()).unwrap();
            let available = found.balances.map(|balances| balances.available);
            assert_eq!(available, (of == 17).then_some(Credits(17_000_000)));
            assert_eq!(found.account, account(of));
            assert_eq!((found.index, found.signers.len()), (LogIndex(99), 3));
            // The third signature certified it.
            assert_eq!(found.certified_s, 1_764_428_533);
            assert!(text.len() < 4_096, "{} bytes", text.len());
        }
    }

    #[test]
    fn a_proof_carries_orders_behind_the_path_and_is_the_same_without() {
        let (plain, market) = prove(17, 3);
        assert!(plain.orders().is_empty(), "as an earlier release wrote it");
        let carrying = plain.clone().with_orders(b"orders".to_vec());
        let read = AccountProof::decode(carrying.encode().as_bytes()).unwrap();
        assert_eq!((read.orders(), &read), (&b"orders"[..], &carrying));
        let found = read.verify(market, &members());
        assert_eq!(found, plain.verify(market, &members()));
        let long = plain.with_orders(vec![0; PROOF_BYTES_MAX]).encode();
        let refused = AccountProof::decode(long.as_bytes());
        assert_eq!(refused, Err(AccountFault::Long(long.len())));
    }

    #[test]
    fn another_market_too_few_signers_or_no_state_prove_nothing() {
        let (proof, market) = prove(17, 2);
        let signers = AccountFault::Signers {
            signed: 2,
            members: 4,
            needed: 3,
        };
        assert_eq!(proof.verify(market, &members()), Err(signers));
        let (proof, market) = prove(17, 3);
        let other = MarketId([5; 32]);
        let verified = proof.verify(other, &members());
        assert_eq!(verified, Err(AccountFault::Market(market)));
        let mut old = proof.clone();
        old.note = note(market, None, 4);
        assert_eq!(old.verify(market, &members()), Err(AccountFault::Stateless));
        let mut later = proof;
        later.note = note(market, Some(Digest([2; 32])), 4);
        assert_eq!(later.verify(market, &members()), Err(AccountFault::Root));
    }

    #[test]
    fn a_changed_proof_is_refused_or_says_the_same() {
        let (proof, market) = prove(17, 3);
        let wanted = proof.verify(market, &members()).unwrap();
        let text = proof.encode();
        for place in (0..text.len()).step_by(3) {
            let mut bytes = text.clone().into_bytes();
            bytes[place] ^= 1;
            let read = AccountProof::decode(&bytes);
            if let Ok(found) = read.and_then(|read| read.verify(market, &members())) {
                assert_eq!(found, wanted, "byte {place}");
            }
        }
        for length in (0..text.len() - 1).step_by(11) {
            let read = AccountProof::decode(&text.as_bytes()[..length]);
            assert!(
                read.and_then(|read| read.verify(market, &members()))
                    .is_err()
            );
        }
    }
}
