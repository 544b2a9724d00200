//! `/v1/sessions`: sessions of language models, with the paths of OpenAI's API below each.

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use serde::Serialize;
use tower_service::Service;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::extract::Body;
use crate::problem::{Code, Problem};
use crate::sessions::{SessionBody, SessionHost, SessionView};
use crate::state::{SharedState, State as Gateway};

/// Where the paths of a session begin.
const BASE: &str = "/v1/sessions";

pub fn router() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(models))
        .routes(routes!(list, open))
        .routes(routes!(one, close))
}

/// Returns the paths below each session. OpenAI documents them, so the gateway does not.
pub fn session_paths() -> Router<SharedState> {
    Router::new().route("/v1/sessions/{id}/{*path}", any(forward_request))
}

/// The models of which this gateway opens sessions.
#[derive(Debug, Serialize, ToSchema)]
struct ModelList {
    /// Their names.
    models: Vec<String>,
}

/// The open sessions.
#[derive(Debug, Serialize, ToSchema)]
struct SessionList {
    /// The oldest first.
    sessions: Vec<SessionView>,
}

/// The language models of which you can open a session.
#[utoipa::path(get, path = "/v1/models", tag = "sessions",
    responses((status = 200, body = ModelList)), security(("token" = ["read"])))]
async fn models(State(state): State<SharedState>) -> Result<Json<ModelList>, Problem> {
    let models = find_host(&state)?.models();
    Ok(Json(ModelList { models }))
}

/// The open sessions of language models.
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions",
    responses((status = 200, body = SessionList)), security(("token" = ["read"])))]
async fn list(State(state): State<SharedState>) -> Result<Json<SessionList>, Problem> {
    let sessions = find_host(&state)?.sessions();
    let sessions = sessions.into_iter().map(|it| with_address(&state, it));
    Ok(Json(SessionList {
        sessions: sessions.collect(),
    }))
}

/// Open a session. It buys leases with the first request, and returns them when it is idle.
#[utoipa::path(post, path = "/v1/sessions", tag = "sessions", request_body = SessionBody,
    responses((status = 201, body = SessionView)), security(("token" = ["trade"])))]
async fn open(
    State(state): State<SharedState>,
    Body(body): Body<SessionBody>,
) -> Result<(StatusCode, Json<SessionView>), Problem> {
    let opened = find_host(&state)?.open_session(body.to_order()?).await?;
    Ok((StatusCode::CREATED, Json(with_address(&state, opened))))
}

/// One session.
#[utoipa::path(get, path = "/v1/sessions/{id}", tag = "sessions",
    params(("id" = String, Path, description = "Its id")),
    responses((status = 200, body = SessionView)), security(("token" = ["read"])))]
async fn one(
    State(state): State<SharedState>,
    Path(id): Path<String>,
) -> Result<Json<SessionView>, Problem> {
    let mut sessions = find_host(&state)?.sessions().into_iter();
    let found = sessions.find(|session| session.id == id);
    let found = found.ok_or_else(|| unknown_session(&id))?;
    Ok(Json(with_address(&state, found)))
}

/// End a session: its leases end, and what they held returns. The answer has what it cost.
#[utoipa::path(delete, path = "/v1/sessions/{id}", tag = "sessions",
    params(("id" = String, Path, description = "Its id")),
    responses((status = 200, body = SessionView)), security(("token" = ["trade"])))]
async fn close(
    State(state): State<SharedState>,
    Path(id): Path<String>,
) -> Result<Json<SessionView>, Problem> {
    let closed = find_host(&state)?.close_session(&id).await;
    let closed = closed.ok_or_else(|| unknown_session(&id))?;
    Ok(Json(with_address(&state, closed)))
}

/// Passes a request below a session to its paths.
async fn forward_request(
    State(state): State<SharedState>,
    Path((id, _)): Path<(String, String)>,
    mut request: Request,
) -> Response {
    let paths = match find_host(&state) {
        Ok(host) => host.session_paths(&id),
        Err(problem) => return problem.into_response(),
    };
    let Some(mut paths) = paths else {
        return unknown_session(&id).into_response();
    };
    // The path as it came, so that names with encoded characters stay as they are.
    let mut parts = request.uri().path().splitn(5, '/');
    let uri = format!("/v1/{}", parts.nth(4).unwrap_or_default());
    match uri.parse::<Uri>() {
        Ok(uri) => *request.uri_mut() = uri,
        Err(error) => return Problem::malformed_input(error).into_response(),
    }
    // The parameters of this path are not those of the session's.
    request.extensions_mut().clear();
    match paths.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

fn find_host(state: &Gateway) -> Result<&Arc<dyn SessionHost>, Problem> {
    state.sessions.as_ref().ok_or_else(|| {
        let hint = "this souk was built without language models";
        Problem::not_found("this gateway opens no sessions", hint)
    })
}

fn unknown_session(id: &str) -> Problem {
    let detail = format!("no session {id} is open");
    Problem::new(
        Code::NotFound,
        detail,
        "POST /v1/sessions opens one; GET lists those that are open",
    )
}

fn with_address(state: &Gateway, mut session: SessionView) -> SessionView {
    session.base_url = format!("http://{}{BASE}/{}", state.address, session.id);
    session
}
