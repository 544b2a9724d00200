//! Defines sessions of language models in the gateway: the interface of the host that opens them
//! and answers the requests to them, and the JSON body that opens one. The gateway decides who may
//! ask, and describes the paths.

use std::pin::Pin;
use std::time::Duration;

use axum::Router;
use serde::{Deserialize, Serialize};
use souk_node::buyer::job::{EmulatedDevices, Limits};
use souk_node::market::Credits;
use utoipa::ToSchema;

use crate::parse::{self, invalid_input, parse_duration};
use crate::problem::Problem;

/// The answer of a host that takes time.
pub type HostAnswer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Opens sessions of language models, and answers the requests to them.
pub trait SessionHost: Send + Sync {
    /// Returns the names of the models of which it opens sessions.
    fn models(&self) -> Vec<String>;

    /// Opens a session.
    ///
    /// # Errors
    /// Fails if the model is unknown or unusable, or if too many sessions are open.
    fn open_session(&self, order: SessionOrder) -> HostAnswer<Result<SessionView, Problem>>;

    /// Returns the open sessions, the oldest first.
    fn sessions(&self) -> Vec<SessionView>;

    /// Ends a session and returns its last state, or `None` if no such session is open.
    fn close_session(&self, id: &str) -> HostAnswer<Option<SessionView>>;

    /// Returns the paths of a session, such as `/v1/chat/completions`, or `None` if no such session
    /// is open.
    fn session_paths(&self, id: &str) -> Option<Router>;
}

/// A session to open.
#[derive(Clone, Debug)]
pub struct SessionOrder {
    /// The name of the model.
    pub model: String,
    /// The limits of what the session buys.
    pub limits: Limits,
    /// Number of sessions in the market that compute each token, 1 or 2.
    pub verify: u8,
    /// Number of tokens for which souk buys at a time.
    pub tokens: usize,
    /// Number of requests to answer at once.
    pub sequences: u32,
    /// Number of positions of each text; `None` selects the model's default.
    pub context: Option<usize>,
    /// Whether to embed texts instead of continuing them.
    pub is_embedding: bool,
    /// Time without a request after which the session returns its leases.
    pub keep_alive: Duration,
}

/// The body of a request to open a session. Amounts are in micro-credits, times in seconds.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionBody {
    /// The name of a model; `GET /v1/models` lists them.
    pub model: String,
    /// The maximum cost of the session, including leases whose providers failed.
    #[serde(
        default,
        deserialize_with = "parse::amount_if_any",
        skip_serializing_if = "Option::is_none"
    )]
    pub budget: Option<u64>,
    /// The number of tokens for which souk buys at a time.
    #[serde(default = "default_tokens")]
    #[schema(default = 1024, minimum = 1, maximum = 1048576)]
    pub tokens: usize,
    /// The number of requests to answer at once.
    #[serde(default = "default_sequences")]
    #[schema(default = 8, minimum = 1, maximum = 32)]
    pub sequences: u32,
    /// The number of positions of each text, including the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1048576)]
    pub context: Option<usize>,
    /// Embed texts instead of continuing them.
    #[serde(default)]
    pub embeddings: bool,
    /// The minimum number of providers over which to cut the model.
    #[serde(default = "default_providers")]
    #[schema(default = 1, minimum = 1, maximum = 64)]
    pub min_providers: usize,
    /// The maximum number of providers.
    #[serde(default = "default_providers")]
    #[schema(default = 1, minimum = 1, maximum = 64)]
    pub max_providers: usize,
    /// Kinds of devices, or parts of their names; one match suffices.
    #[serde(default)]
    pub devices: Vec<String>,
    /// Also use emulated devices. Only buyers in a testnet use them by default.
    #[serde(default)]
    pub emulated: bool,
    /// `balanced`, `fastest`, `cheapest` or `greenest`.
    #[serde(default = "default_objective")]
    #[schema(default = "fastest")]
    pub prefer: String,
    /// With 2, two sessions without a common provider compute each token, and a third decides if
    /// they differ.
    #[serde(default = "default_verify")]
    #[schema(default = 1, minimum = 1, maximum = 2)]
    pub verify: u8,
    /// How long to wait for devices that others have leased.
    #[serde(default)]
    pub wait: f64,
    /// How long the session keeps its leases without a request.
    #[serde(default = "default_keep_alive")]
    #[schema(default = 60.0)]
    pub keep_alive: f64,
}

/// Largest number of requests that a session can answer at once.
const SEQUENCES_MAX: u32 = 32;

/// Largest number of providers over which a model can be cut.
const PROVIDERS_MAX: usize = 64;

/// Largest number of tokens for which souk buys at a time, and of positions.
const TOKENS_MAX: usize = 1 << 20;

fn default_tokens() -> usize {
    1024
}

fn default_sequences() -> u32 {
    8
}

fn default_providers() -> usize {
    1
}

fn default_verify() -> u8 {
    1
}

fn default_objective() -> String {
    "fastest".to_owned()
}

fn default_keep_alive() -> f64 {
    60.0
}

impl SessionBody {
    /// Returns the order that the body describes.
    ///
    /// # Errors
    /// Fails if a field has an invalid value.
    pub fn to_order(&self) -> Result<SessionOrder, Problem> {
        check_range("verify", self.verify, 1, 2)?;
        check_range("sequences", self.sequences, 1, SEQUENCES_MAX)?;
        check_range("min_providers", self.min_providers, 1, PROVIDERS_MAX)?;
        check_range("max_providers", self.max_providers, 1, PROVIDERS_MAX)?;
        check_range("tokens", self.tokens, 1, TOKENS_MAX)?;
        check_range("context", self.context.unwrap_or(1), 1, TOKENS_MAX)?;
        let prefer = self.prefer.parse();
        let limits = Limits {
            budget: self.budget.map(Credits),
            providers_min: self.min_providers,
            providers_max: self.max_providers.max(self.min_providers),
            devices: self.devices.clone(),
            emulated: EmulatedDevices::by_flags(self.emulated, false)
                .map_err(|error| invalid_input(error.to_string()))?,
            objective: prefer.map_err(|error| invalid_input(format!("prefer: {error}")))?,
            wait: parse_duration("wait", self.wait)?,
            ..Limits::default()
        };
        Ok(SessionOrder {
            model: self.model.clone(),
            limits,
            verify: self.verify,
            tokens: self.tokens,
            sequences: self.sequences,
            context: self.context,
            is_embedding: self.embeddings,
            keep_alive: parse_duration("keep_alive", self.keep_alive)?,
        })
    }
}

fn check_range<T: PartialOrd + ToString>(
    field: &str,
    value: T,
    min: T,
    max: T,
) -> Result<(), Problem> {
    if (&min..=&max).contains(&&value) {
        return Ok(());
    }
    let (value, min, max) = (value.to_string(), min.to_string(), max.to_string());
    Err(invalid_input(format!(
        "{field} is {value}, and must be from {min} to {max}"
    )))
}

/// An open session of a language model.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SessionView {
    /// Its id.
    pub id: String,
    /// The name of its model.
    pub model: String,
    /// When it was opened, RFC 3339.
    pub opened: String,
    /// The base address for OpenAI's clients; the key is a token of the gateway that may trade.
    pub base_url: String,
    /// The maximum cost, in micro-credits; `null` if it has none.
    pub budget: Option<u64>,
    /// The number of requests that it answered.
    pub answered: u64,
    /// The number of requests that failed.
    pub failed: u64,
    /// The amount that receipts of its ended leases state, in micro-credits.
    pub paid: u64,
    /// The leases that it has ended and paid.
    pub leases: Vec<u64>,
}
