//! `/v1/contents`: uploads and downloads of models and tensors, by the BLAKE3 of their bytes.

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use souk_node::memory::ContentId;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::byte_range::Part;
use crate::contents::missing_content;
use crate::problem::Problem;
use crate::state::SharedState;

const KIND: &str = "application/octet-stream";

pub fn router() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new().routes(routes!(put, get, head))
}

/// Upload a content. To upload it again has no effect.
#[utoipa::path(put, path = "/v1/contents/{blake3}", tag = "contents",
    params(("blake3" = String, Path, description = "The BLAKE3 of the bytes, in hexadecimal")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, description = "It is here now"),
              (status = 200, description = "It was here")),
    security(("token" = ["trade"])))]
async fn put(
    State(state): State<SharedState>,
    Path(blake3): Path<String>,
    request: Request,
) -> Result<StatusCode, Problem> {
    let id = parse_content_id(&blake3)?;
    let is_new = state.contents.store_upload(id, request.into_body()).await?;
    Ok(if is_new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    })
}

/// Fetch a content, or a part of it by Range.
#[utoipa::path(get, path = "/v1/contents/{blake3}", tag = "contents",
    params(("blake3" = String, Path, description = "The BLAKE3 of the bytes, in hexadecimal")),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
              (status = 206, description = "The range asked for")),
    security(("token" = ["read"])))]
async fn get(
    State(state): State<SharedState>,
    Path(blake3): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (id, part) = find_part(&state, &blake3, &headers)?;
    let stream = state.contents.stream_range(&id, part.range.clone()).await?;
    Ok(part.build_response(Body::from_stream(stream)))
}

/// Ask whether the gateway has a content, and how long it is.
#[utoipa::path(head, path = "/v1/contents/{blake3}", tag = "contents",
    params(("blake3" = String, Path, description = "The BLAKE3 of the bytes, in hexadecimal")),
    responses((status = 200, description = "It is here")), security(("token" = ["read"])))]
async fn head(
    State(state): State<SharedState>,
    Path(blake3): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (_, part) = find_part(&state, &blake3, &headers)?;
    Ok(part.build_response(Body::empty()))
}

fn find_part(
    state: &SharedState,
    name: &str,
    headers: &HeaderMap,
) -> Result<(ContentId, Part), Problem> {
    let id = parse_content_id(name)?;
    let length = state
        .contents
        .content_length(&id)
        .ok_or_else(|| missing_content(&id))?;
    Ok((id, Part::from_headers(headers, name, KIND, length)?))
}

fn parse_content_id(text: &str) -> Result<ContentId, Problem> {
    text.parse()
        .map_err(|error| Problem::malformed_input(format!("{text} is no BLAKE3: {error}")))
}
