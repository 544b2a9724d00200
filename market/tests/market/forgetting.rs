//! Tests that the exchange forgets closed leases: no account can make it forget a lease for which a
//! stake still answers, and each buyer has a limited number of such leases.

use souk_market::*;

use crate::disputes::{
    BUYER, PROVIDER, STAKE, accuse, exact_ask, exact_bid, judge, leased, opened, roots_agree,
    signed, stake,
};
use crate::town::{Town, account, ask, bid, body, buy, receipt, sell};

/// An account that helps the provider.
const CONFEDERATE: u8 = 13;

/// A provider without a stake.
const UNSTAKED: u8 = 11;

/// The most closed leases of one buyer that stay beyond the rule.
const LIMIT: usize = 64;

fn with_rules(kept: u32, hold: u64) -> Town {
    Town::with(|genesis| {
        genesis.rules.closed_leases_kept = kept;
        genesis.rules.stake_hold = Millis(hold);
    })
}

/// A lease that is open for no time, and paid.
fn trade(town: &mut Town, provider: u8, buyer: u8) -> LeaseId {
    town.place_quietly(provider, sell(exact_ask()));
    let lease = town.place_quietly(buyer, buy(exact_bid())).1[0].lease;
    let claim = receipt(body(&town.exchange, lease, 1_000_000), provider, buyer);
    town.run_quietly(provider, Command::Settle(Box::new(claim)));
    lease
}

/// A lease that its provider gave up, so that it cost nothing.
fn give_up(town: &mut Town) -> LeaseId {
    town.place_quietly(PROVIDER, sell(exact_ask()));
    let lease = town.place_quietly(BUYER, buy(exact_bid())).1[0].lease;
    town.run_quietly(PROVIDER, Command::GiveUp { lease });
    lease
}

/// A paid lease whose results need not be exact, so that nobody can accuse its provider.
fn trade_inexact(town: &mut Town) -> LeaseId {
    town.place_quietly(PROVIDER, sell(ask(1, 300)));
    let lease = town.place_quietly(BUYER, buy(bid(300))).1[0].lease;
    let claim = receipt(body(&town.exchange, lease, 1_000_000), PROVIDER, BUYER);
    town.run_quietly(PROVIDER, Command::Settle(Box::new(claim)));
    lease
}

fn is_known(town: &Town, lease: LeaseId) -> bool {
    town.exchange.lease(lease).is_some()
}

/// A settled exact lease of the buyer, and its receipt.
fn settled(town: &mut Town) -> (LeaseId, Receipt) {
    let lease = leased(town);
    let claim = signed(town, lease);
    let settle = Command::Settle(Box::new(claim.clone()));
    town.run(BUYER, settle).unwrap();
    (lease, claim)
}

#[test]
fn a_liar_cannot_trade_until_the_market_forgets_its_lie() {
    for kept in [0, 2] {
        let mut town = with_rules(kept, 60_000);
        let (lease, claim) = settled(&mut town);
        for _ in 0..3 * LIMIT {
            trade(&mut town, PROVIDER, CONFEDERATE);
        }
        let count = town.exchange.leases().count();
        assert_eq!(count, 1 + LIMIT + kept as usize, "the rest is forgotten");
        roots_agree(&mut town);
        let dispute = opened(&mut town, claim);
        for juror in [30, 31, 32] {
            judge(&mut town, dispute, juror, Verdict::Guilty).unwrap();
        }
        assert_eq!(stake(&town), Credits(0));
        assert!(town.exchange.lease(lease).unwrap().faulted);
        roots_agree(&mut town);
    }
}

#[test]
fn cheaper_leases_and_those_without_an_accusation_push_none_out() {
    let mut town = with_rules(0, 60_000);
    let (lease, _) = settled(&mut town);
    for _ in 0..2 * LIMIT {
        let inexact = trade_inexact(&mut town);
        assert!(!is_known(&town, inexact));
        give_up(&mut town);
    }
    assert!(is_known(&town, lease));
    assert_eq!(town.exchange.leases().count(), LIMIT);
    roots_agree(&mut town);
}

#[test]
fn a_lease_is_forgotten_once_no_stake_answers_for_it() {
    let mut town = with_rules(0, 60_000);
    let (lease, claim) = settled(&mut town);
    town.wait(59_999);
    trade(&mut town, PROVIDER, CONFEDERATE);
    assert!(is_known(&town, lease));
    town.wait(1);
    trade(&mut town, UNSTAKED, CONFEDERATE);
    assert!(!is_known(&town, lease));
    let late = town.run(BUYER, accuse(claim));
    assert_eq!(late.unwrap_err().code(), "lease_unknown");
    // Without a stake there is nothing to lose.
    let lease = trade(&mut town, UNSTAKED, BUYER);
    assert!(!is_known(&town, lease));
    roots_agree(&mut town);
}

#[test]
fn a_lease_stays_as_long_as_a_dispute_about_it_is_open() {
    let mut town = with_rules(0, 60_000);
    let (lease, claim) = settled(&mut town);
    town.wait(59_999);
    opened(&mut town, claim);
    town.wait(DISPUTE_LIFE.0 - 1);
    for _ in 0..2 * LIMIT {
        trade(&mut town, PROVIDER, BUYER);
    }
    assert!(is_known(&town, lease));
    roots_agree(&mut town);
    town.wait(1);
    trade(&mut town, PROVIDER, CONFEDERATE);
    assert!(!is_known(&town, lease));
    roots_agree(&mut town);
}

/// A lease that closed, as the test knows it.
struct ClosedLease {
    id: LeaseId,
    buyer: u8,
    is_staked: bool,
    at: u64,
}

/// Whoever trades however often: the newest leases and those for which a stake answers are known,
/// within each buyer's limit, and all others are forgotten within some closings.
#[test]
fn only_a_buyer_itself_makes_the_market_forget_its_leases() {
    for seed in 1..12_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let (kept, hold) = (draw(10) as usize, draw(400_000));
        let mut town = with_rules(kept as u32, hold);
        let amount = STAKE;
        town.run(PROVIDER, Command::Stake { amount }).unwrap();
        let mut closed: Vec<ClosedLease> = Vec::new();
        for step in 0..300 {
            town.now += draw(3_000);
            let is_staked = draw(4) > 0;
            let provider = if is_staked { PROVIDER } else { UNSTAKED };
            // One buyer trades far more than others do.
            let buyer = 12 + draw(8).saturating_sub(4) as u8;
            let (id, at) = (trade(&mut town, provider, buyer), town.now);
            closed.push(ClosedLease {
                id,
                buyer,
                is_staked,
                at,
            });
            let mut counts = [0; 20];
            for (place, lease) in closed.iter().rev().enumerate() {
                let is_newest = place < kept;
                let answers = lease.is_staked && town.now < lease.at + hold;
                let count = &mut counts[usize::from(lease.buyer)];
                *count += usize::from(!is_newest && answers);
                if is_newest || answers && *count <= LIMIT {
                    assert!(is_known(&town, lease.id), "seed {seed}, step {step}");
                } else if !lease.is_staked || *count > LIMIT {
                    assert!(!is_known(&town, lease.id), "seed {seed}, step {step}");
                }
            }
        }
        town.exchange.audit();
        roots_agree(&mut town);
        // Once their time is over, memory is that of the rule again.
        town.wait(hold);
        for _ in 0..300 {
            trade(&mut town, UNSTAKED, 12);
        }
        assert_eq!(town.exchange.leases().count(), kept, "seed {seed}");
        let known = |number| town.exchange.account(account(number)).is_some();
        assert!((10..20).all(known), "seed {seed}");
    }
}
