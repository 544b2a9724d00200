//! Converts between providers' accounts and the names that users type and read: finds the account
//! for a name or its beginning, and the names of the providers of leases. The commands on jobs,
//! orders and leases use it.

use souk_node::client::broker::Broker;
use souk_node::market::{AccountKey, Lease, Listing};

use crate::commands::book::market_failure;
use crate::failure::{Failure, Kind};
use crate::show::{self, Names};
use crate::suggested_command;

/// Returns the accounts of providers. A text must be a whole account, or the beginning of a name or
/// account that matches one provider in the book.
pub async fn resolve_providers(
    broker: &Broker,
    texts: &[String],
) -> Result<Vec<AccountKey>, Failure> {
    let whole: Vec<Option<AccountKey>> = texts.iter().map(|text| text.parse().ok()).collect();
    if whole.iter().all(Option::is_some) {
        return Ok(whole.into_iter().flatten().collect());
    }
    let book = broker.fetch_book().await.map_err(market_failure)?;
    let one = |(text, whole): (&String, Option<AccountKey>)| match whole {
        Some(account) => Ok(account),
        None => on_offer(&book, text),
    };
    texts.iter().zip(whole).map(one).collect()
}

/// Largest number of names to ask for; beyond it, users see accounts.
const NAMED_MAX: usize = 32;

/// Returns the names of the leases' providers.
pub async fn of_leases(broker: &Broker, leases: &[Lease]) -> Result<Names, Failure> {
    let mut names = Names::new();
    for lease in leases {
        if names.contains_key(&lease.provider) || names.len() >= NAMED_MAX {
            continue;
        }
        let account = broker
            .fetch_account(lease.provider)
            .await
            .map_err(market_failure)?;
        let name = account.map(|account| account.name).unwrap_or_default();
        let called = show::provider_of(&name, &lease.model, lease.class.emulated, &lease.provider);
        names.insert(lease.provider, called);
    }
    Ok(names)
}

/// Returns the provider in the book that a text names.
fn on_offer(book: &[Listing], text: &str) -> Result<AccountKey, Failure> {
    let is_called = |ask: &&Listing| ask.name.as_str() == text;
    let begins = |ask: &&Listing| {
        let account = ask.provider.to_string();
        !text.is_empty() && (account.starts_with(text) || ask.name.as_str().starts_with(text))
    };
    let exactly = show::provider_names(book.iter().filter(is_called));
    let found = match exactly.is_empty() {
        true => show::provider_names(book.iter().filter(begins)),
        false => exactly,
    };
    let hint = format!(
        "give a name or the first digits, as `{}` shows them",
        suggested_command::market_command("book")
    );
    match found.len() {
        1 => Ok(*found.keys().next().expect("there is one")),
        0 => {
            let cause = format!("no provider on offer is called \"{text}\"");
            Err(Failure::new(Kind::Input, cause, hint))
        }
        _ => {
            let names: Vec<String> = found.into_values().take(3).collect();
            let cause = format!("several are called \"{text}\": {}", names.join(", "));
            Err(Failure::new(
                Kind::Input,
                cause,
                "give more of the name or of the digits",
            ))
        }
    }
}
