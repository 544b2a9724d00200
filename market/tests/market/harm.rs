//! Tests that harm costs the account that causes it: a buyer that refuses work or holds a device
//! without using it, a party that never signs, and accounts that try to change the reputation of
//! others.

use souk_market::*;

use crate::town::{Town, account, ask, bid, body, buy, receipt, sell};

const PROVIDER: u8 = 10;
const BUYER: u8 = 12;
const FULL: u64 = 1_000_000_000;

fn leased(town: &mut Town, seconds: u64) -> LeaseId {
    leased_device(town, 1, seconds)
}

fn leased_device(town: &mut Town, device: u64, seconds: u64) -> LeaseId {
    town.place(PROVIDER, sell(ask(device, 300)));
    let wish = Bid {
        duration: Millis(seconds * 1_000),
        budget: Credits(1_000_000),
        ..bid(300)
    };
    town.place(BUYER, buy(wish)).1[0].lease
}

fn score(town: &Town, who: u8) -> u16 {
    town.exchange
        .account(account(who))
        .unwrap()
        .reputation
        .score
        .0
}

fn spent(town: &Town, who: u8) -> u64 {
    let account = town.exchange.account(account(who)).unwrap();
    FULL - account.available.0 - account.escrow.0
}

fn earned(town: &Town, who: u8) -> u64 {
    town.exchange.account(account(who)).unwrap().available.0 - FULL
}

fn note(lease: LeaseId, seconds: u64) -> Command {
    let usage = DeviceMicros(seconds * 1_000_000);
    Command::NoteUsage { lease, usage }
}

#[test]
fn refusing_costs_the_buyer_what_its_provider_states_and_no_reputation_moves() {
    for notes_first in [true, false] {
        let mut town = Town::new();
        let lease = leased(&mut town, 600);
        town.run(BUYER, Command::StartWork { lease }).unwrap();
        town.wait(60_000);
        if notes_first {
            town.run(PROVIDER, note(lease, 60)).unwrap();
        }
        town.run(BUYER, Command::Dispute { lease }).unwrap();
        if !notes_first {
            town.run(PROVIDER, note(lease, 60)).unwrap();
        }
        let worked = 60 * 300;
        assert_eq!(spent(&town, BUYER), worked);
        assert_eq!(earned(&town, PROVIDER), 0, "a lie would earn as much");
        assert_eq!(town.exchange.totals().fees.0, worked);
        assert_eq!((score(&town, PROVIDER), score(&town, BUYER)), (500, 500));
    }
}

#[test]
fn refusing_a_provider_that_is_gone_costs_nothing() {
    let mut town = Town::new();
    let lease = leased(&mut town, 600);
    town.run(BUYER, Command::StartWork { lease }).unwrap();
    town.wait(60_000);
    town.run(BUYER, Command::Dispute { lease }).unwrap();
    town.run(BUYER, Command::Dispute { lease }).unwrap();
    town.wait(120_000);
    assert_eq!((spent(&town, BUYER), earned(&town, PROVIDER)), (0, 0));
    let counted = town.exchange.account(account(BUYER)).unwrap();
    assert_eq!(counted.reputation.disputed, 1, "it is counted once");
}

#[test]
fn a_device_is_held_for_its_idle_price_however_the_lease_ends() {
    for start in [true, false] {
        let mut town = Town::new();
        let lease = leased(&mut town, 600);
        if start {
            town.run(BUYER, Command::StartWork { lease }).unwrap();
        }
        town.wait(59_000);
        town.run(BUYER, Command::EndLease { lease }).unwrap();
        town.run(PROVIDER, Command::StateReady { lease }).unwrap();
        assert!(matches!(town.state(lease), LeaseState::Closed { .. }));
        assert_eq!(spent(&town, BUYER), 59 * 30);
        assert_eq!(earned(&town, PROVIDER), 0, "stalling would earn as much");
        assert_eq!(town.exchange.totals().fees.0, 59 * 30);
    }
}

#[test]
fn a_provider_earns_the_idle_price_of_a_lease_that_its_buyer_leaves_to_its_deadline() {
    let mut town = Town::new();
    let lease = leased(&mut town, 600);
    town.run(BUYER, Command::StartWork { lease }).unwrap();
    town.wait(600_000);
    town.run(PROVIDER, Command::StateReady { lease }).unwrap();
    assert_eq!(spent(&town, BUYER), 600 * 30);
    assert_eq!(earned(&town, PROVIDER), 600 * 30);
}

#[test]
fn an_ask_states_what_idle_time_costs_and_the_market_the_least() {
    for (stated, counts) in [(0, 100), (50, 100), (400, 400), (5_000, 1_000)] {
        let mut town = Town::new();
        let idle = Permille(stated);
        let ask = Ask {
            idle,
            ..ask(1, 300)
        };
        town.place(PROVIDER, sell(ask));
        let lease = town.place(BUYER, buy(bid(300))).1[0].lease;
        assert_eq!(town.exchange.lease(lease).unwrap().idle, Permille(counts));
        town.wait(5_000);
        town.run(BUYER, Command::EndLease { lease }).unwrap();
        town.run(PROVIDER, Command::StateReady { lease }).unwrap();
        assert_eq!(spent(&town, BUYER), 5 * 300 * u64::from(counts) / 1_000);
    }
}

#[test]
fn a_provider_ends_a_lease_without_requests_also_after_the_work_began() {
    let mut town = Town::new();
    let lease = leased(&mut town, 600);
    town.run(BUYER, Command::StartWork { lease }).unwrap();
    town.wait(20_000);
    town.run(PROVIDER, Command::StateReady { lease }).unwrap();
    // A buyer that is there says so, and pays for what it holds.
    town.run(BUYER, Command::StartWork { lease }).unwrap();
    town.wait(60_000);
    assert_eq!(town.state(lease), LeaseState::Active);
    town.run(PROVIDER, Command::StateReady { lease }).unwrap();
    town.wait(60_000);
    let reason = CloseReason::Unused;
    assert!(matches!(town.state(lease), LeaseState::Due { reason: r, .. } if r == reason));
    town.place(PROVIDER, sell(ask(1, 300)));
    town.run(PROVIDER, note(lease, 40)).unwrap();
    town.wait(120_000);
    // Silence pays what was noted, or the price of the time it was held: whichever is more.
    assert_eq!(earned(&town, PROVIDER), 40 * 300);
}

#[test]
fn short_work_is_paid_though_nobody_signs() {
    let mut town = Town::new();
    let lease = leased(&mut town, 600);
    town.wait(5_000);
    let (claimed, possible) = (DeviceMicros(3_000_000), DeviceMicros(2_000_000));
    let refused = town.run(PROVIDER, note(lease, 3));
    assert_eq!(refused, Err(Refusal::UsageOver { claimed, possible }));
    town.run(PROVIDER, note(lease, 2)).unwrap();
    town.wait(60_000);
    let refused = town.run(PROVIDER, note(lease, 3));
    assert_eq!(refused, Err(Refusal::WorkUnstarted { lease }));
    town.run(BUYER, Command::EndLease { lease }).unwrap();
    town.run(PROVIDER, Command::StateReady { lease }).unwrap();
    assert_eq!(
        earned(&town, PROVIDER),
        2 * 300,
        "what its silence accepted"
    );
    assert_eq!(spent(&town, BUYER), 65 * 30, "the rest is the market's");
}

#[test]
fn a_receipt_bills_idle_time_by_the_lease() {
    let mut town = Town::new();
    let lease = leased(&mut town, 600);
    town.wait(100_000);
    let mut body = body(&town.exchange, lease, 1_000_000);
    body.idle = DeviceMicros(90_000_000);
    body.amount = ReceiptBody::amount_due(body.price, body.billable_usage()).unwrap();
    assert_eq!(body.amount, Credits(300 + 90 * 30));
    let mut cheap = body.clone();
    cheap.idle_part = Permille(1);
    cheap.amount = ReceiptBody::amount_due(cheap.price, cheap.billable_usage()).unwrap();
    let settle = |body| Command::Settle(Box::new(receipt(body, PROVIDER, BUYER)));
    let refused = town.run(PROVIDER, settle(cheap));
    assert_eq!(refused, Err(Refusal::ReceiptTerms { lease }));
    town.run(PROVIDER, settle(body)).unwrap();
    assert_eq!(earned(&town, PROVIDER), 300 + 90 * 30);
}

#[test]
fn a_new_key_with_a_thousandth_of_a_credit_moves_no_reputation() {
    let mut town = Town::new();
    for _ in 0..30 {
        let lease = leased(&mut town, 4);
        town.run(BUYER, Command::StartWork { lease }).unwrap();
        town.run(BUYER, Command::Dispute { lease }).unwrap();
        let lease = leased(&mut town, 4);
        town.run(PROVIDER, Command::GiveUp { lease }).unwrap();
    }
    let lease = leased(&mut town, 4);
    let mut slow = body(&town.exchange, lease, 3_400_000);
    slow.delivered_mega_ops = 1;
    assert_eq!(slow.amount, Credits(1_020));
    let settle = Command::Settle(Box::new(receipt(slow, PROVIDER, BUYER)));
    town.run(BUYER, settle).unwrap();
    assert_eq!((score(&town, PROVIDER), score(&town, BUYER)), (500, 500));
}

#[test]
fn settled_credits_move_a_reputation_a_few_steps_for_each_counterpart() {
    let mut town = Town::new();
    for settled in 1..=6 {
        let lease = leased(&mut town, 400);
        let body = body(&town.exchange, lease, 334_000_000);
        assert_eq!(body.amount, Credits(100_200));
        let settle = Command::Settle(Box::new(receipt(body, PROVIDER, BUYER)));
        town.run(BUYER, settle).unwrap();
        let steps = [532, 562, 590, 616, 616, 616];
        assert_eq!(
            score(&town, PROVIDER),
            steps[settled - 1],
            "after {settled}"
        );
    }
    // Who is trusted by the other one loses by giving up.
    let lease = leased(&mut town, 4);
    town.run(PROVIDER, Command::GiveUp { lease }).unwrap();
    assert_eq!(score(&town, PROVIDER), 616 - 154);
}

#[test]
fn a_proof_outlives_the_lease_in_the_memory_of_the_market() {
    let mut town = Town::with(|genesis| genesis.rules.closed_leases_kept = 2);
    let amount = Credits(5_000);
    town.run(PROVIDER, Command::Stake { amount }).unwrap();
    let lease = leased(&mut town, 10);
    let one = body(&town.exchange, lease, 1_000_000);
    let mut other = one.clone();
    other.outputs = vec![ContentId([9; 32])];
    let settle = Command::Settle(Box::new(receipt(one.clone(), PROVIDER, BUYER)));
    town.run(BUYER, settle).unwrap();
    // The liar trades with itself until the lease is forgotten.
    for _ in 0..3 {
        let lease = leased(&mut town, 10);
        town.run(BUYER, Command::Dispute { lease }).unwrap();
        town.run(PROVIDER, Command::StateReady { lease }).unwrap();
    }
    // It is not exact, so nobody could accuse its provider, and a proof needs no lease.
    assert!(town.exchange.lease(lease).is_none());
    let pair = [one, other].map(|body| receipt(body, PROVIDER, BUYER));
    let prove = Command::ProveFault(Box::new(pair));
    let slashed = town.run(BUYER, prove.clone()).unwrap();
    let compensated = Credits(0);
    assert_eq!(
        slashed,
        Acceptance::Slashed {
            slashed: amount,
            compensated
        }
    );
    assert_eq!(score(&town, PROVIDER), 0);
    town.run(PROVIDER, Command::Stake { amount }).unwrap();
    assert_eq!(town.run(BUYER, prove), Err(Refusal::FaultKnown { lease }));
}

/// Two receipts of one lease that name different outputs, both signed by the provider.
fn contradict(town: &Town, lease: LeaseId) -> Command {
    let one = body(&town.exchange, lease, 1_000_000);
    let mut other = one.clone();
    other.outputs = vec![ContentId([9; 32])];
    let pair = [one, other].map(|body| receipt(body, PROVIDER, BUYER));
    Command::ProveFault(Box::new(pair))
}

/// A provider that will be convicted can contradict itself in leases of a confederate. However many
/// those are and however much they hold, at least half of what it loses is nobody's but the
/// market's.
#[test]
fn confederates_get_at_most_half_of_a_lost_stake() {
    for (slash, proofs) in [(1_000, 1), (1_000, 3), (500, 3), (333, 5)] {
        let mut town = Town::with(|genesis| genesis.rules.slash = Permille(slash));
        let amount = Credits(100_001);
        town.run(PROVIDER, Command::Stake { amount }).unwrap();
        let leases: Vec<LeaseId> = (1..=proofs)
            .map(|device| leased_device(&mut town, device, 3_000))
            .collect();
        let escrow = town.exchange.lease(leases[0]).unwrap().escrow;
        assert!(escrow > amount, "each lease holds more than the stake");
        let before = town.purse(BUYER).0;
        for lease in leases {
            town.run(BUYER, contradict(&town, lease)).unwrap();
        }
        let left = town.exchange.account(account(PROVIDER)).unwrap().stake;
        let lost = amount.0 - left.0;
        let saved = town.purse(BUYER).0 - before;
        let fees = town.exchange.totals().fees.0;
        assert!(lost > 0 && saved > 0, "{slash} {proofs}");
        assert!(saved <= lost / 2, "{slash} {proofs}: {saved} of {lost}");
        assert_eq!(saved + fees, lost, "{slash} {proofs}");
    }
}
