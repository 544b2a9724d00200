//! Builds the errors of OpenAI's API with which the server refuses requests.

use axum::Json;
use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use souk_gateway::{Code, Problem};
use souk_node::buyer::{End, NoPlanKind, Reason, UnfinishedJob};
use souk_texts::TextError;

/// A refused request.
#[derive(Clone, Debug)]
pub struct Refusal {
    status: StatusCode,
    message: String,
    /// The field at fault.
    param: Option<String>,
    code: Option<&'static str>,
    /// When the client can send the request again, if not at once.
    retry_seconds: u64,
}

impl Refusal {
    /// Creates a refusal with a status.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            param: None,
            code: None,
            retry_seconds: 1,
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

    /// Sets the time after which the client should send the request again.
    pub fn with_retry(mut self, seconds: u64) -> Self {
        self.retry_seconds = seconds.max(1);
        self
    }

    /// Creates the refusal of a missing or wrong key.
    pub fn key(message: impl Into<String>) -> Self {
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
        let message = format!("{most} requests wait already: send this one again in a moment");
        Self::new(StatusCode::TOO_MANY_REQUESTS, message).with_code("rate_limit_exceeded")
    }

    /// Joins the refusals of several models into one: that of the first model which may answer a
    /// moment later, or else the last one.
    pub fn join(refusals: Vec<(String, Refusal)>) -> Option<Self> {
        let is_momentary = |refusal: &Refusal| {
            matches!(
                refusal.status,
                StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS
            )
        };
        let momentary = refusals.iter().find(|(_, refusal)| is_momentary(refusal));
        let (_, chosen) = momentary.or(refusals.last())?;
        let mut joined = chosen.clone();
        if refusals.len() > 1 {
            let each = refusals.iter();
            let each = each.map(|(model, refusal)| format!("{model}: {}", refusal.message));
            let each = each.collect::<Vec<_>>().join("; ");
            joined.message = format!("none of the models answered: {each}");
        }
        Some(joined)
    }

    /// Creates the refusal of a path of OpenAI's API that this server does not offer.
    pub fn unsupported_endpoint(message: &str) -> Self {
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
                headers.insert(RETRY_AFTER, HeaderValue::from(self.retry_seconds));
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

impl From<TextError> for Refusal {
    fn from(error: TextError) -> Self {
        let cause = error.to_string();
        match error {
            TextError::Input { hint, .. } => {
                let refusal = Self::new(StatusCode::BAD_REQUEST, with_hint(cause, &hint));
                refusal.with_code("invalid_input")
            }
            TextError::Quote { error, .. } => Self::from_quote(cause, Problem::from(*error)),
            TextError::Ended(ended) => Self::from_ended(cause, &ended),
            TextError::Journal(_) | TextError::Disagreement(_) => Self::market_unavailable(cause),
            TextError::NotRunnable(_) => Self::no_provider(cause),
            TextError::Interrupted(_) => Self::server_stopping(),
            TextError::Unexpected { hint, .. } => {
                let message = with_hint(cause, &hint);
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, message).with_code("unexpected")
            }
        }
    }
}

impl Refusal {
    fn no_provider(message: String) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message).with_code("no_provider")
    }

    fn market_unavailable(message: String) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message).with_code("market_unavailable")
    }

    fn budget_used(cause: String) -> Self {
        let hint = "start the server with a larger budget; souk returns what is held and not paid \
                    when its lease is over";
        let message = with_hint(cause, hint);
        Self::new(StatusCode::PAYMENT_REQUIRED, message).with_code("insufficient_quota")
    }

    fn from_quote(cause: String, problem: Problem) -> Self {
        match problem.code {
            Code::Budget => Self::budget_used(cause),
            Code::Input => Self::new(StatusCode::BAD_REQUEST, cause).with_code("invalid_input"),
            Code::MarketUnreachable | Code::Deadline => Self::market_unavailable(cause),
            _ => Self::no_provider(cause),
        }
    }

    fn from_ended(cause: String, ended: &UnfinishedJob) -> Self {
        let End::Failed(reason) = &ended.how else {
            return Self::server_stopping();
        };
        if reason.bad_input().is_some() {
            return Self::new(StatusCode::BAD_REQUEST, cause).with_code("invalid_input");
        }
        match reason {
            Reason::Escrow { .. } => Self::budget_used(cause),
            Reason::NoPlan(none) if none.kind == NoPlanKind::Budget => Self::budget_used(cause),
            Reason::NoPlan(_) | Reason::Unsold(_) => Self::no_provider(cause),
            _ => Self::market_unavailable(cause),
        }
    }
}

fn with_hint(cause: String, hint: &str) -> String {
    match hint {
        "" => cause,
        hint => format!("{cause}; {hint}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_may_answer_a_moment_later_decides_for_all() {
        let joined = |statuses: &[StatusCode]| {
            let refusal = |status: &StatusCode| ("m".to_owned(), Refusal::new(*status, "no"));
            Refusal::join(statuses.iter().map(refusal).collect()).map(|joined| joined.status)
        };
        let (paid, later) = (StatusCode::PAYMENT_REQUIRED, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(joined(&[later, paid]), Some(later));
        let full = StatusCode::SERVICE_UNAVAILABLE;
        assert_eq!(joined(&[paid, full, paid]), Some(full));
        assert_eq!(joined(&[full, paid, later]), Some(full));
        assert_eq!(joined(&[later, full]), Some(later));
        assert_eq!(joined(&[StatusCode::NOT_FOUND, paid]), Some(paid));
        assert_eq!(joined(&[]), None);
    }
}
