//! The keys that an organisation issued for its texts, as `souk openai key list` shows them.

use serde::Serialize;
use souk_roles::tokens::keys::{BudgetPeriod, KeyAccount, KeyTerms};

use crate::time::format_rfc3339;

/// A key, what it can spend, and what it has spent.
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
    /// The most that it can spend, in micro-credits; none for no limit of its own.
    pub budget: Option<u64>,
    /// When the budget begins anew: `never`, `day` or `month`, by UTC.
    pub budget_resets: &'static str,
    /// The models that it can use, `*` at the end for all that follows; empty for all.
    pub models: Vec<String>,
    /// The most requests a minute.
    pub requests_per_minute: Option<u32>,
    /// The most tokens a minute.
    pub tokens_per_minute: Option<u64>,
    /// What its requests cost since it was issued, in micro-credits.
    pub spent: u64,
    /// What its requests of the current day or month cost, in micro-credits.
    pub period_spent: u64,
    /// What its open requests hold, in micro-credits.
    pub held: u64,
    /// What is left of the budget, in micro-credits; none without a budget.
    pub left: Option<u64>,
    /// Its requests for which something was reserved.
    pub requests: u64,
    /// The tokens of their messages.
    pub input_tokens: u64,
    /// The tokens of their answers.
    pub output_tokens: u64,
}

impl TextKeyView {
    /// Describes a key.
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
