//! Lists the providers that a bid must exclude so that the market sells it the ask that the router
//! chose, although cheaper ones are in the book.

use souk_market::{AccountKey, Listing};

/// Returns the providers that a bid at the price of an ask must exclude to buy from that ask: those
/// that failed, and those of the asks that come before it in the book and meet the bid's demand for
/// tokens. There can be more of them than a bid can name.
pub(super) fn cheaper_providers(
    asks: &[Listing],
    at: usize,
    failed: &[AccountKey],
) -> Vec<AccountKey> {
    let chosen = &asks[at];
    let mut excluded = failed.to_vec();
    for ask in asks {
        let is_before = (ask.price, ask.order) < (chosen.price, chosen.order);
        let is_other = ask.class == chosen.class && ask.provider != chosen.provider;
        let sold = ask.resources.tokens.zip(chosen.resources.tokens);
        let is_wanted = ask.resources.model == chosen.resources.model
            && sold.is_none_or(|(sold, most)| sold.is_within(most));
        if is_before && is_other && is_wanted && !excluded.contains(&ask.provider) {
            excluded.push(ask.provider);
        }
    }
    excluded
}
