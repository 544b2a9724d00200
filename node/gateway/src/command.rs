//! A job of the gateway as its folder keeps it.
//!
//! ```text
//! buyer/jobs/NAME/request.json    what was asked, under which key: on disk before anything is paid
//! buyer/jobs/NAME/contents/…      the model and the inputs, by links of the job's own
//! buyer/jobs/NAME/out/…           its outputs and receipts
//! buyer/jobs/NAME/refused.json    why it was not begun after all, where its process died before
//! ```
//! Its journal has it as `souk submit` would have submitted it from these files, so that the
//! command line lists it, shows it and goes on with it as with its own.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use axum::body::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use souk_node::buyer::job::{Job, Priority};
use souk_node::buyer::journal::write_durably;
use souk_node::buyer::legend::Legend;
use souk_node::buyer::{JournalError, Past, request_of};
use souk_node::market::JobId;
use souk_node::memory::{ContentId, Tensor, safetensors};

use crate::contents::{Contents, missing};
use crate::job_body::{InputBody, JobBody};
use crate::keys::UsedKey;
use crate::problem::Problem;

/// Digits of a job's id that name it.
const NAME_DIGITS: usize = 12;

const REQUEST_FILE: &str = "request.json";
const REFUSED_FILE: &str = "refused.json";
const CONTENTS_FOLDER: &str = "contents";
const OUT_FOLDER: &str = "out";
const OUTPUTS_FILE: &str = "outputs.safetensors";

/// What was asked, under which key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// The key.
    pub key: String,
    /// The BLAKE3 of the body as it came: the same key with another one is refused.
    pub body_hash: String,
    /// The job.
    pub job: JobBody,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
}

/// Why a job was not begun although it was accepted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// The reason as a word.
    pub code: String,
    /// The reason as a sentence.
    pub cause: String,
}

impl Request {
    /// The key that it came under.
    pub fn used(&self) -> UsedKey {
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
pub struct Folder {
    path: PathBuf,
}

/// What a job of that id is called.
pub fn name(id: JobId) -> String {
    id.to_string().chars().take(NAME_DIGITS).collect()
}

impl Folder {
    /// Of the job of that full name.
    pub fn new(jobs: &Path, name: &str) -> Folder {
        Folder {
            path: jobs.join(name),
        }
    }

    /// What was asked, if it came through a gateway.
    pub fn request(&self) -> Option<Request> {
        self.read(REQUEST_FILE)
    }

    /// Why it was not begun, if that is so.
    pub fn refused(&self) -> Option<Refusal> {
        self.read(REFUSED_FILE)
    }

    /// Keeps why it was not begun.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn refuse(&self, why: &Refusal) -> Result<(), JournalError> {
        let bytes = serde_json::to_vec(why).unwrap_or_default();
        write_durably(&self.path.join(REFUSED_FILE), &bytes)
    }

    fn read<T: serde::de::DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_slice(&fs::read(self.path.join(name)).ok()?).ok()
    }

    /// Keeps what is asked, with the contents it names; on disk when this returns.
    ///
    /// # Errors
    /// When a content is gone, or nothing can be written.
    pub fn keep(&self, request: &Request, contents: &Contents) -> Result<(), Problem> {
        let folder = self.path.join(CONTENTS_FOLDER);
        fs::create_dir_all(&folder).map_err(Problem::unexpected)?;
        for id in request.job.contents()? {
            let (from, to) = (contents.path(&id), folder.join(id.to_string()));
            match fs::hard_link(&from, &to) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing(&id)),
                // Where links are not known.
                Err(_) => drop(fs::copy(&from, &to).map_err(Problem::unexpected)?),
            }
        }
        let bytes = serde_json::to_vec(request).map_err(Problem::unexpected)?;
        Ok(write_durably(&self.path.join(REQUEST_FILE), &bytes)?)
    }

    /// The job, of the contents that it kept, and what its numbers stand for.
    ///
    /// # Errors
    /// When they are gone.
    pub fn job(&self, request: &Request) -> Result<(Job, Legend), Problem> {
        request.job.job(|id| self.content(id))
    }

    fn content(&self, id: &ContentId) -> Result<Bytes, Problem> {
        let path = self.path.join(CONTENTS_FOLDER).join(id.to_string());
        fs::read(path).map(Bytes::from).map_err(|_| missing(id))
    }

    /// Where outputs and receipts go.
    pub fn out(&self) -> PathBuf {
        self.path.join(OUT_FOLDER)
    }

    /// Writes the outputs.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn write_outputs(&self, outputs: &BTreeMap<String, Tensor>) -> Result<(), Problem> {
        let bytes = safetensors::write(outputs).map_err(Problem::unexpected)?;
        fs::create_dir_all(self.out()).map_err(Problem::unexpected)?;
        Ok(write_durably(&self.outputs_file(), &bytes)?)
    }

    /// Where all of them are.
    pub fn outputs_file(&self) -> PathBuf {
        self.out().join(OUTPUTS_FILE)
    }

    /// The outputs, if they are there.
    pub fn outputs(&self) -> Option<BTreeMap<String, Tensor>> {
        let bytes = fs::read(self.outputs_file()).ok()?;
        safetensors::read(&bytes.into()).ok()
    }

    /// What its numbers stand for, where the model is still there; the inputs are not read.
    pub fn legend(&self) -> Option<Legend> {
        let model = self.request()?.job.model.parse().ok()?;
        Some(Legend::of(self.content(&model).ok()?))
    }

    /// What `souk submit` would have been given.
    pub fn command(&self, request: &Request, job: &Job) -> Value {
        let limits = &job.limits;
        let body = &request.job;
        let kept = self.path.join(CONTENTS_FOLDER);
        let path = |content: &String| kept.join(content).display().to_string();
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
                "budget": body.budget.map(credits), "max_price": body.max_price.map(credits),
                "min_providers": body.min_providers, "max_providers": body.max_providers,
                "exclude": body.exclude, "emulated": body.emulated, "real": body.real,
                "device": body.devices,
                "backend": null, "prefer": limits.objective, "deadline": deadline,
                "min_notice": body.min_notice, "spot": body.spot, "region": body.regions,
                "min_reputation": body.min_reputation, "verify": body.verify, "wait": body.wait,
                "max_time": body.max_time,
            },
            "out": self.out(), "bid": null, "displace": null, "priority": priority,
            "format": "Safetensors", "trace": null, "check_plan": null, "slippage": 5.0,
            "upload_limit": null, "download_limit": null, "no_direct": false, "stream": null,
            "window": 1,
        })
    }

    /// Whether the outputs that a job answered its only request with are there.
    pub fn has_answer(&self, job: &Job, past: &Past) -> bool {
        let answered = past.answered.get(&request_of(&job.inputs));
        let (Some(answered), Some(held)) = (answered, self.outputs()) else {
            return false;
        };
        let is_held =
            |(name, id): &(String, ContentId)| held.get(name).map(Tensor::id) == Some(*id);
        answered.outputs.iter().all(is_held)
    }
}

/// Credits, as the command line takes them.
#[expect(
    clippy::cast_precision_loss,
    reason = "the command line takes a fraction"
)]
fn credits(micro: u64) -> f64 {
    micro as f64 / 1e6
}
