//! The end of a job: receipts checked and signed, outputs fetched, leases paid.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use libp2p::PeerId;
use souk_market::{AccountKey, Command, DeviceMicros, Lease, Receipt, ReceiptBody, Refusal, Trade};
use souk_memory::{ContentId, Tensor};
use souk_scheduler::execution::report::Report;
use souk_scheduler::execution::timeline::Timeline;
use tokio::time::Instant;

use super::holders::Holders;
use super::reasons::Objection;
use super::session::Session;
use super::{Buyer, JobError};
use crate::client::trader::TradeError;
use crate::network::wire;
use crate::protocols::lease::{Closing, Moved, Source, Start, TELLING_RUN, USAGE_MIN};

/// How long a provider that was refused may take to note its usage.
const NOTED_WITHIN: Duration = Duration::from_secs(3);

/// How often the lease is looked at meanwhile.
const NOTE_PERIOD: Duration = Duration::from_millis(50);

/// The share by which a declared speed may be off the plan's: its provider counts by its parts.
const DOUBT: f64 = 0.1;

/// What a job has gathered of finished sessions.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    pub(super) receipts: Vec<Receipt>,
    pub(super) moved: Vec<Vec<Moved>>,
    pub(super) report: Option<Report>,
    pub(super) timeline: Timeline,
}

impl Gathered {
    /// Signs a session's receipt and tells its provider; what it did is added up.
    pub(super) async fn sign(&mut self, buyer: &Buyer, mut session: Session) -> Receipt {
        let unsigned = session.finished.receipt;
        let receipt = unsigned.sign_as_buyer(buyer.trader.key().signing());
        let closing = Closing::Signed(Box::new(receipt.clone()));
        if let Err(error) = wire::send(session.stream.get_mut(), &closing).await {
            tracing::debug!(%error, "a provider did not wait for its receipt; the log has it");
        }
        self.receipts.push(receipt.clone());
        buyer.heard(session.provider, &session.finished.moved);
        self.moved.push(session.finished.moved);
        self.timeline.merge(session.finished.timeline);
        match &mut self.report {
            None => self.report = Some(session.finished.report),
            Some(report) => report.merge(session.finished.report, &self.timeline),
        }
        receipt
    }
}

/// Has receipts settled.
pub(super) async fn pay(buyer: &Buyer, receipts: &[Receipt]) -> Result<(), JobError> {
    let settle = |receipt: &Receipt| Command::Settle(Box::new(receipt.clone()));
    for result in buyer
        .trader
        .submit(receipts.iter().map(settle).collect())
        .await?
    {
        match result {
            // The provider was faster, or the first answer was lost.
            Ok(_) | Err(Refusal::LeaseClosed { .. } | Refusal::NonceUsed { .. }) => {}
            Err(refusal) => return Err(TradeError::Refused(refusal).into()),
        }
    }
    Ok(())
}

/// Does not sign, says so, and disputes the usage that the provider then notes: silence would pay
/// for it.
pub(super) async fn refuse(buyer: &Buyer, mut session: Session, reason: String) {
    let lease = session.start.lease;
    let closing = Closing::Refused { reason };
    // A provider that is gone notes its usage as well, and is disputed as well.
    let _ = wire::send(session.stream.get_mut(), &closing).await;
    let begin = Instant::now();
    while begin.elapsed() < NOTED_WITHIN {
        let known = buyer.broker().lease(lease).await;
        match known {
            Ok(Some(lease)) if lease.is_closed() => return,
            Ok(Some(Lease { note: Some(_), .. })) => break,
            _ => tokio::time::sleep(NOTE_PERIOD).await,
        }
    }
    match buyer
        .trader
        .submit_one(Command::DisputeNote { lease })
        .await
    {
        Ok(_) => {}
        Err(error) => tracing::warn!(%lease, %error, "nothing was disputed"),
    }
}

/// Fetches outputs of a session by name, from whoever has them, and checks that they are tensors.
pub(super) async fn fetch(
    buyer: &Buyer,
    session: &Session,
    wanted: &BTreeSet<String>,
    holders: &Holders<'_>,
) -> Result<BTreeMap<String, Tensor>, JobError> {
    let party = (session.provider, session.peer);
    let mut tensors = BTreeMap::new();
    let outputs = session.finished.outputs.iter();
    for (name, id) in outputs.filter(|(name, _)| wanted.contains(name)) {
        let whom = holders.whom(*id, party.1);
        let parsed = fetch_from(buyer, (party.0, &whom), name, *id).await?;
        tensors.insert(name.clone(), parsed);
    }
    Ok(tensors)
}

/// The same among outputs that a provider told of, from that one alone.
pub(super) async fn fetch_among(
    buyer: &Buyer,
    party: (AccountKey, PeerId),
    outputs: &[(String, ContentId)],
    wanted: &BTreeSet<String>,
) -> Result<BTreeMap<String, Tensor>, JobError> {
    let mut tensors = BTreeMap::new();
    for (name, id) in outputs.iter().filter(|(name, _)| wanted.contains(name)) {
        let parsed = fetch_one(buyer, party, name, *id).await?;
        tensors.insert(name.clone(), parsed);
    }
    Ok(tensors)
}

/// Fetches one output from its maker, and checks that it is a tensor.
pub(super) async fn fetch_one(
    buyer: &Buyer,
    (provider, peer): (AccountKey, PeerId),
    name: &str,
    id: ContentId,
) -> Result<Tensor, JobError> {
    fetch_from(buyer, (provider, &[peer]), name, id).await
}

/// Fetches one output of a provider from the first of some peers that gives it, and checks that it
/// is a tensor.
pub(super) async fn fetch_from(
    buyer: &Buyer,
    (provider, whom): (AccountKey, &[PeerId]),
    name: &str,
    id: ContentId,
) -> Result<Tensor, JobError> {
    let fetched = buyer.tensors.fetch_from(whom, id).await;
    let fetched = fetched.map_err(|cause| {
        let cause = Box::new(cause);
        JobError::Output { provider, cause }
    })?;
    Tensor::from_blob(&fetched.bytes).map_err(|cause| {
        let name = name.to_owned();
        JobError::Receipt {
            provider,
            objection: Objection::NoTensor { name, cause },
        }
    })
}

/// Whether a receipt names what was to be run: all parts, or the first of them where no request
/// came further.
fn is_of_parts(body: &ReceiptBody, start: &Start) -> bool {
    (1..=start.parts.len()).any(|parts| body.graph == id(&start.graph_of(parts)))
}

/// Whether a receipt is for what was bought, and its inputs for what was given.
pub(super) fn check(
    session: &Session,
    trade: &Trade,
    all: &BTreeMap<usize, Session>,
) -> Result<(), Objection> {
    let (receipt, start) = (&session.finished.receipt, &session.start);
    receipt.verify_provider()?;
    let body = &receipt.body;
    let terms = [
        ("lease", body.lease == trade.lease),
        ("job", body.job == trade.job),
        ("buyer", body.buyer == trade.buyer),
        ("provider", body.provider == trade.provider),
        ("price", body.price == trade.price),
        ("graph", is_of_parts(body, start)),
    ];
    if let Some((what, _)) = terms.into_iter().find(|(_, holds)| !holds) {
        return Err(Objection::Terms(what));
    }
    let possible = DeviceMicros::of(trade.quantity, trade.deadline.since(trade.start));
    check_usage(body, possible)?;
    check_speed(body, start)?;
    let given = given(session, all);
    let strange = |input: &&souk_market::ContentId| !given.contains(&Some(**input));
    // What a provider gave before it failed is known to the one that took it alone.
    let untold = given.iter().filter(|given| given.is_none()).count() * session.untold_max;
    if let Some(unknown) = body.inputs.iter().filter(strange).nth(untold) {
        return Err(Objection::Input(*unknown));
    }
    let served: Vec<_> = session
        .finished
        .outputs
        .iter()
        .map(|(_, output)| id(output))
        .collect();
    if body.outputs != served {
        Err(Objection::Outputs)
    } else {
        Ok(())
    }
}

/// Whether a receipt bills no more time than there was, and none for nothing.
fn check_usage(body: &ReceiptBody, possible: DeviceMicros) -> Result<(), Objection> {
    let billed = body.usage;
    if billed > possible {
        return Err(Objection::Usage { billed, possible });
    }
    if body.outputs.is_empty() && billed > USAGE_MIN {
        return Err(Objection::Nothing { billed });
    }
    Ok(())
}

/// Whether a receipt tells the speed that its usage and the plan come to: a provider that delivers
/// less than it advertised loses reputation by it, and so must not choose what it says.
fn check_speed(body: &ReceiptBody, start: &Start) -> Result<(), Objection> {
    let known = start.parts.iter().all(|part| part.flops > 0);
    if body.usage.0 < TELLING_RUN.as_micros() as u64 || !known {
        return Ok(());
    }
    let each: usize = start.parts.iter().map(|part| part.outputs.len()).sum();
    let (passes, rest) = (
        body.outputs.len() / each.max(1),
        body.outputs.len() % each.max(1),
    );
    let flops: f64 = start.parts.iter().map(|part| part.flops as f64).sum();
    let most = flops * (passes as f64 + if rest > 0 { 1.0 } else { 0.0 }) / body.usage.0 as f64;
    let delivered = body.delivered_mega_ops;
    let wrong = |what, said, true_one: f64| {
        let true_one = true_one as u64;
        Err(Objection::Speed {
            what,
            said,
            true_one,
        })
    };
    if delivered as f64 > most + 1.0 || (delivered == 0 && most >= 2.0 && passes > 0) {
        return wrong("delivered speed", delivered, most);
    }
    let speed = |flops: f64, time: Duration| flops / time.as_secs_f64().max(1e-9) / 1e6;
    let speeds = start
        .parts
        .iter()
        .map(|part| speed(part.flops as f64, part.expected));
    let least = match rest {
        0 => speed(flops, start.parts.iter().map(|part| part.expected).sum()),
        _ => speeds.fold(f64::INFINITY, f64::min),
    };
    if delivered > 0 && (body.declared_mega_ops as f64) < least * (1.0 - DOUBT) - 1.0 {
        return wrong("declared speed", body.declared_mega_ops, least);
    }
    Ok(())
}

/// The ids of all tensors a provider may have used: the buyer's, and other providers' outputs, none
/// for one whose maker has not told.
fn given(session: &Session, all: &BTreeMap<usize, Session>) -> Vec<Option<souk_market::ContentId>> {
    let mut given: Vec<_> = session.given.iter().map(|given| Some(id(given))).collect();
    for input in session.start.parts.iter().flat_map(|part| &part.inputs) {
        match &input.source {
            Source::Buyer(tensor) => given.push(Some(id(tensor))),
            Source::Own => {}
            Source::Lease { lease, .. } => {
                let makers = all.values().filter(|other| other.start.lease == *lease);
                let made = makers.flat_map(|maker| &maker.finished.outputs);
                let named = made.filter(|(made, _)| *made == input.name);
                let before = given.len();
                given.extend(named.map(|(_, tensor)| Some(id(tensor))));
                if given.len() == before {
                    given.push(None);
                }
            }
        }
    }
    given
}

fn id(content: &ContentId) -> souk_market::ContentId {
    souk_market::ContentId(*content.as_bytes())
}

#[cfg(test)]
mod tests {
    use souk_market::{Class, Credits, Dtype, JobId, LeaseId, MarketId, Millis, Name, Price};

    use super::*;
    use crate::protocols::lease::{Output, Part};

    /// Two parts of 2 and of 4 ms, of 8 and of 8 million operations.
    fn start(flops: u64) -> Start {
        let part = |number: u64| Part {
            name: format!("part {number} of 2"),
            graph: ContentId::of(&[number as u8]),
            weights: Vec::new(),
            inputs: Vec::new(),
            outputs: vec![Output {
                name: "y".to_owned(),
                consumers: Vec::new(),
            }],
            flops,
            expected: Duration::from_millis(2 * number),
        };
        Start {
            lease: LeaseId(1),
            job: JobId([1; 32]),
            parts: vec![part(1), part(2)],
            peers: Vec::new(),
            priority: 0,
        }
    }

    /// A receipt for so many outputs and so much device time.
    fn body(outputs: usize, usage: u64, declared: u64, delivered: u64) -> ReceiptBody {
        let someone = AccountKey([7; 32]);
        ReceiptBody {
            market: MarketId([1; 32]),
            lease: LeaseId(1),
            job: JobId([1; 32]),
            buyer: someone,
            provider: someone,
            graph: souk_market::ContentId([1; 32]),
            inputs: Vec::new(),
            outputs: vec![souk_market::ContentId([2; 32]); outputs],
            class: Class::default(),
            model: Name::try_from("device").unwrap(),
            emulated: true,
            dtype: Dtype::F32,
            declared_mega_ops: declared,
            delivered_mega_ops: delivered,
            usage: DeviceMicros(usage),
            price: Price(1),
            amount: Credits(1),
            bytes_in: 0,
            bytes_out: 0,
            started: Millis(0),
            finished: Millis(1),
        }
    }

    /// Ten times both parts in 120 ms: half as fast as was promised.
    const OUTPUTS: usize = 20;
    const USAGE: u64 = 120_000;
    const DECLARED: u64 = 2_666;
    const DELIVERED: u64 = 1_333;

    #[test]
    fn a_receipt_tells_the_speed_that_follows_from_plan_and_bill() {
        let start = start(8_000_000);
        let check = |body: ReceiptBody| check_speed(&body, &start);
        check(body(OUTPUTS, USAGE, DECLARED, DELIVERED)).unwrap();
        // Slower than it was is its own harm; so is more than was promised.
        check(body(OUTPUTS, USAGE, DECLARED * 2, DELIVERED / 2)).unwrap();
        // The end came between the parts.
        check(body(OUTPUTS + 1, USAGE + 4_000, DECLARED, DELIVERED)).unwrap();
        let what = |checked: Result<(), Objection>| match checked {
            Err(Objection::Speed { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        let faster = check(body(OUTPUTS, USAGE, DECLARED, DECLARED));
        assert_eq!(what(faster), "delivered speed");
        let silent = check(body(OUTPUTS, USAGE, DECLARED, 0));
        assert_eq!(what(silent), "delivered speed");
        let humble = check(body(OUTPUTS, USAGE, DELIVERED, DELIVERED));
        assert_eq!(what(humble), "declared speed");
    }

    #[test]
    fn device_time_is_billed_within_the_lease_and_for_something() {
        let check = |outputs, usage| check_usage(&body(outputs, usage, 1, 0), DeviceMicros(USAGE));
        check(1, USAGE).unwrap();
        check(0, USAGE_MIN.0).unwrap();
        let (billed, possible) = (DeviceMicros(USAGE + 1), DeviceMicros(USAGE));
        assert_eq!(
            check(1, USAGE + 1),
            Err(Objection::Usage { billed, possible })
        );
        let billed = DeviceMicros(USAGE);
        assert_eq!(check(0, USAGE), Err(Objection::Nothing { billed }));
    }

    #[test]
    fn what_nobody_can_tell_is_not_objected_to() {
        let soon = body(2, 19_999, 1, 0);
        assert_eq!(check_speed(&soon, &start(8_000_000)), Ok(()));
        let unknown = body(OUTPUTS, USAGE, 67_000, 0);
        assert_eq!(check_speed(&unknown, &start(0)), Ok(()));
    }
}
