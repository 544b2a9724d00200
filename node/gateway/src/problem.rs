//! Defines the errors that the gateway answers: JSON as in RFC 9457 (problem details), with the
//! same codes as the command line.

use axum::Json;
use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value};
use souk_folder::config::ConfigError;
use souk_node::buyer::pinned_plan::PlanRefusal;
use souk_node::buyer::{JournalError, QuoteError};
use souk_node::client::broker::BrokerError;
use souk_node::client::market_data::ClassError;
use souk_node::client::trader::TradeError;
use utoipa::ToSchema;

/// The code of a problem, a word whose meaning never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The request is malformed: its JSON, a field or a parameter.
    Malformed,
    /// The request has no token, or an invalid one.
    Unauthorized,
    /// The token does not allow this request, or it comes from a web page of another origin.
    Forbidden,
    /// The requested object does not exist.
    NotFound,
    /// The path does not support this method.
    MethodNotAllowed,
    /// The job is not in the state that this request needs.
    State,
    /// The gateway is still working on a request with the same idempotency key.
    Busy,
    /// The order book has changed: the job would exceed the plan by more than the request allows.
    PlanMoved,
    /// An earlier request with the same idempotency key had another body.
    KeyReused,
    /// The body is too large.
    TooLarge,
    /// The content has no byte of the requested range.
    Range,
    /// The host of the request is not a name of this machine.
    Misdirected,
    /// A model, an input or a limit is not usable.
    Input,
    /// The hash of the bytes is not the one in their name.
    Verification,
    /// No plan fits.
    NoPlan,
    /// No ask in the book suits the job.
    NoneEligible,
    /// The budget is too small.
    Budget,
    /// The job cannot end before its deadline.
    Deadline,
    /// Other jobs of this buyer have a higher priority.
    Behind,
    /// The market refused the command.
    MarketRefused,
    /// There are too many requests, streams or bytes.
    TooMany,
    /// No validator answers.
    MarketUnreachable,
    /// The gateway is stopping.
    Stopping,
    /// An unexpected failure.
    Unexpected,
}

impl Code {
    fn status(self) -> StatusCode {
        match self {
            Code::Malformed => StatusCode::BAD_REQUEST,
            Code::Unauthorized => StatusCode::UNAUTHORIZED,
            Code::Forbidden => StatusCode::FORBIDDEN,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Code::Range => StatusCode::RANGE_NOT_SATISFIABLE,
            Code::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Code::KeyReused | Code::Input | Code::Verification => StatusCode::UNPROCESSABLE_ENTITY,
            Code::TooMany => StatusCode::TOO_MANY_REQUESTS,
            Code::MarketUnreachable | Code::Stopping => StatusCode::SERVICE_UNAVAILABLE,
            Code::Unexpected => StatusCode::INTERNAL_SERVER_ERROR,
            Code::State
            | Code::Busy
            | Code::PlanMoved
            | Code::NoPlan
            | Code::NoneEligible
            | Code::Budget
            | Code::Deadline
            | Code::Behind
            | Code::MarketRefused => StatusCode::CONFLICT,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Code::Malformed => "the question cannot be read",
            Code::Unauthorized => "a token is needed",
            Code::Forbidden => "this is not allowed",
            Code::NotFound => "there is no such thing",
            Code::MethodNotAllowed => "this method does nothing here",
            Code::State => "it is not in the state for this",
            Code::Busy => "it is being worked on",
            Code::PlanMoved => "the book has moved",
            Code::KeyReused => "the key was used for something else",
            Code::TooLarge => "the body is too large",
            Code::Range => "the range is not there",
            Code::Misdirected => "this is not that host",
            Code::Input => "an input cannot be used",
            Code::Verification => "it does not hold",
            Code::NoPlan => "no plan fits",
            Code::NoneEligible => "no ask suits",
            Code::Budget => "the budget is too small",
            Code::Deadline => "the deadline is too short",
            Code::Behind => "other jobs go first",
            Code::MarketRefused => "the market refused",
            Code::TooMany => "too much at once",
            Code::MarketUnreachable => "no validator answers",
            Code::Stopping => "it stops",
            Code::Unexpected => "something went wrong here",
        }
    }

    /// Returns whether the same request can succeed a moment later.
    fn is_retryable(self) -> bool {
        matches!(
            self,
            Code::Busy
                | Code::Behind
                | Code::TooMany
                | Code::MarketUnreachable
                | Code::NoneEligible
        )
    }
}

/// An error of the gateway, in the form of RFC 9457.
#[derive(Debug, Serialize, ToSchema)]
pub struct Problem {
    /// The code of the problem.
    pub code: Code,
    /// The meaning of the code in a few words.
    title: &'static str,
    /// The status of the answer.
    pub status: u16,
    /// The cause, in a sentence.
    pub detail: String,
    /// How to solve it; empty if that is not known.
    pub hint: String,
    /// Whether the same request can succeed a moment later.
    retryable: bool,
    /// Further facts for programs.
    #[schema(value_type = Object)]
    facts: Box<Map<String, Value>>,
    #[serde(skip)]
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Problem {
    /// Creates a problem with a hint that says how to solve it.
    pub fn new(code: Code, detail: impl ToString, hint: &str) -> Problem {
        let headers = match code {
            Code::Unauthorized => vec![(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))],
            Code::TooMany => vec![(RETRY_AFTER, HeaderValue::from_static("1"))],
            _ => Vec::new(),
        };
        Problem {
            code,
            title: code.title(),
            status: code.status().as_u16(),
            detail: detail.to_string(),
            hint: hint.to_owned(),
            retryable: code.is_retryable(),
            facts: Box::default(),
            headers,
        }
    }

    /// Returns the problem of an unusable field or parameter.
    pub fn malformed_input(detail: impl ToString) -> Problem {
        Problem::new(
            Code::Malformed,
            detail,
            "/v1/openapi.json says what is taken",
        )
    }

    /// Returns the problem of something that does not exist.
    pub fn not_found(detail: impl ToString, hint: &str) -> Problem {
        Problem::new(Code::NotFound, detail, hint)
    }

    /// Returns the problem of a failure on this machine.
    pub fn unexpected_failure(detail: impl ToString) -> Problem {
        let hint = "look at the gateway's log, its folder's permissions and the space left";
        Problem::new(Code::Unexpected, detail, hint)
    }

    /// Adds a fact to the problem.
    pub fn with(mut self, name: &str, value: impl Serialize) -> Problem {
        let value = serde_json::to_value(value).unwrap_or_default();
        self.facts.insert(name.to_owned(), value);
        self
    }

    /// Adds a header to the answer.
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Problem {
        self.headers.push((name, value));
        self
    }

    /// Returns the problem of a method that a path does not support; the router knows those it
    /// does.
    pub fn of_method(allow: Option<HeaderValue>) -> Problem {
        let detail = "the path is there, and does not take this method";
        let problem = Problem::new(
            Code::MethodNotAllowed,
            detail,
            "the header Allow names them",
        );
        match allow {
            Some(allow) => problem.with_header(ALLOW, allow),
            None => problem,
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.code.status(), Json(&self)).into_response();
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response.headers_mut().extend(self.headers);
        response
    }
}

impl From<BrokerError> for Problem {
    fn from(error: BrokerError) -> Problem {
        let hint = "is the market up? `souk validator list` shows who runs";
        Problem::new(Code::MarketUnreachable, error, hint)
    }
}

impl From<ClassError> for Problem {
    fn from(error: ClassError) -> Problem {
        match error {
            ClassError::Broker(error) => error.into(),
            ClassError::Unknown { .. } => {
                Problem::not_found(error, "/v1/market/classes lists them")
            }
            ClassError::Several { .. } => Problem::malformed_input(error),
        }
    }
}

impl From<TradeError> for Problem {
    fn from(error: TradeError) -> Problem {
        match error {
            TradeError::Broker(error) => error.into(),
            TradeError::Refused(_) | TradeError::TooLarge { .. } | TradeError::Invalid(_) => {
                Problem::new(Code::MarketRefused, error, "")
            }
            TradeError::Uncertain(_) | TradeError::Endowment { .. } => {
                Problem::new(Code::MarketUnreachable, error, "look what became of it")
            }
        }
    }
}

impl From<JournalError> for Problem {
    fn from(error: JournalError) -> Problem {
        match error {
            JournalError::Unknown { ref name, .. } => {
                let detail = format!("there is no job \"{name}\"");
                Problem::not_found(detail, "/v1/jobs lists them")
            }
            JournalError::Busy { .. } => {
                Problem::new(Code::Busy, error, "another process runs it: wait for it")
            }
            JournalError::Subject { .. } | JournalError::Old { .. } => {
                Problem::new(Code::State, error, "submit the job again")
            }
            JournalError::File { .. } | JournalError::Facts(_) | JournalError::Value { .. } => {
                Problem::unexpected_failure(error)
            }
        }
    }
}

impl From<ConfigError> for Problem {
    fn from(error: ConfigError) -> Problem {
        Problem::unexpected_failure(error)
    }
}

impl From<QuoteError> for Problem {
    fn from(error: QuoteError) -> Problem {
        let (code, hint) = match error.code() {
            "input" => (Code::Input, "give the model's inputs as it wants them"),
            "market_unreachable" => (
                Code::MarketUnreachable,
                "is the market up? `souk validator list` shows who runs",
            ),
            "none_eligible" => (Code::NoneEligible, "loosen what rules the asks out"),
            "budget" => (Code::Budget, "raise `budget`, or `prefer` cheapest"),
            "deadline" => (Code::Deadline, "raise `deadline`, or `prefer` fastest"),
            "behind" => (Code::Behind, "give it time with `wait`"),
            _ => (
                Code::NoPlan,
                "loosen the limits; /v1/market/asks shows what is on offer",
            ),
        };
        let problem = Problem::new(code, &error, hint);
        match error {
            QuoteError::NoneEligible { seen, unsuitable } => problem
                .with("asks_seen", seen)
                .with("not_eligible", unsuitable),
            QuoteError::Operators { operators, seen } => {
                let names: Vec<String> = operators.into_iter().map(|(name, _)| name).collect();
                problem.with("asks_seen", seen).with("operators", names)
            }
            QuoteError::Budget { cheapest, .. } => {
                problem.with("needed", to_micro_credits(cheapest))
            }
            QuoteError::Escrow { needed, .. } => problem.with("needed", to_micro_credits(needed)),
            _ => problem,
        }
    }
}

/// Converts credits to micro-credits, rounded up so that they suffice.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a price is small"
)]
fn to_micro_credits(credits: f64) -> u64 {
    (credits * 1e6).ceil() as u64
}

impl From<PlanRefusal> for Problem {
    fn from(refusal: PlanRefusal) -> Problem {
        let hint = "make a new plan, or allow more with `slippage`";
        match refusal {
            PlanRefusal::Unknown { .. } => Problem::not_found(refusal, hint),
            PlanRefusal::Subject { .. } => Problem::new(Code::Input, refusal, hint),
            PlanRefusal::Price { .. } | PlanRefusal::Time { .. } => {
                Problem::new(Code::PlanMoved, refusal, hint)
            }
        }
    }
}
