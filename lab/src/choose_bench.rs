//! Measures, for `souk bench choose`, how long a validator takes to answer `Choose`, the request by
//! which a buyer finds the asks that suit it. In the test's book every ask belongs to another
//! provider; the asks offer eight models of device, and the buyer wants one of them.

use std::time::{Duration, Instant};

use souk_market::{
    AccountKey, Ask, Batch, BuyerFilter, Command, Credits, DeviceId, Dtype, Exchange, Features,
    Genesis, KindCode, Limit, Millis, Name, Nonce, Operators, Permille, Price, Regions, Resources,
    Signature, SignedBatch, Throughput, TimeInForce, Units, VerifiedBatch,
};
use souk_roles::market::demands::Demands;
use souk_roles::market::market_protocol::{Answer, Request};
use souk_roles::validator::questions::answer_request;

/// The number of requests for each book; the median time counts.
const TIMES: usize = 41;

/// The time of an answer from a book of one size.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct ChooseReport {
    /// Number of asks in the book.
    pub asks: u32,
    /// Number of asks in the answer.
    pub chosen: usize,
    /// The median time of an answer.
    pub median: Duration,
}

/// Measures the answer from a book with this number of asks.
///
/// # Panics
/// If the exchange refuses one of the asks, which are the same in each run.
#[must_use]
pub fn measure_choose(asks: u32) -> ChooseReport {
    let exchange = fill_book(asks).expect("the asks are valid");
    let request = Request::Choose(Box::new(demand_one_model()));
    let (mut times, mut chosen) = (Vec::new(), 0);
    for _ in 0..TIMES {
        let (begin, request) = (Instant::now(), request.clone());
        if let Answer::Chosen(choice) = answer_request(&exchange, request) {
            chosen = choice.listings.len();
        }
        times.push(begin.elapsed());
    }
    times.sort();
    ChooseReport {
        asks,
        chosen,
        median: times[TIMES / 2],
    }
}

fn account_key(number: u32) -> AccountKey {
    AccountKey(*blake3::hash(&number.to_le_bytes()).as_bytes())
}

fn fill_book(asks: u32) -> Result<Exchange, Box<dyn std::error::Error>> {
    let mut genesis = Genesis::new("choose".try_into()?, account_key(u32::MAX));
    let each = |number| (account_key(number), Name::default(), Credits(1_000_000));
    genesis.accounts = (0..asks).map(each).collect();
    let mut exchange = Exchange::new(genesis);
    for number in 0..asks {
        let model = u64::from(number % 8);
        let resources = Resources {
            kind: KindCode(1),
            kind_name: "gpu".try_into()?,
            model: Name::try_from(format!("model {model}"))?,
            memory_bytes: 8 << (30 + model),
            memory_bandwidth: 100 << 30,
            throughput: Throughput::default().with(Dtype::F16, 80_000_000),
            // Measured figures differ from one device to the next.
            launch_overhead_ns: u64::from(number),
            ..Resources::default()
        };
        let ask = Ask {
            device: DeviceId(1),
            capacity: Units(1),
            resources,
            limit: Limit::Price(Price(1_000 + u64::from(number % 5) * 10)),
            quantity: Units(1),
            duration_min: Millis(1),
            duration_max: Millis(3_600_000),
            notice: Millis(0),
            spot: Vec::new(),
            idle: Permille(100),
            accepts: BuyerFilter::default(),
            tif: TimeInForce::Gtc,
        };
        let batch = Batch {
            market: exchange.market(),
            account: account_key(number),
            nonce: Nonce(1),
            expires: Millis(60_000),
            commands: vec![Command::PlaceAsk(Box::new(ask))],
        };
        let signature = Signature([0; 64]);
        let batch = VerifiedBatch::from_own_log(SignedBatch { batch, signature })?;
        let outcome = exchange.apply(Millis(1_000), &batch);
        outcome.outcomes[0].clone().into_result()?;
    }
    Ok(exchange)
}

fn demand_one_model() -> Demands {
    Demands {
        buyer: account_key(u32::MAX),
        excluded: Vec::new(),
        real_only: false,
        price_max: None,
        notice_min: Millis(0),
        spot: false,
        regions: Regions(0),
        reputation_min: Permille(0),
        power_known: false,
        features: Features(0),
        operators: Operators::default(),
        nodes: Vec::new(),
        in_parts: false,
        devices: vec!["model 3".to_owned()],
        text_model: None,
    }
}
