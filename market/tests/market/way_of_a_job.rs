//! Tests the whole way of a job through the exchange, and each point at which a party can
//! disappear.

use crate::town::*;
use souk_market::*;

const PROVIDER: u8 = 10;
const BUYER: u8 = 12;

/// A town in which the buyer has leased the provider's device for 10 s at 300 micro-credits/s.
fn leased() -> (Town, LeaseId) {
    let mut town = Town::new();
    town.place(PROVIDER, sell(ask(1, 300)));
    let (_, trades) = town.place(BUYER, buy(bid(500)));
    let lease = trades[0].lease;
    town.run(BUYER, Command::StartWork { lease }).unwrap();
    (town, lease)
}

const FULL: u64 = 1_000_000_000;

#[test]
fn register_deposit_gang_receipt_settle_and_every_credit_is_accounted_for() {
    let mut town = Town::with(|genesis| genesis.rules.fee_basis_points = 100);
    let newcomer = 40;
    let register = Command::Register {
        name: "peer".try_into().unwrap(),
    };
    assert_eq!(town.run(newcomer, register), Ok(Acceptance::Registered));
    let deposit = Command::Deposit {
        account: account(newcomer),
        amount: Credits(50_000),
    };
    assert!(matches!(
        town.run(PROVIDER, deposit.clone()),
        Err(Refusal::OperatorOnly { .. })
    ));
    assert!(matches!(
        town.run(OPERATOR, deposit.clone()),
        Err(Refusal::AccountUnknown { .. })
    ));
    town.run(
        OPERATOR,
        Command::Register {
            name: Name::default(),
        },
    )
    .unwrap();
    town.run(OPERATOR, deposit).unwrap();

    town.place(10, sell(ask(1, 300)));
    town.place(11, sell(ask(1, 400)));
    let legs = vec![bid(500), bid(500)];
    let Ok(Acceptance::Ganged { trades }) = town.run(newcomer, Command::PlaceGang(legs)) else {
        panic!("both legs have a provider");
    };
    assert_eq!(town.purse(newcomer), (43_000, 7_000));
    let body = body(&town.exchange, trades[0].lease, 2_500_001);
    assert_eq!(body.amount, Credits(751), "750.0003 rounded up");
    let provider = if trades[0].provider == account(10) {
        10
    } else {
        11
    };
    let amount = body.amount.0;
    let settle = Command::Settle(Box::new(receipt(body, provider, newcomer)));
    let fee = amount / 100;
    let closed = town.run(provider, settle.clone());
    let (paid, refunded) = (Credits(amount - fee), Credits(3_000 - amount));
    assert_eq!(
        closed,
        Ok(Acceptance::Closed {
            paid,
            fee: Credits(fee),
            refunded
        })
    );
    assert_eq!(town.purse(provider), (FULL + amount - fee, 0));
    assert_eq!(town.purse(newcomer), (43_000 + 3_000 - amount, 4_000));
    assert!(matches!(
        town.run(provider, settle),
        Err(Refusal::LeaseClosed { .. })
    ));
}

#[test]
fn weak_keys_and_foreign_batches_are_refused() {
    let mut town = Town::new();
    assert!(AccountKey([0; 32]).is_weak());
    let mut other = Town::with(|genesis| genesis.chain = "other".try_into().unwrap());
    let batch = other.batch(BUYER, vec![buy(bid(500))]).verify().unwrap();
    let outcome = town.exchange.apply(Millis(1), &batch).outcomes.remove(0);
    assert_eq!(outcome.into_result().unwrap_err().code(), "market_other");
}

#[test]
fn a_batch_applied_twice_is_absorbed() {
    let mut town = Town::new();
    let batch = town.batch(BUYER, vec![buy(bid(500))]).verify().unwrap();
    town.exchange.apply(Millis(1), &batch);
    let purse = town.purse(BUYER);
    let again = town.exchange.apply(Millis(2), &batch);
    assert!(matches!(
        again.outcomes[0],
        Outcome::Refused(Refusal::NonceUsed { .. })
    ));
    assert_eq!(town.purse(BUYER), purse);
}

#[test]
fn a_changed_batch_does_not_verify() {
    let mut town = Town::new();
    let mut signed = town.batch(BUYER, vec![Command::Stake { amount: Credits(1) }]);
    signed.batch.commands = vec![Command::Stake { amount: Credits(2) }];
    assert!(matches!(signed.verify(), Err(BatchFault::Signature { .. })));
}

#[test]
fn batches_verified_together_are_judged_as_each_alone() {
    let (mut town, lease) = leased();
    let good = body(&town.exchange, lease, 1_000_000);
    let settle = |receipt: Receipt| vec![Command::Settle(Box::new(receipt))];
    let withdraw = |amount| {
        vec![Command::Stake {
            amount: Credits(amount),
        }]
    };
    let half = Receipt::new(good.clone()).sign_as_provider(key(PROVIDER));
    let mut batches = vec![
        town.batch(BUYER, withdraw(1)),
        town.batch(PROVIDER, settle(receipt(good.clone(), PROVIDER, BUYER))),
        town.batch(PROVIDER, settle(receipt(good.clone(), BUYER, PROVIDER))),
        town.batch(PROVIDER, settle(half.clone())),
        town.batch(
            BUYER,
            vec![Command::ProveFault(Box::new([
                half,
                receipt(good, BUYER, BUYER),
            ]))],
        ),
        town.batch(BUYER, Vec::new()),
        town.batch(BUYER, withdraw(1)),
        town.batch(BUYER, Vec::new()),
        town.batch(BUYER, withdraw(2)),
    ];
    for changed in &mut batches[6..8] {
        changed.batch.nonce = Nonce(1_000);
    }
    let alone: Vec<_> = batches.iter().cloned().map(SignedBatch::verify).collect();
    let (good, bad) = (alone[..5].iter().chain(&alone[8..]), &alone[5..8]);
    assert!(good.into_iter().all(Result::is_ok));
    assert_eq!(bad[0], Err(BatchFault::Count { count: 0 }));
    let forged = |it: &_| matches!(it, Err(BatchFault::Signature { .. }));
    assert!(bad[1..].iter().all(forged));
    assert_ne!(
        alone[1], alone[2],
        "a receipt with wrong signatures is known as such"
    );
    assert_eq!(SignedBatch::verify_each(batches), alone);
}

#[test]
fn time_never_runs_backwards() {
    let mut town = Town::new();
    town.wait(500);
    assert!(town.exchange.tick(Millis(3)).is_empty());
    assert_eq!(town.exchange.now(), Millis(1_500));
}

#[test]
fn provider_that_never_runs_gets_nothing_and_the_buyer_all_back() {
    let (mut town, lease) = leased();
    assert_eq!(town.purse(BUYER), (FULL - 3_000, 3_000));
    town.wait(10_000);
    assert!(matches!(town.state(lease), LeaseState::Due { .. }));
    town.wait(120_000);
    assert_eq!(town.purse(BUYER), (FULL, 0));
    let provider = town.exchange.account(account(PROVIDER)).unwrap();
    assert_eq!(provider.reputation, Reputation::default());
}

#[test]
fn buyer_that_never_signs_pays_the_notes_it_did_not_dispute() {
    let (mut town, lease) = leased();
    town.wait(10_000);
    let over = Command::NoteUsage {
        lease,
        usage: DeviceMicros(10_000_001),
    };
    assert!(matches!(
        town.run(PROVIDER, over),
        Err(Refusal::UsageOver { .. })
    ));
    town.run(
        PROVIDER,
        Command::NoteUsage {
            lease,
            usage: DeviceMicros(4_000_000),
        },
    )
    .unwrap();
    town.wait(60_000);
    town.wait(60_000);
    let paid = matches!(
        town.state(lease),
        LeaseState::Closed {
            paid: Credits(1_200),
            ..
        }
    );
    assert!(paid, "{:?}", town.state(lease));
    assert_eq!(town.purse(BUYER), (FULL - 1_200, 0));
    assert_eq!(town.purse(PROVIDER), (FULL + 1_200, 0));
}

#[test]
fn silent_buyer_loses_the_lease_after_two_notes() {
    let mut town = Town::new();
    town.place(PROVIDER, sell(ask(1, 300)));
    let long = Bid {
        duration: Millis(3_600_000),
        budget: Credits(10_000_000),
        ..bid(500)
    };
    let (_, trades) = town.place(BUYER, buy(long));
    let lease = trades[0].lease;
    town.run(BUYER, Command::StartWork { lease }).unwrap();
    for round in 1..=2 {
        assert!(matches!(town.state(lease), LeaseState::Active));
        town.wait(60_000);
        let usage = DeviceMicros(round * 30_000_000);
        town.run(PROVIDER, Command::NoteUsage { lease, usage })
            .unwrap();
        town.wait(60_000);
    }
    let reason = CloseReason::BuyerSilent;
    assert!(matches!(town.state(lease), LeaseState::Due { reason: r, .. } if r == reason));
}

#[test]
fn disputed_note_closes_the_lease_and_neither_has_what_it_says() {
    let (mut town, lease) = leased();
    town.wait(2_000);
    town.run(
        PROVIDER,
        Command::NoteUsage {
            lease,
            usage: DeviceMicros(1_000_000),
        },
    )
    .unwrap();
    let usage = DeviceMicros(1_000_000);
    town.run(BUYER, Command::AcceptNote { lease, usage })
        .unwrap();
    town.wait(2_000);
    town.run(
        PROVIDER,
        Command::NoteUsage {
            lease,
            usage: DeviceMicros(4_000_000),
        },
    )
    .unwrap();
    town.run(BUYER, Command::Dispute { lease }).unwrap();
    assert_eq!(town.purse(BUYER), (FULL - 1_200, 0));
    assert_eq!(town.purse(PROVIDER), (FULL + 300, 0));
    assert_eq!(town.exchange.totals().fees, Credits(900));
    town.place(PROVIDER, sell(ask(1, 300)));
}

#[test]
fn buyer_ends_early_and_the_device_is_free_at_once() {
    let (mut town, lease) = leased();
    let busy = town.run(PROVIDER, sell(ask(1, 300)));
    assert!(matches!(busy, Err(Refusal::DeviceBusy { .. })));
    town.wait(1_000);
    town.run(BUYER, Command::EndLease { lease }).unwrap();
    town.place(PROVIDER, sell(ask(1, 300)));
    let over = body(&town.exchange, lease, 10_000_001);
    let over = Command::Settle(Box::new(receipt(over, PROVIDER, BUYER)));
    assert!(matches!(
        town.run(PROVIDER, over),
        Err(Refusal::UsageOver { .. })
    ));
    let body = body(&town.exchange, lease, 900_000);
    let settle = Command::Settle(Box::new(receipt(body, PROVIDER, BUYER)));
    town.run(PROVIDER, settle).unwrap();
    assert_eq!(town.purse(BUYER), (FULL - 270, 0));
}

#[test]
fn provider_gives_up_or_reclaims_only_by_the_rules() {
    let (mut town, lease) = leased();
    assert!(matches!(
        town.run(PROVIDER, Command::Reclaim { lease }),
        Err(Refusal::LeaseFirm { .. })
    ));
    town.run(PROVIDER, Command::GiveUp { lease }).unwrap();
    assert_eq!(town.purse(BUYER), (FULL, 0));

    town.place(PROVIDER, sell(ask(1, 300)));
    let (_, trades) = town.place(
        BUYER,
        buy(Bid {
            term: Term::Spot,
            ..bid(500)
        }),
    );
    let lease = trades[0].lease;
    let at = Millis(town.now + 5_000);
    assert_eq!(
        town.run(PROVIDER, Command::Reclaim { lease }),
        Ok(Acceptance::Ending { at })
    );
    town.wait(5_000);
    let reason = CloseReason::Reclaimed;
    assert!(matches!(town.state(lease), LeaseState::Due { reason: r, .. } if r == reason));
}

#[test]
fn receipt_names_what_is_wrong_with_it() {
    let (mut town, lease) = leased();
    let good = body(&town.exchange, lease, 1_000_000);
    let signed = receipt(good.clone(), PROVIDER, BUYER);
    assert_eq!(signed.verify(), Ok(()));
    let wrong = receipt(
        ReceiptBody {
            amount: Credits(299),
            ..good.clone()
        },
        PROVIDER,
        BUYER,
    );
    assert!(matches!(
        wrong.verify(),
        Err(ReceiptFault::Amount {
            due: Credits(300),
            ..
        })
    ));
    let swapped = receipt(good.clone(), BUYER, PROVIDER);
    assert!(matches!(
        swapped.verify(),
        Err(ReceiptFault::ProviderSignature { .. })
    ));
    let half = Receipt::new(good).sign_as_provider(key(PROVIDER));
    assert!(matches!(
        half.verify(),
        Err(ReceiptFault::BuyerUnsigned { .. })
    ));
    let refused = town
        .run(PROVIDER, Command::Settle(Box::new(half)))
        .unwrap_err();
    assert_eq!(refused.code(), "receipt_bad");
    let json = serde_json::to_string(&signed).unwrap();
    assert_eq!(
        serde_json::from_str::<Receipt>(&json).unwrap().verify(),
        Ok(())
    );
}

#[test]
fn resting_bid_holds_its_cost_and_gives_it_back_when_it_goes() {
    let mut town = Town::new();
    town.place(10, sell(ask(1, 900)));
    let (order, _) = town.place(BUYER, buy(bid(500)));
    assert_eq!(town.purse(BUYER), (FULL - 5_000, 5_000));
    assert_eq!(
        town.run(BUYER, Command::Cancel { order }),
        Ok(Acceptance::Cancelled {
            released: Credits(5_000)
        })
    );
    assert_eq!(town.purse(BUYER), (FULL, 0));
    town.place(
        BUYER,
        buy(Bid {
            tif: TimeInForce::Gtd(Millis(town.now + 10)),
            ..bid(500)
        }),
    );
    town.wait(10);
    assert_eq!(town.purse(BUYER), (FULL, 0));
    assert!(matches!(
        town.events[0],
        Event::OrderClosed {
            reason: OrderEnd::Expired,
            ..
        }
    ));
}

#[test]
fn budget_lowers_the_limit_price() {
    let mut town = Town::new();
    town.place(PROVIDER, sell(ask(1, 300)));
    let poor = Bid {
        budget: Credits(2_999),
        tif: TimeInForce::Fok,
        ..bid(500)
    };
    assert!(matches!(
        town.run(BUYER, buy(poor)),
        Err(Refusal::Unfilled { .. })
    ));
    let enough = Bid {
        budget: Credits(3_000),
        tif: TimeInForce::Fok,
        ..bid(500)
    };
    assert_eq!(town.place(BUYER, buy(enough)).1[0].escrow, Credits(3_000));
}

#[test]
fn smaller_quantity_keeps_its_place_and_a_new_price_loses_it() {
    let mut town = Town::new();
    let (first, _) = town.place(10, sell(pool(1, 300, 4)));
    let (second, _) = town.place(11, sell(pool(1, 300, 4)));
    let shrink = Command::Amend {
        order: first,
        quantity: Units(3),
        price: Price(300),
    };
    town.run(10, shrink).unwrap();
    let (_, trades) = town.place(BUYER, buy(bid(500)));
    assert_eq!(trades[0].ask, first);
    let up = Command::Amend {
        order: first,
        quantity: Units(2),
        price: Price(301),
    };
    let Ok(Acceptance::Amended { order, .. }) = town.run(10, up) else {
        panic!("amended")
    };
    assert_ne!(order, first);
    let down = Command::Amend {
        order,
        quantity: Units(2),
        price: Price(300),
    };
    town.run(10, down).unwrap();
    let (_, trades) = town.place(BUYER, buy(bid(500)));
    assert_eq!(trades[0].ask, second);
}

#[test]
fn gang_takes_the_cheapest_way_that_matches_all() {
    let mut town = Town::new();
    town.place(10, sell(ask(1, 100)));
    let wide = Resources {
        memory_bytes: 30 << 30,
        ..resources()
    };
    town.place(
        11,
        sell(Ask {
            resources: wide,
            ..ask(1, 50)
        }),
    );
    // Taken greedily, the first leg would use up the only provider the second can have.
    let needs = Wants {
        memory_bytes: 28 << 30,
        ..Wants::default()
    };
    let legs = vec![
        bid(500),
        Bid {
            wants: needs,
            ..bid(500)
        },
    ];
    let Ok(Acceptance::Ganged { trades }) = town.run(BUYER, Command::PlaceGang(legs.clone()))
    else {
        panic!("the gang can be matched");
    };
    assert_eq!(trades[0].provider, account(10));
    assert_eq!(trades[1].provider, account(11));
    let refused = town.run(BUYER, Command::PlaceGang(legs)).unwrap_err();
    assert_eq!(refused, Refusal::GangLegUnmatched { leg: 0, seen: 0 });
    assert_eq!(town.purse(BUYER), (FULL - 1_500, 1_500));
}

#[test]
fn explanation_counts_each_ask_once_with_the_nearest_figure() {
    let mut town = Town::new();
    for device in 0..3 {
        let small = Resources {
            memory_bytes: 20 << 30,
            ..resources()
        };
        town.place(
            10,
            sell(Ask {
                resources: small,
                ..ask(device, 300)
            }),
        );
    }
    town.place(10, sell(ask(3, 560)));
    let wants = Wants {
        memory_bytes: 24 << 30,
        ..Wants::default()
    };
    let found = town
        .exchange
        .explain_bid(account(BUYER), &Bid { wants, ..bid(500) })
        .unwrap();
    let told = "4 asks: 3 below 24 GB (best 20 GB), 1 above your limit price by 12 %";
    assert_eq!(found.to_string(), told);
}

#[test]
fn snapshot_restores_the_same_state_and_replay_gives_the_same_digest() {
    let (mut town, lease) = leased();
    let bytes = town.exchange.snapshot();
    let mut copy = Exchange::restore(&bytes).unwrap();
    assert_eq!(copy.snapshot(), bytes);
    let batch = town
        .batch(BUYER, vec![Command::EndLease { lease }])
        .verify()
        .unwrap();
    town.exchange.apply(Millis(9_000), &batch);
    copy.apply(Millis(9_000), &batch);
    assert_eq!(copy, town.exchange);
    assert_eq!(copy.digest(), town.exchange.digest());
    assert!(matches!(
        Exchange::restore(b"nothing"),
        Err(SnapshotFault::NotASnapshot { .. })
    ));
    assert_eq!(
        Exchange::restore(&bytes[..bytes.len() - 1]),
        Err(SnapshotFault::Damaged)
    );
}

#[test]
fn an_answer_ends_the_silence() {
    let mut town = Town::new();
    town.place(PROVIDER, sell(ask(1, 300)));
    let long = Bid {
        duration: Millis(3_600_000),
        budget: Credits(10_000_000),
        ..bid(500)
    };
    let (_, trades) = town.place(BUYER, buy(long));
    let lease = trades[0].lease;
    town.run(BUYER, Command::StartWork { lease }).unwrap();
    for round in 1..=4 {
        town.wait(60_000);
        let usage = DeviceMicros(round * 30_000_000);
        town.run(PROVIDER, Command::NoteUsage { lease, usage })
            .unwrap();
        if round == 2 {
            town.run(BUYER, Command::AcceptNote { lease, usage })
                .unwrap();
        }
        assert_eq!(town.state(lease), LeaseState::Active, "in round {round}");
        town.wait(60_000);
    }
    let reason = CloseReason::BuyerSilent;
    assert!(matches!(town.state(lease), LeaseState::Due { reason: r, .. } if r == reason));
}

#[test]
fn a_note_adds_at_most_five_minutes() {
    let mut town = Town::new();
    town.place(PROVIDER, sell(ask(1, 300)));
    let long = Bid {
        duration: Millis(3_600_000),
        budget: Credits(10_000_000),
        ..bid(500)
    };
    let lease = town.place(BUYER, buy(long)).1[0].lease;
    town.run(BUYER, Command::StartWork { lease }).unwrap();
    town.wait(1_000_000);
    let (claimed, possible) = (DeviceMicros(300_000_001), DeviceMicros(300_000_000));
    let refused = town.run(
        PROVIDER,
        Command::NoteUsage {
            lease,
            usage: claimed,
        },
    );
    assert_eq!(refused, Err(Refusal::UsageOver { claimed, possible }));
    town.run(
        PROVIDER,
        Command::NoteUsage {
            lease,
            usage: possible,
        },
    )
    .unwrap();
}
