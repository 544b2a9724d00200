//! Computes a disputed graph again, on the exact kernels in a sandbox, for a validator that judges.
//!
//! The graph and its inputs are strangers', so they are decoded behind the same walls as a lease's,
//! with bounds on memory, time and outputs. A run that fails in any way gives no outputs, and the
//! validator then gives no verdict.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use souk_folder::config::DeviceChoice;
use souk_memory::{ContentId, Store, Tensor};
use souk_scheduler::execution::Task;
use souk_scheduler::planning::Objective;
use souk_vocabulary::catalogue;
use tokio::time::timeout;

use crate::device::costs::DeviceCosts;
use crate::shared_content::SharedContents;
use crate::{ControlGroups, JudgingFault, Recipe, Sandbox, SandboxRun};

/// Bytes of memory that the work can use.
const MEMORY_BYTES: u64 = 1 << 30;

/// The most bytes of outputs in one run.
const OUTPUTS_BYTES: u64 = 128 << 20;

/// How long all runs of a dispute can take, also in time of the processor.
const TIME_MAX: Duration = Duration::from_secs(60);

/// The processor whose profile the device states: its figures have no effect on results, and a
/// measurement would take seconds.
const PROFILE: &str = "amd-epyc-9654";

/// Runs a graph, given with the weights that it names, once for each of its inputs, and returns the
/// ids of all outputs. `program` is this program, which becomes the sandbox. The store must have
/// the contents, and the graph one input.
///
/// # Errors
/// [`JudgingFault`]: then nothing is known about the outputs.
pub async fn compute_outputs(
    program: PathBuf,
    store: &Arc<Store>,
    graph: (ContentId, &[ContentId]),
    inputs: &[ContentId],
) -> Result<BTreeSet<ContentId>, JudgingFault> {
    let computing = compute_each(program, store, graph, inputs);
    timeout(TIME_MAX, computing)
        .await
        .unwrap_or(Err(JudgingFault::Late))
}

async fn compute_each(
    program: PathBuf,
    store: &Arc<Store>,
    graph: (ContentId, &[ContentId]),
    inputs: &[ContentId],
) -> Result<BTreeSet<ContentId>, JudgingFault> {
    let profile = catalogue::find_processor(PROFILE).expect("it is in the catalogue");
    let recipe = Recipe {
        program,
        device: DeviceChoice::Exact { threads: 1 },
        cores: Some(1),
        label: "judge".to_owned(),
        profiles: Some(vec![profile.clone()]),
        seen: DeviceCosts::forgetful(),
        objective: Objective::Fastest,
        library: None,
        memory_bytes: MEMORY_BYTES,
        outputs_bytes: OUTPUTS_BYTES,
        groups: Arc::new(ControlGroups::open_tree()),
    };
    let sandbox = Sandbox::start(&recipe).await?;
    if let Err(error) = sandbox.limit_cpu(TIME_MAX) {
        tracing::warn!(%error, "the processor's time of a dispute's work could not be limited");
    }
    let shared = Arc::<SharedContents>::default();
    let (graph, weights) = graph;
    sandbox
        .prepare_model(store, &shared, graph, weights)
        .await?;
    let mut made = BTreeSet::new();
    for id in inputs {
        let input = store.get_tensor(id).ok().flatten();
        let input: Tensor = input.ok_or(JudgingFault::Missing { id: *id })?;
        let task = Task {
            name: "judged".to_owned(),
            model: graph,
            sequence: 0,
            // The sandbox, which decodes the graph, knows the name of its only input.
            inputs: [(crate::ONLY_INPUT.to_owned(), input)].into(),
        };
        let (ran, _) = sandbox.run(SandboxRun::by_itself(task)).await?;
        made.extend(ran.outputs.values().map(Tensor::id));
    }
    Ok(made)
}
