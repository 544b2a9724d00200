//! Checks the receipt (the provider's bill) of a tab against the purchase and the buyer's own count
//! of tokens.

use serde::Serialize;
use souk_market::{DeviceMicros, Receipt, ReceiptBody, ReceiptFault, TokenUsage};
use souk_memory::ContentId;

use super::TabCore;
use crate::clock::Micros;
use crate::job::facts::Terms;
use crate::lease::transcript;
use crate::tokens::counting::TokenCount;

/// The most by which the idle time of a receipt can exceed the buyer's own: messages take time.
const IDLE_SLACK: Micros = Micros::from_seconds(1);

/// Why the buyer does not sign a receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
pub enum BillObjection {
    /// The receipt is not valid by itself.
    #[error("{0}")]
    Invalid(String),
    /// It is for another purchase.
    #[error("it is not for this tab")]
    Terms,
    /// It counts no tokens, or states other prices of them than the lease.
    #[error("it states other prices of tokens than those of this tab")]
    Rates,
    /// It states more tokens than the buyer counted.
    #[error(
        "it counts {} tokens of messages and {} of answers, and the buyer {} and {}",
        billed.prompt(), billed.output, counted.prompt(), counted.output
    )]
    Tokens {
        /// The tokens in the receipt.
        billed: TokenCount,
        /// The tokens that the buyer counted.
        counted: TokenCount,
    },
    /// It bills more than the buyer counted.
    #[error("it bills {billed} of device time, and the buyer counted {counted}")]
    Usage {
        /// The billed device time.
        billed: DeviceMicros,
        /// The device time that the buyer counted.
        counted: DeviceMicros,
    },
    /// It bills more idle time than the tab had.
    #[error("it bills {billed} of idle time, and the tab was idle for {idle}")]
    Idle {
        /// The billed time.
        billed: DeviceMicros,
        /// The time for which the tab had no request, by the buyer's clock.
        idle: DeviceMicros,
    },
    /// It names other answers than those that came.
    #[error("it names other answers than those that came")]
    Answers,
}

impl BillObjection {
    /// Returns whether the tokens are those that came, and the two sides differ in the time of the
    /// tab alone. Messages that are late make that difference too.
    pub(super) fn is_of_time(&self) -> bool {
        matches!(
            self,
            BillObjection::Usage { .. } | BillObjection::Idle { .. }
        )
    }
}

impl From<ReceiptFault> for BillObjection {
    fn from(fault: ReceiptFault) -> Self {
        BillObjection::Invalid(fault.to_string())
    }
}

impl TabCore {
    /// Checks whether the buyer can sign a receipt.
    ///
    /// # Errors
    /// The first objection.
    pub(super) fn check_receipt(&self, receipt: &Receipt) -> Result<(), BillObjection> {
        receipt.verify_provider()?;
        let (body, spec) = (&receipt.body, &self.spec);
        let terms = self.terms.as_ref().expect("the lease is bought");
        let listing = &spec.listing;
        let is_other_ask = terms.ask != listing.order;
        let is_ours = body.market == spec.market
            && body.buyer == spec.account
            && body.job == spec.job
            && body.lease == terms.lease
            && body.provider == terms.provider
            && body.price == terms.price
            && body.class == listing.class
            && body.model == listing.resources.model
            && (is_other_ask || body.idle_part == listing.idle)
            && body.graph.0 == *spec.card.as_bytes()
            && body.inputs.is_empty();
        if !is_ours {
            return Err(BillObjection::Terms);
        }
        let idle = DeviceMicros(self.idle.plus(IDLE_SLACK).0);
        if body.idle > idle {
            let billed = body.idle;
            return Err(BillObjection::Idle { billed, idle });
        }
        self.check_tokens(terms, body)?;
        let named = body.outputs.iter().map(|id| ContentId::from_bytes(id.0));
        match named.eq(transcript(self.answers.values())) {
            true => Ok(()),
            false => Err(BillObjection::Answers),
        }
    }

    /// Checks the tokens of a receipt, and the device time that they give. Both sides count by the
    /// same rule; a provider that counts less is paid less.
    fn check_tokens(&self, terms: &Terms, body: &ReceiptBody) -> Result<(), BillObjection> {
        let stated = body.metered.filter(|it| Some(it.terms) == terms.tokens);
        let metered = stated.ok_or(BillObjection::Rates)?;
        let counted = self.counted;
        let billed = TokenCount {
            input: metered.input,
            cached: metered.cached,
            output: metered.output,
        };
        if billed.output > counted.output || billed.prompt() > counted.prompt() {
            return Err(BillObjection::Tokens { billed, counted });
        }
        let held = DeviceMicros(self.idle.plus(IDLE_SLACK).0);
        let own = TokenUsage {
            terms: metered.terms,
            input: counted.input,
            cached: counted.cached,
            output: counted.output,
            held,
        };
        // What the floor charges is not idle time too.
        let idle = own.idle_beyond_floor(held, body.idle_part);
        let most = own.usage().0 + idle.scale_by(body.idle_part).0;
        for (billed, counted) in [
            (body.usage, own.usage()),
            (body.billable_usage(), DeviceMicros(most)),
        ] {
            if billed > counted {
                return Err(BillObjection::Usage { billed, counted });
            }
        }
        Ok(())
    }
}
