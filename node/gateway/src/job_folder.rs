//! Reads and writes the folder in which the gateway stores one job: its request, contents, outputs
//! and receipts. The request is on disk before souk pays for anything, so that a gateway that
//! starts again can go on.
//!
//! ```text
//! buyer/jobs/NAME/request.json    what was asked, under which key: on disk before anything is paid
//! buyer/jobs/NAME/contents/…      the model and the inputs, by links of the job's own
//! buyer/jobs/NAME/out/…           its outputs and receipts
//! buyer/jobs/NAME/refused.json    why the job never began, although it was accepted
//! ```
//! The job's journal stores the arguments with which `souk submit` would submit these files, so
//! that the command line can list, show and resume the job like its own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use axum::body::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use souk_node::buyer::job::{Job, Priority};
use souk_node::buyer::journal::write_durably;
use souk_node::buyer::value_labels::ValueLabels;
use souk_node::buyer::{Past, request_of};
use souk_node::market::JobId;
use souk_node::memory::safetensors::{self, TensorPlace};
use souk_node::memory::{ContentId, Tensor};

use crate::contents::{Contents, missing_content};
use crate::job_body::{InputBody, JobBody};
use crate::keys::UsedKey;
use crate::problem::Problem;

/// Hexadecimal digits of a job's id that form its name.
const NAME_DIGITS: usize = 12;

const REQUEST_FILE: &str = "request.json";
const REFUSED_FILE: &str = "refused.json";
const CONTENTS_FOLDER: &str = "contents";
const OUT_FOLDER: &str = "out";
const OUTPUTS_FILE: &str = "outputs.safetensors";

/// A request for a job, with its idempotency key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoredRequest {
    /// The idempotency key.
    pub key: String,
    /// BLAKE3 of the body as received: the gateway refuses the same key with another body.
    pub body_hash: String,
    /// The job that the client asks for.
    pub job: JobBody,
    /// The plan that the job is held to, and by how many per cent it can exceed that plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_to: Option<PlanLimit>,
    /// Time of the request, in milliseconds since 1970.
    pub at_ms: u64,
}

/// The plan that a job is held to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanLimit {
    /// The hash of the plan.
    pub plan: String,
    /// By how many per cent the job can exceed the plan in cost and time.
    pub slippage: f64,
}

/// The reason why the gateway accepted a job and then did not begin it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// Error code.
    pub code: String,
    /// The reason as a sentence.
    pub cause: String,
}

impl StoredRequest {
    /// Returns the record of the request's key.
    pub fn to_used_key(&self) -> UsedKey {
        UsedKey {
            key: self.key.clone(),
            body_hash: self.body_hash.clone(),
            at_ms: self.at_ms,
            placed: None,
        }
    }
}

/// The folder of a job.
#[derive(Clone, Debug)]
pub struct JobFolder {
    path: PathBuf,
}

/// Returns the name of the job with this id: its first digits.
pub fn job_name(id: JobId) -> String {
    id.to_string().chars().take(NAME_DIGITS).collect()
}

impl JobFolder {
    /// Returns the folder of the job with this full name.
    pub fn new(jobs: &Path, name: &str) -> JobFolder {
        JobFolder {
            path: jobs.join(name),
        }
    }

    /// Returns the request of the job, or `None` if the job did not come through a gateway.
    pub fn read_request(&self) -> Option<StoredRequest> {
        self.read(REQUEST_FILE)
    }

    /// Returns the reason why the job was not begun, if there is one.
    pub fn read_refusal(&self) -> Option<Refusal> {
        self.read(REFUSED_FILE)
    }

    /// Stores the reason why the job was not begun. If the disk is full, removes the request
    /// instead: no later process may buy the job.
    ///
    /// # Errors
    /// Fails if neither file can be changed.
    pub fn store_refusal(&self, why: &Refusal) -> Result<(), Problem> {
        let bytes = serde_json::to_vec(why).unwrap_or_default();
        let Err(error) = write_durably(&self.path.join(REFUSED_FILE), &bytes) else {
            return Ok(());
        };
        tracing::warn!(%error, cause = why.cause, "a refusal was not stored");
        self.remove_request()
    }

    /// Removes the request of a job that was not begun.
    ///
    /// # Errors
    /// Fails if the file cannot be removed.
    pub fn remove_request(&self) -> Result<(), Problem> {
        fs::remove_file(self.path.join(REQUEST_FILE)).map_err(Problem::unexpected_failure)
    }

    fn read<T: serde::de::DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_slice(&fs::read(self.path.join(name)).ok()?).ok()
    }

    /// Stores a request with the contents that it names, which must be uploaded already. Both are
    /// on disk when this returns.
    ///
    /// # Errors
    /// Fails if a content is missing or a file cannot be written.
    pub fn store_request(
        &self,
        request: &StoredRequest,
        contents: &Contents,
    ) -> Result<(), Problem> {
        let folder = self.path.join(CONTENTS_FOLDER);
        fs::create_dir_all(&folder).map_err(Problem::unexpected_failure)?;
        for id in request.job.content_ids()? {
            let (from, to) = (contents.path(&id), folder.join(id.to_string()));
            match fs::hard_link(&from, &to) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(missing_content(&id));
                }
                // This file system has no links.
                Err(_) => drop(fs::copy(&from, &to).map_err(Problem::unexpected_failure)?),
            }
        }
        let bytes = serde_json::to_vec(request).map_err(Problem::unexpected_failure)?;
        Ok(write_durably(&self.path.join(REQUEST_FILE), &bytes)?)
    }

    /// Returns the job, read from its stored contents, and the labels of its values.
    ///
    /// # Errors
    /// Fails if the contents are missing.
    pub fn load_job(&self, request: &StoredRequest) -> Result<(Job, ValueLabels), Problem> {
        request.job.to_job(|id| self.read_content(id))
    }

    fn read_content(&self, id: &ContentId) -> Result<Bytes, Problem> {
        let path = self.path.join(CONTENTS_FOLDER).join(id.to_string());
        fs::read(path)
            .map(Bytes::from)
            .map_err(|_| missing_content(id))
    }

    /// Returns the folder of outputs and receipts.
    pub fn out_folder(&self) -> PathBuf {
        self.path.join(OUT_FOLDER)
    }

    /// Writes the outputs.
    ///
    /// # Errors
    /// Fails if they cannot be written.
    pub fn write_outputs(&self, outputs: &BTreeMap<String, Tensor>) -> Result<(), Problem> {
        let bytes = safetensors::write(outputs).map_err(Problem::unexpected_failure)?;
        fs::create_dir_all(self.out_folder()).map_err(Problem::unexpected_failure)?;
        Ok(write_durably(&self.outputs_file(), &bytes)?)
    }

    /// Returns the path of the file with all outputs.
    pub fn outputs_file(&self) -> PathBuf {
        self.out_folder().join(OUTPUTS_FILE)
    }

    /// Opens the file of outputs and finds each of them in it.
    ///
    /// # Errors
    /// Fails if the file does not exist or cannot be read.
    pub fn open_outputs(&self) -> io::Result<(File, BTreeMap<String, TensorPlace>)> {
        let mut file = File::open(self.outputs_file())?;
        let length = file.metadata()?.len();
        let places = safetensors::read_places(&mut file, length);
        Ok((file, places.map_err(io::Error::other)?))
    }

    /// Returns the outputs if their file exists.
    pub fn read_outputs(&self) -> Option<BTreeMap<String, Tensor>> {
        let bytes = fs::read(self.outputs_file()).ok()?;
        safetensors::read(&bytes.into()).ok()
    }

    /// Returns the labels of the job's values if the model still exists; does not read the inputs.
    pub fn read_legend(&self) -> Option<ValueLabels> {
        let model = self.read_request()?.job.model.parse().ok()?;
        Some(ValueLabels::from_model(self.read_content(&model).ok()?))
    }

    /// Returns the arguments with which `souk submit` would submit the job.
    pub fn submit_arguments(&self, request: &StoredRequest, job: &Job) -> Value {
        let limits = &job.limits;
        let body = &request.job;
        let contents = self.path.join(CONTENTS_FOLDER);
        let path = |content: &String| contents.join(content).display().to_string();
        let input =
            |(name, input): (&String, &InputBody)| format!("{name}={}", path(&input.content));
        let inputs: Vec<String> = body.inputs.iter().map(input).collect();
        let priority = match body.priority {
            Priority::Low => "Low",
            Priority::Normal => "Normal",
            Priority::High => "High",
        };
        let deadline = limits.deadline.map(|time| time.as_secs_f64());
        json!({
            "job": {
                "model": path(&body.model), "input": inputs,
                "budget": body.budget.map(micro_to_credits),
                "max_price": body.max_price.map(micro_to_credits),
                "min_providers": body.min_providers, "max_providers": body.max_providers,
                "exclude": body.exclude, "emulated": body.emulated, "real": body.real,
                "device": body.devices,
                "backend": null, "prefer": limits.objective, "deadline": deadline,
                "min_notice": body.min_notice, "spot": body.spot, "region": body.regions,
                "min_reputation": body.min_reputation, "verify": body.verify, "wait": body.wait,
                "max_time": body.max_time,
            },
            "out": self.out_folder(), "bid": null, "displace": null, "priority": priority,
            "format": "Safetensors", "trace": null, "check_plan": null, "slippage": 5.0,
            "upload_limit": null, "download_limit": null, "no_direct": false, "stream": null,
            "window": 1,
        })
    }

    /// Returns whether the stored outputs answer the job's only request.
    pub fn has_answer(&self, job: &Job, past: &Past) -> bool {
        let answered = past.answered.get(&request_of(&job.inputs));
        let (Some(answered), Some(outputs)) = (answered, self.read_outputs()) else {
            return false;
        };
        let is_stored =
            |(name, id): &(String, ContentId)| outputs.get(name).map(Tensor::id) == Some(*id);
        answered.outputs.iter().all(is_stored)
    }
}

/// Converts micro-credits to credits for the command line.
#[expect(
    clippy::cast_precision_loss,
    reason = "the command line takes a fraction"
)]
fn micro_to_credits(micro: u64) -> f64 {
    micro as f64 / 1e6
}
