//! `/healthz`, `/metrics` and `/v1/status`: the state of the gateway and of the market behind it,
//! and the gateway's metrics.

use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use serde::Serialize;
use souk_api::time::format_rfc3339;
use souk_folder::clock::unix_ms;
use souk_network::metrics::Page;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::Scope;
use crate::metrics_server;
use crate::problem::{Code, Problem};
use crate::state::SharedState;

pub fn router() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(healthz))
        .routes(routes!(metrics))
        .routes(routes!(status))
}

/// The gateway answers.
#[derive(Debug, Serialize, ToSchema)]
struct Healthy {
    /// Always true.
    ok: bool,
}

/// The state of the market and of the gateway.
#[derive(Debug, Serialize, ToSchema)]
struct StatusView {
    /// The market's id.
    market: String,
    /// Its name.
    name: String,
    /// The version of this souk.
    version: &'static str,
    /// The account of the gateway.
    account: String,
    /// The scope of the token of this request: `read`, `trade` or `operate`.
    scope: &'static str,
    /// The last entry of the log that is applied, as far as any validator says.
    index: u64,
    /// When that was asked, RFC 3339.
    as_of: String,
    /// The raft id of the leading validator; null if there is none.
    leader: Option<u64>,
    /// Validators that answer, and that are known.
    validators_answering: usize,
    validators_known: usize,
    /// Jobs that this gateway runs.
    jobs_running: usize,
    /// Streams of events that are open.
    streams: usize,
}

/// Whether the gateway answers.
#[utoipa::path(get, path = "/healthz", tag = "status",
    responses((status = 200, body = Healthy)))]
async fn healthz() -> Json<Healthy> {
    Json(Healthy { ok: true })
}

/// Figures for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "status",
    responses((status = 200, body = String, content_type = "text/plain")))]
async fn metrics(State(state): State<SharedState>) -> Response {
    let mut page = Page::of_machine();
    let network = state.buyer.broker().network();
    let connected = network.connected_peers().await.len();
    page.add_gauge(
        "souk_peers_connected",
        "Peers with a connection.",
        connected,
    );
    let running = state.running.job_count();
    page.add_gauge(
        "souk_gateway_jobs_running",
        "Jobs that the gateway runs.",
        running,
    );
    let streams = state.hub.follower_count();
    page.add_gauge(
        "souk_gateway_streams",
        "Streams of events that are open.",
        streams,
    );
    state.figures.add_to_page(&mut page);
    metrics_server::metrics_response(Some(page))
}

/// The market of this gateway, and how far its log is.
#[utoipa::path(get, path = "/v1/status", tag = "status",
    responses((status = 200, body = StatusView)), security(("token" = ["read"])))]
async fn status(
    State(state): State<SharedState>,
    Extension(scope): Extension<Scope>,
) -> Result<Json<StatusView>, Problem> {
    let asked = unix_ms();
    let all = state.buyer.broker().fetch_statuses().await;
    let answered: Vec<_> = all.iter().flatten().collect();
    let Some(furthest) = answered.iter().max_by_key(|status| status.applied) else {
        let detail = format!("none of {} validators answered", all.len());
        let hint = "is the market up? `souk validator list` shows who runs";
        return Err(Problem::new(Code::MarketUnreachable, detail, hint));
    };
    state.hub.record_index(furthest.applied);
    Ok(Json(StatusView {
        market: state.market_id().to_string(),
        name: state.name.clone(),
        version: env!("CARGO_PKG_VERSION"),
        account: state.buyer.account().to_string(),
        scope: scope.name(),
        index: furthest.applied,
        as_of: format_rfc3339(asked),
        leader: Some(furthest.leader).filter(|leader| *leader > 0),
        validators_answering: answered.len(),
        validators_known: all.len(),
        jobs_running: state.running.job_count(),
        streams: state.hub.follower_count(),
    }))
}
