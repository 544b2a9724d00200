//! Tests the sale of tokens: the tokens of different models do not match each other, a receipt
//! bills its counts on the terms of the lease, and a buyer that holds a slot pays at least the
//! floor of the ask.

use souk_market::*;

use crate::town::{Town, account, ask, bid, body, buy, pool, receipt, sell};

const PROVIDER: u8 = 10;
const OTHER: u8 = 11;
const BUYER: u8 = 12;
const FULL: u64 = 1_000_000_000;
const PRICE: u64 = 200;

const TERMS: TokenTerms = TokenTerms {
    counting: CountingRule::FourBytes,
    input_us: 250,
    cached_us: 25,
    floor_us: 50_000,
};

fn resources(model: &str, terms: TokenTerms) -> Resources {
    Resources {
        kind: KindCode(0x8001),
        kind_name: "endpoint".try_into().unwrap(),
        model: model.try_into().unwrap(),
        tokens: Some(terms),
        ..Resources::default()
    }
}

fn offer(model: &str, terms: TokenTerms) -> Ask {
    Ask {
        resources: resources(model, terms),
        ..ask(1, PRICE)
    }
}

fn wish(model: &str, most: TokenTerms) -> Bid {
    Bid {
        class: resources(model, most).class(),
        wants: Wants {
            tokens: Some(WantedTokens {
                model: model.try_into().unwrap(),
                most,
            }),
            ..Wants::default()
        },
        duration: Millis(300_000),
        budget: Credits(1_000_000),
        tif: TimeInForce::Fok,
        ..bid(PRICE)
    }
}

fn leased(town: &mut Town, terms: TokenTerms) -> LeaseId {
    town.place(PROVIDER, sell(offer("qwen", terms)));
    town.place(BUYER, buy(wish("qwen", terms))).1[0].lease
}

fn spent(town: &Town) -> u64 {
    let account = town.exchange.account(account(BUYER)).unwrap();
    FULL - account.available.0 - account.escrow.0
}

fn earned(town: &Town, who: u8) -> u64 {
    town.exchange.account(account(who)).unwrap().available.0 - FULL
}

/// The receipt of so many tokens, after so many seconds.
fn metered(
    town: &Town,
    lease: LeaseId,
    [input, cached, output]: [u64; 3],
    held: u64,
) -> ReceiptBody {
    let terms = town.exchange.lease(lease).unwrap().tokens.unwrap();
    let metered = TokenUsage {
        terms,
        input,
        cached,
        output,
        held: DeviceMicros(held * 1_000_000),
    };
    ReceiptBody {
        metered: Some(metered),
        ..body(&town.exchange, lease, metered.usage().0)
    }
}

fn settle(town: &mut Town, mut body: ReceiptBody) -> Result<Acceptance, Refusal> {
    body.amount = ReceiptBody::amount_due(body.price, body.billable_usage()).unwrap();
    let signed = receipt(body, PROVIDER, BUYER);
    town.run(PROVIDER, Command::Settle(Box::new(signed)))
}

#[test]
fn a_receipt_pays_for_each_kind_of_token_on_the_terms_of_the_lease() {
    let mut town = Town::new();
    let lease = leased(&mut town, TERMS);
    let trade = town.exchange.lease(lease).unwrap();
    assert_eq!((trade.tokens, trade.idle), (Some(TERMS), Permille(100)));
    // A later ask changes nothing for the lease.
    let paid = metered(&town, lease, [4_000, 8_000, 600], 5);
    assert_eq!(paid.usage, DeviceMicros(1_000_000 + 200_000 + 600_000));
    settle(&mut town, paid).unwrap();
    assert_eq!(earned(&town, PROVIDER), 360);
    assert_eq!(spent(&town), 360);
}

#[test]
fn a_receipt_with_other_terms_or_another_usage_than_its_counts_give_is_refused() {
    let mut town = Town::new();
    let lease = leased(&mut town, TERMS);
    let honest = metered(&town, lease, [4_000, 8_000, 600], 5);
    let mut refused = |change: &dyn Fn(&mut ReceiptBody)| {
        let mut lie = honest.clone();
        change(&mut lie);
        settle(&mut town, lie).unwrap_err()
    };
    let other = Refusal::ReceiptTokens { lease };
    // Both sides can have signed it: the ask's terms hold all the same.
    assert_eq!(refused(&|it| it.metered = None), other);
    for change in [
        (|it: &mut TokenTerms| it.input_us = 500) as fn(&mut TokenTerms),
        |it| it.cached_us = 0,
        |it| it.floor_us = 1_000_000,
    ] {
        let lied = refused(&|it| {
            let metered = it.metered.as_mut().unwrap();
            change(&mut metered.terms);
            it.usage = metered.usage();
        });
        assert_eq!(lied, other);
    }
    // More than the counts give is refused by anyone who reads it, less by the exchange.
    let more = refused(&|it| it.usage.0 += 1);
    assert_eq!(more.code(), "receipt_bad");
    assert_eq!(refused(&|it| it.usage.0 -= 1), other);
    let held = refused(&|it| {
        let metered = it.metered.as_mut().unwrap();
        metered.held = DeviceMicros(301_000_000);
        it.usage = metered.usage();
    });
    assert_eq!(held, other);
    // Counts beyond all bounds bill the lease's time, and no more.
    let mut most = honest.clone();
    most.metered.as_mut().unwrap().input = u64::MAX;
    most.usage = DeviceMicros(300_000_000);
    settle(&mut town, most).unwrap();
    assert_eq!(spent(&town), 300 * PRICE);
}

#[test]
fn a_receipt_of_a_device_counts_no_tokens() {
    let mut town = Town::new();
    town.place(PROVIDER, sell(ask(1, PRICE)));
    let lease = town.place(BUYER, buy(bid(PRICE))).1[0].lease;
    let mut lie = body(&town.exchange, lease, 1_000);
    lie.metered = Some(TokenUsage {
        terms: TERMS,
        input: 4,
        cached: 0,
        output: 0,
        held: DeviceMicros(0),
    });
    let refused = settle(&mut town, lie).unwrap_err();
    assert_eq!(refused, Refusal::ReceiptTokens { lease });
}

#[test]
fn two_models_in_one_book_share_no_match_and_a_bid_pays_no_dearer_tokens() {
    let mut town = Town::new();
    town.place(OTHER, sell(offer("another", TERMS)));
    let bought = town.run(BUYER, buy(wish("qwen", TERMS)));
    assert!(bought.is_err(), "{bought:?}");
    // Its tokens cost as much, and those of the messages more.
    let dear = TokenTerms {
        input_us: 251,
        ..TERMS
    };
    town.place(PROVIDER, sell(offer("qwen", dear)));
    assert!(town.run(BUYER, buy(wish("qwen", TERMS))).is_err());
    let lacks: Vec<Lack> = [("qwen", TERMS), ("none", TERMS)]
        .map(|(model, most)| {
            let explained = town
                .exchange
                .explain_bid(account(BUYER), &wish(model, most));
            let ruled_out = explained.unwrap().ruled_out;
            ruled_out.iter().map(|it| it.lack).collect::<Vec<_>>()
        })
        .concat();
    assert_eq!(lacks, [Lack::Model, Lack::TokenTerms, Lack::Model]);
    let trade = town.place(BUYER, buy(wish("qwen", dear))).1[0];
    assert_eq!(trade.provider, account(PROVIDER));
    assert_eq!(trade.tokens, Some(dear));
}

#[test]
fn an_ask_with_terms_out_of_range_is_refused() {
    let mut town = Town::new();
    let mut refused = |change: fn(&mut TokenTerms)| {
        let mut terms = TERMS;
        change(&mut terms);
        town.run(PROVIDER, sell(offer("qwen", terms))).unwrap_err()
    };
    let bad = |fault| Refusal::TokenTermsBad { fault };
    let huge = refused(|it| it.input_us = u32::MAX);
    assert_eq!(huge, bad(TokenTermsFault::Input));
    let cached = refused(|it| it.cached_us = 251);
    assert_eq!(cached, bad(TokenTermsFault::Cached));
    let floor = refused(|it| it.floor_us = 1_000_001);
    assert_eq!(floor, bad(TokenTermsFault::Floor));
}

#[test]
fn whoever_holds_all_slots_idle_for_an_hour_pays_the_floor_of_the_ask() {
    const SLOTS: u32 = 8;
    // More than the reserve, which would apply otherwise.
    let terms = TokenTerms {
        floor_us: 200_000,
        ..TERMS
    };
    // The buyer signs a receipt each time, or never.
    for signs in [true, false] {
        let mut town = Town::new();
        for _ in 0..12 {
            let slots = Ask {
                resources: resources("qwen", terms),
                ..pool(1, PRICE, SLOTS)
            };
            town.place(PROVIDER, sell(slots));
            let leases: Vec<LeaseId> = (0..SLOTS)
                .map(|_| town.place(BUYER, buy(wish("qwen", terms))).1[0].lease)
                .collect();
            town.wait(299_000);
            for lease in leases {
                if signs {
                    let idle = metered(&town, lease, [0, 0, 0], 299);
                    settle(&mut town, idle).unwrap();
                } else {
                    town.run(BUYER, Command::EndLease { lease }).unwrap();
                    town.run(PROVIDER, Command::StateReady { lease }).unwrap();
                }
            }
            town.wait(1_000);
        }
        // A fifth of eight slots for an hour.
        let stated = u64::from(SLOTS) * 3_600 * PRICE / 5;
        let paid = spent(&town);
        assert!(paid.abs_diff(stated) * 10 <= stated, "{paid} of {stated}");
        if signs {
            assert_eq!(earned(&town, PROVIDER), paid);
        }
    }
}

#[test]
fn a_low_floor_makes_no_hold_cheaper_than_the_reserve() {
    let held_for = |floor_us, millis| {
        let mut town = Town::new();
        let lease = leased(&mut town, TokenTerms { floor_us, ..TERMS });
        town.wait(millis);
        town.run(BUYER, Command::EndLease { lease }).unwrap();
        town.run(PROVIDER, Command::StateReady { lease }).unwrap();
        town.wait(600_000);
        spent(&town)
    };
    let reserve = 299 * PRICE / 10;
    assert_eq!([0, 1].map(|floor| held_for(floor, 299_000)), [reserve; 2]);
    // The ten seconds without a floor are not free.
    assert_eq!(held_for(200_000, 9_900), held_for(0, 9_900));
    assert!(held_for(200_000, 9_900) > 0);
}
