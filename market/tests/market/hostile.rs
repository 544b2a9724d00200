//! Tests markets that an attacker fills to stop the others: the work of each later command is
//! bounded, and nobody can occupy all places without a deposit in each.

use souk_market::*;

use crate::town::*;

/// A market with many unlike orders of one class, made without the whole check after each.
fn crowded() -> Town {
    Town::with(|genesis| {
        genesis.rules.open_orders_max = u32::MAX;
        genesis.rules.requests_open_max = 3;
    })
}

fn fixed(bid: Bid) -> Bid {
    let budget = Credits(900_000_000);
    Bid { budget, ..bid }
}

/// All-or-none bids above every other, for so many units.
fn rest_whole_bids(town: &mut Town, count: u64, units: u32) {
    for _ in 0..count {
        let whole = Bid {
            quantity: Units(units),
            all_or_none: true,
            duration: Millis(1),
            ..fixed(bid(900))
        };
        town.place_quietly(12, buy(whole));
    }
}

#[test]
fn one_ask_stalls_no_validator() {
    // Fewer units are on offer than the bids want; or as many, of asks that refuse their buyer.
    for (units, only) in [(3_000, Vec::new()), (900, vec![account(30)])] {
        let mut town = crowded();
        let accepts = BuyerFilter {
            only,
            ..BuyerFilter::default()
        };
        for device in 0..1_000 {
            let accepts = accepts.clone();
            town.place_quietly(
                10,
                sell(Ask {
                    accepts,
                    ..ask(device, 500)
                }),
            );
        }
        rest_whole_bids(&mut town, 600, units);
        let (honest, _) = town.place_quietly(13, buy(bid(400)));
        let asks = (2_000..2_064)
            .map(|device| sell(ask(device, 400)))
            .collect();
        let outcomes = town.run_all(11, asks);
        assert!(
            town.exchange.last_batch_steps() <= BATCH_STEPS,
            "{}",
            town.exchange.last_batch_steps()
        );
        let Outcome::Accepted(Acceptance::Placed { trades, .. }) = &outcomes[0] else {
            panic!("the first is taken: {:?}", outcomes[0]);
        };
        assert_eq!(trades.len(), 1, "bids that never fill hide none that does");
        assert_eq!(trades[0].bid, honest);
        for outcome in &outcomes[1..] {
            let is_whole = match outcome {
                Outcome::Accepted(Acceptance::Placed { resting, .. }) => *resting == Units(1),
                Outcome::Refused(refusal) => *refusal == Refusal::StepsSpent { limit: BATCH_STEPS },
                _ => false,
            };
            assert!(is_whole, "{outcome:?}");
        }
    }
}

#[test]
fn batch_beyond_its_steps_is_refused_by_name_and_nothing_of_it_is_done_in_part() {
    let mut town = crowded();
    for device in 0..4_000 {
        let only = vec![account(30)];
        let accepts = BuyerFilter {
            only,
            ..BuyerFilter::default()
        };
        town.place_quietly(
            10,
            sell(Ask {
                accepts,
                ..ask(device, 100)
            }),
        );
    }
    town.place_quietly(11, sell(ask(9_000, 200)));
    let legs = vec![
        Bid {
            wants: Wants::default(),
            ..bid(300)
        };
        Command::GANG_MAX
    ];
    let before = town.purse(12);
    let mut commands = vec![Command::PlaceGang(legs); 63];
    commands.push(Command::Stake { amount: Credits(5) });
    let outcomes = town.run_all(12, commands);
    assert!(
        town.exchange.last_batch_steps() <= BATCH_STEPS,
        "{}",
        town.exchange.last_batch_steps()
    );
    let spent = Outcome::Refused(Refusal::StepsSpent { limit: BATCH_STEPS });
    let count = outcomes.iter().filter(|outcome| **outcome == spent).count();
    assert!(count > 50, "{count} of them are refused by name");
    assert!(
        matches!(outcomes[63], Outcome::Accepted(_)),
        "what looks at nothing is done"
    );
    assert_eq!(
        town.purse(12),
        (before.0 - 5, before.1),
        "a gang is bought whole or not at all"
    );
    // The next batch has steps of its own.
    let next = town.run_all(12, vec![buy(bid(300))]);
    assert!(matches!(next[0], Outcome::Accepted(_)), "{next:?}");
}

#[test]
fn ordinary_batch_takes_a_small_part_of_its_steps() {
    let mut town = crowded();
    for device in 0..2_000 {
        town.place_quietly(
            10 + (device % 2) as u8,
            sell(ask(device, 100 + device % 97)),
        );
    }
    let mut commands: Vec<Command> = (0..60).map(|_| buy(bid(300))).collect();
    commands.push(Command::PlaceGang(vec![bid(300); 2]));
    let outcomes = town.run_all(12, commands);
    assert!(
        outcomes
            .iter()
            .all(|one| matches!(one, Outcome::Accepted(_)))
    );
    assert!(
        town.exchange.last_batch_steps() < BATCH_STEPS / 16,
        "{}",
        town.exchange.last_batch_steps()
    );
}

#[test]
fn what_falls_due_at_once_is_done_in_turn_and_the_clock_waits_for_it() {
    let mut town = crowded();
    let due = Millis(9_000);
    for device in 0..9_000 {
        let tif = TimeInForce::Gtd(due);
        town.place_quietly(
            10,
            sell(Ask {
                tif,
                ..ask(device, 100)
            }),
        );
    }
    let mut copy = Exchange::restore(&town.exchange.snapshot()).unwrap();
    let first = town.exchange.tick(Millis(20_000));
    assert!(first.len() < 20_000 && town.exchange.last_batch_steps() <= BATCH_STEPS);
    assert_eq!(
        town.exchange.now(),
        due,
        "not before what fell due earlier is done"
    );
    assert!(town.exchange.wakes_at().is_some_and(|at| at <= due));
    let rest = town.exchange.tick(Millis(20_000));
    assert!(!first.is_empty() && !rest.is_empty());
    assert_eq!(town.exchange.now(), Millis(20_000));
    assert!(town.exchange.orders_of(account(10)).is_empty());
    town.exchange.audit();
    copy.tick(Millis(20_000));
    assert_ne!(copy.digest(), town.exchange.digest());
    copy.tick(Millis(20_000));
    assert_eq!(copy.digest(), town.exchange.digest());
}

fn register() -> Command {
    Command::Register {
        name: Name::default(),
    }
}

fn request(direction: Direction, amount: u64) -> Command {
    Command::Request {
        direction,
        amount: Credits(amount),
        reference: Name::default(),
    }
}

fn give(to: u8, amount: u64) -> Command {
    Command::Transfer {
        to: account(to),
        amount: Credits(amount),
        reference: Name::default(),
    }
}

#[test]
fn accounts_are_not_filled_without_credits() {
    let mut town = Town::with(|genesis| genesis.rules.accounts_max = 15);
    // One with a free ask, one that asks for credits, one with a little, one with a deposit's
    // worth.
    for number in 40..44 {
        town.run(number, register()).unwrap();
    }
    town.run(44, register()).unwrap();
    town.place(40, sell(ask(1, 300)));
    town.run(41, request(Direction::Deposit, 5)).unwrap();
    town.run(10, give(42, 9_999)).unwrap();
    town.run(42, request(Direction::Withdrawal, 9_000)).unwrap();
    town.run(10, give(43, 10_000)).unwrap();
    let full = town.run(45, register()).unwrap_err();
    assert_eq!(full.code(), "accounts_many", "their batches may come again");
    town.wait(60_000);
    // Who has nothing goes first, then who has little; who holds a deposit stays.
    for (new, gone) in [(45, 44), (46, 40), (47, 41), (48, 42)] {
        town.run(new, register()).unwrap();
        assert!(
            town.exchange.account(account(gone)).is_none(),
            "{gone} has made room"
        );
        assert!(town.exchange.account(account(43)).is_some());
    }
    assert!(town.exchange.orders_of(account(40)).is_empty());
    assert_eq!(town.exchange.requests_after(RequestId(0)).count(), 0);
    assert_eq!(
        town.exchange.totals().fees,
        Credits(9_999),
        "what little there was"
    );
    let copy = Exchange::restore(&town.exchange.snapshot()).unwrap();
    assert_eq!(copy, town.exchange);
}

#[test]
fn withdrawal_that_is_being_paid_keeps_its_account() {
    let mut town = Town::with(|genesis| genesis.rules.accounts_max = 12);
    town.run(OPERATOR, register()).unwrap();
    town.run(40, register()).unwrap();
    town.run(10, give(40, 50)).unwrap();
    town.run(40, request(Direction::Withdrawal, 50)).unwrap();
    let request = RequestId(1);
    town.run(OPERATOR, Command::Lock { request }).unwrap();
    for number in 10..20 {
        town.run(number, Command::Stake { amount: Credits(1) })
            .unwrap();
    }
    town.wait(60_000);
    town.run(41, register()).unwrap();
    let gone = town.exchange.account(account(OPERATOR)).is_none();
    assert!(gone, "the operator's account has nothing");
    assert_eq!(town.purse(40), (0, 50));
    town.wait(60_000);
    town.run(42, register()).unwrap();
    assert_eq!(town.purse(40), (0, 50), "it stays while it is paid");
}

#[test]
fn oldest_requests_that_hold_little_make_room() {
    let mut town = crowded();
    town.run(12, request(Direction::Withdrawal, 10_000))
        .unwrap();
    town.run(13, request(Direction::Withdrawal, 9_999)).unwrap();
    town.run(14, request(Direction::Deposit, 7)).unwrap();
    let open = |town: &Town| {
        let open = town.exchange.requests_after(RequestId(0));
        open.map(|request| request.id.0).collect::<Vec<_>>()
    };
    assert_eq!(open(&town), [1, 2, 3]);
    town.run(15, request(Direction::Deposit, 7)).unwrap();
    assert_eq!(open(&town), [1, 3, 4]);
    assert_eq!(town.purse(13).1, 0, "what was held for it has returned");
    for number in [16, 17] {
        town.run(number, request(Direction::Withdrawal, 10_000))
            .unwrap();
    }
    assert_eq!(open(&town), [1, 5, 6]);
    let full = town.run(18, request(Direction::Deposit, 7)).unwrap_err();
    assert_eq!(full, Refusal::RequestsFull { limit: 3 });
    let after = town.exchange.requests_after(RequestId(5));
    assert_eq!(after.map(|request| request.id.0).collect::<Vec<_>>(), [6]);
}

#[test]
fn what_was_earned_overflows_nothing() {
    let most = 1 << 62;
    let mut town = Town::with(|genesis| {
        genesis
            .accounts
            .push((account(30), Name::default(), Credits(most)));
    });
    let span = Millis(1 << 29);
    let large = |ask: Ask| Ask {
        duration_max: span,
        ..ask
    };
    for round in 1..6 {
        town.place(10, sell(large(ask(1, 1 << 42))));
        let wish = Bid {
            budget: Credits(most),
            duration: span,
            ..bid(1 << 42)
        };
        let lease = town.place(30, buy(wish)).1[0].lease;
        town.run(30, Command::StartWork { lease }).unwrap();
        town.wait(span.0 - 1);
        let done = body(&town.exchange, lease, (span.0 - 1) * 1_000);
        let paid = done.amount.0;
        town.run(10, Command::Settle(Box::new(receipt(done, 10, 30))))
            .unwrap();
        town.run(10, give(30, paid)).unwrap();
        let earned = town.exchange.account(account(10)).unwrap().earned;
        let all = u128::from(paid) * round;
        assert_eq!(
            u128::from(earned.0),
            all.min(u64::MAX.into()),
            "round {round}"
        );
    }
}
