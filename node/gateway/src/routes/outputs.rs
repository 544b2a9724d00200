//! `/v1/jobs/{id}/outputs`: the outputs of a finished job, each as a NumPy or safetensors file, or
//! as JSON if it stands for texts or maps.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT, VARY};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use futures::{StreamExt, stream};
use souk_node::memory::safetensors::{self, TensorPlace};
use souk_node::memory::{Tensor, npy};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::byte_range::Part;
use crate::file_stream;
use crate::job_folder::JobFolder;
use crate::job_view::{self, Standing};
use crate::large_work;
use crate::output_view::{self, OutputView};
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
    job_view::job_outputs(&state, &name).await.map(Json)
}

/// One output as a NumPy file, or as a safetensors file if `Accept` says so. If it stands for texts
/// or maps, `Accept: application/json` returns these.
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
    let accept = headers
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("*/*");
    let output = StoredOutput::find(&state, &job, &name).await?;
    let described = job_view::job_outputs(&state, &job).await?;
    let described = described.into_iter().find(|output| output.name == name);
    let hash = described.ok_or_else(|| outputs_elsewhere(&job))?.blake3;
    let (kind, ending, header, elements) = if accept == JSON {
        let meaning = output.read_meaning(&state, &job, &name).await?;
        (JSON, "json", meaning, 0..0)
    } else {
        let place = &output.place;
        let (kind, ending, header) = file_header(&name, place, accept)?;
        (kind, ending, header, place.bytes.clone())
    };
    let before = header.len() as u64;
    let length = before + (elements.end - elements.start);
    let part = Part::from_headers(&headers, &format!("{hash}.{ending}"), kind, length)?;
    let (head, rest) = split_range(&part.range, before, elements.start);
    let head = header.slice(head);
    let file = tokio::fs::File::from_std(output.file);
    let streaming = file_stream::stream_range(file, rest).await;
    let rest = streaming.map_err(Problem::unexpected_failure)?;
    let head = stream::iter((!head.is_empty()).then_some(Ok(head)));
    let mut response = part.build_response(Body::from_stream(head.chain(rest)));
    response
        .headers_mut()
        .insert(VARY, HeaderValue::from_static("accept"));
    Ok(response)
}

/// An output in the file of its job.
struct StoredOutput {
    file: File,
    place: TensorPlace,
}

impl StoredOutput {
    /// Finds an output by the header of the file.
    async fn find(state: &SharedState, job: &str, name: &str) -> Result<StoredOutput, Problem> {
        let folder = JobFolder::new(&state.jobs_folder(), job);
        let (job, name) = (job.to_owned(), name.to_owned());
        large_work::run_aside(async move {
            let opened = folder.open_outputs();
            let (file, mut places) = opened.map_err(|_| outputs_elsewhere(&job))?;
            let known = places.keys().cloned().collect::<Vec<_>>().join(", ");
            let place = places.remove(&name).ok_or_else(|| {
                let detail = format!("job {job} has no output {name}");
                Problem::not_found(detail, &format!("its outputs are {known}"))
            })?;
            Ok(StoredOutput { file, place })
        })
        .await
    }

    /// Returns the meaning of the output, as JSON, in the turn of the reader.
    async fn read_meaning(
        &self,
        state: &SharedState,
        job: &str,
        name: &str,
    ) -> Result<Bytes, Problem> {
        let cloned = self.file.try_clone().map_err(Problem::unexpected_failure);
        let (mut file, place, name) = (cloned?, self.place.clone(), name.to_owned());
        let folder = JobFolder::new(&state.jobs_folder(), job);
        let reading = async move {
            let tensor = output_view::read_tensor(&mut file, &place);
            let tensor = tensor.map_err(Problem::unexpected_failure)?;
            meaning_json(&folder, name, tensor)
        };
        state.reader_turns.run_in_turn(reading).await
    }
}

/// Returns the meaning of an output, as JSON.
fn meaning_json(folder: &JobFolder, name: String, tensor: Tensor) -> Result<Bytes, Problem> {
    let outputs = BTreeMap::from([(name.clone(), tensor)]);
    let told = folder
        .read_legend()
        .map(|legend| legend.output_values(&outputs));
    let told = told.and_then(|mut told| told.remove(&name));
    let told = told.ok_or_else(|| {
        let detail = format!("the output {name} stands for no texts and no maps");
        Problem::new(Code::Input, detail, &format!("ask with `Accept: {NPY}`"))
    })?;
    Ok(Bytes::from(told.to_string()))
}

/// Returns the kind and the ending of an output's file, and the header that precedes its elements.
fn file_header(
    name: &str,
    place: &TensorPlace,
    accept: &str,
) -> Result<(&'static str, &'static str, Bytes), Problem> {
    if accept.contains(SAFETENSORS) {
        let header = safetensors::single_header(name, place.dtype, &place.shape);
        let header = header.map_err(Problem::unexpected_failure)?;
        return Ok((SAFETENSORS, "safetensors", header));
    }
    let header = npy::header_bytes(place.dtype, &place.shape).map_err(|error| {
        let hint = format!("ask with `Accept: {SAFETENSORS}`");
        Problem::new(Code::Input, error, &hint)
    })?;
    Ok((NPY, "npy", header))
}

/// Splits a range of an answer into that of its header of so many bytes, and that of the file whose
/// elements follow the header.
fn split_range(range: &Range<u64>, header: u64, elements: u64) -> (Range<usize>, Range<u64>) {
    let within = |at: u64| usize::try_from(at.min(header)).unwrap_or(usize::MAX);
    let beyond = |at: u64| elements + at.saturating_sub(header);
    (
        within(range.start)..within(range.end),
        beyond(range.start)..beyond(range.end),
    )
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
    fn a_range_is_that_of_the_header_and_of_the_elements_behind_it() {
        let (header, file) = (b"header", b"..elements");
        let all = [&header[..], &file[2..]].concat();
        for start in 0..=all.len() {
            for end in start..=all.len() {
                let range = start as u64..end as u64;
                let (head, rest) = split_range(&range, header.len() as u64, 2);
                let rest = rest.start as usize..rest.end as usize;
                assert_eq!([&header[head], &file[rest]].concat(), all[start..end]);
            }
        }
    }
}
