//! Tests disputes: a provider that signs a wrong output of an exact lease loses its stake, an
//! honest provider never loses anything, and an unfounded accusation costs its accuser the bond.

use souk_market::*;

use crate::town::{Town, account, ask, bid, body, buy, key, receipt, resources, sell};

pub const PROVIDER: u8 = 10;
pub const BUYER: u8 = 12;
const FULL: u64 = 1_000_000_000;
pub const STAKE: Credits = Credits(5_000);
const JURY: [u8; 4] = [30, 31, 32, 33];

pub fn exact_ask() -> Ask {
    let features = Features::EXACT_1;
    let resources = Resources {
        features,
        ..resources()
    };
    Ask {
        resources,
        ..ask(1, 300)
    }
}

pub fn exact_bid() -> Bid {
    let features = Features::EXACT_1;
    let wants = Wants {
        features,
        ..Wants::default()
    };
    Bid { wants, ..bid(300) }
}

/// A provider with a stake, and an exact lease of the buyer.
pub fn leased(town: &mut Town) -> LeaseId {
    let amount = STAKE;
    town.run(PROVIDER, Command::Stake { amount }).unwrap();
    town.place(PROVIDER, sell(exact_ask()));
    town.place(BUYER, buy(exact_bid())).1[0].lease
}

/// The receipt of a lease, which both parties signed.
pub fn signed(town: &Town, lease: LeaseId) -> Receipt {
    receipt(body(&town.exchange, lease, 1_000_000), PROVIDER, BUYER)
}

pub fn accuse(receipt: Receipt) -> Command {
    let weights = vec![ContentId([5; 32])];
    Command::Accuse(Box::new(Accusation { receipt, weights }))
}

/// A settled exact lease and an open dispute about it.
fn disputed(town: &mut Town) -> (LeaseId, DisputeId) {
    let lease = leased(town);
    let receipt = signed(town, lease);
    let settle = Command::Settle(Box::new(receipt.clone()));
    town.run(BUYER, settle).unwrap();
    (lease, opened(town, receipt))
}

pub fn opened(town: &mut Town, receipt: Receipt) -> DisputeId {
    match town.run(BUYER, accuse(receipt)) {
        Ok(Acceptance::Accused { dispute, .. }) => dispute,
        other => panic!("not accused: {other:?}"),
    }
}

pub fn judge(
    town: &mut Town,
    dispute: DisputeId,
    juror: u8,
    found: Verdict,
) -> Result<(), Refusal> {
    let jury = JURY.map(account);
    let now = Millis(town.now);
    let exchange = &mut town.exchange;
    let (counted, events) = exchange.count_verdict(now, dispute, account(juror), found, &jury);
    town.events = events;
    town.exchange.audit();
    counted
}

fn state(town: &Town, dispute: DisputeId) -> DisputeState {
    town.exchange.dispute(dispute).unwrap().state
}

pub fn stake(town: &Town) -> Credits {
    town.exchange.account(account(PROVIDER)).unwrap().stake
}

fn purse(town: &Town, who: u8) -> u64 {
    town.exchange.account(account(who)).unwrap().available.0
}

pub fn roots_agree(town: &mut Town) {
    let beside = Digest([4; 32]);
    let rebuilt = town.exchange.rebuilt_state_root(beside);
    assert_eq!(town.exchange.state_root(beside), rebuilt);
    let restored = Exchange::restore(&town.exchange.snapshot()).unwrap();
    assert_eq!(restored, town.exchange);
    assert_eq!(restored.rebuilt_state_root(beside), rebuilt);
}

#[test]
fn three_of_four_convict_and_the_stake_goes_to_the_buyer_and_the_fees() {
    let mut town = Town::new();
    let (lease, dispute) = disputed(&mut town);
    let before = (purse(&town, BUYER), purse(&town, PROVIDER));
    for juror in [30, 31] {
        judge(&mut town, dispute, juror, Verdict::Guilty).unwrap();
        assert!(matches!(state(&town, dispute), DisputeState::Open { .. }));
        roots_agree(&mut town);
    }
    judge(&mut town, dispute, 33, Verdict::Guilty).unwrap();
    let cost = Credits(300);
    let (slashed, compensated) = (STAKE, cost);
    let convicted = DisputeState::Guilty {
        at: Millis(town.now),
        slashed,
        compensated,
    };
    assert_eq!(state(&town, dispute), convicted);
    assert_eq!(stake(&town), Credits(0));
    let after = (purse(&town, BUYER), purse(&town, PROVIDER));
    assert_eq!(
        after.0 - before.0,
        DISPUTE_BOND.0 + cost.0,
        "the bond is back"
    );
    assert_eq!(after.1, before.1);
    assert_eq!(town.exchange.totals().fees, Credits(STAKE.0 - cost.0));
    let provider = town.exchange.account(account(PROVIDER)).unwrap();
    assert_eq!(provider.reputation.score.0, 0);
    assert!(town.exchange.lease(lease).unwrap().faulted);
    roots_agree(&mut town);
    // Nothing more comes of it.
    let late = judge(&mut town, dispute, 32, Verdict::Guilty);
    assert_eq!(late, Err(Refusal::DisputeUnknown { dispute }));
    let again = signed(&town, lease);
    let known = town.run(BUYER, accuse(again));
    assert_eq!(known, Err(Refusal::FaultKnown { lease }));
}

#[test]
fn an_honest_provider_keeps_its_stake_and_gets_the_bond() {
    let mut town = Town::new();
    let (lease, dispute) = disputed(&mut town);
    let before = purse(&town, PROVIDER);
    for juror in [33, 30, 32] {
        judge(&mut town, dispute, juror, Verdict::Innocent).unwrap();
    }
    let at = Millis(town.now);
    assert_eq!(state(&town, dispute), DisputeState::Innocent { at });
    assert_eq!(stake(&town), STAKE);
    assert_eq!(purse(&town, PROVIDER) - before, DISPUTE_BOND.0);
    assert_eq!(purse(&town, BUYER), FULL - 300 - DISPUTE_BOND.0);
    let again = signed(&town, lease);
    let known = Refusal::DisputeKnown { lease, dispute };
    assert_eq!(town.run(BUYER, accuse(again)), Err(known));
    roots_agree(&mut town);
}

#[test]
fn without_enough_verdicts_the_dispute_ends_and_nobody_loses() {
    let mut town = Town::new();
    let (lease, dispute) = disputed(&mut town);
    judge(&mut town, dispute, 30, Verdict::Guilty).unwrap();
    judge(&mut town, dispute, 31, Verdict::Guilty).unwrap();
    judge(&mut town, dispute, 32, Verdict::Innocent).unwrap();
    town.wait(DISPUTE_LIFE.0 - 1);
    assert!(matches!(state(&town, dispute), DisputeState::Open { .. }));
    town.wait(1);
    let at = Millis(town.now);
    assert_eq!(state(&town, dispute), DisputeState::Undecided { at });
    assert_eq!(stake(&town), STAKE);
    assert_eq!(purse(&town, BUYER), FULL - 300);
    roots_agree(&mut town);
    // The buyer can try again, as long as the stake answers.
    let again = signed(&town, lease);
    opened(&mut town, again);
}

#[test]
fn an_accuser_who_serves_nothing_that_can_be_judged_loses_its_bond() {
    let mut town = Town::new();
    let (_, dispute) = disputed(&mut town);
    let fees = town.exchange.totals().fees;
    town.wait(DISPUTE_LIFE.0);
    let at = Millis(town.now);
    assert_eq!(state(&town, dispute), DisputeState::Undecided { at });
    assert_eq!(stake(&town), STAKE);
    assert_eq!(purse(&town, BUYER), FULL - 300 - DISPUTE_BOND.0);
    let earned = Credits(fees.0 + DISPUTE_BOND.0);
    assert_eq!(town.exchange.totals().fees, earned);
    roots_agree(&mut town);
}

/// Less than a third of liars convicts nobody and clears nobody, whatever they say and however
/// often.
#[test]
fn a_minority_of_validators_decides_nothing() {
    let mut town = Town::new();
    let (_, dispute) = disputed(&mut town);
    for _ in 0..3 {
        let _ = judge(&mut town, dispute, 30, Verdict::Guilty);
    }
    let twice = judge(&mut town, dispute, 30, Verdict::Innocent);
    let account = account(30);
    assert_eq!(twice, Err(Refusal::VerdictKnown { dispute, account }));
    for honest in [31, 32, 33] {
        judge(&mut town, dispute, honest, Verdict::Innocent).unwrap();
    }
    assert!(matches!(
        state(&town, dispute),
        DisputeState::Innocent { .. }
    ));
    assert_eq!(stake(&town), STAKE);
}

#[test]
fn only_validators_of_now_count() {
    let mut town = Town::new();
    let (_, dispute) = disputed(&mut town);
    let stranger = judge(&mut town, dispute, BUYER, Verdict::Guilty);
    let account_of_stranger = account(BUYER);
    let refused = Refusal::JurorOnly {
        account: account_of_stranger,
    };
    assert_eq!(stranger, Err(refused));
    judge(&mut town, dispute, 30, Verdict::Guilty).unwrap();
    judge(&mut town, dispute, 31, Verdict::Guilty).unwrap();
    // 30 has left: its verdict no longer counts, and two of four still are too few.
    let jury = [31, 32, 33, 34].map(account);
    let now = Millis(town.now);
    let exchange = &mut town.exchange;
    let (counted, _) = exchange.count_verdict(now, dispute, account(34), Verdict::Guilty, &jury);
    assert_eq!(counted, Ok(()));
    assert!(matches!(state(&town, dispute), DisputeState::Open { .. }));
}

#[test]
fn what_was_not_bought_as_exact_cannot_be_disputed() {
    let mut town = Town::new();
    let amount = STAKE;
    town.run(PROVIDER, Command::Stake { amount }).unwrap();
    // The ask promises it, and the bid did not demand it.
    town.place(PROVIDER, sell(exact_ask()));
    let lease = town.place(BUYER, buy(bid(300))).1[0].lease;
    assert!(!town.exchange.lease(lease).unwrap().exact);
    let claim = signed(&town, lease);
    assert_eq!(
        town.run(BUYER, accuse(claim)),
        Err(Refusal::LeaseInexact { lease })
    );
    // The bid demands it, and no ask promises it.
    let mut town = Town::new();
    town.place(PROVIDER, sell(ask(1, 300)));
    assert_eq!(town.place(BUYER, buy(exact_bid())).1, []);
}

#[test]
fn forged_and_foreign_receipts_accuse_nobody() {
    let mut town = Town::new();
    let lease = leased(&mut town);
    let right = body(&town.exchange, lease, 1_000_000);
    let unsigned = Receipt::new(right.clone()).sign_as_buyer(key(BUYER));
    let mut forged = receipt(right.clone(), PROVIDER, BUYER);
    forged.body.outputs = vec![ContentId([9; 32])];
    let of_another = receipt(right.clone(), 11, BUYER);
    for receipt in [unsigned, forged, of_another] {
        let refused = town.run(BUYER, accuse(receipt)).unwrap_err();
        assert_eq!(refused.code(), "receipt_bad", "{refused}");
    }
    let elsewhere = ReceiptBody {
        market: MarketId([3; 32]),
        ..right.clone()
    };
    let other_provider = ReceiptBody {
        provider: account(11),
        ..right.clone()
    };
    let other_job = ReceiptBody {
        job: JobId([8; 32]),
        ..right.clone()
    };
    let nothing_in = ReceiptBody {
        inputs: Vec::new(),
        ..right.clone()
    };
    let nothing_out = ReceiptBody {
        outputs: Vec::new(),
        ..right.clone()
    };
    let unknown = ReceiptBody {
        lease: LeaseId(99),
        ..right.clone()
    };
    let cases = [
        (elsewhere, PROVIDER, "receipt_market"),
        (other_provider, 11, "receipt_parties"),
        (other_job, PROVIDER, "receipt_terms"),
        (nothing_in, PROVIDER, "accusation_empty"),
        (nothing_out, PROVIDER, "accusation_empty"),
        (unknown, PROVIDER, "lease_unknown"),
    ];
    for (body, signer, code) in cases {
        let refused = town.run(BUYER, accuse(receipt(body, signer, BUYER)));
        assert_eq!(refused.unwrap_err().code(), code);
    }
    let weights = vec![ContentId([5; 32]); ACCUSED_WEIGHTS_MAX + 1];
    let receipt_of_all = receipt(right.clone(), PROVIDER, BUYER);
    let large = Accusation {
        receipt: receipt_of_all,
        weights,
    };
    let refused = town.run(BUYER, Command::Accuse(Box::new(large)));
    assert_eq!(refused.unwrap_err().code(), "accusation_large");
    // Nobody else accuses on a buyer's behalf.
    let refused = town.run(13, accuse(receipt(right, PROVIDER, BUYER)));
    assert_eq!(refused.unwrap_err().code(), "buyer_only");
    assert_eq!(town.exchange.disputes().count(), 0);
    assert_eq!(purse(&town, PROVIDER), FULL - STAKE.0);
}

#[test]
fn a_stake_stays_while_a_dispute_is_open_and_nobody_is_accused_after_it_was_free() {
    let mut town = Town::with(|genesis| genesis.rules.stake_hold = Millis(60_000));
    let lease = leased(&mut town);
    let claim = signed(&town, lease);
    let settle = Command::Settle(Box::new(claim.clone()));
    town.run(BUYER, settle).unwrap();
    town.wait(59_000);
    let dispute = opened(&mut town, claim.clone());
    town.wait(2_000);
    let amount = STAKE;
    let held = town.run(PROVIDER, Command::Unstake { amount });
    assert_eq!(held.unwrap_err().code(), "stake_disputed");
    for juror in [30, 31, 32] {
        judge(&mut town, dispute, juror, Verdict::Guilty).unwrap();
    }
    assert_eq!(stake(&town), Credits(0));
    // Another lease, whose time is over.
    let mut town = Town::with(|genesis| genesis.rules.stake_hold = Millis(60_000));
    let lease = leased(&mut town);
    let claim = signed(&town, lease);
    let settle = Command::Settle(Box::new(claim.clone()));
    town.run(BUYER, settle).unwrap();
    town.wait(60_000);
    let late = town.run(BUYER, accuse(claim));
    assert_eq!(late.unwrap_err().code(), "accusation_late");
    town.run(PROVIDER, Command::Unstake { amount }).unwrap();
}

#[test]
fn a_contradiction_proven_meanwhile_costs_the_stake_once() {
    let mut town = Town::new();
    let (lease, dispute) = disputed(&mut town);
    let mut other = body(&town.exchange, lease, 1_000_000);
    other.outputs = vec![ContentId([9; 32])];
    let pair = [signed(&town, lease), receipt(other, PROVIDER, BUYER)];
    town.run(13, Command::ProveFault(Box::new(pair))).unwrap();
    let amount = STAKE;
    town.run(PROVIDER, Command::Stake { amount }).unwrap();
    for juror in [30, 31, 32] {
        judge(&mut town, dispute, juror, Verdict::Guilty).unwrap();
    }
    assert_eq!(
        stake(&town),
        STAKE,
        "the new stake answers for other leases"
    );
    assert!(matches!(state(&town, dispute), DisputeState::Guilty { .. }));
}

#[test]
fn one_buyer_cannot_take_all_places_and_pays_for_each() {
    let mut town = Town::new();
    let amount = STAKE;
    town.run(PROVIDER, Command::Stake { amount }).unwrap();
    let mut refused = None;
    for _ in 0..5 {
        town.place(PROVIDER, sell(exact_ask()));
        let lease = town.place(BUYER, buy(exact_bid())).1[0].lease;
        let claim = signed(&town, lease);
        let settle = Command::Settle(Box::new(claim.clone()));
        town.run(BUYER, settle).unwrap();
        refused = town.run(BUYER, accuse(claim)).err();
    }
    assert_eq!(refused.unwrap().code(), "disputes_many");
    assert_eq!(town.purse(BUYER).1, 4 * DISPUTE_BOND.0);
    // Who cannot put up a bond cannot accuse.
    let mut town = Town::new();
    let lease = leased(&mut town);
    let claim = signed(&town, lease);
    let all = Credits(purse(&town, BUYER));
    let give = Command::Transfer {
        to: account(13),
        amount: all,
        reference: Name::default(),
    };
    town.run(BUYER, give).unwrap();
    assert_eq!(
        town.run(BUYER, accuse(claim)).unwrap_err().code(),
        "funds_short"
    );
}

/// Whatever validators say in whatever order, an honest provider loses nothing while less than a
/// third of them lie, and credits are neither made nor lost.
#[test]
fn honest_providers_lose_nothing_to_less_than_a_third_of_liars() {
    for seed in 1..400_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut town = Town::new();
        let (_, dispute) = disputed(&mut town);
        let members = draw(12) as u8 + 1;
        let jury: Vec<AccountKey> = (0..members).map(|it| account(30 + it)).collect();
        let liars = (members - 1) / 3;
        for _ in 0..draw(40) {
            town.now += draw(60_000);
            let juror = draw(13) as u8;
            let found = match juror < liars && draw(4) > 0 {
                true => Verdict::Guilty,
                false => Verdict::Innocent,
            };
            let (now, juror) = (Millis(town.now), account(30 + juror));
            let exchange = &mut town.exchange;
            let (_, events) = exchange.count_verdict(now, dispute, juror, found, &jury);
            let slashed = |event: &Event| matches!(event, Event::Slashed { .. });
            assert!(!events.iter().any(slashed), "seed {seed}");
            town.exchange.audit();
        }
        assert_eq!(stake(&town), STAKE, "seed {seed}");
        assert!(purse(&town, PROVIDER) >= FULL - STAKE.0, "seed {seed}");
    }
}

/// Plays disputes of four or seven validators: those that are honest find what is so, in any order
/// and with the others' lies between them. The honest side must win each.
fn play_disputes(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let (truth, lie) = match draw(2) {
            0 => (Verdict::Guilty, Verdict::Innocent),
            _ => (Verdict::Innocent, Verdict::Guilty),
        };
        let members = if draw(2) == 0 { 4 } else { 7 };
        let jury: Vec<AccountKey> = (0..members).map(|it| account(30 + it)).collect();
        let liars = (members - 1) / 3;
        let mut town = Town::new();
        let (_, dispute) = disputed(&mut town);
        let before = (purse(&town, BUYER), purse(&town, PROVIDER));
        let mut waiting: Vec<u8> = (0..members).collect();
        while !waiting.is_empty() {
            town.now += draw(60_000);
            let juror = waiting.swap_remove(draw(waiting.len() as u64) as usize);
            // A liar can also be silent.
            let found = match juror < liars {
                true if draw(4) == 0 => continue,
                true => lie,
                false => truth,
            };
            let (now, juror) = (Millis(town.now), account(30 + juror));
            let exchange = &mut town.exchange;
            drop(exchange.count_verdict(now, dispute, juror, found, &jury));
            town.exchange.audit();
        }
        let closed = town.exchange.dispute(dispute).unwrap().state;
        let after = (purse(&town, BUYER), purse(&town, PROVIDER));
        match truth {
            Verdict::Guilty => {
                assert!(matches!(closed, DisputeState::Guilty { .. }), "seed {seed}");
                assert_eq!(stake(&town), Credits(0), "seed {seed}");
                assert!(after.0 > before.0 && after.1 == before.1, "seed {seed}");
            }
            Verdict::Innocent => {
                assert!(
                    matches!(closed, DisputeState::Innocent { .. }),
                    "seed {seed}"
                );
                assert_eq!(stake(&town), STAKE, "seed {seed}");
                assert!(after.0 == before.0 && after.1 > before.1, "seed {seed}");
            }
        }
    }
}

#[test]
fn the_honest_side_wins_every_dispute() {
    play_disputes(0..200);
}

#[test]
#[ignore = "long: .ci/long runs it"]
fn the_honest_side_wins_ten_thousand_disputes() {
    play_disputes(200..10_200);
}

/// A dispute of an account about a new lease, which three validators find unfounded.
fn unfounded(town: &mut Town, buyer: u8) -> DisputeId {
    town.place_quietly(PROVIDER, sell(exact_ask()));
    let lease = town.place_quietly(buyer, buy(exact_bid())).1[0].lease;
    let body = body(&town.exchange, lease, 1_000_000);
    let claim = receipt(body, PROVIDER, buyer);
    let settle = Command::Settle(Box::new(claim.clone()));
    town.run_quietly(buyer, settle);
    let Acceptance::Accused { dispute, .. } = town.run_quietly(buyer, accuse(claim)) else {
        panic!("not accused");
    };
    for juror in [30, 31, 32] {
        judge(town, dispute, juror, Verdict::Innocent).unwrap();
    }
    dispute
}

#[test]
fn disputes_are_forgotten_by_the_time_at_which_they_closed() {
    let mut town = Town::new();
    let (_, first) = disputed(&mut town);
    let is_known = |town: &Town, dispute| town.exchange.dispute(dispute).is_some();
    let others: Vec<DisputeId> = (0..70).map(|_| unfounded(&mut town, 13)).collect();
    town.wait(1);
    for juror in [30, 31, 32] {
        judge(&mut town, first, juror, Verdict::Innocent).unwrap();
    }
    assert!(is_known(&town, first), "it closed last");
    let could_be_repeated = |id: &DisputeId| is_known(&town, *id);
    assert!(others.iter().all(could_be_repeated));
    // Later the last ones are enough.
    town.wait(3_600_000);
    let last = unfounded(&mut town, 13);
    let known: Vec<DisputeId> = town.exchange.disputes().map(|it| it.id).collect();
    assert_eq!(known.len(), 64);
    assert!(known.contains(&first) && known.contains(&last));
    assert!(known.contains(&others[8]) && !known.contains(&others[7]));
    roots_agree(&mut town);
    // However many there are within the time, memory is bounded.
    for _ in 0..260 {
        unfounded(&mut town, 13);
    }
    assert_eq!(town.exchange.disputes().count(), 256);
    roots_agree(&mut town);
}

/// Tells a changed list of validators.
fn recount(town: &mut Town, jury: &[AccountKey]) {
    town.events = town.exchange.recount_verdicts(Millis(town.now), jury);
    town.exchange.audit();
}

#[test]
fn fewer_validators_need_fewer_verdicts_at_once() {
    let mut town = Town::new();
    let (_, dispute) = disputed(&mut town);
    judge(&mut town, dispute, 30, Verdict::Guilty).unwrap();
    judge(&mut town, dispute, 31, Verdict::Guilty).unwrap();
    // Two of four are too few, and so is one of three.
    recount(&mut town, &[31, 32, 33].map(account));
    assert!(matches!(state(&town, dispute), DisputeState::Open { .. }));
    assert_eq!(stake(&town), STAKE);
    // Two of two are enough.
    recount(&mut town, &[30, 31].map(account));
    assert!(matches!(state(&town, dispute), DisputeState::Guilty { .. }));
    assert_eq!(stake(&town), Credits(0));
    let closed = |event: &Event| matches!(event, Event::DisputeClosed { .. });
    assert_eq!(town.events.iter().filter(|it| closed(it)).count(), 1);
    roots_agree(&mut town);
    recount(&mut town, &[30].map(account));
    assert!(town.events.is_empty(), "it is decided once");
}

/// However the list of validators changes, a dispute is open exactly as long as no verdict has
/// enough of the present ones, whoever gave a verdict before it left.
#[test]
fn verdicts_are_counted_against_the_validators_of_now() {
    for seed in 1..400_u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let mut town = Town::new();
        let (_, dispute) = disputed(&mut town);
        let mut jury: Vec<u8> = (30..30 + draw(12) as u8).collect();
        let mut given: Vec<(u8, Verdict)> = Vec::new();
        for _ in 0..60 {
            let juror = 30 + draw(13) as u8;
            if draw(2) == 0 {
                match jury.contains(&juror) {
                    true => jury.retain(|it| *it != juror),
                    false => jury.push(juror),
                }
                let jury: Vec<AccountKey> = jury.iter().map(|it| account(*it)).collect();
                recount(&mut town, &jury);
            } else {
                let found = match draw(2) {
                    0 => Verdict::Guilty,
                    _ => Verdict::Innocent,
                };
                let members: Vec<AccountKey> = jury.iter().map(|it| account(*it)).collect();
                let now = Millis(town.now);
                let exchange = &mut town.exchange;
                let (counted, _) =
                    exchange.count_verdict(now, dispute, account(juror), found, &members);
                let is_new = !given.iter().any(|(known, _)| *known == juror);
                assert_eq!(
                    counted.is_ok(),
                    is_new && jury.contains(&juror),
                    "seed {seed}"
                );
                counted.map(|()| given.push((juror, found))).ok();
                town.exchange.audit();
            }
            let agree = |verdict| {
                let counts = |it: &&(u8, Verdict)| it.1 == verdict && jury.contains(&it.0);
                given.iter().filter(counts).count() * 3 > jury.len() * 2
            };
            match state(&town, dispute) {
                DisputeState::Open { .. } => {
                    let is_decided = agree(Verdict::Guilty) || agree(Verdict::Innocent);
                    assert!(!is_decided, "seed {seed}");
                    continue;
                }
                DisputeState::Guilty { .. } => assert!(agree(Verdict::Guilty), "seed {seed}"),
                DisputeState::Innocent { .. } => assert!(agree(Verdict::Innocent), "seed {seed}"),
                DisputeState::Undecided { .. } => panic!("seed {seed}: no time has passed"),
            }
            break;
        }
        roots_agree(&mut town);
    }
}
