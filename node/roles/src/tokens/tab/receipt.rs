//! Checks the receipt of a tab against the purchase and the buyer's own count.

use serde::Serialize;
use souk_market::{DeviceMicros, Receipt, ReceiptFault};
use souk_memory::ContentId;

use super::TabCore;
use crate::clock::Micros;
use crate::lease::{USAGE_MIN, transcript};

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
        let is_ours = body.market == spec.market
            && body.buyer == spec.account
            && body.job == spec.job
            && body.lease == terms.lease
            && body.provider == terms.provider
            && body.price == terms.price
            && body.graph.0 == *spec.card.as_bytes()
            && body.inputs.is_empty();
        if !is_ours {
            return Err(BillObjection::Terms);
        }
        let counted = self.counted.max(USAGE_MIN);
        if body.usage > counted {
            let billed = body.usage;
            return Err(BillObjection::Usage { billed, counted });
        }
        let idle = DeviceMicros(self.idle.plus(IDLE_SLACK).0);
        if body.idle > idle {
            let billed = body.idle;
            return Err(BillObjection::Idle { billed, idle });
        }
        let named = body.outputs.iter().map(|id| ContentId::from_bytes(id.0));
        match named.eq(transcript(self.answers.values())) {
            true => Ok(()),
            false => Err(BillObjection::Answers),
        }
    }
}
