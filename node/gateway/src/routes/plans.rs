//! `/v1/plans`: plans a job and answers where it would run, for how long and at which price. No
//! money moves.

use axum::Json;
use axum::extract::{Path, State};
use serde_json::Value;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::extract::Body;
use crate::job_body::JobBody;
use crate::planning;
use crate::problem::Problem;
use crate::state::SharedState;

pub fn router() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(plan))
        .routes(routes!(shown))
}

/// Plan a job over the book as it stands. The answer is what `souk plan --json` prints.
#[utoipa::path(post, path = "/v1/plans", tag = "jobs", request_body = JobBody,
    responses((status = 200, body = Object)), security(("token" = ["read"])))]
async fn plan(
    State(state): State<SharedState>,
    Body(body): Body<JobBody>,
) -> Result<Json<Value>, Problem> {
    planning::plan_job(&state, body).await.map(Json)
}

/// A plan that was made lately.
#[utoipa::path(get, path = "/v1/plans/{hash}", tag = "jobs",
    params(("hash" = String, Path, description = "The plan's hash")),
    responses((status = 200, body = Object)), security(("token" = ["read"])))]
async fn shown(
    State(state): State<SharedState>,
    Path(hash): Path<String>,
) -> Result<Json<Value>, Problem> {
    let made = state.plans.get(&hash);
    let made = made.ok_or_else(|| {
        let detail = format!("no plan {hash} was made here lately");
        Problem::not_found(detail, "make one by POST /v1/plans")
    })?;
    Ok(Json(made.plan))
}
