//! The end of a job: receipts checked and signed, outputs fetched, leases paid.

use std::collections::BTreeMap;

use souk_market::{Command, DeviceMicros, Receipt, ReceiptFault, Refusal, Trade};
use souk_memory::{ContentId, Tensor, TensorError};
use souk_scheduler::report::Report;
use souk_scheduler::timeline::Timeline;

use super::dispatch::Session;
use super::purchase::Bought;
use super::{Buyer, Finished, JobError, Quote};
use crate::lease_protocol::{Closing, Source};
use crate::trader::TradeError;
use crate::wire;

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

/// Checks, signs and pays. Nothing is signed unless everything holds.
pub(super) async fn settle(
    buyer: &Buyer,
    quote: &Quote,
    bought: &Bought,
    sessions: Vec<Session>,
) -> Result<Finished, JobError> {
    for (session, trade) in sessions.iter().zip(&bought.trades) {
        check(session, trade, &sessions).map_err(|objection| {
            let provider = session.provider;
            JobError::Receipt {
                provider,
                objection,
            }
        })?;
    }
    let outputs = fetch_outputs(buyer, quote, &sessions).await?;
    let (mut receipts, mut moved) = (Vec::new(), Vec::new());
    let (mut report, mut timeline) = (None::<Report>, Timeline::default());
    for mut session in sessions {
        let receipt = session
            .finished
            .receipt
            .sign_as_buyer(buyer.trader.key().signing());
        let closing = Closing::Signed(Box::new(receipt.clone()));
        if let Err(error) = wire::send(&mut session.stream, &closing).await {
            tracing::debug!(%error, "a provider did not wait for its receipt; the log has it");
        }
        receipts.push(receipt);
        moved.push(session.finished.moved);
        timeline.merge(session.finished.timeline);
        match &mut report {
            None => report = Some(session.finished.report),
            Some(report) => report.merge(session.finished.report, &timeline),
        }
    }
    pay(buyer, &receipts).await?;
    let report = report.expect("a job has at least one lease");
    Ok(Finished {
        job: bought.job,
        outputs,
        receipts,
        moved,
        report,
        timeline,
    })
}

async fn pay(buyer: &Buyer, receipts: &[Receipt]) -> Result<(), JobError> {
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

/// Whether a receipt is for what was bought, and its inputs for what was given.
fn check(session: &Session, trade: &Trade, all: &[Session]) -> Result<(), Objection> {
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
    if let Some(unknown) = body.inputs.iter().find(|input| !given.contains(input)) {
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

/// The ids of all tensors a provider may have used: the buyer's, and other providers' outputs.
fn given(session: &Session, all: &[Session]) -> Vec<souk_market::ContentId> {
    let inputs = session.start.parts.iter().flat_map(|part| &part.inputs);
    let from = |source: &Source, name: &String| match source {
        Source::Buyer(tensor) => Some(id(tensor)),
        Source::Own => None,
        Source::Lease { lease, .. } => {
            let maker = all.iter().find(|other| other.start.lease == *lease)?;
            let output = maker
                .finished
                .outputs
                .iter()
                .find(|(made, _)| made == name)?;
            Some(id(&output.1))
        }
    };
    inputs
        .filter_map(|input| from(&input.source, &input.name))
        .collect()
}

fn id(content: &ContentId) -> souk_market::ContentId {
    souk_market::ContentId(*content.as_bytes())
}

async fn fetch_outputs(
    buyer: &Buyer,
    quote: &Quote,
    sessions: &[Session],
) -> Result<BTreeMap<String, Tensor>, JobError> {
    let mut outputs = BTreeMap::new();
    for value in quote.graph.outputs() {
        let name = quote.graph.value(*value).name.clone();
        let made = sessions.iter().find_map(|session| {
            let output = session
                .finished
                .outputs
                .iter()
                .find(|(made, _)| *made == name)?;
            Some((session, output.1))
        });
        // An output that is an input, or a constant, of the model has no maker.
        let Some((session, tensor)) = made else {
            continue;
        };
        let fetched = buyer.tensors.fetch(session.peer, tensor).await?;
        let parsed = Tensor::from_blob(&fetched.bytes).map_err(|cause| {
            let objection = Objection::NoTensor {
                name: name.clone(),
                cause,
            };
            JobError::Receipt {
                provider: session.provider,
                objection,
            }
        })?;
        outputs.insert(name, parsed);
    }
    Ok(outputs)
}
