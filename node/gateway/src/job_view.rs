//! Finds the jobs of the gateway's folder and builds their JSON for the API: a job's state, and in
//! detail its leases and outputs.

use serde::Serialize;
use souk_api::lease::LeaseView;
use souk_api::time::format_rfc3339;
use souk_node::buyer::Journal;
use souk_node::buyer::JournalError;
use souk_node::buyer::journal::{JobState, Record};
use souk_node::buyer::names;
use utoipa::ToSchema;

use crate::job_folder::{JobFolder, StoredRequest};
use crate::output_view::OutputView;
use crate::problem::Problem;
use crate::state::{SharedState, State};

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The gateway accepted it and has bought nothing for it yet.
    Accepted,
    /// A process runs it.
    Running,
    /// The process that ran it has ended: you can resume or cancel it.
    Abandoned,
    /// It is complete, and its outputs are available.
    Done,
    /// It was stopped; you can resume it.
    Interrupted,
    /// It ended without its outputs; you can resume it.
    Failed,
    /// The gateway accepted it but did not begin it: submit it again under another key.
    Refused,
}

/// A job.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct JobView {
    /// The id of the job.
    pub id: String,
    pub state: Standing,
    /// Why it failed, as a word that never changes its meaning.
    reason: Option<String>,
    /// Why it failed, in a sentence.
    cause: Option<String>,
    /// RFC 3339.
    begun_at: String,
    #[serde(skip)]
    pub begun_ms: u64,
    /// The content that is the model, or the path of its file.
    model: String,
    /// Requests that are answered.
    requests_answered: usize,
    /// How often leases were bought for it.
    attempts: usize,
    /// The sum of its receipts so far, in micro-credits.
    paid: u64,
    /// The providers that it bought from.
    providers: Vec<String>,
    /// Whether this gateway runs it.
    runs_here: bool,
}

/// A job with its leases and outputs.
#[derive(Debug, Serialize, ToSchema)]
pub struct JobDetail {
    #[serde(flatten)]
    job: JobView,
    /// What its leases have cost, in micro-credits.
    spent: u64,
    /// What its leases still hold in escrow, in micro-credits.
    escrow: u64,
    leases: Vec<LeaseView>,
    outputs: Vec<OutputView>,
}

/// Returns a job by its full name.
///
/// # Errors
/// Fails if the job does not exist.
pub fn find_job(state: &State, name: &str) -> Result<JobView, Problem> {
    let folder = JobFolder::new(&state.jobs_folder(), name);
    match (
        Journal::read(&state.jobs_folder(), name),
        folder.read_request(),
    ) {
        (Ok(record), request) => Ok(of_record(state, &record, request)),
        (Err(JournalError::Unknown { .. }), Some(request)) => {
            Ok(describe_accepted(state, name, &folder, &request))
        }
        (Err(error), _) => Err(error.into()),
    }
}

/// Returns the full name of a job from the beginning of its name.
///
/// # Errors
/// Fails if no job, or more than one, begins so.
pub fn full_name(state: &State, begins: &str) -> Result<String, Problem> {
    let is_plain = !begins.is_empty() && begins.bytes().all(|byte| byte.is_ascii_hexdigit());
    let unknown = || {
        let detail = format!("there is no job \"{begins}\"");
        Problem::not_found(detail, "/v1/jobs lists them")
    };
    if !is_plain {
        return Err(unknown());
    }
    if JobFolder::new(&state.jobs_folder(), begins)
        .read_request()
        .is_some()
    {
        return Ok(begins.to_owned());
    }
    Ok(Journal::read(&state.jobs_folder(), begins)
        .map_err(|_| unknown())?
        .name)
}

/// Returns all jobs of a folder, including those that have bought nothing yet.
pub fn all_jobs(state: &State) -> Vec<JobView> {
    let entries = std::fs::read_dir(state.jobs_folder())
        .into_iter()
        .flatten()
        .flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    // This skips entries that cannot be read.
    names
        .filter_map(|name| find_job(state, &name).ok())
        .collect()
}

fn of_record(state: &State, record: &Record, request: Option<StoredRequest>) -> JobView {
    let name = &record.name;
    let (standing, reason, cause) = match &record.state {
        JobState::Done => (Standing::Done, None, None),
        JobState::Interrupted => (Standing::Interrupted, None, None),
        JobState::Failed { reason, cause } => {
            (Standing::Failed, Some(reason.clone()), Some(cause.clone()))
        }
        JobState::Running if Journal::is_busy(&state.jobs_folder(), name) => {
            (Standing::Running, None, None)
        }
        JobState::Running => (Standing::Abandoned, None, None),
    };
    let path = &record.command["job"]["model"];
    let model = request.map(|request| request.job.model);
    JobView {
        id: name.clone(),
        state: standing,
        reason,
        cause,
        begun_at: format_rfc3339(record.begun_ms),
        begun_ms: record.begun_ms,
        model: model.unwrap_or_else(|| path.as_str().unwrap_or_default().to_owned()),
        requests_answered: record.requests_answered,
        attempts: record.attempts.len(),
        paid: record
            .receipts
            .iter()
            .map(|receipt| receipt.body.amount.0)
            .sum(),
        providers: names::provider_names(&record.providers)
            .into_values()
            .collect(),
        // Its task ends a moment after the job itself.
        runs_here: standing == Standing::Running && state.running.is_running(name),
    }
}

/// Describes a job that has bought nothing yet.
fn describe_accepted(
    state: &State,
    name: &str,
    folder: &JobFolder,
    request: &StoredRequest,
) -> JobView {
    let refused = folder.read_refusal();
    let standing = match refused {
        Some(_) => Standing::Refused,
        None if state.running.is_running(name) => Standing::Accepted,
        None => Standing::Abandoned,
    };
    let (reason, cause) = refused.map(|why| (why.code, why.cause)).unzip();
    JobView {
        id: name.to_owned(),
        state: standing,
        reason,
        cause,
        begun_at: format_rfc3339(request.at_ms),
        begun_ms: request.at_ms,
        model: request.job.model.clone(),
        requests_answered: 0,
        attempts: 0,
        paid: 0,
        providers: Vec::new(),
        runs_here: state.running.is_running(name),
    }
}

/// Returns a job with its outputs and the market's records of its leases.
///
/// # Errors
/// Fails if the job does not exist or the market is unreachable.
pub async fn job_detail(state: &SharedState, name: &str) -> Result<JobDetail, Problem> {
    let job = find_job(state, name)?;
    let leases = match Journal::read(&state.jobs_folder(), name) {
        Ok(record) => {
            let broker = state.buyer.broker();
            broker
                .job_leases(state.buyer.account(), &record.ids)
                .await?
        }
        Err(_) => Vec::new(),
    };
    Ok(JobDetail {
        spent: leases.iter().map(|lease| lease.cost.0).sum(),
        escrow: leases.iter().map(|lease| lease.escrow.0).sum(),
        leases: leases.iter().map(LeaseView::from).collect(),
        outputs: match job.state {
            Standing::Done => job_outputs(state, name).await?,
            _ => Vec::new(),
        },
        job,
    })
}

/// Returns the outputs of a job that came through a gateway.
///
/// # Errors
/// Fails if they must be read for that, and no turn comes.
pub async fn job_outputs(state: &SharedState, name: &str) -> Result<Vec<OutputView>, Problem> {
    let folder = JobFolder::new(&state.jobs_folder(), name);
    if let Some(views) = state.outputs.known_views(&folder) {
        return Ok(views);
    }
    let own = state.clone();
    let reading = async move { Ok(own.outputs.read_views(&folder)) };
    state.reader_turns.run_in_turn(reading).await
}
