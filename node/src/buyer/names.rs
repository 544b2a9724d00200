//! Forms the display names of providers: name, device, and first digits of the account. The command
//! line shows them, and they are stored with the plan of a job.

use std::collections::BTreeMap;

use souk_market::{AccountKey, Listing, Name, Resources};

/// How many digits of an account distinguish providers.
const DIGITS: usize = 8;

/// The display name of each provider.
pub type Names = BTreeMap<AccountKey, String>;

/// Returns the display names of the providers of asks.
pub fn provider_names<'a>(listings: impl IntoIterator<Item = &'a Listing>) -> Names {
    let listings = listings.into_iter();
    listings
        .map(|listing| (listing.provider, provider_name(listing)))
        .collect()
}

/// Returns the display name of a provider: its name, its device, and the first digits of its
/// account.
#[must_use]
pub fn provider_name(listing: &Listing) -> String {
    let Resources {
        model, emulated, ..
    } = &listing.resources;
    provider_of(&listing.name, model, *emulated, &listing.provider)
}

/// Returns a display name from its parts: the name, the device and whether it is emulated, the
/// account.
#[must_use]
pub fn provider_of(name: &Name, model: &Name, emulated: bool, account: &AccountKey) -> String {
    let emulated = if emulated { ", emulated" } else { "" };
    let account = first_digits(account);
    match name.as_str() {
        "" => format!("({model}{emulated}) {account}"),
        name => format!("{name} ({model}{emulated}) {account}"),
    }
}

/// Returns the display name of an account, or else its first digits.
#[must_use]
pub fn account_name(provider: &AccountKey, names: &Names) -> String {
    let known = names.get(provider).cloned();
    known.unwrap_or_else(|| first_digits(provider))
}

fn first_digits(account: &AccountKey) -> String {
    account.to_string().chars().take(DIGITS).collect()
}
