//! Tests eviction from a full market: accounts without credits make room for new ones, and a
//! forgotten account's batches cannot be applied again.

use souk_market::*;

use crate::town::*;

fn register() -> Command {
    Command::Register {
        name: Name::default(),
    }
}

/// A town that is full of accounts once one more than the ten has come.
fn full_town() -> Town {
    let mut town = Town::with(|genesis| genesis.rules.accounts_max = 11);
    town.run(40, register()).unwrap();
    town
}

#[test]
fn account_with_nothing_gives_way_once_its_batches_have_expired() {
    let mut town = full_town();
    let many = Refusal::AccountsMany { limit: 11 };
    assert_eq!(town.run(41, register()), Err(many.clone()));
    // Its batch could be brought again until now.
    town.wait(60_000);
    town.run(41, register()).unwrap();
    let forgotten = Event::Forgotten {
        account: account(40),
    };
    assert!(town.events.contains(&forgotten), "{:?}", town.events);
    assert!(town.exchange.account(account(40)).is_none());
    assert_eq!(town.run(40, register()), Err(many));
    let copy = Exchange::restore(&town.exchange.snapshot()).unwrap();
    assert_eq!(copy, town.exchange);
}

#[test]
fn batch_of_a_forgotten_account_is_not_applied_a_second_time() {
    let mut town = full_town();
    town.wait(60_000);
    let old = town.batch(40, vec![sell(ask(1, 300))]).verify().unwrap();
    let placed = town.exchange.apply(Millis(town.now), &old);
    let Outcome::Accepted(Acceptance::Placed { order, .. }) = placed.outcomes[0] else {
        panic!("not placed: {placed:?}");
    };
    town.run(40, Command::Cancel { order }).unwrap();
    town.wait(59_999);
    assert!(
        town.run(41, register()).is_err(),
        "the batch may come again"
    );
    town.wait(1_000);
    town.run(41, register()).unwrap();
    let again = town.exchange.apply(Millis(town.now), &old);
    let Outcome::Refused(refusal) = &again.outcomes[0] else {
        panic!("done twice: {again:?}");
    };
    assert_eq!(refusal.code(), "batch_expired");
}

#[test]
fn longest_unused_of_the_accounts_with_nothing_goes_and_one_with_anything_stays() {
    let mut town = Town::with(|genesis| {
        genesis.rules.accounts_max = 13;
        genesis.rules.account_deposit = Credits(1);
    });
    for number in [40, 41, 42] {
        town.run(number, register()).unwrap();
        town.wait(1);
    }
    let give = |to| Command::Transfer {
        to: account(to),
        amount: Credits(1),
        reference: Name::default(),
    };
    // 40 has an ask, 41 a credit's millionth, the deposit here: only 42 has nothing.
    town.place(40, sell(ask(1, 300)));
    town.run(10, give(41)).unwrap();
    town.wait(60_000);
    town.run(43, register()).unwrap();
    assert!(town.exchange.account(account(42)).is_none());
    town.wait(60_000);
    town.run(44, register()).unwrap();
    assert!(town.exchange.account(account(43)).is_none());
    assert!(town.exchange.account(account(40)).is_some());
    assert_eq!(town.purse(41), (1, 0));
}

#[test]
fn fault_in_a_lease_of_a_forgotten_provider_costs_nobody_else() {
    let mut town = full_town();
    town.place(40, sell(ask(1, 300)));
    let lease = town.place(12, buy(bid(500))).1[0].lease;
    let output = |output: u8| {
        let mut body = body(&town.exchange, lease, 1_000_000);
        body.outputs = vec![ContentId([output; 32])];
        receipt(body, 40, 12)
    };
    let pair = Box::new([output(3), output(4)]);
    town.run(12, Command::EndLease { lease }).unwrap();
    town.wait(300_000);
    town.run(41, register()).unwrap();
    assert!(town.exchange.account(account(40)).is_none());
    let gone = Refusal::AccountUnknown {
        account: account(40),
    };
    assert_eq!(town.run(12, Command::ProveFault(pair)), Err(gone));
}

#[test]
fn batch_that_could_be_brought_for_too_long_is_refused() {
    let mut town = Town::with(|genesis| genesis.rules.batch_life_max = Millis(59_999));
    let refusal = town.run(10, sell(ask(1, 300))).unwrap_err();
    let (expires, latest) = (Millis(61_000), Millis(60_999));
    assert_eq!(refusal, Refusal::BatchFar { expires, latest });
}

#[test]
fn free_asks_of_the_youngest_accounts_go_first() {
    let mut town = Town::with(|genesis| genesis.rules.orders_max = 4);
    town.place(10, sell(ask(1, 300)));
    // A stranger brings keys until the market is full.
    for number in 40..43 {
        town.run(number, register()).unwrap();
        town.place(number, sell(ask(1, 400)));
    }
    let has_ask = |town: &Town, number| !town.exchange.orders_of(account(number)).is_empty();
    let full = town.run(11, sell(ask(1, 500))).unwrap_err();
    assert_eq!(
        full.code(),
        "orders_full",
        "its first is as light as theirs"
    );
    let wide = Bid {
        limit: Limit::Price(Price(200)),
        duration: Millis(100_000),
        ..bid(200)
    };
    for out in [42, 41, 40] {
        assert!(has_ask(&town, out) && has_ask(&town, 10));
        town.place(11, buy(wide.clone()));
        assert!(!has_ask(&town, out), "{out} has given way");
    }
    assert!(has_ask(&town, 10), "who was there first is the last to go");
    town.place(11, buy(wide.clone()));
    assert!(!has_ask(&town, 10));
    let full = town.run(11, buy(wide)).unwrap_err();
    assert_eq!(full.code(), "orders_full", "what holds a deposit stays");
}
