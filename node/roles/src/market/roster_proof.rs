//! Proves who the validators are to somebody who has only the genesis: the orders by which the
//! operators admitted the present validators and removed the former ones. A saved proof carries
//! them, so that it holds although validators were replaced (`docs/decisions/0053`).
//!
//! Whoever shows a proof chooses which orders to show. So each order of an operator states, in its
//! number, how many raft ids and removals there were before it ([`super::order_number`]). An order
//! then shows that all earlier ones are there, and its raft id needs no other witness.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use souk_market::{APPROVAL_LIFE, AccountKey, Genesis, MarketId, Millis, Signature};
use souk_proof::note::{Cosigners, CosigningRoster};

use super::market_protocol::Members;
use super::order_number::{ChangeCount, number_ms, read_count};
use super::roster::{Body, MembershipOrder, Roster, SEATS_MAX, SignedMembershipOrder};

/// The longest roster in bytes: of one operator, the orders of over 3,000 changes fit.
pub const ROSTER_BYTES_MAX: usize = 256 << 10;

/// The longest file with a roster: its base64, and two lines.
pub const ROSTER_FILE_BYTES_MAX: usize = 4 * ROSTER_BYTES_MAX / 3 + 128;

/// The first line of a file with a roster.
const FIRST_LINE: &str = "souk/roster@v1";

/// The longest time between the first and the last approval of an order, in milliseconds: the
/// market waits for a day, and an operator's clock can be an hour off. So nobody completes an order
/// with approvals that the market forgot long ago.
const APPROVALS_APART_MS: u64 = APPROVAL_LIFE.0 + 3_600_000;

/// One operator's signature under an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Approval {
    /// The operator's place in the genesis.
    operator: u16,
    number: u64,
    /// The order's expiry, in milliseconds after its number's time; it wraps.
    life_ms: u64,
    signature: Signature,
}

/// The admission of a validator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Admission {
    account: AccountKey,
    address: String,
    approvals: Vec<Approval>,
}

/// The operators' orders that made a roster, by raft id. You must count them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RosterProof {
    admitted: BTreeMap<u64, Admission>,
    removed: BTreeMap<u64, Vec<Approval>>,
}

/// The validators that count by a roster's orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedRoster {
    /// The validators whose signatures count, and how many there are.
    pub roster: CosigningRoster,
    /// The changes since the founding: admissions and removals.
    pub changes: u64,
    /// When the last of them was ordered, by an operator's clock; none if there was none.
    pub changed_at: Option<Millis>,
    /// The validators that this folder knows to be removed, and the orders do not: their signatures
    /// do not count.
    pub known_removed: BTreeSet<u64>,
}

/// Why orders are not a roster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RosterFault {
    /// They are too long.
    #[error("the operators' orders have {0} bytes; at most {ROSTER_BYTES_MAX} are read")]
    Long(usize),
    /// They do not decode.
    #[error("the operators' orders do not decode")]
    Encoding,
    /// Too few operators signed an order, or a signature is not valid.
    #[error("too few operators signed the {change} of validator {raft_id}, or it was changed")]
    Unsigned {
        /// The validator's raft id.
        raft_id: u64,
        /// The kind of the order.
        change: &'static str,
    },
    /// A validator is both admitted and removed.
    #[error("validator {0} is both a validator and removed by the operators' orders")]
    Both(u64),
    /// An admission has a founder's raft id.
    #[error("the operators' orders admit validator {0}, which the genesis names")]
    Founder(u64),
    /// Orders are missing.
    #[error("the operators' orders leave out validator {0}")]
    Gap(u64),
    /// An admission is under another raft id than it made.
    #[error("the operators admitted validator {stated}, and the proof names it {raft_id}")]
    Place {
        /// The raft id in the proof.
        raft_id: u64,
        /// The raft id that the order's number states.
        stated: u64,
    },
    /// An admission is older than that of an earlier validator.
    #[error("the admission of validator {0} is older than that of a validator before it")]
    Late(u64),
    /// Removals are missing.
    #[error("{stated} validators were removed, and the proof has the orders of {shown}")]
    Removals {
        /// The removals that an order states.
        stated: u64,
        /// The other removals in the proof.
        shown: u64,
    },
    /// A key is there twice.
    #[error("the operators' orders name the key {0} twice")]
    Twice(AccountKey),
    /// There were never so many validators, or none.
    #[error("the operators' orders leave {0} validators; a market has 1 to {SEATS_MAX}")]
    Seats(usize),
}

impl RosterProof {
    /// Returns whether there are no orders: the founders are the validators.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.admitted.is_empty() && self.removed.is_empty()
    }

    /// Learns from a validator's answer the orders that enough operators signed. `genesis` is the
    /// roster with which the market began.
    pub fn learn_orders(&mut self, genesis: &Roster, answer: &Members) {
        for member in &answer.validators {
            let raft_id = member.raft_id;
            let order = MembershipOrder::Remove { raft_id };
            if !self.removed.contains_key(&raft_id) && genesis.is_ordered(&order, &answer.orders) {
                let signed = answer.orders.iter().filter(|it| it.body.order == order);
                self.removed
                    .insert(raft_id, list_approvals(genesis, signed));
            }
            let is_known =
                genesis.entries().contains_key(&raft_id) || self.admitted.contains_key(&raft_id);
            if !is_known
                && let Some(found) = find_admission(genesis, answer, raft_id, member.account)
            {
                self.admitted.insert(raft_id, found);
            }
        }
    }

    /// Adds the orders of another proof that are not here.
    pub fn merge_orders(&mut self, other: &Self) {
        for (raft_id, admission) in &other.admitted {
            self.admitted
                .entry(*raft_id)
                .or_insert_with(|| admission.clone());
        }
        for (raft_id, approvals) in &other.removed {
            self.removed
                .entry(*raft_id)
                .or_insert_with(|| approvals.clone());
        }
    }

    /// Returns the orders that show the present roster: admissions of those that stay, and all
    /// removals.
    #[must_use]
    pub fn without_former_admissions(&self) -> Self {
        let mut kept = self.clone();
        kept.admitted.retain(|id, _| !self.removed.contains_key(id));
        kept
    }

    /// Encodes the orders that a saved proof must carry. There are none if they are too long: then
    /// the proof counts the founders alone.
    #[must_use]
    pub fn to_proof_bytes(&self) -> Vec<u8> {
        let orders = self.without_former_admissions();
        match orders.fits_file() {
            true => orders.encode(),
            false => Vec::new(),
        }
    }

    /// Returns the changes of which no order is missing, for the next order to state; none if one
    /// is missing, or `named_ids` has a higher raft id.
    #[must_use]
    pub fn count_changes(
        &self,
        genesis: &Roster,
        named_ids: impl IntoIterator<Item = u64>,
    ) -> Option<ChangeCount> {
        let founders = highest_founder(genesis);
        let is_there = |id: &u64| self.admitted.contains_key(id) || self.removed.contains_key(id);
        let next = (founders + 1..).find(|id| !is_there(id))?;
        let count = ChangeCount {
            highest_id: next - 1,
            removals: self.removed.len() as u64,
        };
        let mut named = named_ids.into_iter();
        named.all(|id| id <= count.highest_id).then_some(count)
    }

    /// Counts the validators after these orders. `known` are orders that the checker has himself:
    /// the signatures of those that they remove do not count either.
    ///
    /// # Errors
    /// If an order is not the operators', or one is missing that these show.
    pub fn count_validators(
        &self,
        genesis: &Genesis,
        known: &Self,
    ) -> Result<CountedRoster, RosterFault> {
        // Orders of an earlier release do not state what came before them: whoever shows them could
        // leave out others. So the founders count alone, as in that release.
        if !self.states_all() {
            return Self::default().count_validators(genesis, known);
        }
        let began = Roster::new(genesis);
        let operators = Operators::of_genesis(genesis);
        self.check_signatures(&operators)?;
        self.check_complete(highest_founder(&began))?;
        let founders = began.entries().iter();
        let staying = founders.filter(|(id, _)| !self.removed.contains_key(id));
        let mut cosigners = Cosigners::new();
        for (raft_id, entry) in staying {
            // A key counts once, whatever raft ids the genesis gives it.
            if !cosigners.values().any(|account| *account == entry.account) {
                cosigners.insert(*raft_id, entry.account);
            }
        }
        for (raft_id, admission) in &self.admitted {
            let account = admission.account;
            if cosigners.values().any(|one| *one == account) {
                return Err(RosterFault::Twice(account));
            }
            cosigners.insert(*raft_id, account);
        }
        let seats = cosigners.len();
        let most = SEATS_MAX.max(genesis.validators.len());
        if seats == 0 && !began.entries().is_empty() || seats > most {
            return Err(RosterFault::Seats(seats));
        }
        let known_removed = self.list_known_removed(&operators, &began, known);
        cosigners.retain(|raft_id, _| !known_removed.contains(raft_id));
        let admissions = self.highest_id().saturating_sub(highest_founder(&began));
        Ok(CountedRoster {
            roster: CosigningRoster {
                cosigners,
                members: seats,
            },
            changes: admissions + self.removed.len() as u64,
            changed_at: self.changed_at(),
            known_removed,
        })
    }

    fn check_signatures(&self, operators: &Operators<'_>) -> Result<(), RosterFault> {
        for (raft_id, admission) in &self.admitted {
            let fault = RosterFault::Unsigned {
                raft_id: *raft_id,
                change: "admission",
            };
            admission.is_signed(operators).then_some(()).ok_or(fault)?;
        }
        for (raft_id, approvals) in &self.removed {
            let order = MembershipOrder::Remove { raft_id: *raft_id };
            let fault = RosterFault::Unsigned {
                raft_id: *raft_id,
                change: "removal",
            };
            let is_signed = operators.is_approved(&order, approvals);
            is_signed.then_some(()).ok_or(fault)?;
        }
        Ok(())
    }

    /// Checks that the orders leave out none that they show to exist.
    fn check_complete(&self, founders: u64) -> Result<(), RosterFault> {
        for (raft_id, admission) in &self.admitted {
            if *raft_id <= founders {
                return Err(RosterFault::Founder(*raft_id));
            }
            if self.removed.contains_key(raft_id) {
                return Err(RosterFault::Both(*raft_id));
            }
            let stated = stated_count(&admission.approvals).map(|count| count.highest_id);
            if let Some(stated) = stated
                && stated + 1 != *raft_id
            {
                let (raft_id, stated) = (*raft_id, stated + 1);
                return Err(RosterFault::Place { raft_id, stated });
            }
        }
        // The market gave the ids in the order in which it admitted, so an order that it forgot is
        // under no later id.
        let mut last_ms = 0;
        for (raft_id, admission) in &self.admitted {
            let at_ms = latest_number(&admission.approvals).map_or(0, number_ms);
            if at_ms + APPROVALS_APART_MS < last_ms {
                return Err(RosterFault::Late(*raft_id));
            }
            last_ms = last_ms.max(at_ms);
        }
        let is_there = |id: &u64| self.admitted.contains_key(id) || self.removed.contains_key(id);
        let mut ids = founders + 1..=self.highest_id();
        if let Some(missing) = ids.find(|id| !is_there(id)) {
            return Err(RosterFault::Gap(missing));
        }
        let all = self.removed.len() as u64;
        let admissions = self.admitted.values().map(|it| (&it.approvals, all));
        let removals = self.removed.values().map(|it| (it, all - 1));
        for (approvals, shown) in admissions.chain(removals) {
            let stated = stated_count(approvals).map_or(0, |count| count.removals);
            if stated > shown {
                return Err(RosterFault::Removals { stated, shown });
            }
        }
        Ok(())
    }

    fn all_approvals(&self) -> impl Iterator<Item = &Vec<Approval>> {
        let admissions = self.admitted.values().map(|it| &it.approvals);
        admissions.chain(self.removed.values())
    }

    /// Returns whether every order states what came before it.
    fn states_all(&self) -> bool {
        self.all_approvals().all(|it| stated_count(it).is_some())
    }

    /// Returns the highest raft id that the orders show to exist.
    fn highest_id(&self) -> u64 {
        let stated = self.all_approvals().filter_map(|it| stated_count(it));
        let stated = stated.map(|count| count.highest_id).max();
        let last = |id: Option<&u64>| id.copied().unwrap_or(0);
        let named = last(self.admitted.keys().last()).max(last(self.removed.keys().last()));
        named.max(stated.unwrap_or(0))
    }

    /// Returns when the last order was signed, by an operator's clock.
    fn changed_at(&self) -> Option<Millis> {
        let latest = self.all_approvals().filter_map(|it| latest_number(it));
        latest.max().map(|number| Millis(number_ms(number)))
    }

    /// Returns the validators of this roster that the checker knows to be removed.
    fn list_known_removed(
        &self,
        operators: &Operators<'_>,
        began: &Roster,
        known: &Self,
    ) -> BTreeSet<u64> {
        let mut found = BTreeSet::new();
        for (removed_id, approvals) in &known.removed {
            let raft_id = *removed_id;
            let order = MembershipOrder::Remove { raft_id };
            let is_shown = self.removed.contains_key(removed_id);
            if is_shown || !operators.is_approved(&order, approvals) {
                continue;
            }
            found.insert(*removed_id);
            // Under another raft id a key counts again only if it was admitted after its removal.
            let founder = began.entries().get(removed_id).map(|it| it.account);
            let key = founder.or_else(|| Some(known.admitted.get(removed_id)?.account));
            let removed_at = latest_number(approvals).map_or(0, number_ms);
            let again = self.admitted.iter().filter(|(_, admission)| {
                let number = latest_number(&admission.approvals).unwrap_or(0);
                Some(admission.account) == key && number_ms(number) <= removed_at
            });
            found.extend(again.map(|(raft_id, _)| *raft_id));
        }
        found.retain(|id| began.entries().contains_key(id) || self.admitted.contains_key(id));
        found
    }

    /// Encodes the orders; no bytes if there are none.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self.is_empty() {
            true => Vec::new(),
            false => postcard::to_allocvec(self).expect("plain data in memory always encodes"),
        }
    }

    /// Reads orders; no bytes are none.
    ///
    /// # Errors
    /// If the bytes are too many or not orders.
    pub fn decode(bytes: &[u8]) -> Result<Self, RosterFault> {
        match bytes.len() {
            0 => return Ok(Self::default()),
            1..=ROSTER_BYTES_MAX => {}
            long => return Err(RosterFault::Long(long)),
        }
        match postcard::take_from_bytes::<Self>(bytes) {
            // Orders have one form.
            Ok((orders, [])) if orders.encode() == bytes => Ok(orders),
            _ => Err(RosterFault::Encoding),
        }
    }

    /// Returns whether a file can hold the orders.
    #[must_use]
    pub fn fits_file(&self) -> bool {
        self.encode().len() <= ROSTER_BYTES_MAX
    }

    /// Encodes the orders as the text of a file.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("{FIRST_LINE}\n{}\n", BASE64_STANDARD.encode(self.encode()))
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// If it is too long or not the text of orders.
    pub fn from_text(text: &[u8]) -> Result<Self, RosterFault> {
        if text.len() > ROSTER_FILE_BYTES_MAX {
            return Err(RosterFault::Long(text.len()));
        }
        let text = std::str::from_utf8(text).ok();
        let rest = text.and_then(|text| text.strip_prefix(FIRST_LINE));
        let line = rest.and_then(|rest| rest.strip_prefix('\n')?.strip_suffix('\n'));
        let bytes = line.and_then(|line| BASE64_STANDARD.decode(line).ok());
        Self::decode(&bytes.ok_or(RosterFault::Encoding)?)
    }
}

/// The operators of a market, whose signatures count.
struct Operators<'a> {
    market: MarketId,
    keys: &'a [AccountKey],
    needed: usize,
}

impl<'a> Operators<'a> {
    fn of_genesis(genesis: &'a Genesis) -> Self {
        Self {
            market: genesis.market_id(),
            keys: &genesis.operators,
            needed: genesis.operators_needed.max(1) as usize,
        }
    }

    /// Returns whether all approvals of an order are valid, and those of enough operators.
    fn is_approved(&self, order: &MembershipOrder, approvals: &[Approval]) -> bool {
        let signers: BTreeSet<u16> = approvals.iter().map(|it| it.operator).collect();
        let is_valid = |approval: &Approval| {
            let signer = self.keys.get(usize::from(approval.operator));
            let signed = signer.map(|signer| SignedMembershipOrder {
                body: Body {
                    market: self.market,
                    signer: *signer,
                    number: approval.number,
                    expires: Millis(approval.life_ms.wrapping_add(number_ms(approval.number))),
                    order: order.clone(),
                },
                signature: approval.signature,
            });
            signed.is_some_and(|signed| signed.verify().is_ok())
        };
        let times = || approvals.iter().map(|it| number_ms(it.number));
        let apart_ms = times().max().unwrap_or(0) - times().min().unwrap_or(0);
        signers.len() == approvals.len()
            && signers.len() >= self.needed
            && apart_ms <= APPROVALS_APART_MS
            && approvals.iter().all(is_valid)
    }
}

impl Admission {
    fn is_signed(&self, operators: &Operators<'_>) -> bool {
        let order = MembershipOrder::Admit {
            account: self.account,
            address: self.address.clone(),
        };
        operators.is_approved(&order, &self.approvals)
    }
}

/// Returns the admission of a validator that an answer shows: by orders that state this raft id,
/// or, if an earlier release signed them, by the validator's own order that it has begun under it.
fn find_admission(
    genesis: &Roster,
    answer: &Members,
    raft_id: u64,
    account: AccountKey,
) -> Option<Admission> {
    let beginning = genesis.find_beginning(raft_id, account, &answer.orders);
    let addresses = answer.orders.iter().filter_map(|it| match &it.body.order {
        MembershipOrder::Admit {
            account: of,
            address,
        } if *of == account => Some(address),
        _ => None,
    });
    let addresses: BTreeSet<&String> = addresses.collect();
    let admissions = addresses.into_iter().filter_map(|address| {
        let order = MembershipOrder::Admit {
            account,
            address: address.clone(),
        };
        // A key that left and came back has later orders, which state a higher raft id.
        let is_early = |number| read_count(number).is_none_or(|it| it.highest_id < raft_id);
        let signed = answer.orders.iter();
        let signed = signed.filter(|it| it.body.order == order && is_early(it.body.number));
        let signed: Vec<SignedMembershipOrder> = signed.cloned().collect();
        let approvals = list_approvals(genesis, signed.iter());
        let is_shown = match stated_count(&approvals) {
            Some(count) => count.highest_id + 1 == raft_id,
            None => beginning.is_some(),
        };
        (is_shown && genesis.is_ordered(&order, &signed)).then_some(Admission {
            account,
            address: address.clone(),
            approvals,
        })
    });
    admissions.max_by_key(|it| latest_number(&it.approvals))
}

/// Returns the valid approvals among orders, the latest of each operator.
fn list_approvals<'a>(
    genesis: &Roster,
    signed: impl Iterator<Item = &'a SignedMembershipOrder>,
) -> Vec<Approval> {
    let mut latest: BTreeMap<u16, Approval> = BTreeMap::new();
    for SignedMembershipOrder { body, signature } in signed.filter(|it| it.verify().is_ok()) {
        let operators = genesis.operators().iter();
        let place = operators.zip(0..).find(|(one, _)| **one == body.signer);
        let Some((_, operator)) = place else { continue };
        let approval = Approval {
            operator,
            number: body.number,
            life_ms: body.expires.0.wrapping_sub(number_ms(body.number)),
            signature: *signature,
        };
        let known = latest.entry(operator).or_insert_with(|| approval.clone());
        if known.number < approval.number {
            *known = approval;
        }
    }
    latest.into_values().collect()
}

/// Returns the changes that an order's approvals state: of each count the largest, because each
/// operator states what he has seen.
fn stated_count(approvals: &[Approval]) -> Option<ChangeCount> {
    let stated = approvals.iter().filter_map(|it| read_count(it.number));
    stated.reduce(|one, other| ChangeCount {
        highest_id: one.highest_id.max(other.highest_id),
        removals: one.removals.max(other.removals),
    })
}

fn latest_number(approvals: &[Approval]) -> Option<u64> {
    approvals.iter().map(|it| it.number).max()
}

fn highest_founder(genesis: &Roster) -> u64 {
    genesis.entries().keys().last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests;
