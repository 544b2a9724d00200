//! What providers are called, wherever they are spoken of: name, device, first digits of the
//! account.

use std::collections::BTreeMap;

use souk_market::{AccountKey, Listing, Name, Resources};

/// Digits of an account that tell providers apart.
const DIGITS: usize = 8;

/// What providers are called.
pub type Names = BTreeMap<AccountKey, String>;

/// What the providers of asks are called.
pub fn names<'a>(listings: impl IntoIterator<Item = &'a Listing>) -> Names {
    let listings = listings.into_iter();
    listings
        .map(|listing| (listing.provider, provider(listing)))
        .collect()
}

/// What a provider is called: its name, its device, and the first digits of its account.
#[must_use]
pub fn provider(listing: &Listing) -> String {
    let Resources {
        model, emulated, ..
    } = &listing.resources;
    provider_of(&listing.name, (model, *emulated), &listing.provider)
}

/// The same of its parts: its name, its device and whether that is emulated, its account.
#[must_use]
pub fn provider_of(name: &Name, (model, emulated): (&Name, bool), account: &AccountKey) -> String {
    let emulated = if emulated { ", emulated" } else { "" };
    let account = digits(account);
    match name.as_str() {
        "" => format!("({model}{emulated}) {account}"),
        name => format!("{name} ({model}{emulated}) {account}"),
    }
}

/// What a provider is called, by its account: as it is known, else by the first digits.
#[must_use]
pub fn called(provider: &AccountKey, names: &Names) -> String {
    let known = names.get(provider).cloned();
    known.unwrap_or_else(|| digits(provider))
}

fn digits(account: &AccountKey) -> String {
    account.to_string().chars().take(DIGITS).collect()
}
