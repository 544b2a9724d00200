//! The roster of validators: raft ids bound to keys and addresses, as part of the replicated state.
//!
//! The market's operators, whose keys the genesis names, sign who joins and who leaves. Each
//! validator signs that it has begun, with its address. Signed orders go through the log like any
//! command, so that every replica checks them, every restart knows them, and an audit replays them.
//! The roster says which accounts *should* be validators; the leader applies it to raft.
//!
//! The roster never reuses a raft id. A validator that left, or lost its disk, must come back under
//! another.
//!
//! The roster keeps the signed orders that made it. They prove to anyone who knows the genesis that
//! the operators admitted or removed a validator, no matter who presents them.

use std::collections::{BTreeMap, BTreeSet};

use ed25519_dalek::{Signer, VerifyingKey};
use serde::{Deserialize, Serialize};
use souk_market::{
    APPROVAL_LIFE, AccountKey, Genesis, MarketId, Millis, RECOUNTING_RULES_VERSION, Signature,
    SigningKey,
};

/// The prefix of a signed order in the log. No batch of commands begins so, because a batch begins
/// with the hash that is the market's id.
const MAGIC: &[u8; 8] = b"soukRST2";

/// The prefix of the signed bytes, so that no other signature of the same key is valid here.
const DOMAIN: &[u8] = b"souk roster v1";

/// The most validators at a time: each makes every commit wait for more disks.
pub const SEATS_MAX: usize = 15;

/// The longest address in bytes, its peer id included.
const ADDRESS_BYTES_MAX: usize = 256;

/// An order about the validators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MembershipOrder {
    /// A new validator joins. The operators sign it.
    Admit {
        /// The validator's key.
        account: AccountKey,
        /// Its address, ending in its peer id.
        address: String,
    },
    /// A validator leaves for good. The operators sign it.
    Remove {
        /// The validator's raft id.
        raft_id: u64,
    },
    /// A validator should become leader. The operators sign it.
    Lead {
        /// The validator's raft id.
        raft_id: u64,
    },
    /// A validator has begun its log, and states its address and the latest rules that it supports.
    /// The validator signs it.
    Begin {
        /// The validator's raft id.
        raft_id: u64,
        /// Its address, ending in its peer id.
        address: String,
        /// The latest version of the market's rules that it supports.
        speaks: u16,
    },
    /// A validator must send a copy of the state. An operator or that validator signs it; it never
    /// enters the log.
    Backup {
        /// The raft id of the validator that sends the copy.
        raft_id: u64,
    },
}

/// The signed content of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Body {
    /// The market it is for.
    pub market: MarketId,
    /// The account that signs.
    pub signer: AccountKey,
    /// The order's number, which must rise with each order of a signer: an order takes effect once.
    pub number: u64,
    /// The log time from which it is void.
    pub expires: Millis,
    /// The order that the signer gives.
    pub order: MembershipOrder,
}

/// An order with its signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedMembershipOrder {
    /// The signed content.
    pub body: Body,
    /// The signer's ed25519 signature.
    pub signature: Signature,
}

/// A validator's entry in the roster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RosterEntry {
    /// The validator's key.
    pub account: AccountKey,
    /// Its address, ending in its peer id.
    pub address: String,
    /// Whether it has begun its log: from then on an empty disk is a loss.
    pub begun: bool,
    /// Whether it should leave, or has left.
    pub leaving: bool,
    /// The latest version of the market's rules that it claims to support; 0 before it began.
    pub speaks: u16,
    /// The operators' orders that admitted it; none for a founder, whom the genesis names.
    pub admission: Vec<SignedMembershipOrder>,
    /// The operators' orders that removed it.
    pub removal: Vec<SignedMembershipOrder>,
    /// Its own order that it has begun, which binds its raft id to its key and address.
    pub beginning: Option<SignedMembershipOrder>,
    /// The number of its last order.
    number: u64,
}

/// Why an order has no effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum RosterRefusal {
    /// The signature is not the signer's.
    #[error("the signature is not that of {0} over this order")]
    Signature(AccountKey),
    /// It is for another market.
    #[error("the order is for market {0}")]
    Market(MarketId),
    /// It came too late.
    #[error("the order expired at {expires}, it is {now}")]
    Expired {
        /// When it expired.
        expires: Millis,
        /// The log's time.
        now: Millis,
    },
    /// The signer is no operator.
    #[error("{0} may not order this: only the market's operators may")]
    Operator(AccountKey),
    /// More operators must sign the same order; the roster keeps this one until then.
    #[error(
        "{given} of {needed} operators have ordered it: it waits for the others, a day at most"
    )]
    Awaits {
        /// The number of operators that signed it.
        given: u32,
        /// The number of operators that must.
        needed: u32,
    },
    /// Too many orders wait for more operators.
    #[error("{ORDERS_MAX} orders wait for more operators, the most there may be")]
    Many,
    /// The roster has applied it, or a later one.
    #[error("order {number} is not newer than the last, {last}: it was carried out before")]
    Number {
        /// The order's number.
        number: u64,
        /// The last number of its signer.
        last: u64,
    },
    /// The key is in the roster.
    #[error("{account} is validator {raft_id} already")]
    Known {
        /// The key to admit.
        account: AccountKey,
        /// The raft id that the key already has.
        raft_id: u64,
    },
    /// There is no such validator.
    #[error("there is no validator {0}")]
    Unknown(u64),
    /// The validator left.
    #[error("validator {0} was removed, and its id never comes back: add it under a new one")]
    Removed(u64),
    /// No validator would remain.
    #[error("validator {0} is the last one: a market keeps at least one")]
    Last(u64),
    /// The roster is full.
    #[error("there are {SEATS_MAX} validators already, the most there may be")]
    Full,
    /// The address is too long.
    #[error("an address of {0} bytes; at most {ADDRESS_BYTES_MAX} are allowed")]
    Address(usize),
    /// The order does not belong in the log.
    #[error("a backup is asked of one validator, not ordered in the log")]
    NotForTheLog,
}

/// The most orders that can wait for more operators.
pub const ORDERS_MAX: usize = 16;

/// An order that too few operators have signed yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct AwaitedOrder {
    order: MembershipOrder,
    given: Vec<SignedMembershipOrder>,
    until: Millis,
}

/// The validators, past and present.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    market: MarketId,
    operators: Vec<AccountKey>,
    operators_needed: u32,
    /// The number of each operator's last order.
    numbers: BTreeMap<AccountKey, u64>,
    awaited: Vec<AwaitedOrder>,
    next_id: u64,
    entries: BTreeMap<u64, RosterEntry>,
}

impl SignedMembershipOrder {
    /// Signs an order with the key of `body.signer`.
    pub fn sign(body: Body, key: &SigningKey) -> SignedMembershipOrder {
        let signature = Signature(key.sign(&signed_bytes(&body)).to_bytes());
        SignedMembershipOrder { body, signature }
    }

    /// Checks strictly that the signature is the signer's.
    pub fn verify(&self) -> Result<(), RosterRefusal> {
        let holds = || {
            let key = VerifyingKey::from_bytes(&self.body.signer.0).ok()?;
            let signature = ed25519_dalek::Signature::from_bytes(&self.signature.0);
            key.verify_strict(&signed_bytes(&self.body), &signature)
                .ok()
        };
        holds().ok_or(RosterRefusal::Signature(self.body.signer))
    }

    /// Encodes the order as the log holds it.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(postcard::to_allocvec(self).expect("plain data in memory always encodes"));
        bytes
    }

    /// Decodes a command of the log; returns none if it is no order.
    pub fn decode(command: &[u8]) -> Option<Result<SignedMembershipOrder, postcard::Error>> {
        let body = command.strip_prefix(MAGIC)?;
        Some(postcard::from_bytes(body))
    }
}

impl Roster {
    /// Creates the roster of a new market.
    pub fn new(genesis: &Genesis) -> Roster {
        let mut roster = Roster {
            market: genesis.market_id(),
            operators: genesis.operators.clone(),
            operators_needed: genesis.operators_needed,
            numbers: BTreeMap::new(),
            awaited: Vec::new(),
            next_id: 1,
            entries: BTreeMap::new(),
        };
        for founder in &genesis.validators {
            roster.add_seat(founder.raft_id, founder.account, founder.address.clone());
        }
        roster
    }

    /// Returns the accounts that can admit and remove validators.
    pub fn operators(&self) -> &[AccountKey] {
        &self.operators
    }

    /// Returns whether an account is one of the operators.
    pub fn is_operator(&self, account: AccountKey) -> bool {
        self.operators.contains(&account)
    }

    /// Returns every validator, past and present, by raft id.
    pub fn entries(&self) -> &BTreeMap<u64, RosterEntry> {
        &self.entries
    }

    /// Returns the entry of a key that is not leaving.
    pub fn find_entry(&self, account: AccountKey) -> Option<(u64, &RosterEntry)> {
        let mut entries = self.entries.iter();
        let found = entries.find(|(_, entry)| entry.account == account && !entry.leaving);
        found.map(|(raft_id, entry)| (*raft_id, entry))
    }

    /// Returns the raft ids of the validators that should stay.
    pub fn staying_ids(&self) -> impl Iterator<Item = u64> + '_ {
        let entries = self.entries.iter().filter(|(_, entry)| !entry.leaving);
        entries.map(|(raft_id, _)| *raft_id)
    }

    /// Returns the accounts that judge disputes: the validators that have begun and do not leave.
    /// At version 1 of the rules a founder counts only once it has begun. So whoever began first in
    /// a market that is new, or founded again, was the whole jury; from version 2 on all founders
    /// count.
    pub fn list_jury(&self, rules_version: u16) -> Vec<AccountKey> {
        let counts_founders = rules_version >= RECOUNTING_RULES_VERSION;
        let counts = |entry: &&RosterEntry| {
            !entry.leaving && (entry.begun || counts_founders && entry.admission.is_empty())
        };
        let judges = self.entries.values().filter(counts);
        judges.map(|entry| entry.account).collect()
    }

    /// Applies an order and returns the raft id that it concerns.
    pub fn apply_order(
        &mut self,
        now: Millis,
        signed: &SignedMembershipOrder,
    ) -> Result<u64, RosterRefusal> {
        let body = &signed.body;
        signed.verify()?;
        if body.market != self.market {
            return Err(RosterRefusal::Market(body.market));
        }
        if body.expires <= now {
            let expires = body.expires;
            return Err(RosterRefusal::Expired { expires, now });
        }
        match &body.order {
            MembershipOrder::Begin {
                raft_id,
                address,
                speaks,
            } => self.begin_validator(signed, *raft_id, address, *speaks),
            MembershipOrder::Backup { .. } => Err(RosterRefusal::NotForTheLog),
            _ => self.apply_operator_order(now, signed),
        }
    }

    /// Returns whether enough operators have signed `order`.
    pub fn is_ordered(&self, order: &MembershipOrder, orders: &[SignedMembershipOrder]) -> bool {
        let signs = |signed: &&SignedMembershipOrder| {
            let body = &signed.body;
            body.market == self.market
                && body.order == *order
                && self.is_operator(body.signer)
                && signed.verify().is_ok()
        };
        let signers = orders.iter().filter(signs).map(|it| it.body.signer);
        signers.collect::<BTreeSet<_>>().len() >= self.operators_needed.max(1) as usize
    }

    /// Returns whether the operators signed the removal of a validator.
    pub fn proves_removal(&self, raft_id: u64, orders: &[SignedMembershipOrder]) -> bool {
        self.is_ordered(&MembershipOrder::Remove { raft_id }, orders)
    }

    /// Returns whether the operators signed the admission of a key.
    pub fn proves_admission(&self, account: AccountKey, orders: &[SignedMembershipOrder]) -> bool {
        let admits = |signed: &&SignedMembershipOrder| match &signed.body.order {
            MembershipOrder::Admit { account: of, .. } => *of == account,
            _ => false,
        };
        let orders: Vec<SignedMembershipOrder> = orders.iter().filter(admits).cloned().collect();
        let mut wanted = orders.iter().map(|signed| &signed.body.order);
        wanted.any(|order| self.is_ordered(order, &orders))
    }

    /// Returns the address that a validator states under a raft id in its latest signed order; none
    /// if it never signed that it has begun.
    pub fn find_beginning<'a>(
        &self,
        raft_id: u64,
        account: AccountKey,
        orders: &'a [SignedMembershipOrder],
    ) -> Option<&'a str> {
        let address = |signed: &'a SignedMembershipOrder| match &signed.body.order {
            MembershipOrder::Begin {
                raft_id: id,
                address,
                ..
            } if *id == raft_id => Some((signed, address.as_str())),
            _ => None,
        };
        let holds = |(signed, _): &(&SignedMembershipOrder, &str)| {
            let body = &signed.body;
            body.market == self.market && body.signer == account && signed.verify().is_ok()
        };
        let said = orders.iter().filter_map(address).filter(holds);
        let latest = said.max_by_key(|(signed, _)| signed.body.number);
        latest.map(|(_, address)| address)
    }

    /// Returns all signed orders that made the roster.
    pub fn orders(&self) -> impl Iterator<Item = &SignedMembershipOrder> {
        let entries = self.entries.values();
        entries.flat_map(|entry| {
            let operators = entry.admission.iter().chain(&entry.removal);
            operators.chain(&entry.beginning)
        })
    }

    /// Checks the facts about an operator's order that no later entry of the log can change, so
    /// that a refused order need not enter the log: its market, its signer and its number.
    pub fn check_operator_order(&self, body: &Body) -> Result<(), RosterRefusal> {
        if body.market != self.market {
            return Err(RosterRefusal::Market(body.market));
        }
        if !self.is_operator(body.signer) {
            return Err(RosterRefusal::Operator(body.signer));
        }
        let last = self.numbers.get(&body.signer).copied().unwrap_or(0);
        check_newer(body.number, last)
    }

    fn apply_operator_order(
        &mut self,
        now: Millis,
        signed: &SignedMembershipOrder,
    ) -> Result<u64, RosterRefusal> {
        let (body, order) = (&signed.body, &signed.body.order);
        let signer = body.signer;
        self.check_operator_order(body)?;
        // A change of leader harms no one, so one operator may order it.
        let orders = match order {
            MembershipOrder::Lead { .. } => Vec::new(),
            _ => match self.approve_order(now, signed) {
                Ok(orders) => orders,
                Err(awaits) => {
                    self.numbers.insert(signer, body.number);
                    return Err(awaits);
                }
            },
        };
        let raft_id = match order {
            MembershipOrder::Admit { account, address } => {
                self.admit_validator(*account, address, orders)?
            }
            MembershipOrder::Remove { raft_id } => self.remove(*raft_id, orders)?,
            MembershipOrder::Lead { raft_id } => self.staying_seat(*raft_id).map(|_| *raft_id)?,
            MembershipOrder::Begin { .. } | MembershipOrder::Backup { .. } => {
                unreachable!("told apart by the caller")
            }
        };
        self.numbers.insert(signer, body.number);
        Ok(raft_id)
    }

    /// Returns the operators' orders if enough have signed; otherwise keeps this one.
    fn approve_order(
        &mut self,
        now: Millis,
        signed: &SignedMembershipOrder,
    ) -> Result<Vec<SignedMembershipOrder>, RosterRefusal> {
        let needed = self.operators_needed;
        if needed <= 1 {
            return Ok(vec![signed.clone()]);
        }
        let order = &signed.body.order;
        self.awaited.retain(|awaited| awaited.until > now);
        let known = self.awaited.iter().position(|one| one.order == *order);
        let at = known.unwrap_or(self.awaited.len());
        if at == ORDERS_MAX {
            return Err(RosterRefusal::Many);
        }
        if known.is_none() {
            self.awaited.push(AwaitedOrder {
                order: order.clone(),
                given: Vec::new(),
                until: now.saturating_add(APPROVAL_LIFE),
            });
        }
        let given = &mut self.awaited[at].given;
        let is_same = |one: &SignedMembershipOrder| one.body.signer == signed.body.signer;
        if !given.iter().any(is_same) {
            given.push(signed.clone());
        }
        let given = u32::try_from(given.len()).unwrap_or(u32::MAX);
        if given < needed {
            return Err(RosterRefusal::Awaits { given, needed });
        }
        Ok(self.awaited.remove(at).given)
    }

    fn admit_validator(
        &mut self,
        account: AccountKey,
        address: &str,
        orders: Vec<SignedMembershipOrder>,
    ) -> Result<u64, RosterRefusal> {
        check_address(address)?;
        if let Some((raft_id, _)) = self.find_entry(account) {
            return Err(RosterRefusal::Known { account, raft_id });
        }
        if self.staying_ids().count() >= SEATS_MAX {
            return Err(RosterRefusal::Full);
        }
        let raft_id = self.next_id;
        self.add_seat(raft_id, account, address.to_owned());
        self.staying_seat(raft_id)?.admission = orders;
        Ok(raft_id)
    }

    fn remove(
        &mut self,
        raft_id: u64,
        orders: Vec<SignedMembershipOrder>,
    ) -> Result<u64, RosterRefusal> {
        self.staying_seat(raft_id)?;
        if self.staying_ids().count() == 1 {
            return Err(RosterRefusal::Last(raft_id));
        }
        let entry = self.staying_seat(raft_id)?;
        entry.leaving = true;
        entry.removal = orders;
        Ok(raft_id)
    }

    fn begin_validator(
        &mut self,
        signed: &SignedMembershipOrder,
        raft_id: u64,
        address: &str,
        speaks: u16,
    ) -> Result<u64, RosterRefusal> {
        check_address(address)?;
        let body = &signed.body;
        let entry = self.staying_seat(raft_id)?;
        if entry.account != body.signer {
            return Err(RosterRefusal::Operator(body.signer));
        }
        check_newer(body.number, entry.number)?;
        entry.number = body.number;
        entry.begun = true;
        entry.address = address.to_owned();
        entry.speaks = speaks;
        entry.beginning = Some(signed.clone());
        Ok(raft_id)
    }

    fn staying_seat(&mut self, raft_id: u64) -> Result<&mut RosterEntry, RosterRefusal> {
        match self.entries.get_mut(&raft_id) {
            None => Err(RosterRefusal::Unknown(raft_id)),
            Some(entry) if entry.leaving => Err(RosterRefusal::Removed(raft_id)),
            Some(entry) => Ok(entry),
        }
    }

    fn add_seat(&mut self, raft_id: u64, account: AccountKey, address: String) {
        let entry = RosterEntry {
            account,
            address,
            begun: false,
            leaving: false,
            speaks: 0,
            admission: Vec::new(),
            removal: Vec::new(),
            beginning: None,
            number: 0,
        };
        self.next_id = self.next_id.max(raft_id + 1);
        let before = self.entries.insert(raft_id, entry);
        assert!(before.is_none(), "a raft id is given once");
    }
}

fn check_newer(number: u64, last: u64) -> Result<(), RosterRefusal> {
    match number > last {
        true => Ok(()),
        false => Err(RosterRefusal::Number { number, last }),
    }
}

fn check_address(address: &str) -> Result<(), RosterRefusal> {
    match address.len() {
        0..=ADDRESS_BYTES_MAX => Ok(()),
        long => Err(RosterRefusal::Address(long)),
    }
}

fn signed_bytes(body: &Body) -> Vec<u8> {
    let mut bytes = DOMAIN.to_vec();
    bytes.extend(postcard::to_allocvec(body).expect("plain data in memory always encodes"));
    bytes
}

#[cfg(test)]
mod tests;
