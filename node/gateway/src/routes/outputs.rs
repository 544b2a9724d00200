//! `/v1/jobs/{id}/outputs`: the outputs of a job, as NumPy or safetensors files.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Range;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT, VARY};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use futures::stream;
use souk_node::memory::{Tensor, npy, safetensors};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::byte_range::Part;
use crate::job_folder::JobFolder;
use crate::job_view::{self, Standing};
use crate::output_view::OutputView;
use crate::problem::{Code, Problem};
use crate::state::SharedState;

const NPY: &str = "application/x-npy";
const SAFETENSORS: &str = "application/x-safetensors";
const JSON: &str = "application/json";

pub fn router() -> OpenApiRouter<SharedState> {
    OpenApiRouter::new()
        .routes(routes!(outputs))
        .routes(routes!(output))
}

/// The outputs of a job that is done.
#[utoipa::path(get, path = "/v1/jobs/{id}/outputs", tag = "jobs",
    params(("id" = String, Path, description = "Its id, or the beginning of it")),
    responses((status = 200, body = Vec<OutputView>)), security(("token" = ["read"])))]
async fn outputs(
    State(state): State<SharedState>,
    Path(id): Path<String>,
) -> Result<Json<Vec<OutputView>>, Problem> {
    let name = require_done(&state, &id)?;
    Ok(Json(job_view::job_outputs(&state, &name)))
}

/// One output: a file of NumPy, or of safetensors where `Accept` says so. One that stands for texts
/// or maps is those where `Accept` is `application/json`.
#[utoipa::path(get, path = "/v1/jobs/{id}/outputs/{name}", tag = "jobs",
    params(("id" = String, Path, description = "The job's id, or the beginning of it"),
           ("name" = String, Path, description = "What the output is called")),
    responses((status = 200, body = Vec<u8>, content_type = "application/x-npy"),
              (status = 206, description = "The range asked for")),
    security(("token" = ["read"])))]
async fn output(
    State(state): State<SharedState>,
    Path((id, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let job = require_done(&state, &id)?;
    let folder = JobFolder::new(&state.jobs_folder(), &job);
    let all = folder.read_outputs();
    let mut all = all.ok_or_else(|| outputs_elsewhere(&job))?;
    let known = all.keys().cloned().collect::<Vec<_>>().join(", ");
    let tensor = all.remove(&name).ok_or_else(|| {
        let detail = format!("job {job} has no output {name}");
        Problem::not_found(detail, &format!("its outputs are {known}"))
    })?;
    let accept = headers
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("*/*");
    let (kind, pieces) = match accept == JSON {
        true => (JSON, vec![meaning_json(&folder, &name, &tensor)?]),
        false => encode_output(&name, tensor.clone(), accept)?,
    };
    let ending = match kind {
        NPY => "npy",
        JSON => "json",
        _ => "safetensors",
    };
    let described = job_view::job_outputs(&state, &job);
    let hash = described.iter().find(|output| output.name == name);
    let hash = hash.map_or_else(|| tensor.id().to_string(), |output| output.blake3.clone());
    let etag = format!("{hash}.{ending}");
    let length: usize = pieces.iter().map(Bytes::len).sum();
    let part = Part::from_headers(&headers, &etag, kind, length as u64)?;
    let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
    let wanted = place(part.range.start)..place(part.range.end);
    let wanted = stream::iter(slice_pieces(pieces, wanted).map(Ok::<_, Infallible>));
    let mut response = part.build_response(Body::from_stream(wanted));
    response
        .headers_mut()
        .insert(VARY, HeaderValue::from_static("accept"));
    Ok(response)
}

/// Returns the meaning of an output, as JSON.
fn meaning_json(folder: &JobFolder, name: &str, tensor: &Tensor) -> Result<Bytes, Problem> {
    let outputs = BTreeMap::from([(name.to_owned(), tensor.clone())]);
    let told = folder
        .read_legend()
        .map(|legend| legend.output_values(&outputs));
    let told = told.and_then(|mut told| told.remove(name));
    let told = told.ok_or_else(|| {
        let detail = format!("the output {name} stands for no texts and no maps");
        Problem::new(Code::Input, detail, &format!("ask with `Accept: {NPY}`"))
    })?;
    Ok(Bytes::from(told.to_string()))
}

/// Returns the file of an output in pieces, so that a large tensor need not be copied behind a
/// header.
fn encode_output(
    name: &str,
    tensor: Tensor,
    accept: &str,
) -> Result<(&'static str, Vec<Bytes>), Problem> {
    if accept.contains(SAFETENSORS) {
        let all = BTreeMap::from([(name.to_owned(), tensor)]);
        let bytes = safetensors::write(&all).map_err(Problem::unexpected_failure)?;
        return Ok((SAFETENSORS, vec![bytes]));
    }
    let header = npy::header_bytes(&tensor).map_err(|error| {
        let hint = format!("ask with `Accept: {SAFETENSORS}`");
        Problem::new(Code::Input, error, &hint)
    })?;
    Ok((NPY, vec![header, tensor.bytes().clone()]))
}

/// Cuts a range out of consecutive pieces.
fn slice_pieces(pieces: Vec<Bytes>, range: Range<usize>) -> impl Iterator<Item = Bytes> {
    let mut at = 0;
    pieces.into_iter().filter_map(move |piece| {
        let begin = at;
        at += piece.len();
        let within = range.start.max(begin)..range.end.min(at);
        (!within.is_empty()).then(|| piece.slice(within.start - begin..within.end - begin))
    })
}

fn require_done(state: &SharedState, id: &str) -> Result<String, Problem> {
    let name = job_view::full_name(state, id)?;
    let job = job_view::find_job(state, &name)?;
    if job.state == Standing::Done {
        return Ok(name);
    }
    let detail = format!("job {name} is not done");
    let hint = "follow it: /v1/events?topics=jobs";
    Err(Problem::new(Code::State, detail, hint).with("state", job.state))
}

fn outputs_elsewhere(job: &str) -> Problem {
    let detail = format!("the outputs of job {job} are not kept here");
    let hint = format!("the command line submitted it, and wrote them: souk job result {job}");
    Problem::not_found(detail, &hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_pieces_is_that_of_their_bytes() {
        let pieces =
            ["head", "er", "", "elements"].map(|piece| Bytes::from_static(piece.as_bytes()));
        let all = pieces.concat();
        for start in 0..=all.len() {
            for end in start..=all.len() {
                let cut: Vec<Bytes> = slice_pieces(pieces.to_vec(), start..end).collect();
                assert_eq!(cut.concat(), all[start..end]);
            }
        }
    }
}
