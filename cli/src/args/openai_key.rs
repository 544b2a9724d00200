//! The arguments of `souk openai key`, which issues, lists and revokes the keys with which an
//! organisation's programs can use its `souk openai` server, each with a budget of its own.

use souk_node::buyer::text_keys::{
    BudgetPeriod, KeyBudget, KeyName, ModelPattern, REQUESTS_AT_ONCE,
};
use souk_node::market::Credits;

use super::account::credits;

/// Commands of the server for OpenAI's clients.
#[derive(Debug, clap::Subcommand)]
pub enum OpenaiCommand {
    /// Issue, list and revoke keys for `souk openai` without a model: each has a budget, models and
    /// rates of its own.
    #[command(subcommand)]
    Key(OpenaiKey),
}

/// Commands on the keys of an organisation.
#[derive(Debug, clap::Subcommand)]
pub enum OpenaiKey {
    /// Issue a key and print it, this once. A running server takes it at once.
    Add(OpenaiKeyArgs),
    /// List the keys: what each can spend, has spent, and holds for its open requests.
    List {
        /// Also list revoked keys.
        #[arg(long)]
        all: bool,
    },
    /// Revoke a key: within a second, a running server takes no request with it any more.
    Revoke {
        /// The key's name.
        name: KeyName,
    },
}

/// A key to issue.
#[derive(Debug, clap::Args)]
pub struct OpenaiKeyArgs {
    /// The key's name in the list, such as that of its user: up to 64 characters, without spaces.
    pub name: KeyName,
    /// The most that the key can spend, in credits; with /day or /month, in each day or month of
    /// UTC. Without it, the server's own --budget is the limit.
    #[arg(long, value_name = "CREDITS[/day|/month]", value_parser = budget)]
    pub budget: Option<KeyBudget>,
    /// The models that the key can use, with commas between them; `*` at the end of a name stands
    /// for all that follows.
    #[arg(long, value_name = "MODELS", value_delimiter = ',')]
    pub models: Vec<ModelPattern>,
    /// The most requests a minute.
    #[arg(long, value_name = "REQUESTS",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rate: Option<u32>,
    /// The most tokens a minute, of messages and answers; a request counts with its max_tokens
    /// until it is over.
    #[arg(long, value_name = "TOKENS",
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    pub token_rate: Option<u64>,
    /// The most requests that are open at once, those that wait for a slot included.
    #[arg(long, value_name = "REQUESTS", default_value_t = REQUESTS_AT_ONCE,
        value_parser = clap::value_parser!(u32).range(1..=512))]
    pub at_once: u32,
}

/// Parses a budget: credits, and the period in which it begins anew.
fn budget(text: &str) -> Result<KeyBudget, String> {
    let (amount, period) = match text.split_once('/') {
        None => (text, BudgetPeriod::Whole),
        Some((amount, "day")) => (amount, BudgetPeriod::Day),
        Some((amount, "month")) => (amount, BudgetPeriod::Month),
        Some((_, other)) => return Err(format!("{other:?} is neither day nor month")),
    };
    Ok(KeyBudget {
        credits: Credits(credits(amount)?),
        period,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_for_good_or_for_a_day_or_a_month() {
        let parsed = |text| budget(text).map(|it| (it.credits.0, it.period));
        assert_eq!(parsed("5"), Ok((5_000_000, BudgetPeriod::Whole)));
        assert_eq!(parsed("0.5/day"), Ok((500_000, BudgetPeriod::Day)));
        assert_eq!(parsed("20/month"), Ok((20_000_000, BudgetPeriod::Month)));
        for wrong in ["", "5/", "5/week", "/day", "0", "-1/day", "5/day/day"] {
            assert!(budget(wrong).is_err(), "{wrong}");
        }
    }
}
