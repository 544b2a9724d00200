//! Tests the refusals that random streams rarely reach: each has its code, its facts and its
//! sentence.

use souk_market::*;

use crate::town::*;

fn refused(town: &mut Town, number: u8, command: Command) -> Refusal {
    let before = town.purse(number);
    let refusal = town.run(number, command).unwrap_err();
    assert_eq!(
        town.purse(number),
        before,
        "a refused command changes nothing"
    );
    refusal
}

#[test]
fn bounds_of_orders_are_told_with_both_figures() {
    let mut town = Town::with(|genesis| genesis.rules.classes_max = 1);
    let long = Ask {
        duration_max: Millis(u64::MAX),
        ..ask(1, 300)
    };
    assert_eq!(refused(&mut town, 10, sell(long)).code(), "duration_bad");
    let dear = Ask {
        limit: Limit::Price(Price(u64::MAX)),
        ..ask(1, 300)
    };
    assert_eq!(refused(&mut town, 10, sell(dear)).code(), "amount_large");
    let far = Resources {
        region: Region(32),
        ..resources()
    };
    let refusal = refused(
        &mut town,
        10,
        sell(Ask {
            resources: far,
            ..ask(1, 300)
        }),
    );
    assert_eq!(refusal, Refusal::RegionBad { region: 32 });
    let wants = Wants {
        excluded: vec![account(11); 17],
        ..Wants::default()
    };
    let refusal = refused(&mut town, 12, buy(Bid { wants, ..bid(300) }));
    assert_eq!(
        refusal.to_string(),
        "a predicate names 17 accounts, at most 16 fit"
    );
    assert_eq!(refusal.facts()[0], ("count", "17".to_owned()));
    town.place(10, sell(ask(1, 300)));
    town.place(10, sell(ask(3, 300)));
    let other = Resources {
        kind: KindCode(9),
        ..resources()
    };
    let refusal = refused(
        &mut town,
        10,
        sell(Ask {
            resources: other,
            ..ask(2, 300)
        }),
    );
    assert_eq!(
        refusal,
        Refusal::ClassesMany {
            limit: 1,
            deposit: Credits(10_000)
        }
    );
}

fn of_kind(kind: u16, price: u64) -> Command {
    let resources = Resources {
        kind: KindCode(kind),
        ..resources()
    };
    sell(Ask {
        resources,
        ..ask(u64::from(kind), price)
    })
}

#[test]
fn class_without_orders_and_leases_gives_way_to_a_new_one() {
    let mut town = Town::with(|genesis| genesis.rules.classes_max = 2);
    town.place(10, of_kind(2, 300));
    let (_, trades) = town.place(12, buy(bid(300)));
    // The first ask of an account holds nothing, its second does.
    town.place(10, sell(ask(8, 900)));
    let (third, _) = town.place(10, of_kind(3, 300));
    // One class has a lease that is open, the other an order with a deposit: there is no room.
    let refusal = refused(&mut town, 10, of_kind(4, 300));
    assert_eq!(
        refusal,
        Refusal::ClassesMany {
            limit: 2,
            deposit: Credits(10_000)
        }
    );
    let cancel = Command::Cancel { order: third };
    town.run(10, cancel).expect("its own order");
    town.place(10, of_kind(4, 300));
    let kinds = |town: &Town| town.exchange.classes().map(|class| class.kind.0).collect();
    let known: Vec<u16> = kinds(&town);
    assert_eq!(known, [2, 4]);
    let lease = trades[0].lease;
    town.run(10, Command::GiveUp { lease })
        .expect("its own lease");
    town.place(10, of_kind(5, 300));
    let known: Vec<u16> = kinds(&town);
    assert_eq!(known, [4, 5]);
}

#[test]
fn weak_key_can_not_register() {
    let mut town = Town::new();
    let weak = AccountKey([0; 32]);
    let batch = Batch {
        market: town.exchange.market(),
        account: weak,
        nonce: Nonce(1),
        expires: Millis(60_000),
        commands: vec![Command::Register {
            name: Name::default(),
        }],
    };
    let signed = SignedBatch {
        batch,
        signature: Signature([0; 64]),
    };
    assert!(matches!(
        signed.clone().verify(),
        Err(BatchFault::Signature { .. })
    ));
    let forced = VerifiedBatch::from_own_log(signed).unwrap();
    let applied = town.exchange.apply(Millis(1), &forced);
    let expected = Outcome::Refused(Refusal::KeyWeak { account: weak });
    assert_eq!(applied.outcomes, [expected]);
}

#[test]
fn receipt_of_another_lease_or_over_its_escrow_is_refused_with_the_figures() {
    let mut town = Town::new();
    town.place(10, sell(ask(1, 300)));
    let lease = town.place(12, buy(bid(500))).1[0].lease;
    let good = body(&town.exchange, lease, 1_000_000);
    let mut settle = |body: ReceiptBody, provider, buyer| {
        refused(
            &mut town,
            10,
            Command::Settle(Box::new(receipt(body, provider, buyer))),
        )
    };
    let elsewhere = ReceiptBody {
        market: MarketId([9; 32]),
        ..good.clone()
    };
    assert_eq!(settle(elsewhere, 10, 12).code(), "receipt_market");
    let mine = ReceiptBody {
        buyer: account(13),
        ..good.clone()
    };
    assert_eq!(settle(mine, 10, 13).code(), "receipt_parties");
    let usage = DeviceMicros(10_000_001);
    let amount = ReceiptBody::amount_due(good.price, usage).unwrap();
    let over = settle(
        ReceiptBody {
            usage,
            amount,
            ..good
        },
        10,
        12,
    );
    let possible = DeviceMicros(10_000_000);
    assert_eq!(
        over,
        Refusal::UsageOver {
            claimed: usage,
            possible
        }
    );
}

/// A resale at a lower price takes its subsidy out of the first lease's escrow, so that a receipt
/// for all of the first lease's time claims more than is left.
#[test]
fn receipt_over_what_is_left_in_escrow_is_refused() {
    let mut town = Town::new();
    town.place(10, sell(ask(1, 300)));
    let lease = town.place(12, buy(bid(500))).1[0].lease;
    town.wait(1_000);
    town.place(
        12,
        Command::Resell {
            lease,
            price: Price(100),
        },
    );
    town.place(
        13,
        buy(Bid {
            duration: Millis(5_000),
            ..bid(500)
        }),
    );
    let all = body(&town.exchange, lease, 10_000_000);
    let settle = Command::Settle(Box::new(receipt(all, 10, 12)));
    let refusal = refused(&mut town, 10, settle);
    let (claimed, escrow) = (Credits(3_000), Credits(2_000));
    assert_eq!(refusal, Refusal::ReceiptOver { claimed, escrow });
}

#[test]
fn buyer_accepts_only_the_usage_it_has_seen() {
    let mut town = Town::new();
    town.place(10, sell(ask(1, 300)));
    let lease = town.place(12, buy(bid(500))).1[0].lease;
    town.run(12, Command::StartWork { lease }).unwrap();
    town.wait(2_000);
    town.run(
        10,
        Command::NoteUsage {
            lease,
            usage: DeviceMicros(5),
        },
    )
    .unwrap();
    let refusal = refused(
        &mut town,
        12,
        Command::AcceptNote {
            lease,
            usage: DeviceMicros(6),
        },
    );
    let (noted, accepted) = (DeviceMicros(5), DeviceMicros(6));
    assert_eq!(refusal, Refusal::NoteDiffers { noted, accepted });
}

#[test]
fn every_refusal_code_is_one_of_a_kind() {
    let mut codes = Refusal::CODES.to_vec();
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes.len(), Refusal::CODES.len());
}

#[test]
fn a_credit_opens_an_account_that_there_is_not() {
    let mut town = Town::with(|genesis| genesis.rules.accounts_max = 12);
    let register = || Command::Register {
        name: Name::default(),
    };
    town.run(OPERATOR, register()).unwrap();
    let credit = |number, amount| Command::Deposit {
        account: account(number),
        amount: Credits(amount),
    };
    town.run(OPERATOR, credit(40, 7)).unwrap();
    assert_eq!(town.purse(40), (7, 0));
    // Its own commands are numbered from the first, and to register does nothing more.
    let known = Refusal::AccountKnown {
        account: account(40),
    };
    assert_eq!(town.run(40, register()), Err(known));
    let full = Refusal::AccountsMany { limit: 12 };
    assert_eq!(town.run(OPERATOR, credit(41, 1)), Err(full));
    let large = town.run(OPERATOR, credit(41, u64::MAX));
    assert!(matches!(large, Err(Refusal::AmountLarge { .. })));
}

#[test]
fn registration_ends_where_the_accounts_do() {
    let mut town = Town::with(|genesis| genesis.rules.accounts_max = 11);
    let register = || Command::Register {
        name: Name::default(),
    };
    assert_eq!(town.run(40, register()), Ok(Acceptance::Registered));
    let full = Refusal::AccountsMany { limit: 11 };
    assert_eq!(town.run(41, register()), Err(full));
    assert!(town.exchange.account(account(41)).is_none());
}

/// What `apply` says of a batch and what the state foresaw, if the batch changed no account.
fn foresees(town: &mut Town, batch: &SignedBatch) -> Option<Refusal> {
    let batch = batch.clone().verify().unwrap();
    let foreseen = town.exchange.foresee_refusal(&batch);
    let before = town.exchange.accounts().to_vec();
    let applied = town.exchange.apply(Millis(town.now), &batch);
    town.exchange.audit();
    let refused = |outcome: Outcome| outcome.into_result().err();
    let refused: Vec<_> = applied.outcomes.into_iter().map(refused).collect();
    match &foreseen {
        Some(_) => {
            assert!(refused.iter().all(|it| *it == foreseen), "{refused:?}");
            assert_eq!(town.exchange.accounts(), before, "it changes nothing");
        }
        None => assert_ne!(town.exchange.accounts(), before, "it spends a nonce"),
    }
    foreseen
}

#[test]
fn batch_that_nobody_admits_is_known_without_the_log() {
    let mut town = Town::new();
    let register = || Command::Register {
        name: Name::default(),
    };
    let stake = || Command::Stake { amount: Credits(1) };
    let code = |refusal: Option<Refusal>| refusal.map(|it| it.code());

    let stranger = town.batch(40, vec![stake(), register(), stake()]);
    let account = account(40);
    let unknown = Refusal::AccountUnknown { account };
    assert_eq!(foresees(&mut town, &stranger), Some(unknown));
    let newcomer = town.batch(40, vec![register(), stake()]);
    assert_eq!(foresees(&mut town, &newcomer), None);
    let again = foresees(&mut town, &newcomer);
    assert_eq!(code(again), Some("nonce_used"));
    assert_eq!(
        foresees(&mut town, &stranger),
        None,
        "its account is known now, and this nonce is unused"
    );

    let mut late = town.batch(10, vec![stake()]).batch;
    late.expires = Millis(town.now);
    let late = late.sign(key(10));
    assert_eq!(code(foresees(&mut town, &late)), Some("batch_expired"));
    let mut other = town.batch(10, vec![stake()]).batch;
    other.market = MarketId([9; 32]);
    let other = other.sign(key(10));
    assert_eq!(code(foresees(&mut town, &other)), Some("market_other"));

    // A command that is refused alone spends the nonce, so that nobody can bring it again.
    let poor = town.batch(40, vec![stake()]);
    assert_eq!(foresees(&mut town, &poor), None);
    assert_eq!(code(foresees(&mut town, &poor)), Some("nonce_used"));
}
