//! Judges disputes, in which a buyer accuses a provider of wrong results: fetches the graph and the
//! inputs from the accuser, computes them in a sandbox, and submits the verdict to the log. A core
//! ([`souk_roles::validator::jury`]) decides which dispute comes next.
//!
//! All of this happens beside the validator's own task, which only answers a question and takes a
//! proposal, so no dispute delays the log. The size of contents is checked before they are fetched,
//! and they leave the memory after the dispute.

use std::sync::Arc;
use std::time::Duration;

use libp2p::PeerId;
use souk_consensus::replica::Proposal;
use souk_folder::key::{self, NodeKey};
use souk_market::{AccountKey, Dispute, DisputeId, MarketId, Verdict};
use souk_memory::transfers::Urgency;
use souk_memory::{ContentId, Store};
use souk_network::Network;
use souk_network::content::direct::DirectListen;
use souk_network::content::transfers::{FetchError, Scope, Tensors, TransferConfig};
use souk_roles::clock::Micros;
use souk_roles::market::verdict::{SignedVerdict, VerdictBody};
use souk_roles::validator::exchange::BatchResult;
use souk_roles::validator::jury::{EVIDENCE_BYTES_MAX, Juror, JuryEffect, JuryEvent};
use souk_roles::validator::questions::{Question, Reply};
use souk_sandbox::JudgingFault;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::exchange_machine::{ExchangeMachine, LogCommand};
use super::{Consistency, Validator};
use crate::exact_work::judge_work;

/// How often it looks for disputes.
const PERIOD: Duration = Duration::from_millis(500);

/// How long a dispute's contents can take to arrive.
const FETCH_MAX: Duration = Duration::from_secs(20);

/// Why a dispute could not be judged.
#[derive(Debug, thiserror::Error)]
enum EvidenceFault {
    /// The accuser's key is not a valid key.
    #[error(transparent)]
    Key(#[from] key::NotAKey),
    /// A content did not come.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The contents did not come in time.
    #[error("graph and inputs did not come within {} s", FETCH_MAX.as_secs())]
    Slow,
    /// They are too large.
    #[error("graph and inputs have more than {EVIDENCE_BYTES_MAX} bytes")]
    Large,
    /// The node cannot fetch contents.
    #[error("contents cannot be fetched: {0}")]
    Network(#[from] std::io::Error),
    /// A store is full.
    #[error(transparent)]
    Store(#[from] souk_memory::StoreError),
    /// The work could not be computed.
    #[error(transparent)]
    Judging(#[from] JudgingFault),
    /// The receipt names some of the outputs only.
    #[error("the work gives outputs that the receipt does not name")]
    Partial,
}

/// The task that judges disputes.
pub(super) struct JuryTask {
    validator: Validator<ExchangeMachine>,
    key: NodeKey,
    market: MarketId,
    tensors: Tensors,
    store: Arc<Store>,
    core: Juror,
    /// When the task began, by this machine's clock.
    began: Instant,
    judged: mpsc::Sender<JuryEvent>,
    events: mpsc::Receiver<JuryEvent>,
}

/// Starts the task, which runs as long as the process. The validator works without it, so an error
/// is only logged.
pub(super) async fn start_jury(
    network: &Network,
    validator: &Validator<ExchangeMachine>,
    key: &NodeKey,
    market: MarketId,
) {
    let store = Arc::new(Store::in_memory(EVIDENCE_BYTES_MAX));
    let config = TransferConfig {
        bytes_max: EVIDENCE_BYTES_MAX,
        channel: DirectListen::Off,
        ..TransferConfig::default()
    };
    let tensors = match Tensors::start(network.clone(), key, store.clone(), config).await {
        Ok(tensors) => tensors,
        Err(error) => return tracing::warn!(%error, "this validator cannot judge disputes"),
    };
    // One dispute is judged at a time.
    let (judged, events) = mpsc::channel(1);
    let task = JuryTask {
        validator: validator.clone(),
        key: key.clone(),
        market,
        tensors,
        store,
        core: Juror::new(AccountKey(key.public_key())),
        began: Instant::now(),
        judged,
        events,
    };
    tokio::spawn(task.run());
}

impl JuryTask {
    async fn run(mut self) {
        loop {
            let event = tokio::select! {
                event = self.events.recv() => event,
                () = tokio::time::sleep(PERIOD) => self.look_for_disputes().await,
            };
            let Some(event) = event else { continue };
            for effect in self.core.apply(self.now(), event) {
                match effect {
                    JuryEffect::Judge(dispute) => self.begin_judging(*dispute),
                    JuryEffect::Submit(dispute, verdict) => {
                        self.submit_verdict(dispute, verdict).await;
                    }
                }
            }
        }
    }

    fn now(&self) -> Micros {
        Micros(u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// Returns the disputes as this replica knows them; none if it does not answer now.
    async fn look_for_disputes(&self) -> Option<JuryEvent> {
        let asked = self
            .validator
            .query_machine(Consistency::Stale, Question::Disputes);
        match asked.await {
            Ok((Reply::Disputes(disputes), _)) => Some(JuryEvent::Seen(disputes)),
            _ => None,
        }
    }

    fn begin_judging(&self, dispute: Dispute) {
        let (tensors, store, judged) = (
            self.tensors.clone(),
            self.store.clone(),
            self.judged.clone(),
        );
        let id = dispute.id;
        let judging = tokio::spawn(async move { judge(&tensors, &store, &dispute).await });
        tokio::spawn(async move {
            let found = match judging.await {
                Ok(Ok(verdict)) => Some(verdict),
                Ok(Err(error)) => {
                    tracing::info!(dispute = %id, %error, "the dispute cannot be judged now");
                    None
                }
                Err(error) => {
                    tracing::warn!(dispute = %id, %error, "judging the dispute failed");
                    None
                }
            };
            // The task lives as long as the process.
            let _ = judged.send(JuryEvent::Judged(id, found)).await;
        });
    }

    async fn submit_verdict(&mut self, dispute: DisputeId, verdict: Verdict) {
        let body = VerdictBody {
            market: self.market,
            dispute,
            juror: AccountKey(self.key.public_key()),
            verdict,
        };
        let signed = SignedVerdict::sign(body, self.key.signing_key());
        let proposal = Proposal {
            bytes: signed.encode().into(),
            command: LogCommand::Verdict(signed),
        };
        let result = self.validator.propose(proposal).await;
        let decoded = result.map(|bytes| postcard::from_bytes::<BatchResult>(&bytes));
        match decoded {
            Ok(Ok(BatchResult::Judged(Err(refusal)))) => {
                tracing::info!(%dispute, %refusal, "the market does not count this verdict");
                let effects = self.core.apply(self.now(), JuryEvent::Refused(dispute));
                assert!(effects.is_empty(), "a refusal asks for nothing");
            }
            Ok(_) => tracing::info!(%dispute, ?verdict, "gave a verdict"),
            Err(error) => {
                tracing::debug!(%dispute, %error, "the verdict did not reach the log yet")
            }
        }
    }
}

/// Fetches the evidence of a dispute, computes the work again, and judges the outputs that the
/// provider signed.
async fn judge(
    tensors: &Tensors,
    store: &Arc<Store>,
    dispute: &Dispute,
) -> Result<Verdict, EvidenceFault> {
    let ids: Vec<ContentId> = std::iter::once(&dispute.graph)
        .chain(&dispute.weights)
        .chain(&dispute.inputs)
        .map(to_content_id)
        .collect();
    ids.iter().for_each(|id| store.pin(*id));
    let fetched = timeout(FETCH_MAX, fetch_evidence(tensors, dispute, &ids)).await;
    let found = match fetched.unwrap_or(Err(EvidenceFault::Slow)) {
        Ok(()) => compare_outputs(store, dispute).await,
        Err(error) => Err(error),
    };
    ids.iter().for_each(|id| store.release(id));
    found
}

/// Fetches the graph and the inputs, by their hashes, over the connection that the accuser opened.
async fn fetch_evidence(
    tensors: &Tensors,
    dispute: &Dispute,
    ids: &[ContentId],
) -> Result<(), EvidenceFault> {
    let accuser: PeerId = key::peer_of(&dispute.buyer.0)?;
    let scope = Scope {
        buyer: dispute.buyer,
        job: dispute.job,
    };
    let mut left = EVIDENCE_BYTES_MAX;
    for id in ids {
        let came = tensors
            .fetch_bounded(Urgency::Awaited, scope, &[accuser], (*id, left))
            .await?;
        let bytes = came.bytes.len() as u64;
        left = left.checked_sub(bytes).ok_or(EvidenceFault::Large)?;
    }
    Ok(())
}

/// Computes the work of a dispute, and compares its outputs with those that the provider signed.
async fn compare_outputs(store: &Arc<Store>, dispute: &Dispute) -> Result<Verdict, EvidenceFault> {
    let list = |ids: &[souk_market::ContentId]| ids.iter().map(to_content_id).collect();
    let (weights, inputs): (Vec<_>, Vec<_>) = (list(&dispute.weights), list(&dispute.inputs));
    let graph = to_content_id(&dispute.graph);
    let signed = dispute.outputs.iter().map(to_content_id).collect();
    let program = std::env::current_exe()?;
    let judged = judge_work(program, store, (graph, &weights), &inputs, &signed).await?;
    judged.ok_or(EvidenceFault::Partial)
}

fn to_content_id(id: &souk_market::ContentId) -> ContentId {
    ContentId::from_bytes(id.0)
}
