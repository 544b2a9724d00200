//! `/v1/leases`: lists the leases that the gateway's account bought or sold, shows any lease, and
//! extends or ends leases that the account bought.

use axum::Json;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use souk_api::lease::{ClosedLeaseView, LeaseView};
use souk_node::market::{Command, LeaseId, Millis};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::closed_leases;
use crate::extract::{Body, Parameters};
use crate::page::{Page, Paging};
use crate::problem::Problem;
use crate::state::{SharedState, State as Gateway};

pub fn router() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(open))
        .routes(routes!(closed))
        .routes(routes!(one))
        .routes(routes!(end))
        .routes(routes!(extend))
}

/// Leases of the gateway's account that are not closed, bought and sold, the oldest first.
#[utoipa::path(get, path = "/v1/leases", tag = "leases", params(Paging),
    responses((status = 200, body = Page<LeaseView>)), security(("token" = ["read"])))]
async fn open(
    State(state): State<SharedState>,
    Parameters(paging): Parameters<Paging>,
) -> Result<Page<LeaseView>, Problem> {
    let leases = state
        .buyer
        .broker()
        .fetch_leases(state.buyer.account())
        .await?;
    let all = leases.iter().map(LeaseView::from).collect();
    let parse = |text: &str| text.parse().ok();
    Page::from_entries(all, LeaseView::number, &paging, parse, u64::to_string)
}

/// Leases of the gateway's account that were closed, bought and sold, the newest first.
#[utoipa::path(get, path = "/v1/leases/closed", tag = "leases", params(Paging),
    responses((status = 200, body = Page<ClosedLeaseView>)), security(("token" = ["read"])))]
async fn closed(
    State(state): State<SharedState>,
    Parameters(paging): Parameters<Paging>,
) -> Result<Page<ClosedLeaseView>, Problem> {
    let broker = state.buyer.broker();
    let page = closed_leases::fetch_page(broker, state.buyer.account(), &paging).await?;
    let known = closed_leases::fetch_leases(broker, &page.items).await?;
    let views = page.items.iter().zip(&known);
    let views = views.map(|(closing, lease)| ClosedLeaseView::new(closing, lease.as_ref()));
    Ok(Page {
        items: views.collect(),
        next: page.next,
    })
}

/// One lease of any account, as long as the market knows it.
#[utoipa::path(get, path = "/v1/leases/{lease}", tag = "leases",
    params(("lease" = u64, Path, description = "Its number")),
    responses((status = 200, body = LeaseView)), security(("token" = ["read"])))]
async fn one(
    State(state): State<SharedState>,
    Path(lease): Path<String>,
) -> Result<Json<LeaseView>, Problem> {
    find_lease(&state, parse_lease_id(&lease)?).await.map(Json)
}

/// End a lease that the account bought: what was used is paid, the rest returns.
#[utoipa::path(post, path = "/v1/leases/{lease}/end", tag = "leases",
    params(("lease" = u64, Path, description = "Its number")),
    responses((status = 200, body = LeaseView)), security(("token" = ["trade"])))]
async fn end(
    State(state): State<SharedState>,
    Path(lease): Path<String>,
) -> Result<Json<LeaseView>, Problem> {
    let lease = parse_lease_id(&lease)?;
    carry_out(&state, Command::EndLease { lease }, lease).await
}

/// The extension of a lease.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Extension {
    /// Seconds.
    #[schema(minimum = 1, maximum = 31536000)]
    by: u32,
}

/// Extend a lease that the account bought, at the same price and as far as its ask allows.
#[utoipa::path(post, path = "/v1/leases/{lease}/extend", tag = "leases",
    params(("lease" = u64, Path, description = "Its number")), request_body = Extension,
    responses((status = 200, body = LeaseView)), security(("token" = ["trade"])))]
async fn extend(
    State(state): State<SharedState>,
    Path(lease): Path<String>,
    Body(asked): Body<Extension>,
) -> Result<Json<LeaseView>, Problem> {
    let lease = parse_lease_id(&lease)?;
    let by = Millis(u64::from(asked.by) * 1_000);
    carry_out(&state, Command::Extend { lease, by }, lease).await
}

/// Submits a command about a lease, and returns the lease as it is afterwards.
async fn carry_out(
    state: &Gateway,
    command: Command,
    lease: LeaseId,
) -> Result<Json<LeaseView>, Problem> {
    // Fail with "not found" before the gateway submits a command for a lease that the market does
    // not know.
    find_lease(state, lease).await?;
    state.buyer.trader().submit_one(command).await?;
    find_lease(state, lease).await.map(Json)
}

/// Returns a lease of any account, or "not found" if the market does not know it (any more).
async fn find_lease(state: &Gateway, id: LeaseId) -> Result<LeaseView, Problem> {
    let found = state.buyer.broker().fetch_lease(id).await?;
    let found = found.ok_or_else(|| {
        let detail = format!("the market knows no lease {id}");
        Problem::not_found(
            detail,
            "old ones are forgotten; /v1/leases has those that are open",
        )
    })?;
    Ok(LeaseView::from(&found))
}

fn parse_lease_id(text: &str) -> Result<LeaseId, Problem> {
    let number = text.parse().map(LeaseId);
    number.map_err(|_| Problem::malformed_input(format!("{text} is no lease's number")))
}
