//! Tests the search trees with many orders: as asks come and go, a search must find the same order
//! as a scan of all of them.

use souk_market::*;

use crate::streams::Dice;
use crate::town::*;

fn crowd_ask(dice: &mut Dice, device: u64) -> Ask {
    let resources = Resources {
        memory_bytes: (17 + dice.below(46)) << 30,
        memory_bandwidth: (600 + dice.below(400)) << 30,
        region: Region(dice.below(16) as u8),
        features: Features(dice.below(256) as u32),
        ..resources()
    };
    let limit = Limit::Price(Price(1 + dice.below(500)));
    Ask {
        resources,
        limit,
        ..ask(device, 1)
    }
}

fn crowd_bid(dice: &mut Dice) -> Bid {
    let wants = Wants {
        memory_bytes: (17 + dice.below(46)) << 30,
        memory_bandwidth: (600 + dice.below(400)) << 30,
        regions: Regions(if dice.one_in(3) {
            0
        } else {
            1 << dice.below(16)
        }),
        features: Features(1 << dice.below(8)),
        ..Wants::default()
    };
    let limit = Limit::Price(Price(1 + dice.below(600)));
    Bid {
        wants,
        limit,
        ..bid(1)
    }
}

/// The best ask by looking at every one.
fn looked_up(town: &Town, bid: &Bid) -> Option<OrderId> {
    let Limit::Price(limit) = bid.limit else {
        return None;
    };
    let suits = |ask: &Listing| {
        let (wants, has) = (&bid.wants, &ask.resources);
        has.memory_bytes >= wants.memory_bytes
            && has.memory_bandwidth >= wants.memory_bandwidth
            && wants.regions.has_region(has.region)
            && wants.features.0 & has.features.0 == wants.features.0
            && ask.class == bid.class
            && ask.price <= limit
    };
    let suited = town.exchange.all_asks().filter(suits);
    suited
        .min_by_key(|ask| (ask.price, ask.order))
        .map(|ask| ask.order)
}

#[test]
fn search_finds_what_a_look_at_every_ask_finds() {
    let mut dice = Dice(7);
    let mut town = Town::with(|genesis| genesis.rules.open_orders_max = u32::MAX);
    let mut open: Vec<OrderId> = Vec::new();
    let mut found = 0;
    for round in 0..60 {
        // It fills up to some two thousand, and then runs nearly empty.
        for step in 0..64 {
            let leaves = if round < 40 { 3 } else { 8 };
            if !open.is_empty() && dice.below(10) < leaves {
                let order = open.swap_remove(dice.below(open.len() as u64) as usize);
                town.run_quietly(10, Command::Cancel { order });
            } else {
                let ask = crowd_ask(&mut dice, round * 64 + step);
                open.push(town.place_quietly(10, sell(ask)).0);
            }
        }
        for _ in 0..20 {
            let bid = crowd_bid(&mut dice);
            let first = town.exchange.first_ask(account(12), &bid).unwrap();
            assert_eq!(first.ask, looked_up(&town, &bid), "round {round}");
            found += u32::from(first.ask.is_some());
        }
        town.exchange.audit();
    }
    assert!(found > 300, "the bids must find something: {found}");
    let copy = Exchange::restore(&town.exchange.snapshot()).unwrap();
    for _ in 0..100 {
        let bid = crowd_bid(&mut dice);
        let (one, other) = (&town.exchange, &copy);
        let search = |exchange: &Exchange| exchange.first_ask(account(12), &bid);
        assert_eq!(search(one), search(other), "visits included");
    }
}

#[test]
fn ask_finds_the_best_of_many_bids_that_accept_it() {
    let mut dice = Dice(11);
    let mut town = Town::with(|genesis| genesis.rules.open_orders_max = u32::MAX);
    let mut bids: Vec<(u64, OrderId, Bid)> = Vec::new();
    town.place_quietly(10, sell(ask(9_999, 1_000)));
    for _ in 0..800 {
        let limit = 1 + dice.below(500);
        let bid = Bid {
            limit: Limit::Price(Price(limit)),
            ..crowd_bid(&mut dice)
        };
        let (order, _) = town.place_quietly(12, buy(bid.clone()));
        bids.push((limit, order, bid));
    }
    town.exchange.audit();
    for device in 0..200 {
        let offer = crowd_ask(&mut dice, device);
        let Limit::Price(price) = offer.limit else {
            continue;
        };
        let suits = |bid: &Bid| {
            let (wants, has) = (&bid.wants, &offer.resources);
            has.memory_bytes >= wants.memory_bytes
                && has.memory_bandwidth >= wants.memory_bandwidth
                && wants.regions.has_region(has.region)
                && wants.features.0 & has.features.0 == wants.features.0
        };
        let fits = |(limit, _, bid): &&(u64, OrderId, Bid)| *limit >= price.0 && suits(bid);
        let best = bids
            .iter()
            .filter(fits)
            .max_by_key(|(limit, order, _)| (*limit, !order.0));
        let best = best.map(|(_, order, _)| *order);
        let (_, trades) = town.place_quietly(
            10,
            sell(Ask {
                tif: TimeInForce::Ioc,
                ..offer
            }),
        );
        assert_eq!(trades.first().map(|trade| trade.bid), best);
        bids.retain(|(_, order, _)| Some(*order) != best);
    }
    town.exchange.audit();
    assert!(
        bids.len() < 750,
        "the asks must find something: {} are left",
        bids.len()
    );
}
