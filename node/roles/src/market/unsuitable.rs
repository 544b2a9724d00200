//! Counts why asks do not suit a buyer: each cause with the number of asks and a few examples.
//! `demands` fills it, and quotes show it to people.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use souk_market::{ListingRef, Price};

/// The most examples of one cause, because people read no more.
const EXAMPLES_MAX: usize = 3;

/// The most asks of one cause that are described in the search for its cheapest examples: a book
/// has the cheapest of a class first, and a text costs more than all else about an ask.
const DESCRIBED_MAX: u64 = 512;

/// Why an ask does not suit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The buyer's own account placed it.
    Own,
    /// The buyer excludes its provider.
    Excluded,
    /// Its device is of another kind or name than the buyer wants.
    Device,
    /// It does not support the backend that the buyer wants.
    Backend,
    /// It does not run the buyer's own kernels.
    Kernels,
    /// It does not run operators of the model.
    Operators,
    /// It is known to refuse a node of the model.
    Refused,
    /// Its device is emulated.
    Emulated,
    /// It is in another region than the buyer wants.
    Region,
    /// Its provider's reputation is too low.
    Reputation,
    /// Its notice is shorter than the buyer accepts.
    Notice,
    /// It states no power.
    Power,
    /// It does not sell to this buyer.
    Buyer,
    /// It is above the buyer's price.
    Price,
    /// It sells no sessions.
    Sessions,
    /// It does not promise exact results.
    Exact,
}

/// The asks that do not suit for one cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsuitable {
    /// The cause that they share.
    pub cause: Cause,
    /// The number of asks.
    pub asks: u64,
    /// The cheapest of them: the device, and its property in place of the wanted one.
    pub examples: Vec<String>,
}

/// The running count of asks that do not suit.
#[derive(Debug, Default)]
pub(super) struct Tally {
    causes: BTreeMap<Cause, (u64, Vec<(Price, String)>)>,
}

impl Tally {
    /// Counts one more ask of a cause if it needs no more examples; returns whether it did.
    pub(super) fn count_more(&mut self, cause: Cause) -> bool {
        let known = self.causes.get_mut(&cause);
        let Some((asks, _)) = known.filter(|(asks, _)| *asks >= DESCRIBED_MAX) else {
            return false;
        };
        *asks += 1;
        true
    }

    /// Counts this many more asks of a cause.
    pub(super) fn count_asks(&mut self, cause: Cause, asks: u64) {
        self.causes.entry(cause).or_default().0 += asks;
    }

    /// Counts one more ask; `describe` says what it has in place of the wanted.
    pub(super) fn add(
        &mut self,
        listing: &ListingRef<'_>,
        cause: Cause,
        describe: impl FnOnce() -> String,
    ) {
        let (asks, _) = self.causes.entry(cause).or_default();
        *asks += 1;
        if *asks <= DESCRIBED_MAX {
            self.add_example(listing, cause, describe);
        }
    }

    /// Takes an ask as an example of a cause if it is among the cheapest, and does not count it.
    pub(super) fn add_example(
        &mut self,
        listing: &ListingRef<'_>,
        cause: Cause,
        describe: impl FnOnce() -> String,
    ) {
        let (_, examples) = self.causes.entry(cause).or_default();
        let is_cheaper = examples
            .last()
            .is_none_or(|(most, _)| listing.price < *most);
        if examples.len() >= EXAMPLES_MAX && !is_cheaper {
            return;
        }
        let has = describe();
        let stated = &listing.resources;
        let emulated = if stated.emulated { " (emulated)" } else { "" };
        let example = format!("{}{emulated} {has}", stated.model);
        let example = example.trim_end().to_owned();
        if let Some(known) = examples.iter_mut().find(|(_, known)| *known == example) {
            known.0 = known.0.min(listing.price);
        } else {
            examples.push((listing.price, example));
        }
        examples.sort();
        examples.truncate(EXAMPLES_MAX);
    }

    /// Returns the causes, those with the most asks first.
    pub(super) fn into_unsuitable(self) -> Vec<Unsuitable> {
        let told = self.causes.into_iter();
        let told = told.map(|(cause, (asks, examples))| Unsuitable {
            cause,
            asks,
            examples: examples.into_iter().map(|(_, example)| example).collect(),
        });
        let mut told: Vec<Unsuitable> = told.collect();
        told.sort_by_key(|one| std::cmp::Reverse(one.asks));
        told
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Cause::Own => "of your own",
            Cause::Excluded => "excluded",
            Cause::Device => "of another kind and name",
            Cause::Backend => "without the backend",
            Cause::Kernels => "without kernels of your own",
            Cause::Operators => "without operators of the model",
            Cause::Refused => "that refused a node of the model before",
            Cause::Emulated => "emulated",
            Cause::Region => "in another region",
            Cause::Reputation => "of too low a reputation",
            Cause::Notice => "with too short a notice",
            Cause::Power => "without a stated power",
            Cause::Buyer => "not for you",
            Cause::Price => "too dear",
            Cause::Sessions => "without sessions",
            Cause::Exact => "without exact results",
        })
    }
}

impl fmt::Display for Unsuitable {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} {}", self.asks, self.cause)?;
        match &self.examples[..] {
            [] => Ok(()),
            examples => write!(to, " ({})", examples.join("; ")),
        }
    }
}
