//! `/v1/jobs/{id}/graph` and `/v1/jobs/{id}/explain`: the parts of a job and the tensors between
//! them, and why the job went as it did: which offers its plan ruled out, and which failures it
//! met.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use souk_node::buyer::job_files::JobFiles;
use souk_node::buyer::{Journal, explanation};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::job_view;
use crate::problem::Problem;
use crate::state::SharedState;

pub fn router() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(graph))
        .routes(routes!(explain))
}

/// A job's parts, and the tensors between them, as its plan has them.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
struct GraphView {
    parts: Vec<GraphPart>,
    /// Empty where an older souk submitted the job.
    #[serde(default)]
    edges: Vec<GraphEdge>,
}

/// A part: what one provider runs at once.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
struct GraphPart {
    /// Its number, from 1.
    part: u64,
    /// Operations in it.
    nodes: u64,
    /// How many there are of each operator.
    #[serde(default)]
    operators: BTreeMap<String, u64>,
    flops: u64,
    /// Who runs it by the plan.
    provider: String,
    #[serde(default)]
    provider_name: String,
    device: String,
    emulated: bool,
    /// When it runs by the plan, in seconds from the job's begin.
    start_seconds: f64,
    finish_seconds: f64,
    /// What it costs by the plan.
    micro_credits: u64,
    /// Whether the plan's time is that of this part.
    critical: bool,
}

/// A tensor on its way.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
struct GraphEdge {
    /// The part that makes it; null for an input of the job.
    from: Option<u64>,
    /// The part that reads it; null for an output of the job.
    to: Option<u64>,
    tensor: String,
    /// Null where that is known only when the job runs.
    bytes: Option<u64>,
}

/// The parts of a job, who runs each, and the tensors between them, as the plan that it began with
/// has them.
#[utoipa::path(get, path = "/v1/jobs/{id}/graph", tag = "jobs",
    params(("id" = String, Path, description = "Its id, or the beginning of it")),
    responses((status = 200, body = GraphView)), security(("token" = ["read"])))]
async fn graph(
    State(state): State<SharedState>,
    Path(id): Path<String>,
) -> Result<Json<GraphView>, Problem> {
    let name = job_view::full_name(&state, &id)?;
    let kept = JobFiles::new(&state.jobs_folder(), &name)
        .read_plan()
        .ok_or_else(|| {
            let detail = format!("the plan of job {name} is not kept");
            Problem::not_found(detail, "an older souk submitted it")
        })?;
    serde_json::from_value(kept.plan)
        .map(Json)
        .map_err(Problem::unexpected_failure)
}

/// Why a job went as it did: its plan with what ruled offers out, and what went wrong. It is what
/// `souk job explain --json` prints.
#[utoipa::path(get, path = "/v1/jobs/{id}/explain", tag = "jobs",
    params(("id" = String, Path, description = "Its id, or the beginning of it")),
    responses((status = 200, body = Object)), security(("token" = ["read"])))]
async fn explain(
    State(state): State<SharedState>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    let name = job_view::full_name(&state, &id)?;
    let record = Journal::read(&state.jobs_folder(), &name)?;
    let files = JobFiles::new(&state.jobs_folder(), &record.name);
    Ok(Json(explanation::to_json(&record, &files)))
}
