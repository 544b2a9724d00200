//! Computes a buyer's exact job again on the buyer's own machine, to find a provider that lied. The
//! command line does so for `souk dispute check` and for `souk submit --audit`.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use souk_folder::key::NodeKey;
use souk_market::Permille;
use souk_memory::{ContentId, Store, StoreError, Tensor};
use souk_roles::train::AuditSpec;
use souk_sandbox::{JudgingFault, compute_outputs};
use souk_scheduler::graph::cut::{self, CutError};

use super::job::Job;
use super::quote;
use super::quote_error::QuoteError;

/// The graph and the weights of a job that one provider runs as a whole.
#[derive(Debug)]
pub struct ExactModel {
    pub(super) graph: ContentId,
    /// The name of its only input.
    input: String,
    pub(super) weights: Vec<ContentId>,
    /// The graph and the weights.
    pub(super) contents: Vec<(ContentId, Bytes)>,
    /// The floating-point operations of one run.
    pub(super) flops: u64,
}

/// Why a job's work cannot be computed again.
#[derive(Debug, thiserror::Error)]
pub enum ExactModelError {
    /// The job's files do not give a graph.
    #[error(transparent)]
    Quote(#[from] QuoteError),
    /// The graph does not form one part.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// The graph has several inputs, whose order no receipt states.
    #[error("the model has {0} inputs: exact work is judged for models with one")]
    Inputs(usize),
    /// The file of a weight cannot be read.
    #[error("the weight {0} of the model cannot be read")]
    NoWeight(ContentId),
}

/// Why a job cannot be computed on this machine.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The contents do not fit the memory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The sandbox or a run failed.
    #[error(transparent)]
    Judging(#[from] JudgingFault),
    /// The path of this program is unknown.
    #[error("this program cannot be started again as a sandbox: {0}")]
    Program(#[from] std::io::Error),
}

impl ExactModel {
    /// Rebuilds the graph of a job.
    ///
    /// # Errors
    /// [`ExactModelError`]: the job's files do not give one graph with one input.
    pub fn from_job(job: &Job) -> Result<ExactModel, ExactModelError> {
        let graph = quote::import_checked_graph(job)?;
        let flops = graph.nodes().iter().map(|node| node.cost.flops);
        let flops = flops.fold(0_u64, u64::saturating_add);
        let part = cut::whole_graph(&graph)?;
        if part.inputs.len() != 1 {
            return Err(ExactModelError::Inputs(part.inputs.len()));
        }
        let mut contents = vec![(part.id, part.model.clone())];
        let weights: Vec<ContentId> = part.weights.iter().map(|it| it.id).collect();
        for (id, weight) in cut::content_weights(&graph).filter(|(id, _)| weights.contains(id)) {
            let bytes = weight.read().ok_or(ExactModelError::NoWeight(id))?;
            contents.push((id, bytes));
        }
        Ok(ExactModel {
            graph: part.id,
            input: part.inputs[0].name.clone(),
            weights,
            contents,
            flops,
        })
    }

    /// Returns the name of its only input.
    #[must_use]
    pub fn input(&self) -> &str {
        &self.input
    }

    /// Computes one request on the exact kernels of this machine, in a sandbox, and returns the ids
    /// of its outputs.
    ///
    /// # Errors
    /// [`CheckError`]: then nothing is known about the outputs.
    pub async fn compute_request(&self, input: &Tensor) -> Result<BTreeSet<ContentId>, CheckError> {
        let inputs = [(input.id(), input.to_blob())];
        let store = self.fill_store(&inputs)?;
        let graph = (self.graph, &self.weights[..]);
        let program = std::env::current_exe()?;
        Ok(compute_outputs(program, &store, graph, &[input.id()]).await?)
    }

    /// Returns a store in memory with the model and these inputs.
    pub(super) fn fill_store(
        &self,
        inputs: &[(ContentId, Bytes)],
    ) -> Result<Arc<Store>, StoreError> {
        let all = self.contents.iter().chain(inputs);
        let bytes = all.clone().map(|(_, it)| it.len() as u64).sum();
        let store = Arc::new(Store::in_memory(bytes));
        for (id, bytes) in all {
            store.pin(*id);
            store.put_as(*id, bytes.clone())?;
        }
        Ok(store)
    }
}

/// Returns a draw that audits this share of a job's requests. Its secret is new, so nobody can know
/// which requests it draws.
#[must_use]
pub fn draw_audits(share: Permille) -> AuditSpec {
    AuditSpec {
        share,
        // The public half of a key that no one sees is as unknown as any secret.
        secret: NodeKey::generate().public_key(),
    }
}
