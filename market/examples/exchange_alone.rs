//! Runs the exchange without a network: a provider sells, a buyer buys, and a receipt settles.
//!
//! The exchange is a pure struct, so you can embed it, replay a log through it, or test a trading
//! strategy against it:
//!
//! ```text
//! cargo run -p souk-market --example exchange_alone
//! ```

#![allow(
    clippy::disallowed_macros,
    reason = "the exchange does no I/O; this program shows what it did"
)]

use std::error::Error;

use souk_market::*;

fn main() -> Result<(), Box<dyn Error>> {
    let [operator, provider, buyer] = [1, 2, 3].map(|seed| SigningKey::from_bytes(&[seed; 32]));
    let mut genesis = Genesis::new(Name::try_from("alone")?, AccountKey::from(&operator));
    for (name, key) in [("provider", &provider), ("buyer", &buyer)] {
        let account = AccountKey::from(key);
        genesis
            .accounts
            .push((account, Name::try_from(name)?, Credits(100_000_000)));
    }
    let mut stall = Stall {
        exchange: Exchange::new(genesis),
        now: Millis(1_000),
        nonce: 0,
    };

    let ask = stall.apply(&provider, Command::PlaceAsk(Box::new(ask()?)))?;
    println!("the provider asks: {ask:?}");
    let bought = stall.apply(&buyer, Command::PlaceBid(Box::new(bid()?)))?;
    let Acceptance::Placed { trades, .. } = bought else {
        return Err("the bid did not reach the book".into());
    };
    let trade = trades.first().ok_or("no ask matched the bid")?;
    println!(
        "lease {} at {} micro-credits a device-second",
        trade.lease, trade.price.0
    );

    stall.apply(&buyer, Command::StartWork { lease: trade.lease })?;
    stall.now = Millis(stall.now.0 + 2_500);
    let receipt = Receipt::new(stall.receipt_body(trade.lease, DeviceMicros(2_000_000))?)
        .sign_as_provider(&provider)
        .sign_as_buyer(&buyer);
    println!("2 s of work cost {} micro-credits", receipt.body.amount.0);
    stall.apply(&provider, Command::Settle(Box::new(receipt)))?;

    for (name, key) in [("provider", &provider), ("buyer", &buyer)] {
        let account = stall
            .exchange
            .account(AccountKey::from(key))
            .ok_or("no account")?;
        println!(
            "{name}: {} available, {} in escrow",
            account.available.0, account.escrow.0
        );
    }
    assert!(stall.exchange.totals().is_balanced());
    Ok(())
}

/// An exchange, and the time and the nonce of the next batch.
struct Stall {
    exchange: Exchange,
    now: Millis,
    nonce: u64,
}

impl Stall {
    /// Signs one command, applies it, and returns what the exchange accepted.
    fn apply(&mut self, key: &SigningKey, command: Command) -> Result<Acceptance, Box<dyn Error>> {
        self.nonce += 1;
        let batch = Batch {
            market: self.exchange.market(),
            account: AccountKey::from(key),
            nonce: Nonce(self.nonce),
            expires: Millis(self.now.0 + 60_000),
            commands: vec![command],
        };
        let mut applied = self.exchange.apply(self.now, &batch.sign(key).verify()?);
        Ok(applied.outcomes.remove(0).into_result()?)
    }

    /// Returns the receipt of a lease's work, without signatures.
    fn receipt_body(
        &self,
        lease: LeaseId,
        usage: DeviceMicros,
    ) -> Result<ReceiptBody, Box<dyn Error>> {
        let lease = self.exchange.lease(lease).ok_or("no such lease")?;
        Ok(ReceiptBody {
            market: self.exchange.market(),
            lease: lease.id,
            job: lease.job,
            buyer: lease.buyer,
            provider: lease.provider,
            // Both parties name what ran by its BLAKE3 hash.
            graph: ContentId([1; 32]),
            inputs: vec![ContentId([2; 32])],
            outputs: vec![ContentId([3; 32])],
            class: lease.class,
            model: lease.model.clone(),
            emulated: lease.class.emulated,
            dtype: Dtype::F32,
            declared_mega_ops: 80_000_000,
            delivered_mega_ops: 79_000_000,
            usage,
            metered: None,
            idle: DeviceMicros(0),
            idle_part: lease.idle,
            price: lease.price,
            amount: ReceiptBody::amount_due(lease.price, usage).ok_or("too much work")?,
            bytes_in: 1_024,
            bytes_out: 64,
            started: Millis(1_000),
            finished: self.now,
        })
    }
}

/// Returns the device that the provider sells.
fn resources() -> Result<Resources, NameFault> {
    Ok(Resources {
        kind: KindCode(2),
        kind_name: Name::try_from("gpu")?,
        model: Name::try_from("Example 24")?,
        memory_bytes: 24 << 30,
        memory_bandwidth: 900 << 30,
        throughput: Throughput::default().with(Dtype::F32, 80_000_000),
        link_bandwidth: 1 << 30,
        link_latency_us: 200,
        ..Resources::default()
    })
}

/// Returns an offer of one device at 0.25 credits a second, for up to an hour.
fn ask() -> Result<Ask, NameFault> {
    Ok(Ask {
        device: DeviceId(1),
        capacity: Units(1),
        resources: resources()?,
        limit: Limit::Price(Price(250_000)),
        quantity: Units(1),
        duration_min: Millis(1),
        duration_max: Millis(3_600_000),
        notice: Millis(5_000),
        spot: Vec::new(),
        idle: Permille(100),
        accepts: BuyerFilter::default(),
        tif: TimeInForce::Gtc,
    })
}

/// Returns a bid of up to 0.30 credits a second for ten seconds of such a device.
fn bid() -> Result<Bid, NameFault> {
    Ok(Bid {
        class: resources()?.class(),
        wants: Wants::default(),
        limit: Limit::Price(Price(300_000)),
        budget: Credits(10_000_000),
        quantity: Units(1),
        all_or_none: false,
        duration: Millis(10_000),
        start_delay_max: Millis(0),
        term: Term::Firm,
        tif: TimeInForce::Gtc,
        job: JobId([7; 32]),
    })
}
