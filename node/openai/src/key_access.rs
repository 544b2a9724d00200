//! Finds out who sent a request by its API key, and what this caller can use: the server's owner,
//! who has the server's own key, or a user of a key that the organisation issued.

use axum::http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use souk_gateway::find_bearer_token;
use souk_node::buyer::text_keys::CoverError;
use souk_node::buyer::text_router::TextSpending;
use souk_roles::tokens::keys::{BudgetPeriod, KeyAccount, KeyRefusal, KeyTerms};

use crate::refusal::Refusal;
use crate::{AccessPolicy, KEY_FILE};

/// The milliseconds of a second.
const SECOND_MS: u64 = 1_000;

/// When a client should try a key again that another server takes.
const ELSEWHERE_RETRY_SECONDS: u64 = 5;

/// The micro-credits of a credit.
const MICRO: f64 = 1e6;

/// Who sent a request.
#[derive(Clone, Debug)]
pub enum Caller {
    /// The owner of the server.
    Owner,
    /// A user of a key that the organisation issued.
    Key(Box<KeyTerms>),
}

impl Caller {
    /// Returns whether the caller can use a model.
    pub fn allows_model(&self, model: &str) -> bool {
        match self {
            Caller::Owner => true,
            Caller::Key(terms) => terms.allows_model(model),
        }
    }

    /// Checks that the caller can use a model.
    ///
    /// # Errors
    /// The refusal, with the models of the key.
    pub fn check_model(&self, model: &str) -> Result<(), Refusal> {
        let Caller::Key(terms) = self else {
            return Ok(());
        };
        if terms.allows_model(model) {
            return Ok(());
        }
        let allowed: Vec<String> = terms.models.iter().map(ToString::to_string).collect();
        let message = format!(
            "the key {} does not allow the model {model:?}; it allows {}",
            terms.name,
            allowed.join(", ")
        );
        let refusal = Refusal::new(StatusCode::NOT_FOUND, message);
        Err(refusal.with_code("model_not_found"))
    }
}

impl AccessPolicy {
    /// Returns who sent a request; none if its key is not known.
    pub(crate) fn find_caller(&self, headers: &HeaderMap) -> Option<Caller> {
        if self.key.is_shown(headers) {
            return Some(Caller::Owner);
        }
        let terms = self.keys.as_ref()?.find_key(find_bearer_token(headers)?)?;
        Some(Caller::Key(Box::new(terms)))
    }

    /// Returns the refusal of a request whose key is not known, or is one of another server.
    pub(crate) fn refuse_key(&self, headers: &HeaderMap) -> Refusal {
        let Some(keys) = &self.keys else {
            let message =
                format!("the API key is not the one in {KEY_FILE} of the market's folder");
            return Refusal::key(message);
        };
        if find_bearer_token(headers).is_some_and(|sent| keys.is_taken_elsewhere(sent)) {
            let message = "another `souk openai` of this folder takes the keys of the \
                           organisation; use its address, or try again when it has stopped";
            return Refusal::new(StatusCode::SERVICE_UNAVAILABLE, message)
                .with_code("keys_elsewhere")
                .with_retry(ELSEWHERE_RETRY_SECONDS);
        }
        Refusal::key(format!(
            "the API key is neither the one in {KEY_FILE} of the market's folder nor one of `souk \
             openai key list`"
        ))
    }
}

/// Formats what a key has spent and has left, as OpenRouter does: amounts in credits.
pub fn format_account(terms: &KeyTerms, account: &KeyAccount) -> Value {
    let credits = |micro: u64| micro as f64 / MICRO;
    let budget = terms.budget.as_ref();
    let period = budget.map(|budget| match budget.period {
        BudgetPeriod::Whole => Value::Null,
        BudgetPeriod::Day => json!("daily"),
        BudgetPeriod::Month => json!("monthly"),
    });
    json!({ "data": {
        "label": terms.name.as_str(),
        "usage": credits(account.usage.spent.0),
        "limit": budget.map(|budget| credits(budget.credits.0)),
        "limit_remaining": account.left.map(|left| credits(left.0)),
        "limit_reset": period,
        "held": credits(account.held.0),
        "requests": account.usage.requests,
        "models": terms.models,
        "requests_per_minute": terms.requests_per_minute,
        "tokens_per_minute": terms.tokens_per_minute,
        "requests_at_once": terms.requests_at_once,
    }})
}

/// Formats what the server spent, for the owner's own key.
pub fn format_spending(spending: TextSpending) -> Value {
    let credits = |micro: u64| micro as f64 / MICRO;
    json!({ "data": {
        "label": "owner", "usage": credits(spending.spent.0), "held": credits(spending.held.0),
        "limit": null, "limit_remaining": null, "limit_reset": null, "models": [],
    }})
}

impl From<KeyRefusal> for Refusal {
    fn from(refusal: KeyRefusal) -> Self {
        let message = refusal.to_string();
        let refuse = |status, hint: &str| Refusal::new(status, format!("{message}; {hint}"));
        match refusal {
            KeyRefusal::Unknown => Refusal::key(message),
            KeyRefusal::Budget { budget, .. } => {
                let hint = match budget.period {
                    BudgetPeriod::Whole => "set a smaller max_tokens, or get a larger key",
                    BudgetPeriod::Day => "set a smaller max_tokens, or wait for the next day (UTC)",
                    BudgetPeriod::Month => {
                        "set a smaller max_tokens, or wait for the next month (UTC)"
                    }
                };
                refuse(StatusCode::PAYMENT_REQUIRED, hint).with_code("insufficient_quota")
            }
            KeyRefusal::Held { .. } => {
                let hint = "send the request again when one of them is over, or set a smaller \
                            max_tokens";
                refuse(StatusCode::TOO_MANY_REQUESTS, hint).with_code("rate_limit_exceeded")
            }
            KeyRefusal::AtOnce { .. } => {
                let hint = "send the request again when one of them is over";
                refuse(StatusCode::TOO_MANY_REQUESTS, hint).with_code("rate_limit_exceeded")
            }
            KeyRefusal::Rate {
                wait: Some(wait), ..
            } => {
                let seconds = wait.0.div_ceil(SECOND_MS);
                let hint = format!("send the request again in {seconds} s");
                let refusal = refuse(StatusCode::TOO_MANY_REQUESTS, &hint);
                refusal.with_code("rate_limit_exceeded").with_retry(seconds)
            }
            KeyRefusal::Rate { wait: None, .. } => {
                let hint = "the request is larger: shorten it, or set a smaller max_tokens";
                refuse(StatusCode::BAD_REQUEST, hint).with_code("rate_limit_exceeded")
            }
        }
    }
}

impl From<CoverError> for Refusal {
    fn from(error: CoverError) -> Self {
        match error {
            CoverError::Refused { refusal, .. } => refusal.into(),
            CoverError::NotWritten(_) => {
                let hint = "the operator of the server should look at its disk";
                Refusal::new(StatusCode::SERVICE_UNAVAILABLE, format!("{error}; {hint}"))
                    .with_code("keys_unavailable")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::header::AUTHORIZATION;
    use axum::response::IntoResponse;
    use souk_folder::clock::LogClock;
    use souk_gateway::LocalKey;
    use souk_node::buyer::text_keys::{NewKey, issue_key};
    use souk_node::market::{Credits, Millis};
    use souk_roles::tokens::keys::{KeyBudget, RateUnit};

    use souk_node::buyer::text_keys::TextKeys;

    use super::*;

    #[test]
    fn clients_try_again_when_that_can_help_and_else_not() {
        let budget = KeyBudget {
            credits: Credits(5_000_000),
            period: BudgetPeriod::Month,
        };
        let used = KeyRefusal::Budget {
            budget,
            spent: Credits(4_900_000),
            needed: Credits(200_000),
            left: Credits(0),
        };
        let held = KeyRefusal::Held {
            held: Credits(9),
            unspent: Credits(10),
            needed: Credits(2),
            left: Credits(1),
        };
        let rate = |wait| KeyRefusal::Rate {
            unit: RateUnit::Tokens,
            per_minute: 60,
            wait,
        };
        let cases = [
            (used, 402, None),
            (held, 429, Some("1")),
            (KeyRefusal::AtOnce { most: 64 }, 429, Some("1")),
            (rate(Some(Millis(4_001))), 429, Some("5")),
            (rate(None), 400, None),
            (KeyRefusal::Unknown, 401, None),
        ];
        for (refusal, status, retry) in cases {
            let response = Refusal::from(refusal).into_response();
            assert_eq!(response.status(), status);
            let after = response.headers().get("retry-after");
            assert_eq!(after.map(|it| it.to_str().unwrap()), retry, "{status}");
        }
    }

    #[tokio::test]
    async fn a_key_that_another_server_takes_is_not_called_wrong() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("buyer")).unwrap();
        let new = NewKey {
            name: "alice".parse().unwrap(),
            budget: None,
            models: Vec::new(),
            requests_per_minute: None,
            tokens_per_minute: None,
            requests_at_once: 1,
        };
        let (issued, _) = issue_key(folder.path(), new).unwrap();
        let open = || TextKeys::open(folder.path(), LogClock::default()).unwrap();
        let holder = open();
        let access = AccessPolicy {
            key: LocalKey::load_or_create(&folder.path().join(KEY_FILE)).unwrap(),
            keys: Some(open()),
            origins: Vec::new(),
        };
        let refuse = |sent: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, format!("Bearer {sent}").parse().unwrap());
            assert!(access.find_caller(&headers).is_none());
            access.refuse_key(&headers).into_response()
        };
        let elsewhere = refuse(&issued);
        assert_eq!(elsewhere.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(elsewhere.headers()["retry-after"], "5");
        assert_eq!(refuse("sk-souk-none").status(), StatusCode::UNAUTHORIZED);
        drop(holder);
    }
}
