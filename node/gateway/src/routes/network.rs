//! `/v1/network/map`: the nodes of the network, and the measurements of the connections between
//! them.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::network_view::MapView;
use crate::problem::Problem;
use crate::state::SharedState;

pub fn router() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new().routes(routes!(map))
}

/// Who takes part, and the ways between: rate and round trip as they were measured.
#[utoipa::path(get, path = "/v1/network/map", tag = "network",
    responses((status = 200, body = MapView)), security(("token" = ["read"])))]
async fn map(State(state): State<SharedState>) -> Result<Response, Problem> {
    let map = state.map().await?;
    Ok(Json(&*map).into_response())
}
