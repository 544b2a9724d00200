//! Tests what the buyer of an answer gets, and what it pays to whom, for each fault of an engine:
//! with the real endpoint and the real router over HTTP, between which only the network and the
//! market are missing.

use std::sync::Arc;
use std::time::Duration;

use souk_market::{
    AccountKey, BuyerFilter, Class, Credits, DeviceId, LeaseId, Listing, Millis, OrderId, Permille,
    Price, TokenTerms, Units,
};
use souk_node_testing::fake_engine::{FakeEngine, KEY, MODEL, Manner, PIECES, PIECES_BEFORE_FAULT};
use souk_roles::clock::Micros;
use souk_roles::tokens::card::TextCard;
use souk_roles::tokens::prompts::PromptHistory;
use souk_roles::tokens::router::{FreeTabs, Route, RouteStep, RouterCore, RoutingRules};
use souk_roles::tokens::seam::{Seam, SeamStep};
use souk_roles::tokens::text::{AnswerText, Finish, Message, Role, TextAnswer, TextRequest};

use super::error::AnswerFault;
use crate::endpoint::Endpoint;
use crate::endpoint::pieces::PieceStreams;
use crate::endpoint::tests::open_endpoint;

/// A question of 16 bytes, which are 4 tokens.
const QUESTION: &str = "what is a market";

/// The tokens that an answer may have.
const TOKENS_MAX: u32 = 40;

/// How long these endpoints wait for the first text, and in a pause.
const PATIENCE: [Duration; 2] = [Duration::from_millis(1_500), Duration::from_millis(800)];

/// The input and output tokens of the whole answer.
const WHOLE_BILL: (u64, u64) = (4, 9);

/// The same of the pieces before a fault, and of the rest at another provider, whose input is the
/// question and these pieces.
const BEGUN_BILL: (u64, u64) = (4, 5);
const REST_BILL: (u64, u64) = (9, 5);

/// The market's providers of the model, in the order in which the request tries them.
struct TestMarket {
    engines: Vec<FakeEngine>,
    endpoints: Vec<Endpoint>,
    listings: Vec<Listing>,
}

/// What the buyer of an answer got.
#[derive(Debug, PartialEq)]
struct Purchase {
    text: String,
    end: Result<Finish, AnswerFault>,
    /// The input and output tokens that each asked provider bills.
    bills: Vec<(u64, u64)>,
}

/// A fault as the buyer sees it who has one provider alone.
struct ExpectedFault {
    manner: Manner,
    /// The number of pieces that arrive.
    pieces: usize,
    message: &'static str,
}

fn fault(manner: Manner, pieces: usize, message: &'static str) -> ExpectedFault {
    ExpectedFault {
        manner,
        pieces,
        message,
    }
}

fn list_faults() -> Vec<ExpectedFault> {
    let begun = PIECES_BEFORE_FAULT;
    let damaged = "the engine's answer is damaged";
    let no_text = "the engine gave no text in time";
    let no_access = "the engine does not answer this provider";
    let refused = "the engine refused the request: the engine answered 400 Bad Request: it is too \
                   long";
    vec![
        fault(Manner::Busy, 0, "the engine is busy"),
        fault(
            Manner::Crashes,
            0,
            "the engine answered 500 Internal Server Error",
        ),
        fault(Manner::Refuses, 0, refused),
        fault(Manner::Moved, 0, no_access),
        fault(Manner::Revoked, 0, no_access),
        fault(Manner::Fails, 0, damaged),
        fault(Manner::Silent, 0, no_text),
        fault(Manner::SilentBeforeText, 0, no_text),
        fault(Manner::Whole, 0, damaged),
        fault(Manner::Empty, 0, "the engine gave an empty answer"),
        fault(Manner::Breaks, begun, damaged),
        fault(Manner::HalfLine, begun, damaged),
        fault(Manner::BadEvent, begun, damaged),
        fault(Manner::FailsLate, begun, damaged),
        fault(Manner::Stalls, begun, no_text),
    ]
}

fn listing(number: u8) -> Listing {
    let card = TextCard::new(MODEL).unwrap();
    let resources = card.to_resources(TokenTerms::USUAL);
    Listing {
        order: OrderId(u64::from(number)),
        provider: AccountKey([number; 32]),
        name: format!("p{number}").as_str().try_into().unwrap(),
        reputation: Permille(500),
        stake: Credits(0),
        device: DeviceId(0),
        class: Class::clone(&resources.class()),
        resources,
        price: Price(200),
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

impl TestMarket {
    fn new(manners: &[Manner]) -> TestMarket {
        let folder = tempfile::tempdir().unwrap();
        let engines: Vec<FakeEngine> = manners.iter().copied().map(FakeEngine::start).collect();
        let open = |engine| open_endpoint(folder.path(), engine);
        let endpoints = engines.iter().map(open);
        let endpoints = endpoints.map(|it| it.with_patience(PATIENCE[0], PATIENCE[1]));
        TestMarket {
            endpoints: endpoints.collect(),
            listings: (1..)
                .zip(&engines)
                .map(|(number, _)| listing(number))
                .collect(),
            engines,
        }
    }

    /// Buys an answer as the router does.
    async fn buy(&self) -> Purchase {
        let mut request = TextRequest {
            messages: vec![Message {
                role: Role::User,
                content: QUESTION.to_owned(),
            }],
            tokens_max: TOKENS_MAX,
            ..TextRequest::default()
        };
        let whole = request.clone();
        let rules = RoutingRules {
            order: self.listings.iter().map(|it| it.name.to_string()).collect(),
            ..RoutingRules::default()
        };
        let mut route = Route::new(MODEL, &request, rules, 1);
        let mut core = RouterCore::default();
        let (mut now, mut shown) = (Micros::from_seconds(1), AnswerText::default());
        let mut bills = Vec::new();
        let mut last = None;
        let end = loop {
            now = now.plus(Micros::from_millis(1));
            let asks = Some(&self.listings[..]);
            let step = core.plan_step(now, &mut route, &FreeTabs::new(), asks);
            let RouteStep::Buy(purchase) = step else {
                break Err(last.expect("the first offer suits"));
            };
            let tab = core.on_tab_opened(&route, &purchase.listing);
            let provider = purchase.listing.provider;
            let endpoint = &self.endpoints[usize::from(provider.0[0]) - 1];
            let (answer, bill) = ask_endpoint(endpoint, &request).await;
            bills.push(bill);
            let own = answer.text.clone();
            let fault = AnswerFault::of_end(&route, &answer, &own, &shown);
            shown.push(&join(&shown, own));
            let Some(fault) = fault else {
                break Ok(answer.finish);
            };
            let failure = fault.to_failure().expect("it is of the provider");
            let can_try = core.on_failed(now, &mut route, tab, Some(provider), failure);
            last = Some(fault);
            assert!(can_try, "a request has more tries than two");
            if !shown.is_empty() {
                request = whole.to_rest(&shown).unwrap().expect("there is more");
                assert!(route.begin_rest(request.continues));
            }
        };
        for engine in &self.engines {
            assert_eq!(engine.refusals(), [""; 0]);
        }
        Purchase {
            text: shown.content,
            end,
            bills,
        }
    }
}

/// Returns the text that follows what the reader has got.
fn join(shown: &AnswerText, own: AnswerText) -> AnswerText {
    if shown.is_empty() || own.is_empty() {
        return own;
    }
    match Seam::after(shown).push(own) {
        SeamStep::Pass(text) => text,
        step => panic!("{step:?} is no continuation"),
    }
}

/// Asks an endpoint. Returns the answer, and its input and output tokens by the rule of both sides.
/// What the buyer got in pieces is what it pays for.
async fn ask_endpoint(endpoint: &Endpoint, request: &TextRequest) -> (TextAnswer, (u64, u64)) {
    let (streams, buyer) = (Arc::<PieceStreams>::default(), AccountKey([9; 32]));
    streams.open_tab(LeaseId(1), buyer);
    let mut follower = streams.follow_tab(LeaseId(1), buyer).unwrap();
    let sink = streams.open_sink(LeaseId(1), 0);
    let prompt = PromptHistory::default().count_prompt(request);
    let left = Duration::from_secs(60);
    let answer = endpoint.answer_request(request, prompt, left, &sink).await;
    streams.close_tab(LeaseId(1));
    let mut streamed = AnswerText::default();
    while let Some(piece) = follower.next_piece().await {
        streamed.push(&piece.text);
    }
    assert_eq!(streamed, answer.text);
    assert!(!answer.message.contains(KEY), "{}", answer.message);
    let read = TextAnswer::read(&answer.to_bytes()).expect("it is an answer");
    let count = read.count_for(request, prompt);
    assert_eq!(count.cached, 0);
    (answer, (count.input, count.output))
}

#[tokio::test]
async fn an_answer_of_any_sound_engine_is_billed_by_its_text() {
    let sound = [
        Manner::Well,
        Manner::HalfLines,
        Manner::WrongUsage,
        Manner::Anew,
    ];
    for manner in sound {
        let expected = Purchase {
            text: PIECES.concat(),
            end: Ok(Finish::Stop),
            bills: vec![WHOLE_BILL],
        };
        let bought = TestMarket::new(&[manner]).buy().await;
        assert_eq!(bought, expected, "{manner:?}");
    }
    // Who gives too much is paid for twice the tokens at most.
    let padded = TestMarket::new(&[Manner::Pads]).buy().await;
    assert_eq!(padded.end, Ok(Finish::Length));
    assert_eq!(padded.bills, [(4, 2 * u64::from(TOKENS_MAX))]);
}

#[tokio::test]
async fn a_fault_of_the_only_engine_is_said_and_costs_the_text_that_came() {
    let plays = list_faults().into_iter().map(|expected| async move {
        let bought = TestMarket::new(&[expected.manner]).buy().await;
        let text = PIECES[..expected.pieces].concat();
        let manner = expected.manner;
        let bill = match text.is_empty() {
            true => (0, 0),
            false => BEGUN_BILL,
        };
        assert_eq!(
            (bought.text, &bought.bills[..]),
            (text, &[bill][..]),
            "{manner:?}"
        );
        let fault = bought.end.expect_err("it breaks off");
        assert_eq!(fault.to_string(), expected.message, "{manner:?}");
    });
    futures::future::join_all(plays).await;
}

#[tokio::test]
async fn after_a_fault_another_engine_answers_or_goes_on_and_each_is_paid_for_its_text() {
    let plays = list_faults().into_iter().map(|expected| async move {
        let bought = TestMarket::new(&[expected.manner, Manner::Well])
            .buy()
            .await;
        let bills = match expected.pieces {
            0 => [(0, 0), WHOLE_BILL],
            _ => [BEGUN_BILL, REST_BILL],
        };
        let whole = Purchase {
            text: PIECES.concat(),
            end: Ok(Finish::Stop),
            bills: bills.into(),
        };
        assert_eq!(bought, whole, "{:?}", expected.manner);
    });
    futures::future::join_all(plays).await;
}
