//! `/v1/jobs`: lists the jobs of this folder, from the gateway and the command line, submits jobs,
//! shows their state, and resumes or cancels them.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use serde_json::Value;
use souk_api::event::JobEventView;
use souk_node::buyer::job_files::{JobFiles, TimedEvent};
use souk_node::buyer::journal::JobState;
use souk_node::buyer::lease_cancellation::end_leases;
use souk_node::buyer::{Journal, names};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::extract::{Body, Parameters};
use crate::job_runner::{self, JobRequest};
use crate::job_view::{self, JobDetail, JobView};
use crate::keys;
use crate::page::{Page, Paging};
use crate::problem::{Code, Problem};
use crate::state::SharedState;

pub fn router() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(list, submit))
        .routes(routes!(job, cancel))
        .routes(routes!(resume))
        .routes(routes!(plan))
        .routes(routes!(events))
        .routes(routes!(timeline))
        .routes(routes!(trace))
        .routes(routes!(receipts))
}

/// All jobs, the newest first.
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", params(Paging),
    responses((status = 200, body = Page<JobView>)), security(("token" = ["read"])))]
async fn list(
    State(state): State<SharedState>,
    Parameters(paging): Parameters<Paging>,
) -> Result<Page<JobView>, Problem> {
    let parse = |text: &str| {
        let (begun, id) = text.split_once('.')?;
        Some((std::cmp::Reverse(begun.parse::<u64>().ok()?), id.to_owned()))
    };
    let key = |job: &JobView| (std::cmp::Reverse(job.begun_ms), job.id.clone());
    let write = |(begun, id): &(std::cmp::Reverse<u64>, String)| format!("{}.{id}", begun.0);
    Page::from_entries(job_view::all_jobs(&state), key, &paging, parse, write)
}

/// Submit a job: the gateway buys leases, runs the job and pays. If the key was used before, the
/// answer is the job that was begun then.
#[utoipa::path(post, path = "/v1/jobs", tag = "jobs", request_body = JobRequest,
    params(("Idempotency-Key" = String, Header, description = "One for each job",
            min_length = 1, max_length = 255, pattern = "^[!-~]+$")),
    responses((status = 202, body = JobView)), security(("token" = ["trade"])))]
async fn submit(
    State(state): State<SharedState>,
    headers: HeaderMap,
    Body(asked): Body<JobRequest>,
) -> Result<(StatusCode, Json<JobView>), Problem> {
    let name = job_runner::submit_job(&state, keys::idempotency_key(&headers)?, &asked).await?;
    Ok((
        StatusCode::ACCEPTED,
        Json(job_view::find_job(&state, &name)?),
    ))
}

/// One job, with its leases and outputs.
#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs",
    params(("id" = String, Path, description = "Its id, or the beginning of it")),
    responses((status = 200, body = JobDetail)), security(("token" = ["read"])))]
async fn job(
    State(state): State<SharedState>,
    Path(id): Path<String>,
) -> Result<Json<JobDetail>, Problem> {
    let name = job_view::full_name(&state, &id)?;
    job_view::job_detail(&state, &name).await.map(Json)
}

/// Cancel a job: the gateway ends its leases and pays for the used time; the rest of the escrow
/// returns.
#[utoipa::path(delete, path = "/v1/jobs/{id}", tag = "jobs",
    params(("id" = String, Path, description = "Its id, or the beginning of it")),
    responses((status = 202, body = JobView)), security(("token" = ["trade"])))]
async fn cancel(
    State(state): State<SharedState>,
    Path(id): Path<String>,
) -> Result<(StatusCode, Json<JobView>), Problem> {
    let name = job_view::full_name(&state, &id)?;
    let folder = state.jobs_folder();
    if !state.running.cancel_job(&name) && !job_runner::cancel_unbegun(&state, &name)? {
        let record = Journal::read(&folder, &name)?;
        if record.state == JobState::Done {
            let detail = format!("job {name} is done: there is nothing to end");
            return Err(Problem::new(
                Code::State,
                detail,
                "its outputs are there: fetch them",
            ));
        }
        if Journal::is_busy(&folder, &name) {
            JobFiles::new(&folder, &name).request_cancel()?;
        } else {
            end_leases(state.buyer.trader(), &record.ids).await?;
            if record.state == JobState::Running {
                Journal::open_by_name(&folder, &name)?.record_cancel()?;
            }
        }
    }
    Ok((
        StatusCode::ACCEPTED,
        Json(job_view::find_job(&state, &name)?),
    ))
}

/// Resume a job that was interrupted, failed, or whose process has ended.
#[utoipa::path(post, path = "/v1/jobs/{id}/resume", tag = "jobs",
    params(("id" = String, Path, description = "Its id, or the beginning of it")),
    responses((status = 202, body = JobView)), security(("token" = ["trade"])))]
async fn resume(
    State(state): State<SharedState>,
    Path(id): Path<String>,
) -> Result<(StatusCode, Json<JobView>), Problem> {
    let name = job_view::full_name(&state, &id)?;
    job_runner::resume_job(&state, &name).await?;
    Ok((
        StatusCode::ACCEPTED,
        Json(job_view::find_job(&state, &name)?),
    ))
}

/// The plan that a job began with, as `souk plan --json` prints it.
#[utoipa::path(get, path = "/v1/jobs/{id}/plan", tag = "jobs",
    params(("id" = String, Path, description = "Its id, or the beginning of it")),
    responses((status = 200, body = Object)), security(("token" = ["read"])))]
async fn plan(
    State(state): State<SharedState>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    let (name, files) = job_files(&state, &id)?;
    let kept = files.read_plan().ok_or_else(|| {
        let detail = format!("the plan of job {name} is not kept");
        Problem::not_found(detail, "an older souk submitted it")
    })?;
    Ok(Json(kept.plan))
}

/// The events of a job, the oldest first.
#[utoipa::path(get, path = "/v1/jobs/{id}/events", tag = "jobs",
    params(("id" = String, Path, description = "Its id, or the beginning of it"), Paging),
    responses((status = 200, body = Page<JobEventView>)), security(("token" = ["read"])))]
async fn events(
    State(state): State<SharedState>,
    Path(id): Path<String>,
    Parameters(paging): Parameters<Paging>,
) -> Result<Page<JobEventView>, Problem> {
    let (_, files) = job_files(&state, &id)?;
    let parse = |text: &str| text.parse().ok();
    let events: Vec<(usize, TimedEvent)> = files.read_events().into_iter().enumerate().collect();
    let number = |(number, _): &(usize, TimedEvent)| *number;
    let page = Page::from_entries(events, number, &paging, parse, usize::to_string)?;
    let items = page.items.iter();
    Ok(Page {
        items: items
            .map(|(number, happened)| happened.describe(*number))
            .collect(),
        next: page.next,
    })
}

/// The timeline of a job: spans of time by device and lane.
#[utoipa::path(get, path = "/v1/jobs/{id}/timeline", tag = "jobs",
    params(("id" = String, Path, description = "Its id, or the beginning of it")),
    responses((status = 200, body = Object)), security(("token" = ["read"])))]
async fn timeline(
    State(state): State<SharedState>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    let timeline = whole_timeline(&state, &id)?;
    serde_json::to_value(timeline)
        .map(Json)
        .map_err(Problem::unexpected_failure)
}

/// The timeline in the format of <https://ui.perfetto.dev>.
#[utoipa::path(get, path = "/v1/jobs/{id}/trace", tag = "jobs",
    params(("id" = String, Path, description = "Its id, or the beginning of it")),
    responses((status = 200, body = Object)), security(("token" = ["read"])))]
async fn trace(
    State(state): State<SharedState>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    let trace = whole_timeline(&state, &id)?.to_trace_json();
    serde_json::from_str(&trace)
        .map(Json)
        .map_err(Problem::unexpected_failure)
}

/// The receipts of a job, each signed by both sides.
#[utoipa::path(get, path = "/v1/jobs/{id}/receipts", tag = "jobs",
    params(("id" = String, Path, description = "Its id, or the beginning of it")),
    responses((status = 200, body = Vec<Object>)), security(("token" = ["read"])))]
async fn receipts(
    State(state): State<SharedState>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    let (_, files) = job_files(&state, &id)?;
    serde_json::to_value(files.read_receipts())
        .map(Json)
        .map_err(Problem::unexpected_failure)
}

fn job_files(state: &SharedState, id: &str) -> Result<(String, JobFiles), Problem> {
    let name = job_view::full_name(state, id)?;
    let files = JobFiles::new(&state.jobs_folder(), &name);
    Ok((name, files))
}

fn whole_timeline(
    state: &SharedState,
    id: &str,
) -> Result<souk_node::scheduler::execution::timeline::Timeline, Problem> {
    let (name, files) = job_files(state, id)?;
    let mut called = files.read_plan().unwrap_or_default().names;
    if let Ok(record) = Journal::read(&state.jobs_folder(), &name) {
        called.extend(names::provider_names(&record.providers));
    }
    Ok(files.whole_timeline(&called))
}
