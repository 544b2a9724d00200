//! Defines the JSON body with which a client plans or submits a job: the model and the inputs, each
//! by the hash of an uploaded content, and the limits. Converts the body into the buyer's job.

use std::collections::BTreeMap;

use axum::body::Bytes;
use serde::{Deserialize, Serialize};
use souk_node::buyer::job::{EmulatedDevices, Job, Limits, Priority, TIME_MAX};
use souk_node::buyer::value_labels::{LabelError, ValueLabels};
use souk_node::market::{Credits, Price};
use souk_node::memory::{ContentId, Tensor, safetensors};
use utoipa::ToSchema;

use crate::parse::{self, invalid_input, parse_duration, parse_millis};
use crate::problem::Problem;

/// Seconds for which a job waits for devices by default.
const WAIT: f64 = 5.0;

/// The first bytes of every NumPy file.
const NPY_MAGIC: &[u8] = b"\x93NUMPY";

/// A job: the model, its inputs, and limits. Amounts are in micro-credits, times in seconds.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobBody {
    /// The content that is the ONNX model, weights within.
    pub model: String,
    /// The inputs by name.
    pub inputs: BTreeMap<String, InputBody>,
    /// The most that the job can cost, failed attempts included.
    #[serde(
        default,
        deserialize_with = "parse::amount_if_any",
        skip_serializing_if = "Option::is_none"
    )]
    pub budget: Option<u64>,
    /// The highest price of a device-second.
    #[serde(
        default,
        deserialize_with = "parse::amount_if_any",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_price: Option<u64>,
    /// At least so many providers.
    #[serde(default = "one")]
    #[schema(default = 1, minimum = 1, maximum = 64)]
    pub min_providers: usize,
    /// At most so many providers.
    #[serde(default = "four")]
    #[schema(default = 4, minimum = 1, maximum = 64)]
    pub max_providers: usize,
    /// Accounts not to buy from.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Whether to use emulated devices too; in a testnet this is the default.
    #[serde(default)]
    pub emulated: bool,
    /// Only devices that are really there: in a testnet, too.
    #[serde(default)]
    pub real: bool,
    /// Kinds of devices, or parts of their names, any of which will do.
    #[serde(default)]
    pub devices: Vec<String>,
    /// `balanced`, `fastest`, `cheapest` or `greenest`.
    #[serde(default = "balanced")]
    #[schema(default = "balanced")]
    pub prefer: String,
    /// The most it may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<f64>,
    /// The least notice before a device is taken back.
    #[serde(default)]
    pub min_notice: f64,
    /// Regions, such as `europe-west`; `europe` is all that begin so.
    #[serde(default)]
    pub regions: Vec<String>,
    /// From 0 to 1000.
    #[serde(default)]
    #[schema(maximum = 1000)]
    pub min_reputation: u16,
    /// On how many providers each part runs, 1 or 2: with two, results are compared.
    #[serde(default = "one")]
    #[schema(default = 1, minimum = 1, maximum = 2)]
    pub verify: usize,
    /// Whether to use spot leases, which their provider can end early.
    #[serde(default)]
    pub spot: bool,
    /// The longest time of a run whose length nobody knows beforehand.
    #[serde(default = "max_time")]
    #[schema(default = 600.0)]
    pub max_time: f64,
    /// How long to wait for devices.
    #[serde(default = "wait")]
    #[schema(default = 5.0)]
    pub wait: f64,
    /// Which of this account's own jobs goes first: `low`, `normal` or `high`.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub priority: Priority,
}

/// An input: a NumPy array, of texts where the model takes texts, or a tensor of a safetensors
/// file.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InputBody {
    /// The content: a file of NumPy, or of safetensors.
    pub content: String,
    /// Which tensor of a safetensors file; else the one that is named as the input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor: Option<String>,
}

fn one() -> usize {
    1
}

fn four() -> usize {
    4
}

fn balanced() -> String {
    "balanced".to_owned()
}

fn max_time() -> f64 {
    TIME_MAX.as_secs_f64()
}

fn wait() -> f64 {
    WAIT
}

impl JobBody {
    /// Returns the described job and the labels of its values. This computes the model's text
    /// preprocessing.
    ///
    /// # Errors
    /// Fails if a content is missing or is not a model or tensor, or if a limit is invalid.
    pub fn to_job(
        &self,
        content: impl Fn(&ContentId) -> Result<Bytes, Problem>,
    ) -> Result<(Job, ValueLabels), Problem> {
        let limits = self.to_limits()?;
        let model = content(&id(&self.model)?)?;
        let legend = ValueLabels::from_model(model.clone());
        let read = |(name, input): (&String, &InputBody)| {
            let bytes = content(&id(&input.content)?)?;
            let (tensor, is_text) = input.read_tensor(name, &bytes, &legend)?;
            let mixed_up = |error: LabelError| invalid_input(error.to_string());
            legend.check_input(name, is_text).map_err(mixed_up)?;
            Ok((name.clone(), tensor))
        };
        let inputs: Result<BTreeMap<String, Tensor>, Problem> =
            self.inputs.iter().map(read).collect();
        let mut inputs = inputs?;
        let prepared = legend.prepare_inputs(&mut inputs);
        prepared.map_err(|error| invalid_input(error.to_string()))?;
        let job = Job {
            model,
            folder: None,
            inputs,
            limits,
        };
        Ok((job, legend))
    }

    /// Returns all contents that the job names.
    ///
    /// # Errors
    /// Fails if a name is not a content id.
    pub fn content_ids(&self) -> Result<Vec<ContentId>, Problem> {
        let inputs = self.inputs.values().map(|input| &input.content);
        std::iter::once(&self.model)
            .chain(inputs)
            .map(|text| id(text))
            .collect()
    }

    fn to_limits(&self) -> Result<Limits, Problem> {
        if !(1..=2).contains(&self.verify) {
            return Err(invalid_input("verify is 1 or 2"));
        }
        let prefer = self.prefer.parse();
        Ok(Limits {
            budget: self.budget.map(Credits),
            price_max: self.max_price.map(Price),
            providers_min: self.min_providers,
            providers_max: self.max_providers,
            excluded: parse::parse_excluded_accounts(&self.exclude)?,
            emulated: EmulatedDevices::by_flags(self.emulated, self.real)
                .map_err(|error| invalid_input(error.to_string()))?,
            devices: self.devices.clone(),
            backend: None,
            exact: false,
            objective: prefer.map_err(|error| invalid_input(format!("prefer: {error}")))?,
            deadline: self
                .deadline
                .map(|given| parse_duration("deadline", given))
                .transpose()?,
            notice_min: parse_millis("min_notice", self.min_notice)?,
            regions: parse::parse_regions(&self.regions)?,
            reputation_min: parse::parse_reputation(self.min_reputation)?,
            copies: self.verify,
            spot: self.spot,
            time_max: parse_duration("max_time", self.max_time)?,
            wait: parse_duration("wait", self.wait)?,
            requests: 1,
            sequences: 0,
            request_time: None,
            priority: Some(self.priority),
        })
    }
}

impl InputBody {
    /// Reads the input's tensor, with texts as their numbers; returns it and whether it holds
    /// texts.
    fn read_tensor(
        &self,
        name: &str,
        bytes: &Bytes,
        legend: &ValueLabels,
    ) -> Result<(Tensor, bool), Problem> {
        let content = &self.content;
        if bytes.starts_with(NPY_MAGIC) {
            let read = legend.read_tensor(bytes);
            return read.map_err(|error| invalid_input(format!("{name} ({content}): {error}")));
        }
        let mut all = safetensors::read(bytes).map_err(|error| {
            invalid_input(format!(
                "{name} ({content}) is no file of NumPy, and none of safetensors: {error}"
            ))
        })?;
        let wanted = self.tensor.as_deref().unwrap_or(name);
        let known = all.keys().cloned().collect::<Vec<_>>().join(", ");
        let tensor = all.remove(wanted).ok_or_else(|| {
            invalid_input(format!("{content} has no tensor {wanted}; it has {known}"))
        })?;
        Ok((tensor, false))
    }
}

fn id(text: &str) -> Result<ContentId, Problem> {
    text.parse()
        .map_err(|error| Problem::malformed_input(format!("{text} is no BLAKE3: {error}")))
}
