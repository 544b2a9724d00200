//! Tests which orders show a roster, and that nobody gains by leaving orders out.

use souk_market::{Founder, SigningKey};
use souk_proof::note::TreeNote;
use souk_proof::{Digest, LogIndex, LogTime, TreeHead};

use super::*;
use crate::market::market_protocol::{Member, Standing};
use crate::market::order_number::number_order;
use crate::market::roster::RosterRefusal;

const OPERATORS: [u8; 3] = [200, 201, 202];
const BEGAN_MS: u64 = 1_764_428_531_250;

/// A market whose operators change its validators.
struct Market {
    genesis: Genesis,
    roster: Roster,
    now_ms: u64,
    /// Whether its operators use an earlier release, whose numbers state nothing.
    is_earlier: bool,
}

fn key(number: u64) -> SigningKey {
    let mut seed = [7; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    SigningKey::from_bytes(&seed)
}

fn account(number: u64) -> AccountKey {
    AccountKey::from(&key(number))
}

impl Market {
    fn new(founders: u64, operators_needed: u32) -> Self {
        let operator = |it: &u8| account((*it).into());
        let mut genesis = Genesis::new("m".try_into().unwrap(), operator(&OPERATORS[0]));
        genesis.operators = OPERATORS.iter().map(operator).collect();
        genesis.operators_needed = operators_needed;
        let founder = |raft_id: u64| Founder {
            raft_id,
            account: account(raft_id),
            address: format!("validator {raft_id}"),
        };
        genesis.validators = (1..=founders).map(founder).collect();
        Self {
            roster: Roster::new(&genesis),
            genesis,
            now_ms: BEGAN_MS,
            is_earlier: false,
        }
    }

    /// The orders that the market has, as a client learns them from a validator's answer.
    fn orders(&self) -> RosterProof {
        let entries = self.roster.entries().iter();
        let validators = entries.map(|(raft_id, entry)| Member {
            raft_id: *raft_id,
            account: entry.account,
            address: entry.address.clone(),
            standing: Standing::Voter,
            begun: true,
            speaks: 1,
            reached: None,
            running: None,
        });
        let answer = Members {
            answered_by: 1,
            leader: 1,
            operators: self.genesis.operators.clone(),
            validators: validators.collect(),
            orders: self.roster.orders().cloned().collect(),
        };
        let mut orders = RosterProof::default();
        orders.learn_orders(&Roster::new(&self.genesis), &answer);
        orders
    }

    /// Has enough operators give an order; gives the raft id that it concerns.
    fn give(&mut self, order: &MembershipOrder) -> u64 {
        let named = self.roster.entries().keys().copied().collect::<Vec<_>>();
        let began = Roster::new(&self.genesis);
        let before = self.orders().count_changes(&began, named);
        self.give_after(order, before)
    }

    fn give_after(&mut self, order: &MembershipOrder, before: Option<ChangeCount>) -> u64 {
        for operator in &OPERATORS[..self.genesis.operators_needed as usize - 1] {
            assert!(self.sign(*operator, order, before).is_err(), "it waits");
        }
        let last = OPERATORS[self.genesis.operators_needed as usize - 1];
        self.sign(last, order, before).unwrap()
    }

    fn sign(
        &mut self,
        operator: u8,
        order: &MembershipOrder,
        before: Option<ChangeCount>,
    ) -> Result<u64, RosterRefusal> {
        self.now_ms += 1_000;
        let body = Body {
            market: self.genesis.market_id(),
            signer: account(operator.into()),
            number: match self.is_earlier {
                true => self.now_ms * 1_000,
                false => number_order(self.now_ms, before),
            },
            expires: Millis(self.now_ms + 60_000),
            order: order.clone(),
        };
        let signed = SignedMembershipOrder::sign(body, &key(operator.into()));
        self.roster.apply_order(Millis(self.now_ms), &signed)
    }

    fn admit(&mut self, of: u64) -> u64 {
        let raft_id = self.give(&admission_of(of));
        self.begin(raft_id, of);
        raft_id
    }

    fn begin(&mut self, raft_id: u64, of: u64) {
        let body = Body {
            market: self.genesis.market_id(),
            signer: account(of),
            number: 1,
            expires: Millis(u64::MAX),
            order: MembershipOrder::Begin {
                raft_id,
                address: format!("validator {of}"),
                speaks: 1,
            },
        };
        let signed = SignedMembershipOrder::sign(body, &key(of));
        self.roster
            .apply_order(Millis(self.now_ms), &signed)
            .unwrap();
    }

    fn remove(&mut self, raft_id: u64) {
        self.give(&MembershipOrder::Remove { raft_id });
    }

    fn count(&self, orders: &RosterProof) -> Result<CountedRoster, RosterFault> {
        orders.count_validators(&self.genesis, &RosterProof::default())
    }

    fn proof(&self) -> RosterProof {
        let bytes = self.orders().to_proof_bytes();
        RosterProof::decode(&bytes).unwrap()
    }
}

fn admission_of(of: u64) -> MembershipOrder {
    MembershipOrder::Admit {
        account: account(of),
        address: format!(
            "/dns4/validator-{of}.example.org/tcp/4001/p2p/{}",
            account(of)
        ),
    }
}

fn ids(counted: &CountedRoster) -> Vec<u64> {
    counted.roster.cosigners.keys().copied().collect()
}

/// A head that these keys signed under these raft ids.
fn signed_head(market: &Market, by: &[(u64, u64)]) -> TreeNote {
    let head = TreeHead {
        index: LogIndex(9),
        time: LogTime(BEGAN_MS),
        size: 9,
        root: Digest([1; 32]),
        state: None,
    };
    let mut note = TreeNote::new(market.genesis.market_id(), head);
    for (raft_id, of) in by {
        note.insert(note.cosign(*raft_id, BEGAN_MS / 1_000, &key(*of)));
    }
    note
}

#[test]
fn the_genesis_alone_counts_the_validators_that_the_operators_named() {
    for needed in [1, 2, 3] {
        let mut market = Market::new(3, needed);
        assert_eq!(market.proof(), RosterProof::default());
        assert_eq!(ids(&market.count(&market.proof()).unwrap()), [1, 2, 3]);
        assert_eq!((market.admit(14), market.admit(15)), (4, 5));
        market.remove(1);
        market.remove(4);
        assert_eq!(market.admit(14), 6, "the same key, a new id");
        let counted = market.count(&market.proof()).unwrap();
        assert_eq!(ids(&counted), [2, 3, 5, 6]);
        assert_eq!((counted.roster.members, counted.changes), (4, 5));
        let last = Millis(market.now_ms);
        assert_eq!(counted.changed_at, Some(last));
        // Whom enough of them signed is certified, and founders alone are too few.
        let by = [(2, 2), (3, 3), (6, 14)];
        let note = signed_head(&market, &by);
        assert!(note.certified_s(&counted.roster).is_some());
        let founders = market.count(&RosterProof::default()).unwrap();
        assert_eq!(note.certified_s(&founders.roster), None);
    }
}

#[test]
fn an_order_that_was_changed_or_that_too_few_operators_signed_is_refused() {
    let mut market = Market::new(3, 2);
    market.admit(14);
    market.remove(1);
    let proof = market.proof();
    let bytes = proof.encode();
    for place in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[place] ^= 1;
        let counted = RosterProof::decode(&changed).and_then(|it| market.count(&it));
        assert!(counted.is_err(), "byte {place}: {counted:?}");
    }
    let mut few = proof.clone();
    few.admitted.get_mut(&4).unwrap().approvals.pop();
    let change = "admission";
    let unsigned = RosterFault::Unsigned { raft_id: 4, change };
    assert_eq!(market.count(&few), Err(unsigned));
    let mut twice = proof.clone();
    let approvals = twice.removed.get_mut(&1).unwrap();
    approvals[1] = approvals[0].clone();
    let change = "removal";
    let unsigned = RosterFault::Unsigned { raft_id: 1, change };
    assert_eq!(market.count(&twice), Err(unsigned));
    // Another market has the same operators and keys.
    let mut other = Market::new(3, 2);
    other.genesis.chain = "other".try_into().unwrap();
    assert!(other.count(&proof).is_err());
    assert_eq!(RosterProof::decode(&[1, 2, 3]), Err(RosterFault::Encoding));
    let long = vec![0; ROSTER_BYTES_MAX + 1];
    assert_eq!(
        RosterProof::decode(&long),
        Err(RosterFault::Long(long.len()))
    );
    assert_eq!(
        RosterProof::from_text(proof.to_text().as_bytes()),
        Ok(proof)
    );
    assert_eq!(RosterProof::from_text(b"x"), Err(RosterFault::Encoding));
}

#[test]
fn nobody_can_leave_out_orders_that_others_show_to_exist() {
    let mut market = Market::new(4, 1);
    for of in 15..=18 {
        market.admit(of);
    }
    market.remove(5);
    for founder in 1..=3 {
        market.remove(founder);
    }
    let proof = market.proof();
    assert_eq!(ids(&market.count(&proof).unwrap()), [4, 6, 7, 8]);
    // Without the admissions, founder 4 would be the whole roster.
    let mut shrunk = proof.clone();
    shrunk.admitted.clear();
    assert_eq!(market.count(&shrunk), Err(RosterFault::Gap(6)));
    for left_out in [6, 7, 8] {
        let mut some = proof.clone();
        some.admitted.remove(&left_out);
        assert_eq!(market.count(&some), Err(RosterFault::Gap(left_out)));
    }
    // Nor does a validator that was removed come back, whatever raft id it takes.
    let before = RosterFault::Removals {
        stated: 3,
        shown: 2,
    };
    let (mut back, mut moved) = (market.orders(), proof.clone());
    let former = back.admitted[&5].clone();
    assert_eq!(market.count(&back), Err(RosterFault::Both(5)));
    back.removed.remove(&5);
    assert_eq!(market.count(&back), Err(before));
    moved.admitted.insert(7, former);
    let (raft_id, stated) = (7, 5);
    assert_eq!(
        market.count(&moved),
        Err(RosterFault::Place { raft_id, stated })
    );
    let mut founder = proof;
    let admission = founder.admitted.remove(&8).unwrap();
    founder.admitted.insert(3, admission);
    assert_eq!(market.count(&founder), Err(RosterFault::Founder(3)));
}

/// Whatever subset of a market's orders somebody shows: it is refused, or a roster of some time.
#[test]
fn each_subset_of_the_orders_is_a_roster_that_there_was_or_is_refused() {
    let mut market = Market::new(2, 1);
    let mut rosters = BTreeSet::from([vec![1, 2]]);
    let steps: [(bool, u64); 8] = [
        (true, 13),
        (true, 14),
        (false, 1),
        (false, 3),
        (true, 13),
        (false, 2),
        (true, 11),
        (false, 4),
    ];
    for (is_admission, of) in steps {
        match is_admission {
            true => drop(market.admit(of)),
            false => market.remove(of),
        }
        rosters.insert(market.roster.staying_ids().collect());
    }
    let all = market.orders();
    let changes = all.admitted.len() + all.removed.len();
    assert_eq!(changes, 8);
    let mut counted = BTreeSet::new();
    for chosen in 0..1_u32 << changes {
        let mut place = 0;
        let mut is_chosen = || {
            place += 1;
            chosen >> (place - 1) & 1 == 1
        };
        let mut some = all.clone();
        some.admitted.retain(|_, _| is_chosen());
        some.removed.retain(|_, _| is_chosen());
        if let Ok(found) = market.count(&some) {
            assert!(rosters.contains(&ids(&found)), "{chosen:b}: {found:?}");
            counted.insert(ids(&found));
        }
    }
    assert_eq!(counted, rosters, "each roster of some time can be shown");
}

#[test]
fn whom_the_checker_knows_to_be_removed_counts_no_more_and_lowers_no_quorum() {
    let mut market = Market::new(4, 1);
    market.admit(15);
    let old = market.proof();
    let note = signed_head(&market, &[(1, 1), (2, 2), (3, 3), (5, 15)]);
    let founded = signed_head(&market, &[(1, 1), (2, 2), (3, 3)]);
    market.remove(1);
    market.remove(5);
    let count = |orders: &RosterProof, known: &RosterProof| {
        orders.count_validators(&market.genesis, known).unwrap()
    };
    let (none, known) = (RosterProof::default(), market.orders());
    assert!(note.certified_s(&count(&old, &none).roster).is_some());
    assert!(founded.certified_s(&count(&none, &none).roster).is_some());
    let counted = count(&old, &known);
    assert_eq!(ids(&counted), [2, 3, 4]);
    assert_eq!(
        (counted.roster.members, counted.known_removed.len()),
        (5, 2)
    );
    assert_eq!(note.certified_s(&counted.roster), None);
    let counted = count(&none, &known);
    assert_eq!((ids(&counted), counted.roster.members), (vec![2, 3, 4], 4));
    assert_eq!(founded.certified_s(&counted.roster), None);
    // What the operators did not sign removes nobody.
    let mut forged = known.clone();
    forged.removed.get_mut(&1).unwrap()[0].signature.0[0] ^= 1;
    forged.removed.remove(&5);
    assert!(count(&none, &forged).known_removed.is_empty());
}

#[test]
fn beside_an_order_of_an_earlier_release_the_founders_count_alone() {
    let mut market = Market::new(4, 1);
    market.is_earlier = true;
    for of in 15..=17 {
        market.admit(of);
    }
    for founder in 1..=3 {
        market.remove(founder);
    }
    // Whoever shows some of them could choose the validators of any time.
    let founders = market.count(&RosterProof::default()).unwrap();
    let proof = market.proof();
    assert_eq!(market.count(&proof).unwrap(), founders);
    let mut shrunk = proof.clone();
    shrunk.admitted.clear();
    assert_eq!(market.count(&shrunk).unwrap(), founders);
    let alone = signed_head(&market, &[(4, 4)]);
    assert_eq!(alone.certified_s(&founders.roster), None);
    // A checker that knows of the removals counts those founders no more.
    let knowing = proof.count_validators(&market.genesis, &market.orders());
    let knowing = knowing.unwrap();
    assert_eq!((ids(&knowing), knowing.roster.members), (vec![4], 4));
    market.is_earlier = false;
    assert_eq!(market.admit(19), 8);
    assert_eq!(market.count(&market.proof()).unwrap(), founders);
}

#[test]
fn an_approval_that_the_market_forgot_completes_no_order() {
    let mut market = Market::new(3, 2);
    assert_eq!(market.admit(14), 4);
    let old = market.orders().admitted[&4].approvals[0].clone();
    market.remove(4);
    market.now_ms += 2 * APPROVAL_LIFE.0;
    assert_eq!(market.admit(15), 5);
    let proof = market.proof();
    // One operator signs the old order again, and states the id that an honest one got.
    let before = ChangeCount {
        highest_id: 4,
        removals: 1,
    };
    let body = Body {
        market: market.genesis.market_id(),
        signer: account(OPERATORS[1].into()),
        number: number_order(market.now_ms, Some(before)),
        expires: Millis(market.now_ms + 60_000),
        order: admission_of(14),
    };
    let signed = SignedMembershipOrder::sign(body, &key(OPERATORS[1].into()));
    let again = list_approvals(&Roster::new(&market.genesis), [&signed].into_iter());
    let mut moved = proof.clone();
    let back = moved.admitted.get_mut(&5).unwrap();
    *back = Admission {
        account: account(14),
        approvals: [vec![old], again].concat(),
        ..back.clone()
    };
    let MembershipOrder::Admit { address, .. } = admission_of(14) else {
        unreachable!("it is an admission");
    };
    back.address = address;
    let change = "admission";
    let unsigned = RosterFault::Unsigned { raft_id: 5, change };
    assert_eq!(market.count(&moved), Err(unsigned));
}

#[test]
fn of_each_count_the_largest_that_an_operator_stated_counts() {
    let approval = |operator: u16, highest_id, removals| Approval {
        operator,
        number: number_order(
            BEGAN_MS,
            Some(ChangeCount {
                highest_id,
                removals,
            }),
        ),
        life_ms: 60_000,
        signature: Signature([0; 64]),
    };
    let stated = stated_count(&[approval(0, 12, 3), approval(1, 13, 0)]);
    let largest = ChangeCount {
        highest_id: 13,
        removals: 3,
    };
    assert_eq!(stated, Some(largest));
}

#[test]
fn an_operator_states_nothing_if_an_order_is_missing() {
    let mut market = Market::new(2, 1);
    let began = Roster::new(&market.genesis);
    let nothing = RosterProof::default();
    let count = |highest_id, removals| {
        Some(ChangeCount {
            highest_id,
            removals,
        })
    };
    assert_eq!(nothing.count_changes(&began, [1, 2]), count(2, 0));
    // A validator that claims a raft id that nobody gave is in no order.
    assert_eq!(nothing.count_changes(&began, [1, 2, 99]), None);
    market.admit(13);
    market.remove(1);
    assert_eq!(
        market.orders().count_changes(&began, [1, 2, 3]),
        count(3, 1)
    );
    let number = number_order(BEGAN_MS, count(3, 1));
    assert_eq!(
        (read_count(number), number_ms(number)),
        (count(3, 1), BEGAN_MS)
    );
    assert_eq!(read_count(number_order(BEGAN_MS, None)), None);
    assert_eq!(read_count(BEGAN_MS * 1_000), None);
    assert!(number_order(BEGAN_MS + 1, None) > number && number > BEGAN_MS * 1_000);
    let most = number_order(BEGAN_MS, count(2_047, 2_047));
    assert_eq!(read_count(most), count(2_047, 2_047));
    let more = number_order(BEGAN_MS, count(2_048, 3));
    assert_eq!(read_count(more), None);
}

/// Fifteen validators, all admitted after 1,000 changes, within 64 KiB of text.
#[test]
fn the_orders_of_fifteen_validators_after_1000_changes_have_at_most_60_kib() {
    let mut market = Market::new(4, 1);
    let mut of = 1_000;
    let began = Roster::new(&market.genesis);
    let mut orders = RosterProof::default();
    // The orders are made without the roster, which would check each of them a thousand times.
    let (mut highest_id, mut removals) = (4, 0);
    let mut staying: std::collections::VecDeque<u64> = (1..=4).collect();
    while highest_id - 4 + removals < 1_000 {
        let before = Some(ChangeCount {
            highest_id,
            removals,
        });
        of += 1;
        market.now_ms += 1_000;
        let is_admission = staying.len() < 15;
        let order = match is_admission {
            true => admission_of(of),
            false => MembershipOrder::Remove {
                raft_id: staying.pop_front().unwrap(),
            },
        };
        let body = Body {
            market: market.genesis.market_id(),
            signer: account(OPERATORS[0].into()),
            number: number_order(market.now_ms, before),
            expires: Millis(market.now_ms + 60_000),
            order: order.clone(),
        };
        let signed = [SignedMembershipOrder::sign(body, &key(OPERATORS[0].into()))];
        let approvals = list_approvals(&began, signed.iter());
        match order {
            MembershipOrder::Admit { account, address } => {
                highest_id += 1;
                staying.push_back(highest_id);
                let admission = Admission {
                    account,
                    address,
                    approvals,
                };
                orders.admitted.insert(highest_id, admission);
            }
            MembershipOrder::Remove { raft_id } => {
                removals += 1;
                orders.removed.insert(raft_id, approvals);
            }
            other => panic!("{other:?}"),
        }
    }
    let bytes = orders.to_proof_bytes();
    let text = BASE64_STANDARD.encode(&bytes);
    assert!(text.len() <= 60 << 10, "{} bytes", text.len());
    let counted = market.count(&RosterProof::decode(&bytes).unwrap()).unwrap();
    assert_eq!(ids(&counted).len(), staying.len());
    assert_eq!(counted.changes, 1_000);
}
