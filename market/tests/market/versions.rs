//! The versions of the rules: a market begins at the first one and does what that says, until its
//! log raises the version.

use souk_market::*;

use crate::disputes::{BUYER, PROVIDER, STAKE, accuse, leased, opened, roots_agree, signed, stake};
use crate::town::{OPERATOR, Town, account, ask, bid, body, buy, receipt, sell};

/// The most closed leases of one buyer that stay beyond the rule.
const LIMIT: usize = 64;

/// A market that remembers no closed lease but those for which a stake answers.
fn town() -> Town {
    Town::with(|genesis| {
        genesis.rules.closed_leases_kept = 0;
        genesis.rules.stake_hold = Millis(60_000);
        genesis.rules.rules_notice = Millis(0);
        let operator = (account(OPERATOR), Name::default(), Credits(0));
        genesis.accounts.push(operator);
    })
}

/// The same from a moment on which version 2 applies.
fn town_at_two() -> Town {
    let mut town = town();
    upgrade(&mut town);
    town
}

fn upgrade(town: &mut Town) {
    let at = Millis(town.now + 1);
    let to = RECOUNTING_RULES_VERSION;
    let upgrade = Command::Upgrade(Upgrade { to, at });
    town.run(OPERATOR, upgrade).unwrap();
    town.wait(1);
    assert_eq!(town.exchange.rules_version(), (to, None));
}

/// A settled lease that need not be exact, and its receipt.
fn trade_inexact(town: &mut Town) -> (LeaseId, ReceiptBody) {
    town.place_quietly(PROVIDER, sell(ask(1, 300)));
    let lease = town.place_quietly(BUYER, buy(bid(300))).1[0].lease;
    let claim = body(&town.exchange, lease, 1_000_000);
    let settle = Command::Settle(Box::new(receipt(claim.clone(), PROVIDER, BUYER)));
    town.run_quietly(BUYER, settle);
    (lease, claim)
}

/// What the buyer gets for the provider's contradiction in a lease.
fn compensation(town: &mut Town, claim: ReceiptBody) -> Credits {
    let mut other = claim.clone();
    other.outputs = vec![ContentId([9; 32])];
    let pair = [claim, other].map(|body| receipt(body, PROVIDER, BUYER));
    match town.run(BUYER, Command::ProveFault(Box::new(pair))) {
        Ok(Acceptance::Slashed { compensated, .. }) => compensated,
        other => panic!("not slashed: {other:?}"),
    }
}

fn is_known(town: &Town, lease: LeaseId) -> bool {
    town.exchange.lease(lease).is_some()
}

#[test]
fn a_market_begins_at_the_first_version_whatever_this_build_implements() {
    let town = Town::new();
    assert_eq!(town.exchange.rules_version(), (FIRST_RULES_VERSION, None));
    const { assert!(RULES_VERSION > FIRST_RULES_VERSION) };
}

#[test]
fn the_version_of_a_time_is_the_announced_one_from_its_moment_on() {
    let mut town = town();
    let at = Millis(town.now + 500);
    let upgrade = Upgrade { to: 2, at };
    town.run(OPERATOR, Command::Upgrade(upgrade)).unwrap();
    let version = |at| town.exchange.version_at(Millis(at));
    assert_eq!((version(at.0 - 1), version(at.0)), (1, 2));
    assert_eq!(town.exchange.rules_version(), (1, Some(upgrade)));
    town.wait(500);
    assert_eq!(town.exchange.version_at(Millis(0)), 2, "it has come");
}

#[test]
fn who_comes_back_is_counted_again_from_version_2_on() {
    let (three, four) = ([30, 31, 32].map(account), [30, 31, 32, 33].map(account));
    let mut town = town();
    let is_due = |town: &Town, before: &[AccountKey], after: &[AccountKey]| {
        town.exchange
            .is_recount_due(Millis(town.now), before, after)
    };
    assert!(!is_due(&town, &four, &three), "there is nothing to count");
    let lease = leased(&mut town);
    let claim = signed(&town, lease);
    opened(&mut town, claim);
    assert!(is_due(&town, &four, &three));
    assert!(!is_due(&town, &three, &four));
    upgrade(&mut town);
    assert!(is_due(&town, &four, &three));
    assert!(is_due(&town, &three, &four));
    assert!(!is_due(&town, &four, &four));
}

#[test]
fn a_market_founded_again_ends_its_disputes_from_version_2_on() {
    let mut town = town();
    let lease = leased(&mut town);
    let claim = signed(&town, lease);
    let dispute = opened(&mut town, claim.clone());
    let before = town.exchange.clone();
    town.exchange.end_disputes();
    assert_eq!(town.exchange, before, "version 1 keeps it open");
    upgrade(&mut town);
    let (digest, (available, escrow)) = (town.exchange.digest(), town.purse(BUYER));
    town.exchange.end_disputes();
    town.exchange.audit();
    roots_agree(&mut town);
    let at = Millis(town.now);
    let state = town.exchange.dispute(dispute).unwrap().state;
    assert_eq!(state, DisputeState::Undecided { at });
    let bond = DISPUTE_BOND.0;
    assert_eq!(town.purse(BUYER), (available + bond, escrow - bond));
    assert_eq!(stake(&town), STAKE);
    assert_ne!(town.exchange.digest(), digest, "the log's digest shows it");
    // The buyer can try again, and the old deadline does nothing.
    let again = opened(&mut town, claim.clone());
    assert!(again > dispute);
    assert!(town.run(BUYER, accuse(claim)).is_err(), "one at a time");
    town.wait(DISPUTE_LIFE.0);
    roots_agree(&mut town);
}

#[test]
fn a_contradiction_in_a_lease_that_was_not_exact_pays_its_buyer_from_version_2_on() {
    let (mut old, mut new) = (town(), town_at_two());
    for (town, is_kept) in [(&mut old, false), (&mut new, true)] {
        let amount = STAKE;
        town.run(PROVIDER, Command::Stake { amount }).unwrap();
        let (lease, claim) = trade_inexact(town);
        // Nothing is kept by the rule, so the lease is known only because a stake answers for it.
        assert_eq!(is_known(town, lease), is_kept);
        let cost = town.exchange.lease(lease).map(|lease| lease.cost);
        assert_eq!(compensation(town, claim), cost.unwrap_or(Credits(0)));
        assert_eq!(stake(town), Credits(0));
        roots_agree(town);
    }
}

#[test]
fn leases_that_are_not_exact_push_out_no_exact_one() {
    let mut town = town_at_two();
    let exact = leased(&mut town);
    let settle = Command::Settle(Box::new(signed(&town, exact)));
    town.run(BUYER, settle).unwrap();
    let inexact: Vec<LeaseId> = (0..2 * LIMIT).map(|_| trade_inexact(&mut town).0).collect();
    assert!(is_known(&town, exact));
    assert_eq!(town.exchange.leases().count(), LIMIT);
    let kept = |lease: &&LeaseId| is_known(&town, **lease);
    assert_eq!(inexact.iter().rev().take_while(kept).count(), LIMIT - 1);
    town.exchange.audit();
    roots_agree(&mut town);
    // An hour later no stake answers for any of them.
    town.wait(60_000);
    for _ in 0..2 * LIMIT {
        trade_inexact(&mut town);
    }
    assert!(!is_known(&town, exact));
    town.exchange.audit();
}

#[test]
fn leases_that_version_1_has_forgotten_stay_forgotten() {
    let mut town = town();
    let amount = STAKE;
    town.run(PROVIDER, Command::Stake { amount }).unwrap();
    let (before, _) = trade_inexact(&mut town);
    upgrade(&mut town);
    let (after, _) = trade_inexact(&mut town);
    assert!(!is_known(&town, before) && is_known(&town, after));
    roots_agree(&mut town);
}
