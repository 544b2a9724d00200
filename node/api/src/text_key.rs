//! Defines the public JSON of the API keys that an organisation issues for requests to language
//! models. `souk openai key list` and the gateway show it.

use serde::Serialize;
use souk_roles::tokens::keys::{BudgetPeriod, KeyAccount, KeyTerms};

use crate::time::format_rfc3339;

/// An API key, with its limits and its use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TextKeyView {
    /// The name that its issuer gave it.
    pub name: String,
    /// Its id: the first digits of its hash.
    pub id: String,
    /// Whether it was revoked.
    pub revoked: bool,
    /// When it was issued.
    pub issued_at: String,
    /// Maximum that it can spend, in micro-credits; none if it has no limit of its own.
    pub budget: Option<u64>,
    /// When the budget resets: `never`, or at each new `day` or `month` in UTC.
    pub budget_resets: &'static str,
    /// The models that it can use; a trailing `*` matches any suffix. If empty, all models.
    pub models: Vec<String>,
    /// Maximum number of requests per minute; none if unlimited.
    pub requests_per_minute: Option<u32>,
    /// Maximum number of tokens per minute; none if unlimited.
    pub tokens_per_minute: Option<u64>,
    /// Maximum number of requests that are open at once.
    pub requests_at_once: u32,
    /// Total cost of its requests, in micro-credits.
    pub spent: u64,
    /// Cost of its requests in the current day or month, in micro-credits.
    pub period_spent: u64,
    /// Amount reserved for its open requests, in micro-credits.
    pub held: u64,
    /// Rest of the budget, in micro-credits; none without a budget.
    pub left: Option<u64>,
    /// Number of its requests for which an amount was reserved.
    pub requests: u64,
    /// Number of input tokens of these requests.
    pub input_tokens: u64,
    /// Number of output tokens of these requests.
    pub output_tokens: u64,
}

impl TextKeyView {
    /// Builds the public form of a key from its terms and its account.
    #[must_use]
    pub fn new(terms: &KeyTerms, account: &KeyAccount) -> TextKeyView {
        let usage = &account.usage;
        TextKeyView {
            name: terms.name.to_string(),
            id: terms.id().to_string(),
            revoked: terms.is_revoked,
            issued_at: format_rfc3339(terms.issued.0),
            budget: terms.budget.map(|budget| budget.credits.0),
            budget_resets: match terms.budget.map(|budget| budget.period) {
                None | Some(BudgetPeriod::Whole) => "never",
                Some(BudgetPeriod::Day) => "day",
                Some(BudgetPeriod::Month) => "month",
            },
            models: terms.models.iter().map(ToString::to_string).collect(),
            requests_per_minute: terms.requests_per_minute,
            tokens_per_minute: terms.tokens_per_minute,
            requests_at_once: terms.requests_at_once,
            spent: usage.spent.0,
            period_spent: usage.period_spent.0,
            held: account.held.0,
            left: account.left.map(|left| left.0),
            requests: usage.requests,
            input_tokens: usage.tokens.prompt(),
            output_tokens: usage.tokens.output,
        }
    }
}
