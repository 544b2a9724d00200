//! `/v1/receipts`: returns and verifies receipts for work and payment, with the signatures of both
//! sides.

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use serde_json::Value;
use souk_node::buyer::Journal;
use souk_node::buyer::job_files::JobFiles;
use souk_node::market::Receipt;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::extract::Body;
use crate::problem::Problem;
use crate::state::SharedState;

pub fn router() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(verify))
        .routes(routes!(receipt))
}

/// The result of a verification.
#[derive(Debug, Serialize, ToSchema)]
struct Verdict {
    /// Whether its arithmetic and both signatures hold.
    valid: bool,
    /// The fault, if it is not valid.
    fault: Option<String>,
}

/// Check arithmetic and both signatures of a receipt, as `souk receipt verify` does.
#[utoipa::path(post, path = "/v1/receipts/verify", tag = "receipts",
    request_body(content = Object, description = "A receipt, as `souk submit` writes it"),
    responses((status = 200, body = Verdict)), security(("token" = ["read"])))]
async fn verify(Body(receipt): Body<Receipt>) -> Json<Verdict> {
    let fault = receipt.verify().err().map(|fault| fault.to_string());
    Json(Verdict {
        valid: fault.is_none(),
        fault,
    })
}

/// The receipt of a lease that a job of this account bought.
#[utoipa::path(get, path = "/v1/receipts/{lease}", tag = "receipts",
    params(("lease" = u64, Path, description = "The lease's number")),
    responses((status = 200, body = Object)), security(("token" = ["read"])))]
async fn receipt(
    State(state): State<SharedState>,
    Path(lease): Path<String>,
) -> Result<Json<Value>, Problem> {
    let number: u64 = lease
        .parse()
        .map_err(|_| Problem::malformed_input(format!("{lease} is no lease's number")))?;
    let jobs = state.jobs_folder();
    let is_it = |receipt: &Receipt| receipt.body.lease.0 == number;
    let records = Journal::list_records(&jobs);
    let job = records
        .iter()
        .find(|record| record.receipts.iter().any(is_it));
    // The record has the receipts with the providers' signatures; the files have both signatures.
    let receipts = job.map(|record| JobFiles::new(&jobs, &record.name).read_receipts());
    let found = receipts.into_iter().flatten().find(is_it);
    let found = found.ok_or_else(|| {
        let detail = format!("no job of this account has a receipt for lease {number}");
        Problem::not_found(detail, "/v1/jobs/{id}/receipts has those of a job")
    })?;
    serde_json::to_value(found)
        .map(Json)
        .map_err(Problem::unexpected_failure)
}
