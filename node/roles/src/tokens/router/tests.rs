//! Tests the router in short scripts, and compares it with a naive model in random histories.

use std::collections::BTreeSet;

use souk_market::{
    BuyerFilter, Class, Credits, DeviceId, Millis, OrderId, Permille, Price, Resources, TokenTerms,
    Units,
};

use super::*;
use crate::session::tests::model::Dice;
use crate::tokens::card::TextCard;
use crate::tokens::text::{Message, Role};

const MODEL: &str = "qwen/qwen3-8b";
const NOW: Micros = Micros::from_seconds(1_000);

fn account(number: u8) -> AccountKey {
    AccountKey([number; 32])
}

/// The ask of a provider, at a price. Its name is `p` and the provider's number.
fn ask(number: u8, price: u64) -> Listing {
    let resources: Resources = TextCard::new(MODEL)
        .unwrap()
        .to_resources(TokenTerms::USUAL);
    Listing {
        order: OrderId(u64::from(number)),
        provider: account(number),
        name: format!("p{number}").as_str().try_into().unwrap(),
        reputation: Permille(500),
        stake: Credits(0),
        device: DeviceId(0),
        class: Class::clone(&resources.class()),
        resources,
        price: Price(price),
        quantity: Units(1),
        duration_min: Millis(0),
        duration_max: Millis(300_000),
        notice: Millis(0),
        spot: Vec::new(),
        idle: Permille(100),
        accepts: BuyerFilter::default(),
        resale: None,
    }
}

fn message(content: &str) -> Message {
    Message {
        role: Role::User,
        content: content.to_owned(),
    }
}

fn request(messages: &[Message]) -> TextRequest {
    TextRequest {
        messages: messages.to_vec(),
        tokens_max: 100,
        ..TextRequest::default()
    }
}

fn route(rules: RoutingRules, seed: u64) -> Route {
    Route::new(MODEL, &request(&[message("what is a market")]), rules, seed)
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The provider from which a tab is bought.
fn bought(step: RouteStep) -> AccountKey {
    match step {
        RouteStep::Buy(purchase) => purchase.listing.provider,
        step => panic!("it buys nothing: {step:?}"),
    }
}

fn plan(core: &mut RouterCore, route: &mut Route, asks: &[Listing]) -> RouteStep {
    core.plan_step(NOW, route, &FreeTabs::new(), Some(asks))
}

#[test]
fn offers_are_drawn_by_one_over_the_square_of_their_price() {
    let asks = [ask(1, 100), ask(2, 200), ask(3, 400)];
    let mut counts = [0_u32; 3];
    for seed in 0..21_000 {
        let mut route = route(RoutingRules::default(), seed);
        let step = plan(&mut RouterCore::default(), &mut route, &asks);
        counts[usize::from(bought(step).0[0]) - 1] += 1;
    }
    // 16 : 4 : 1, within four standard deviations.
    for (count, expected) in counts.into_iter().zip([16_000_u32, 4_000, 1_000]) {
        assert!(count.abs_diff(expected) < 260, "{counts:?}");
    }
    // The same seed draws the same.
    let drawn = |seed| {
        let mut route = route(RoutingRules::default(), seed);
        bought(plan(&mut RouterCore::default(), &mut route, &asks))
    };
    assert!((0..50).all(|seed| drawn(seed) == drawn(seed)));
}

#[test]
fn an_offer_is_weighed_by_what_the_request_costs_there() {
    // Both cost the same by the output token; the second one's input is dear.
    let mut asks = [ask(1, 100), ask(2, 100)];
    asks[1].resources.tokens = Some(TokenTerms {
        input_us: 100_000,
        ..TokenTerms::USUAL
    });
    let long = request(&[message(&"x".repeat(4_000))]);
    let mut drawn = [0_u32; 2];
    for seed in 0..2_000 {
        let mut route = Route::new(MODEL, &long, RoutingRules::default(), seed);
        let step = plan(&mut RouterCore::default(), &mut route, &asks);
        drawn[usize::from(bought(step).0[0]) - 1] += 1;
    }
    assert!(drawn[1] < 10, "{drawn:?}");
    // A limit on the price of prompts holds for the stated one.
    let capped = RoutingRules {
        input_price_max: Some(100 * 250),
        ..RoutingRules::default()
    };
    for seed in 0..50 {
        let mut route = route(capped.clone(), seed);
        let step = plan(&mut RouterCore::default(), &mut route, &asks);
        assert_eq!(bought(step), account(1));
    }
    // So does what a key has left, whatever the offer's prices are made of.
    let mut route = Route::new(MODEL, &long, RoutingRules::default(), 0);
    let most = long.count_max();
    let cheap = TokenRates::from(&asks[0]).cost_of(most);
    route.limit_cost(most, cheap);
    assert!(route.is_too_dear((&asks[1]).into()) && !route.is_too_dear((&asks[0]).into()));
    route.limit_cost(most, Credits(cheap.0 - 1));
    assert!(route.is_too_dear((&asks[0]).into()));
}

#[test]
fn an_ask_whose_tokens_are_dearer_need_not_be_excluded_and_a_dear_floor_does_not_suit() {
    let mut asks = [ask(1, 100), ask(2, 200)];
    asks[0].resources.tokens = Some(TokenTerms {
        input_us: 900_000,
        ..TokenTerms::USUAL
    });
    let only = RoutingRules {
        only: words(&["p2"]),
        ..RoutingRules::default()
    };
    let step = plan(&mut RouterCore::default(), &mut route(only, 0), &asks);
    let RouteStep::Buy(purchase) = step else {
        panic!("{step:?}");
    };
    // The bid's own demand keeps it away.
    assert_eq!(purchase.excluded, []);
    let floor = |floor_us, idle| {
        let mut offer = ask(1, 100);
        offer.idle = Permille(idle);
        offer.resources.tokens = Some(TokenTerms {
            floor_us,
            ..TokenTerms::USUAL
        });
        RoutingRules::default().find_misfit(&OfferTerms::from(&offer))
    };
    assert_eq!(floor(FLOOR_US_MAX, 100), None);
    assert_eq!(floor(FLOOR_US_MAX + 1, 100), Some(Misfit::Idle));
    let dear = [floor(0, 101), floor(1, 101)];
    assert_eq!(dear, [Some(Misfit::Idle); 2], "the reserve applies too");
}

#[test]
fn no_tab_is_bought_whose_device_time_is_below_what_the_request_can_cost() {
    let mut asks = [ask(1, 100), ask(2, 100)];
    asks[0].resources.tokens = Some(TokenTerms {
        input_us: 1_000_000,
        ..TokenTerms::USUAL
    });
    // At the first one, 300 tokens of messages alone come to the whole tab.
    let long = request(&[message(&"word".repeat(300))]);
    for seed in 0..20 {
        let mut route = Route::new(MODEL, &long, RoutingRules::default(), seed);
        let step = plan(&mut RouterCore::default(), &mut route, &asks);
        assert_eq!(bought(step), account(2));
    }
    let mut route = Route::new(MODEL, &long, RoutingRules::default(), 0);
    let step = plan(&mut RouterCore::default(), &mut route, &asks[..1]);
    let misfits = BTreeMap::from([(Misfit::Short, 1)]);
    assert_eq!(step, RouteStep::GiveUp(NoRoute::Unsuitable(misfits)));
}

#[test]
fn what_a_key_has_left_limits_the_rest_of_an_answer_no_more() {
    let mut route = route(RoutingRules::default(), 0);
    let tokens = route.most;
    route.limit_cost(tokens, Credits(0));
    let rates = TokenRates::from(&ask(1, 100));
    assert!(route.is_too_dear(rates));
    assert!(route.begin_rest(false));
    assert!(!route.is_too_dear(rates));
}

#[test]
fn a_bid_excludes_the_cheaper_ones_so_that_the_drawn_one_sells() {
    let asks: Vec<Listing> = (1..=20).map(|it| ask(it, 100 + u64::from(it))).collect();
    let only = |name: &str| RoutingRules {
        only: words(&[name]),
        ..RoutingRules::default()
    };
    let mut core = RouterCore::default();
    let RouteStep::Buy(purchase) = plan(&mut core, &mut route(only("p5"), 0), &asks) else {
        panic!("it is on offer");
    };
    let cheaper: Vec<AccountKey> = (1..=4).map(account).collect();
    assert_eq!(purchase.excluded, cheaper);
    assert!(purchase.is_strict);
    // A bid names at most 16.
    assert!(matches!(
        plan(&mut core, &mut route(only("P17"), 0), &asks),
        RouteStep::Buy(_)
    ));
    let far = plan(&mut core, &mut route(only("p18"), 0), &asks);
    let RouteStep::GiveUp(NoRoute::Unsuitable(misfits)) = far else {
        panic!("{far:?}");
    };
    assert_eq!(misfits.get(&Misfit::OutOfReach), Some(&1));
    assert_eq!(misfits.get(&Misfit::NotNamed), Some(&19));
}

#[test]
fn a_provider_that_failed_an_audit_gets_neither_a_tab_nor_a_request() {
    let rules = RoutingRules {
        distrusted: vec![account(1)],
        ..RoutingRules::default()
    };
    let mut core = RouterCore::default();
    let asks = [ask(1, 100), ask(2, 400)];
    for seed in 0..50 {
        let step = plan(&mut core, &mut route(rules.clone(), seed), &asks);
        let RouteStep::Buy(purchase) = step else {
            panic!("one is on offer: {step:?}");
        };
        assert_eq!(purchase.listing.provider, account(2));
        // Its ask is cheaper, so the bid must name it, and a new one of it must not sell.
        assert_eq!(purchase.excluded, [account(1)]);
        assert!(purchase.is_strict);
    }
    let mut core = RouterCore::default();
    let tab = core.on_tab_opened(&route(RoutingRules::default(), 0), &ask(1, 100));
    let free = FreeTabs::from([(tab, account(1))]);
    let step = core.plan_step(NOW, &mut route(rules.clone(), 0), &free, Some(&asks[..1]));
    let RouteStep::GiveUp(NoRoute::Unsuitable(misfits)) = step else {
        panic!("{step:?}");
    };
    assert_eq!(misfits, BTreeMap::from([(Misfit::Distrusted, 1)]));
}

#[test]
fn a_look_leaves_out_the_providers_that_a_request_does_not_go_to() {
    let mut core = RouterCore::default();
    let rules = RoutingRules {
        ignore: vec![account(3).to_string(), "p4".to_owned()],
        distrusted: vec![account(5)],
        ..RoutingRules::default()
    };
    let mut next = route(rules, 0);
    assert_eq!(core.list_avoided(NOW, &next), [3, 5].map(account));
    let failed = RouteFailure::Failed;
    assert!(core.on_failed(NOW, &mut next, TabId(0), Some(account(1)), failed));
    assert_eq!(core.list_avoided(NOW, &next), [1, 3, 5].map(account));
    // Other requests avoid it as long as it is left alone.
    let other = route(RoutingRules::default(), 0);
    assert_eq!(core.list_avoided(NOW, &other), [account(1)]);
    let later = NOW.plus(Micros::from_seconds(3));
    assert_eq!(core.list_avoided(later, &other), []);
}

#[test]
fn the_tab_that_read_most_of_the_conversation_comes_first() {
    let mut core = RouterCore::default();
    let opening = |core: &mut RouterCore, messages: &[Message], number| {
        let route = Route::new(MODEL, &request(messages), RoutingRules::default(), 0);
        core.on_tab_opened(&route, &ask(number, 100))
    };
    let (system, question) = (message("be short"), message("what is a market"));
    let other = opening(&mut core, &[message("hello")], 1);
    let same = opening(&mut core, &[system.clone(), question.clone()], 2);
    let near = opening(&mut core, std::slice::from_ref(&system), 3);
    let all = FreeTabs::from([(other, account(1)), (same, account(2)), (near, account(3))]);
    let asked = [system, question, message("and a bid")];
    let mut next = Route::new(MODEL, &request(&asked), RoutingRules::default(), 0);
    let mut use_tab = |core: &mut RouterCore, free: &FreeTabs| {
        let step = core.plan_step(NOW, &mut next, free, None);
        match step {
            RouteStep::UseTab(tab) => Some(tab),
            _ => None,
        }
    };
    assert_eq!(use_tab(&mut core, &all), Some(same));
    let mut free = all.clone();
    free.remove(&same);
    assert_eq!(use_tab(&mut core, &free), Some(near));
    // A provider that failed loses its turn, and a tab that is over is none.
    let mut failing = route(RoutingRules::default(), 0);
    let failed = RouteFailure::Failed;
    assert!(core.on_failed(NOW, &mut failing, near, Some(account(3)), failed));
    assert_eq!(use_tab(&mut core, &free), Some(other));
    core.on_tab_over(other);
    assert_eq!(use_tab(&mut core, &free), None);
}

#[test]
fn rules_choose_the_offers_and_their_order() {
    let asks = [ask(1, 100), ask(2, 200), ask(3, 400)];
    let mut core = RouterCore::default();
    let mut choose = |rules: &RoutingRules, seed| {
        let step = plan(&mut core, &mut route(rules.clone(), seed), &asks);
        match step {
            RouteStep::Buy(purchase) => Some(purchase.listing.provider.0[0]),
            _ => None,
        }
    };
    let any = RoutingRules::default();
    let cases = [
        (
            RoutingRules {
                order: words(&["p3", "p2"]),
                ..any.clone()
            },
            3,
        ),
        (
            RoutingRules {
                sort: Some(RouteSort::Price),
                ..any.clone()
            },
            1,
        ),
        (
            RoutingRules {
                only: words(&[&account(2).to_string()]),
                ..any.clone()
            },
            2,
        ),
        (
            RoutingRules {
                ignore: words(&["P1", "p2"]),
                ..any.clone()
            },
            3,
        ),
        // An input token costs a quarter of an output token.
        (
            RoutingRules {
                input_price_max: Some(25_000),
                ..any.clone()
            },
            1,
        ),
        (
            RoutingRules {
                output_price_max: Some(100_000),
                ..any.clone()
            },
            1,
        ),
    ];
    for (rules, provider) in cases {
        for seed in 0..40 {
            assert_eq!(choose(&rules, seed), Some(provider), "{rules:?}");
        }
    }
    let unknown = RoutingRules {
        order: words(&["p9"]),
        allows_fallbacks: false,
        ..any
    };
    assert_eq!(choose(&unknown, 0), None);
}

#[test]
fn measured_providers_are_sorted_by_their_speed() {
    let asks = [ask(1, 100), ask(2, 200), ask(3, 400)];
    let mut core = RouterCore::default();
    let speeds = [(1, 300, 30), (2, 100, 20), (3, 200, 10)];
    for (number, first, token) in speeds {
        core.on_first_text(NOW, account(number), Micros::from_millis(first));
        let asked = route(RoutingRules::default(), 0);
        let took = Micros::from_millis(token * 100);
        core.on_answered(NOW, &asked, account(number), 100, took);
    }
    let mut sorted = |sort| {
        let rules = RoutingRules {
            sort: Some(sort),
            ..RoutingRules::default()
        };
        bought(plan(&mut core, &mut route(rules, 7), &asks)).0[0]
    };
    assert_eq!(sorted(RouteSort::Latency), 2);
    assert_eq!(sorted(RouteSort::Throughput), 3);
    assert_eq!(sorted(RouteSort::Price), 1);
    // One that was never measured comes first, so that it is.
    let asks = [&asks[..], &[ask(4, 900)]].concat();
    let rules = RoutingRules {
        sort: Some(RouteSort::Latency),
        ..RoutingRules::default()
    };
    assert_eq!(
        bought(plan(&mut core, &mut route(rules, 7), &asks)),
        account(4)
    );
}

#[test]
fn a_provider_that_fails_is_left_alone_for_longer_each_time() {
    let asks = [ask(1, 1), ask(2, 1_000)];
    let mut core = RouterCore::default();
    let mut now = NOW;
    let mut last = Micros(0);
    for round in 0..12 {
        // Twenty requests fail at once, and it counts as one trouble.
        for _ in 0..20 {
            let mut failing = route(RoutingRules::default(), 0);
            let failed = RouteFailure::Failed;
            assert!(core.on_failed(now, &mut failing, TabId(0), Some(account(1)), failed));
        }
        let began = now;
        let chooses_it = |core: &mut RouterCore, now| {
            let mut route = route(RoutingRules::default(), 3);
            let step = core.plan_step(now, &mut route, &FreeTabs::new(), Some(&asks));
            bought(step) == account(1)
        };
        while !chooses_it(&mut core, now) {
            now = now.plus(Micros::from_millis(500));
        }
        let cooled = now.since(began);
        assert!(
            cooled >= last && cooled <= Micros::from_seconds(301),
            "{round}"
        );
        assert!(round > 6 || cooled.0 >= 2 * last.0, "{round}");
        last = cooled;
    }
    assert!(last >= Micros::from_seconds(300));
    let asked = route(RoutingRules::default(), 0);
    core.on_answered(now, &asked, account(1), 10, Micros(1));
    assert_eq!(core.health.find(account(1)).cools_until, Micros(0));
    // If none is healthy, the one that recovers first is tried.
    let busy = RouteFailure::Busy;
    for (number, failure) in [(1, RouteFailure::Failed), (2, busy)] {
        let mut failing = route(RoutingRules::default(), 0);
        assert!(core.on_failed(now, &mut failing, TabId(0), Some(account(number)), failure));
    }
    let mut next = route(RoutingRules::default(), 3);
    let step = core.plan_step(now, &mut next, &FreeTabs::new(), Some(&asks));
    assert_eq!(bought(step), account(2));
}

/// Sends a request of so many words to the asks until one answers: the first provider refuses those
/// that have more than `words_max`. Returns whether it was asked.
fn send(
    core: &mut RouterCore,
    asks: &[Listing],
    seed: u64,
    words: usize,
    words_max: usize,
) -> bool {
    let long = request(&[message(&"word".repeat(words))]);
    let mut next = Route::new(MODEL, &long, RoutingRules::default(), seed);
    let mut provider = bought(plan(core, &mut next, asks));
    let is_asked = provider == account(1);
    if is_asked && words > words_max {
        let refused = RouteFailure::Refused;
        assert!(core.on_failed(NOW, &mut next, TabId(0), Some(provider), refused));
        provider = bought(plan(core, &mut next, asks));
        assert_eq!(provider, account(2), "the next one is another");
    }
    core.on_answered(NOW, &next, provider, 100, Micros(1));
    is_asked
}

#[test]
fn a_provider_that_refuses_what_others_answer_draws_no_traffic() {
    let asks = [ask(1, 1), ask(2, 1_000)];
    // It refuses everything, and its price draws every request.
    let mut core = RouterCore::default();
    let mut dice = Dice::new(7);
    let asked = (0..100).filter(|seed| {
        let words = 1 + dice.below(500) as usize;
        send(&mut core, &asks, *seed, words, 0)
    });
    assert!(asked.count() <= 10);
    // One that refuses long requests alone keeps the short ones.
    let mut core = RouterCore::default();
    let mut counts = [[0; 2]; 2];
    for seed in 0..400 {
        let (words, at) = [(50, 0), (400, 1)][(seed % 2) as usize];
        let is_asked = send(&mut core, &asks, seed, words, 100);
        counts[at][usize::from(is_asked)] += 1;
    }
    assert!(counts[0][1] >= 199, "the short ones: {counts:?}");
    assert!(counts[1][1] <= 1, "the long ones: {counts:?}");
    // Nobody knows whether a request is at fault that all refuse, and the only one is asked again.
    let mut core = RouterCore::default();
    for seed in 0..20 {
        let mut next = route(RoutingRules::default(), seed);
        assert_eq!(bought(plan(&mut core, &mut next, &asks[..1])), account(1));
        let refused = RouteFailure::Refused;
        assert!(core.on_failed(NOW, &mut next, TabId(0), Some(account(1)), refused));
        let step = plan(&mut core, &mut next, &asks[..1]);
        let misfits = BTreeMap::from([(Misfit::Failed, 1)]);
        assert_eq!(step, RouteStep::GiveUp(NoRoute::Unsuitable(misfits)));
    }
}

#[test]
fn a_refusal_is_forgotten_with_time_and_by_an_answer_that_is_as_long() {
    let mut core = RouterCore::default();
    let is_left =
        |core: &RouterCore, now, tokens| !core.health.find(account(1)).is_healthy_for(now, tokens);
    core.health.on_wrong_refusal(NOW, account(1), 1_000);
    core.health.on_wrong_refusal(NOW, account(1), 2_000);
    assert!(is_left(&core, NOW, 1_000) && !is_left(&core, NOW, 999));
    let later = NOW.plus(Micros::from_seconds(600));
    assert!(!is_left(&core, later, 1_000));
    core.health.on_answered(NOW, account(1), 999, None);
    assert!(is_left(&core, NOW, 1_000));
    core.health.on_answered(NOW, account(1), 1_000, None);
    assert!(!is_left(&core, NOW, 5_000));
}

#[test]
fn a_request_is_tried_three_times_before_its_first_text_and_again_after_it() {
    let mut core = RouterCore::default();
    let mut next = route(RoutingRules::default(), 0);
    let mut fail = |next: &mut Route, number, failure| {
        core.on_failed(NOW, next, TabId(0), Some(account(number)), failure)
    };
    assert!(fail(&mut next, 1, RouteFailure::Failed));
    assert!(fail(&mut next, 2, RouteFailure::Busy));
    // A tab that was about to close says nothing.
    assert!(fail(&mut next, 3, RouteFailure::TabOver));
    // One that sold a tab which was not wanted is avoided, and is not to blame.
    assert!(fail(&mut next, 6, RouteFailure::OtherProvider));
    assert!(!fail(&mut next, 4, RouteFailure::NotContinued));
    assert_eq!(next.failed(), [1, 2, 6, 4].map(account));
    next.on_text();
    assert!(next.begin_rest(true));
    assert!(fail(&mut next, 5, RouteFailure::Failed));
    // What does not continue is not asked to continue, for a while.
    let mut rest = route(RoutingRules::default(), 0);
    assert!(rest.begin_rest(true));
    let only = [ask(4, 100)];
    let refused = plan(&mut core, &mut rest, &only);
    let misfits = BTreeMap::from([(Misfit::NoContinuation, 1)]);
    assert_eq!(refused, RouteStep::GiveUp(NoRoute::Unsuitable(misfits)));
    let mut anew = route(RoutingRules::default(), 0);
    assert_eq!(bought(plan(&mut core, &mut anew, &only)), account(4));
    let goes_on = (0..20).filter(|_| next.begin_rest(true)).count() as u32;
    assert_eq!(goes_on, CONTINUATIONS_MAX - 1);
    let rules = RoutingRules {
        allows_fallbacks: false,
        ..RoutingRules::default()
    };
    let mut single = route(rules, 0);
    let failed = RouteFailure::Failed;
    assert!(!core.on_failed(NOW, &mut single, TabId(0), Some(account(1)), failed));
}

#[test]
fn a_model_that_is_sold_out_is_not_an_unknown_one() {
    let mut core = RouterCore::default();
    let any = RoutingRules::default();
    let unsold = RouteStep::GiveUp(NoRoute::Unsold);
    assert_eq!(plan(&mut core, &mut route(any.clone(), 0), &[]), unsold);
    let RouteStep::Buy(_) = plan(&mut core, &mut route(any.clone(), 0), &[ask(1, 100)]) else {
        panic!("it is on offer");
    };
    let sold_out = RouteStep::GiveUp(NoRoute::SoldOut);
    assert_eq!(plan(&mut core, &mut route(any.clone(), 0), &[]), sold_out);
    // Nor is a provider that a request names, while another one has a slot.
    let only = |name: &str| RoutingRules {
        only: words(&[name]),
        ..RoutingRules::default()
    };
    let others = [ask(2, 100)];
    assert_eq!(
        plan(&mut core, &mut route(only("p1"), 0), &others),
        sold_out
    );
    let never = plan(&mut core, &mut route(only("p7"), 0), &others);
    assert!(matches!(never, RouteStep::GiveUp(NoRoute::Unsuitable(_))));
    let later = NOW.plus(SOLD_LATELY);
    let step = core.plan_step(
        later,
        &mut route(any.clone(), 0),
        &FreeTabs::new(),
        Some(&[]),
    );
    assert_eq!(step, unsold);
    // Whoever has a tab of it waits for that.
    let mine = core.on_tab_opened(&route(any.clone(), 0), &ask(1, 100));
    assert_eq!(
        plan(&mut core, &mut route(any.clone(), 0), &[]),
        RouteStep::Wait
    );
    core.on_tab_over(mine);
    assert_eq!(plan(&mut core, &mut route(any, 0), &[]), sold_out);
}

#[test]
fn a_router_remembers_a_bounded_number_of_providers_and_offers() {
    let mut core = RouterCore::default();
    for number in 0..10_000_u32 {
        let mut provider = [0; 32];
        provider[..4].copy_from_slice(&number.to_le_bytes());
        let mut offer = ask(1, 100);
        offer.provider = AccountKey(provider);
        let now = NOW.plus(Micros(u64::from(number)));
        core.seen.on_seen(now, MODEL, OfferTerms::from(&offer));
        core.on_first_text(now, offer.provider, Micros(1));
    }
    assert_eq!((core.seen.len(), core.health.len()), (4_096, 1_024));
}

/// A router that looks at everything each time.
struct NaiveRouter {
    cools_until: BTreeMap<AccountKey, Micros>,
}

impl NaiveRouter {
    /// Returns the providers that a request may be sent to.
    fn allowed(&self, now: Micros, route: &Route, asks: &[Listing]) -> BTreeSet<AccountKey> {
        let rules = &route.rules;
        let named = |ask: &Listing, words: &[String]| {
            words
                .iter()
                .any(|word| word.eq_ignore_ascii_case(ask.name.as_str()))
        };
        let suits = |ask: &&Listing| {
            let cheaper = asks.iter().filter(|it| {
                (it.price, it.order) < (ask.price, ask.order)
                    && !route.failed.contains(&it.provider)
            });
            !named(ask, &rules.ignore)
                && (rules.only.is_empty() || named(ask, &rules.only))
                && rules
                    .output_price_max
                    .is_none_or(|max| ask.price.0 * 1_000 <= max)
                && !route.failed.contains(&ask.provider)
                && cheaper.count() + route.failed.len() <= EXCLUDED_MAX
        };
        let suiting: Vec<&Listing> = asks.iter().filter(suits).collect();
        let cools = |ask: &Listing| {
            let until = self.cools_until.get(&ask.provider).copied();
            until.filter(|until| *until > now).unwrap_or(Micros(0))
        };
        let least = suiting.iter().map(|ask| cools(ask)).min();
        let healthy = suiting.iter().filter(|ask| Some(cools(ask)) == least);
        let place = |ask: &Listing| {
            let at = rules
                .order
                .iter()
                .position(|word| word == ask.name.as_str());
            let price = if rules.sort.is_some() { ask.price.0 } else { 0 };
            (at.unwrap_or(rules.order.len()), price)
        };
        let healthy: Vec<&&Listing> = healthy.collect();
        let first = healthy.iter().map(|ask| place(ask)).min();
        let first = healthy.iter().filter(|ask| Some(place(ask)) == first);
        first.map(|ask| ask.provider).collect()
    }
}

/// Plays a history that a seed draws. Returns how many purchases and lacks it had.
fn play(seed: u64) -> (u32, u32) {
    let mut dice = Dice::new(seed);
    let (mut core, mut naive) = (
        RouterCore::default(),
        NaiveRouter {
            cools_until: BTreeMap::new(),
        },
    );
    let (mut now, mut counts) = (NOW, (0, 0));
    for _ in 0..60 {
        now = now.plus(Micros::from_millis(dice.below(4_000)));
        let mut asks: Vec<Listing> = (1..=22)
            .filter(|_| dice.below(3) != 0)
            .map(|number| ask(number, 1 + u64::from(number) * 7 % 13))
            .collect();
        asks.sort_by_key(|ask| (ask.price, ask.order));
        let mut some = |most: u64| -> Vec<String> {
            let count = if dice.below(3) == 0 {
                dice.below(most)
            } else {
                0
            };
            (0..count)
                .map(|_| format!("p{}", 1 + dice.below(24)))
                .collect()
        };
        let (order, only, ignore) = (some(4), some(9), some(9));
        let rules = RoutingRules {
            sort: (dice.below(4) == 0).then_some(RouteSort::Price),
            output_price_max: (dice.below(3) == 0).then(|| dice.below(14_000)),
            order,
            only,
            ignore,
            ..RoutingRules::default()
        };
        let mut next = route(rules, dice.below(u64::MAX));
        loop {
            let allowed = naive.allowed(now, &next, &asks);
            let step = core.plan_step(now, &mut next, &FreeTabs::new(), Some(&asks));
            let RouteStep::Buy(purchase) = step else {
                assert!(allowed.is_empty(), "{step:?}: {allowed:?}");
                counts.1 += 1;
                break;
            };
            counts.0 += 1;
            let provider = purchase.listing.provider;
            assert!(allowed.contains(&provider), "{provider:?}: {allowed:?}");
            assert!(purchase.excluded.len() <= EXCLUDED_MAX);
            // The exchange sells the first ask whose provider is not excluded.
            let sold = asks
                .iter()
                .find(|ask| !purchase.excluded.contains(&ask.provider));
            assert_eq!(sold.map(|ask| ask.provider), Some(provider));
            if dice.below(3) == 0 {
                core.on_answered(now, &next, provider, 5, Micros(1));
                naive.cools_until.remove(&provider);
                break;
            }
            let failure = match dice.below(2) {
                0 => RouteFailure::Busy,
                _ => RouteFailure::Failed,
            };
            let again = core.on_failed(now, &mut next, TabId(0), Some(provider), failure);
            naive
                .cools_until
                .insert(provider, core.health.find(provider).cools_until);
            if !again {
                break;
            }
        }
    }
    counts
}

#[test]
fn each_choice_is_one_that_a_naive_router_allows() {
    let mut sums = (0, 0);
    for seed in 0..300 {
        let Ok(counts) = std::panic::catch_unwind(|| play(seed)) else {
            panic!("seed {seed} breaks a promise: see above");
        };
        sums = (sums.0 + counts.0, sums.1 + counts.1);
    }
    assert!(sums.0 > 5_000 && sums.1 > 500, "{sums:?}");
}
