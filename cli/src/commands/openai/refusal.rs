//! Errors in the format of OpenAI's API.

use axum::Json;
use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use souk_gateway::Problem;

use crate::failure::{Failure, Kind};

/// A refused request.
#[derive(Clone, Debug)]
pub struct Refusal {
    status: StatusCode,
    message: String,
    /// The field at fault.
    param: Option<String>,
    code: Option<&'static str>,
}

impl Refusal {
    /// Creates a refusal with a status.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            param: None,
            code: None,
        }
    }

    /// Sets the error code.
    pub fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// Creates the refusal of an unusable field.
    pub fn invalid_field(name: impl Into<String>, message: impl Into<String>) -> Self {
        let mut refusal = Self::new(StatusCode::BAD_REQUEST, message);
        refusal.param = Some(name.into());
        refusal
    }

    /// Sets the field at fault if the request is at fault and no field is set.
    pub fn with_field(mut self, field: &str) -> Self {
        if self.status == StatusCode::BAD_REQUEST && self.param.is_none() {
            self.param = Some(field.to_owned());
        }
        self
    }

    /// Creates the refusal of an unsupported field that would change the answer.
    pub fn unsupported_field(name: &str) -> Self {
        let message = format!("{name} is not supported here: leave it out");
        Self::invalid_field(name, message).with_code("unsupported_parameter")
    }

    /// Creates the refusal of a missing or wrong key.
    pub fn key(file: &str) -> Self {
        let message = format!("the API key is not the one in {file} of the market's folder");
        Self::new(StatusCode::UNAUTHORIZED, message).with_code("invalid_api_key")
    }

    /// Creates the refusal of a model that the server does not have.
    pub fn unknown_model(name: &str, own: &str) -> Self {
        let message = format!("the model {name:?} is not served here; {own:?} is");
        let mut refusal = Self::new(StatusCode::NOT_FOUND, message).with_code("model_not_found");
        refusal.param = Some("model".to_owned());
        refusal
    }

    /// Creates the refusal of a prompt that leaves no room for an answer.
    pub fn too_long(field: &str, prompt: usize, room: usize) -> Self {
        let message = format!(
            "the text has {prompt} tokens, and a session has room for {room}, an answer's \
             among them: shorten it, or start the server with more --context"
        );
        Self::invalid_field(field, message).with_code("context_length_exceeded")
    }

    /// Creates the refusal of a request beyond the queue's limit.
    pub fn queue_full(most: usize) -> Self {
        let message = format!("{most} questions wait already: ask again in a moment");
        Self::new(StatusCode::TOO_MANY_REQUESTS, message).with_code("rate_limit_exceeded")
    }

    /// Creates the refusal of a path that this server does not offer.
    pub fn unsupported_endpoint(offered: &str) -> Self {
        let message = format!("this server makes {offered}");
        Self::new(StatusCode::NOT_FOUND, message).with_code("unsupported_endpoint")
    }

    /// Creates the refusal of a server that is stopping.
    pub fn server_stopping() -> Self {
        let message = "the server stops";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message).with_code("stopping")
    }

    /// Returns the JSON object of the error, for a body or a stream.
    pub fn to_object(&self) -> Value {
        let kind = match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::PAYMENT_REQUIRED => "insufficient_quota",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        json!({ "error": {
            "message": self.message, "type": kind, "param": self.param, "code": self.code,
        }})
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.to_object())).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        let status = StatusCode::from_u16(problem.status);
        Self::new(status.unwrap_or(StatusCode::BAD_REQUEST), problem.detail)
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        let (status, code) = match failure.kind {
            Kind::Input | Kind::Usage => (StatusCode::BAD_REQUEST, "invalid_input"),
            Kind::Budget => (StatusCode::PAYMENT_REQUIRED, "insufficient_quota"),
            Kind::NoPlan => (StatusCode::SERVICE_UNAVAILABLE, "no_provider"),
            Kind::Network | Kind::Job | Kind::State | Kind::Deadline | Kind::Verification => {
                (StatusCode::SERVICE_UNAVAILABLE, "market_unavailable")
            }
            Kind::Interrupted => return Self::server_stopping(),
            Kind::Unexpected => (StatusCode::INTERNAL_SERVER_ERROR, "unexpected"),
        };
        let message = match failure.hint.as_str() {
            "" => failure.cause,
            hint => format!("{}; {hint}", failure.cause),
        };
        Self::new(status, message).with_code(code)
    }
}
