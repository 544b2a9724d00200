//! Accuses a provider of a wrong output: rebuilds the graph that the provider ran, opens the
//! dispute, and serves graph and inputs to the validators until they have decided.
//!
//! A validator fetches over a connection that the accuser opens, so the accuser need not be
//! reachable. The provider's own receipt names the graph and the inputs by hash, so the accuser
//! cannot show the validators another graph or other inputs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use souk_folder::contact::Contact;
use souk_folder::key;
use souk_market::{
    Acceptance, AccountKey, Accusation, Command, Dispute, DisputeId, Receipt, Refusal, Verdict,
};
use souk_memory::{ContentId, StoreError, Tensor};
use souk_network::content::transfers::Scope;
use souk_network::protocols::market::{Member, Request, Standing};
use souk_roles::validator::jury::{EVIDENCE_BYTES_MAX, EVIDENCE_WORK_MAX};

use super::Buyer;
use super::exact_model::{CheckError, ExactModel, ExactModelError};
use super::job::Job;
use crate::client::broker::BrokerError;
use crate::client::trader::TradeError;
use crate::exact_work::judge_work;

/// How often it asks each validator, which also keeps the connection open over which it fetches.
const PERIOD: Duration = Duration::from_millis(500);

/// How many questions in a row can fail before the accuser gives up.
const MISSES_MAX: u32 = 30;

/// Why a provider cannot be accused.
#[derive(Debug, thiserror::Error)]
pub enum AccusationError {
    /// The job's files do not give a graph that can be computed again.
    #[error(transparent)]
    Model(#[from] ExactModelError),
    /// The receipt is for another graph.
    #[error(
        "the receipt is for the graph {receipt}, and the job's model gives {found}: the lease ran \
         a part of it, or the file has changed"
    )]
    OtherGraph {
        /// The graph in the receipt.
        receipt: ContentId,
        /// The graph of the job.
        found: ContentId,
    },
    /// An input of the receipt is not among the job's.
    #[error("the input {0} of the receipt is not among the job's input files")]
    NoInput(ContentId),
    /// The evidence is too large.
    #[error(
        "graph and inputs have {bytes} bytes or more, and validators fetch at most \
         {EVIDENCE_BYTES_MAX}"
    )]
    Large {
        /// Their bytes.
        bytes: u64,
    },
    /// The work is too much.
    #[error(
        "the work is {work} floating-point operations, and validators compute at most \
         {EVIDENCE_WORK_MAX}"
    )]
    Heavy {
        /// The operations of all runs.
        work: u64,
    },
    /// The evidence does not fit the buyer's store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The market refuses the accusation.
    #[error(transparent)]
    Trade(Box<TradeError>),
    /// The market does not answer.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The market has forgotten the dispute.
    #[error("the market no longer knows dispute {0}")]
    Forgotten(DisputeId),
}

impl From<TradeError> for AccusationError {
    fn from(error: TradeError) -> Self {
        Self::Trade(Box::new(error))
    }
}

/// The graph and the inputs of a receipt.
#[derive(Debug)]
pub struct Evidence {
    pub(super) model: ExactModel,
    pub(super) inputs: Vec<(ContentId, Bytes)>,
}

impl Evidence {
    /// Rebuilds the graph of a job that one provider ran as a whole, and takes the inputs that the
    /// receipt names from those of the job.
    ///
    /// # Errors
    /// [`AccusationError`]: before anything is sent or paid.
    pub fn gather(
        job: &Job,
        receipt: &Receipt,
        inputs: impl IntoIterator<Item = Tensor>,
    ) -> Result<Evidence, AccusationError> {
        let model = ExactModel::from_job(job)?;
        let body = &receipt.body;
        let named = ContentId::from_bytes(body.graph.0);
        if model.graph != named {
            let (receipt, found) = (named, model.graph);
            return Err(AccusationError::OtherGraph { receipt, found });
        }
        let mut bytes: u64 = model.contents.iter().map(|(_, it)| it.len() as u64).sum();
        let named = body.inputs.iter();
        let mut wanted: BTreeSet<ContentId> = named.map(|id| ContentId::from_bytes(id.0)).collect();
        let mut found = Vec::new();
        for input in inputs {
            if wanted.is_empty() {
                break;
            }
            let id = input.id();
            if wanted.remove(&id) {
                let input = input.to_blob();
                bytes += input.len() as u64;
                if bytes > EVIDENCE_BYTES_MAX {
                    return Err(AccusationError::Large { bytes });
                }
                found.push((id, input));
            }
        }
        if let Some(id) = wanted.pop_first() {
            return Err(AccusationError::NoInput(id));
        }
        let inputs = found;
        let work = model.flops.saturating_mul(inputs.len() as u64);
        if work > EVIDENCE_WORK_MAX {
            return Err(AccusationError::Heavy { work });
        }
        Ok(Evidence { model, inputs })
    }

    /// Computes the work of a receipt again on this machine, as a validator does, and judges the
    /// outputs that its provider signed. Returns `None` if they are some of the right ones only, on
    /// which validators give no verdict.
    ///
    /// # Errors
    /// [`CheckError`]: then nothing is known about the outputs.
    pub async fn judge_receipt(&self, receipt: &Receipt) -> Result<Option<Verdict>, CheckError> {
        let store = self.model.fill_store(&self.inputs)?;
        let inputs: Vec<ContentId> = self.inputs.iter().map(|(id, _)| *id).collect();
        let signed = receipt.body.outputs.iter();
        let signed = signed.map(|id| ContentId::from_bytes(id.0)).collect();
        let graph = (self.model.graph, &self.model.weights[..]);
        let program = std::env::current_exe()?;
        Ok(judge_work(program, &store, graph, &inputs, &signed).await?)
    }

    /// Returns graph, weights and inputs.
    fn list_contents(&self) -> impl Iterator<Item = &(ContentId, Bytes)> {
        self.model.contents.iter().chain(&self.inputs)
    }
}

impl Buyer {
    /// Opens a dispute over a receipt, and serves the evidence until the dispute is closed. `show`
    /// sees the dispute when it is open and after each new verdict.
    ///
    /// # Errors
    /// [`AccusationError`]: the market refuses, or does not answer.
    pub async fn accuse_provider(
        &self,
        receipt: Receipt,
        evidence: Evidence,
        mut show: impl FnMut(&Dispute),
    ) -> Result<Dispute, AccusationError> {
        let members = self.broker().refresh_validators().await?.validators;
        let members: Vec<Member> = members
            .into_iter()
            .filter(|member| member.standing != Standing::Removed)
            .collect();
        let scope = Scope {
            buyer: self.account(),
            job: receipt.body.job,
        };
        self.serve_evidence(scope, &evidence, &members)?;
        self.keep_all_connected(&members).await;
        let weights = evidence.model.weights.iter();
        let weights = weights.map(|id| souk_market::ContentId(*id.as_bytes()));
        let weights = weights.collect();
        let accuse = Command::Accuse(Box::new(Accusation { receipt, weights }));
        let opened = self.trader().submit_one(accuse).await;
        let decided = match opened {
            Ok(Acceptance::Accused { dispute, .. }) => {
                self.await_verdict(dispute, &members, &mut show).await
            }
            Ok(_) => Err(BrokerError::Confused.into()),
            // An earlier life of this command opened it, and the validators wait for the evidence.
            Err(TradeError::Refused(Refusal::DisputeKnown { dispute, lease }))
                if self.is_open(dispute).await? =>
            {
                tracing::info!(%dispute, %lease, "the dispute is open; serving the evidence again");
                self.await_verdict(dispute, &members, &mut show).await
            }
            Err(error) => Err(error.into()),
        };
        self.tensors().access().end_lease(scope);
        decided
    }

    /// Stores graph and inputs, and lets the validators fetch them.
    fn serve_evidence(
        &self,
        scope: Scope,
        evidence: &Evidence,
        members: &[Member],
    ) -> Result<(), StoreError> {
        let (store, access) = (self.tensors().store(), self.tensors().access());
        for (id, bytes) in evidence.list_contents() {
            store.pin(*id);
            store.put_as(*id, bytes.clone())?;
        }
        let readers: BTreeSet<AccountKey> = members.iter().map(|it| it.account).collect();
        let ids: Vec<ContentId> = evidence.list_contents().map(|(id, _)| *id).collect();
        access.begin_lease(scope);
        access.grant_contents(scope, &Arc::new(readers), &ids);
        Ok(())
    }

    /// Asks every validator again and again until one shows the dispute closed.
    async fn await_verdict(
        &self,
        id: DisputeId,
        members: &[Member],
        show: &mut impl FnMut(&Dispute),
    ) -> Result<Dispute, AccusationError> {
        let (mut shown, mut misses) = (None, 0);
        loop {
            let disputes = match self.broker().fetch_disputes().await {
                Ok(disputes) => disputes,
                // The validators may be electing a leader, and others still fetch the evidence.
                Err(error) if misses < MISSES_MAX => {
                    tracing::debug!(%error, "the disputes are asked for again");
                    misses += 1;
                    tokio::time::sleep(PERIOD).await;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            misses = 0;
            let dispute = disputes.into_iter().find(|dispute| dispute.id == id);
            let dispute = dispute.ok_or(AccusationError::Forgotten(id))?;
            if !dispute.is_open() {
                return Ok(dispute);
            }
            if shown != Some(dispute.verdicts.len()) {
                shown = Some(dispute.verdicts.len());
                show(&dispute);
            }
            self.keep_all_connected(members).await;
            tokio::time::sleep(PERIOD).await;
        }
    }

    async fn is_open(&self, id: DisputeId) -> Result<bool, BrokerError> {
        let disputes = self.broker().fetch_disputes().await?;
        let found = disputes.iter().find(|dispute| dispute.id == id);
        Ok(found.is_some_and(Dispute::is_open))
    }

    async fn keep_all_connected(&self, members: &[Member]) {
        let asked = members.iter().map(|member| self.keep_connected(member));
        futures::future::join_all(asked).await;
    }

    /// Opens a connection to a validator, or uses the one that is there.
    async fn keep_connected(&self, member: &Member) {
        let Ok(peer) = key::peer_of(&member.account.0) else {
            return;
        };
        if let Ok(contact) = Contact::parse(&member.address) {
            let _known = self.network.add_contact(&contact).await;
        }
        // One that is down or slow judges later, or not at all.
        let asked = self.broker().ask_one(peer, &Request::Time);
        if let Ok(Err(error)) = tokio::time::timeout(PERIOD, asked).await {
            tracing::debug!(%peer, %error, "a validator cannot be reached now");
        }
    }
}
