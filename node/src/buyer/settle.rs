//! The end of a job: receipts checked and signed, outputs fetched, leases paid.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use libp2p::PeerId;
use souk_market::{
    AccountKey, Command, DeviceMicros, Lease, Receipt, ReceiptFault, Refusal, Trade,
};
use souk_memory::{ContentId, Tensor, TensorError};
use souk_scheduler::report::Report;
use souk_scheduler::timeline::Timeline;
use tokio::time::Instant;

use super::dispatch::Session;
use super::{Buyer, JobError};
use crate::lease_protocol::{Closing, Moved, Source};
use crate::trader::TradeError;
use crate::wire;

/// How long a provider that was refused may take to note its usage.
const NOTED_WITHIN: Duration = Duration::from_secs(3);

/// How often the lease is looked at meanwhile.
const NOTE_PERIOD: Duration = Duration::from_millis(50);

/// Why a receipt is not signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Objection {
    /// It is not valid by itself.
    #[error(transparent)]
    Fault(#[from] ReceiptFault),
    /// It is not for the lease, job, parties or price that were traded.
    #[error("its {0} is not what was bought")]
    Terms(&'static str),
    /// It bills more device time than has passed.
    #[error("it bills {billed} device-us, the lease has {possible}")]
    Usage {
        /// What it bills.
        billed: DeviceMicros,
        /// What the lease has.
        possible: DeviceMicros,
    },
    /// It names an input that nobody gave.
    #[error("it names the input {0}, which nobody gave it")]
    Input(souk_market::ContentId),
    /// Its outputs are not those it serves.
    #[error("its outputs are not those it serves")]
    Outputs,
    /// An output is no tensor.
    #[error("its output {name} is no tensor: {cause}")]
    NoTensor {
        /// The output's name.
        name: String,
        /// Why.
        cause: TensorError,
    },
}

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

/// Fetches outputs of a session by name, and checks that they are tensors.
pub(super) async fn fetch(
    buyer: &Buyer,
    session: &Session,
    wanted: &BTreeSet<String>,
) -> Result<BTreeMap<String, Tensor>, JobError> {
    let party = (session.provider, session.peer);
    fetch_among(buyer, party, &session.finished.outputs, wanted).await
}

/// The same among outputs that a provider told of.
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

/// Fetches one output, and checks that it is a tensor.
pub(super) async fn fetch_one(
    buyer: &Buyer,
    (provider, peer): (AccountKey, PeerId),
    name: &str,
    id: ContentId,
) -> Result<Tensor, JobError> {
    let fetched = buyer.tensors.fetch(peer, id).await;
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
        ("graph", body.graph == id(&start.graph())),
    ];
    if let Some((what, _)) = terms.into_iter().find(|(_, holds)| !holds) {
        return Err(Objection::Terms(what));
    }
    let possible = DeviceMicros::of(trade.quantity, trade.deadline.since(trade.start));
    if body.usage > possible {
        return Err(Objection::Usage {
            billed: body.usage,
            possible,
        });
    }
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
