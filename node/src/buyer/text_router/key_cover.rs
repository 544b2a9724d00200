//! Reserves the price of a request from the budget of its API key before the request goes to an
//! offer, and leaves out offers that the key cannot pay.

use souk_market::Credits;
use souk_roles::tokens::counting::TokenRates;
use souk_roles::tokens::router::Route;

use super::TextRouterError;
use crate::buyer::tab::{AskedAnswer, StoredRequest};
use crate::buyer::text_keys::{CoverError, KeyedRequest, TextBill};

/// How often offers that are too dear for a key are left out, until the request is refused.
const LIMITS_MAX: u32 = 8;

/// A request, or the rest of one, and the key that pays for it.
#[derive(Clone, Copy)]
pub(super) struct WantedPart<'a> {
    pub stored: &'a StoredRequest,
    /// The key that pays; none for the buyer's own request.
    pub key: Option<&'a KeyedRequest>,
}

/// The amount that a key has reserved for a request.
pub(super) struct KeyCover<'a> {
    pub wanted: WantedPart<'a>,
    /// The most that it can cost; none if nothing is covered yet.
    covered: Option<Credits>,
    /// Why a dearer offer was left out.
    refused: Option<CoverError>,
    limits: u32,
}

impl WantedPart<'_> {
    /// Returns the most that the request can cost at an offer.
    fn worst_bill(&self, rates: TokenRates) -> TextBill {
        TextBill::at_rates(rates, self.stored.request.count_max())
    }

    /// Records with the key that a tab has taken the request.
    pub fn note_sent(&self, rates: TokenRates, asked: &AskedAnswer) {
        if let Some(key) = self.key {
            key.on_sent(self.worst_bill(rates), asked.bill.clone());
        }
    }
}

impl<'a> KeyCover<'a> {
    /// Begins to cover a request.
    pub fn new(wanted: WantedPart<'a>) -> KeyCover<'a> {
        KeyCover {
            wanted,
            covered: None,
            refused: None,
            limits: 0,
        }
    }

    /// Returns whether the request can be sent to an offer.
    pub fn covers(&self, rates: TokenRates) -> bool {
        let worst = self.wanted.worst_bill(rates).cost;
        let is_covered = self.covered.is_some_and(|covered| worst <= covered);
        self.wanted.key.is_none() || is_covered
    }

    /// Reserves the most that the request can cost at an offer. If the key has less left, this
    /// limits the route to the offers that it can pay.
    ///
    /// # Errors
    /// When the key does not allow the request at all.
    pub async fn extend(
        &mut self,
        route: &mut Route,
        rates: TokenRates,
    ) -> Result<(), TextRouterError> {
        let Some(key) = self.wanted.key else {
            return Ok(());
        };
        let worst = self.wanted.worst_bill(rates).cost;
        let refused = match key.cover(worst).await {
            Ok(()) => {
                self.covered = Some(worst);
                // What is missing now is not for want of credits.
                self.refused = None;
                return Ok(());
            }
            Err(refused) => refused,
        };
        self.limits += 1;
        match refused {
            CoverError::Refused { left, .. } if self.limits <= LIMITS_MAX => {
                route.limit_cost(self.wanted.stored.request.count_max(), left);
                self.refused = Some(refused);
                Ok(())
            }
            refused => Err(refused.into()),
        }
    }

    /// Returns why the request is not sent: the key's refusal, if the key could not pay an offer,
    /// or else `error`.
    pub fn explain(self, error: TextRouterError) -> TextRouterError {
        self.refused.map_or(error, TextRouterError::from)
    }
}
