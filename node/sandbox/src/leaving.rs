//! Measures for the lab's benchmarks how soon a sandbox's cores are free after the provider drops
//! its run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Serialize;
use souk_folder::config::DeviceChoice;
use souk_memory::{ContentId, Store, Tensor};
use souk_scheduler::execution::Task;
use souk_scheduler::planning::Objective;

use super::shared_content::SharedContents;
use super::{ControlGroups, Recipe, Sandbox, SandboxFault, SandboxRun};
use crate::device::costs::DeviceCosts;

/// The memory limit of a job.
const MEMORY_BYTES: u64 = 4 << 30;

/// The setup of a measurement.
pub struct ReleaseSetup<'a> {
    /// The path of this program (see [`Recipe::program`]).
    pub program: PathBuf,
    /// The folder of the learned costs with which the sandboxes will begin; it can be empty.
    pub home: &'a Path,
    /// Threads of the CPU; 0 for all.
    pub threads: u32,
    /// A model with its weights.
    pub model: Bytes,
    /// The model's inputs by name.
    pub inputs: BTreeMap<String, Tensor>,
    /// The number of sandboxes, started one after the other.
    pub rounds: usize,
}

/// How soon processes ended.
#[derive(Clone, Debug, Serialize)]
pub struct ReleaseTimes {
    /// Runs that were dropped, at moments spread evenly over a run; those that ended before do not
    /// count.
    pub runs: usize,
    /// Milliseconds from the drop to the end of the process: the median, the 99th percentile, the
    /// longest.
    pub freed_ms: [f64; 3],
}

/// Starts sandboxes and ends each in the middle of a run.
///
/// # Errors
/// [`SandboxFault`].
pub async fn measure_release(setting: ReleaseSetup<'_>) -> Result<ReleaseTimes, SandboxFault> {
    let mut recipe = Recipe {
        program: setting.program,
        device: DeviceChoice::Cpu {
            threads: setting.threads,
        },
        cores: None,
        label: "device".to_owned(),
        profiles: None,
        seen: DeviceCosts::load_or_default(setting.home),
        objective: Objective::Fastest,
        library: None,
        outputs_bytes: MEMORY_BYTES,
        memory_bytes: MEMORY_BYTES,
        groups: Arc::new(ControlGroups::open_tree()),
    };
    let store = Arc::new(Store::in_memory(MEMORY_BYTES));
    let (model, shared) = (store.put(setting.model)?, Arc::<SharedContents>::default());
    let task = Task {
        name: "run".to_owned(),
        model,
        sequence: 0,
        inputs: setting.inputs,
    };
    let first = start_sandbox(&recipe, &store, &shared, model).await?;
    recipe.profiles = Some(first.profiles()?);
    // The first run does the setup that later ones reuse.
    let run = || SandboxRun::by_itself(task.clone());
    first.run(run()).await?;
    let began = Instant::now();
    first.run(run()).await?;
    let typical = began.elapsed();
    drop(first);
    let mut waits = Vec::with_capacity(setting.rounds);
    for round in 0..setting.rounds {
        let sandbox = start_sandbox(&recipe, &store, &shared, model).await?;
        sandbox.run(run()).await?;
        let at = typical.mul_f64((round as f64 + 0.5) / setting.rounds as f64);
        let ran = tokio::time::timeout(at, sandbox.run(run())).await;
        if ran.is_ok() {
            continue;
        }
        let told = Instant::now();
        sandbox.kill_process().await.map_err(SandboxFault::Start)?;
        waits.push(told.elapsed());
    }
    waits.sort_unstable();
    Ok(ReleaseTimes {
        runs: waits.len(),
        freed_ms: [0.5, 0.99, 1.0].map(|part| ms_at(&waits, part)),
    })
}

async fn start_sandbox(
    recipe: &Recipe,
    store: &Arc<Store>,
    shared: &Arc<SharedContents>,
    model: ContentId,
) -> Result<Sandbox, SandboxFault> {
    let sandbox = Sandbox::start(recipe).await?;
    sandbox.prepare_model(store, shared, model, &[]).await?;
    Ok(sandbox)
}

/// Returns the wait at a quantile of sorted waits, in milliseconds.
fn ms_at(waits: &[Duration], part: f64) -> f64 {
    let place = (waits.len() as f64 * part) as usize;
    let wait = waits.get(place.min(waits.len().saturating_sub(1)));
    wait.map_or(0.0, |wait| wait.as_secs_f64() * 1e3)
}
