//! Tests market data: the quotes must match the orders in the book and the past trades.

use souk_market::*;

use crate::town::*;

#[test]
fn depth_adds_up_orders_by_price_best_first() {
    let mut town = Town::new();
    town.place(10, sell(pool(1, 300, 4)));
    town.place(11, sell(pool(1, 300, 2)));
    town.place(11, sell(pool(2, 250, 1)));
    town.place(
        12,
        buy(Bid {
            quantity: Units(3),
            ..bid(100)
        }),
    );
    town.place(13, buy(bid(120)));
    let quotes = town.exchange.class_quotes(resources().class(), 10).unwrap();
    let level = |price, orders, quantity| DepthLevel {
        price: Price(price),
        orders,
        quantity,
    };
    assert_eq!(quotes.asks, [level(250, 1, 1), level(300, 2, 6)]);
    assert_eq!(quotes.bids, [level(120, 1, 1), level(100, 1, 3)]);
    let top = town.exchange.class_quotes(resources().class(), 1).unwrap();
    assert_eq!((top.asks.len(), top.bids.len()), (1, 1));
    assert_eq!(town.exchange.class_quotes(Class::default(), 1), None);
}

#[test]
fn candles_open_close_and_bound_each_minute() {
    let mut town = Town::new();
    for (device, price) in [(1, 300), (2, 500), (3, 200), (4, 400)] {
        town.place(10, sell(ask(device, price)));
        town.place(12, buy(bid(600)));
    }
    town.wait(60_000);
    town.place(10, sell(ask(5, 350)));
    town.place(12, buy(bid(600)));
    let quotes = town.exchange.class_quotes(resources().class(), 1).unwrap();
    let [first, second] = quotes.candles[..] else {
        panic!("two minutes")
    };
    let prices = [first.open, first.high, first.low, first.close].map(|price| price.0);
    assert_eq!(
        (first.start, prices, first.volume),
        (Millis(0), [300, 500, 200, 400], 4)
    );
    assert_eq!(
        (second.start, second.open, second.volume),
        (Millis(60_000), Price(350), 1)
    );
    assert_eq!(quotes.last[0].price, Price(350), "the newest first");
}

/// 24 GiB, 900 GiB/s and 80 TFLOP/s of f32 at 300 micro-credits per second, and at 500 for two.
#[test]
fn index_is_price_per_measured_work_weighted_by_units() {
    let mut town = Town::new();
    town.place(10, sell(pool(1, 300, 1)));
    town.place(12, buy(bid(600)));
    town.place(10, sell(pool(2, 500, 2)));
    town.place(
        12,
        buy(Bid {
            quantity: Units(2),
            ..bid(600)
        }),
    );
    let index = town
        .exchange
        .class_quotes(resources().class(), 1)
        .unwrap()
        .index;
    // (300 + 2 x 500) / (3 x 80 TFLOP) = 5.4167 micro-credits.
    assert_eq!(
        index.per_tera_operation,
        [None, Some(5_416), None, None, None, None]
    );
    // 1300 / (3 x 966.37 GB) = 0.4484, and 1300 x 3600 / (3 x 25.77 GB) = 60,535.97.
    assert_eq!(index.per_gigabyte_moved, Some(448));
    assert_eq!(index.per_gigabyte_hour, Some(60_535_967));
}

#[test]
fn provider_statistics_come_from_closed_leases() {
    let mut town = Town::with(|genesis| {
        genesis.rules.fee_basis_points = 1_000;
        genesis.rules.reputation_step = Credits(600);
    });
    town.place(10, sell(ask(1, 300)));
    let lease = town.place(12, buy(bid(300))).1[0].lease;
    let mut slow = body(&town.exchange, lease, 2_000_000);
    slow.delivered_mega_ops = slow.declared_mega_ops * 8 / 10 - 1;
    town.run(10, Command::Settle(Box::new(receipt(slow, 10, 12))))
        .unwrap();
    let account = town.exchange.account(account(10)).unwrap();
    assert_eq!(
        (account.earned, account.sold),
        (Credits(540), DeviceMicros(2_000_000))
    );
    assert_eq!(
        (account.reputation.settled, account.reputation.slow),
        (1, 1)
    );
    assert_eq!(
        account.reputation.score,
        Permille(437),
        "500 less an eighth, rounded up"
    );
}
