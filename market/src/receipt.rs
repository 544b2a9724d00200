//! The receipt: what was run, on what, for how much, signed by both parties.
//!
//! It binds inputs to graph to outputs to usage to price, and is checked without any node:
//! [`Receipt::verify`] needs nothing but the receipt itself.

use serde::{Deserialize, Serialize};

use crate::class::{Class, Dtype};
use crate::ids::{
    AccountKey, ContentId, JobId, LeaseId, MarketId, Signature, SigningKey, canonical,
};
use crate::signing::{Judge, holds_alone, sign, signed_by};
use crate::text::Name;
use crate::units::{Credits, DeviceMicros, Millis, Permille, Price, Rounding};

const PROVIDER_DOMAIN: &str = "souk receipt v2 provider";
const BUYER_DOMAIN: &str = "souk receipt v2 buyer";

/// What both parties sign.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptBody {
    /// The market the lease is in.
    pub market: MarketId,
    /// The lease it closes.
    pub lease: LeaseId,
    /// The buyer's job.
    pub job: JobId,
    /// Who bought.
    pub buyer: AccountKey,
    /// Who ran it.
    pub provider: AccountKey,
    /// BLAKE3 of the (sub)graph that was run.
    pub graph: ContentId,
    /// BLAKE3 of each input tensor; at most [`Receipt::TENSORS_MAX`].
    pub inputs: Vec<ContentId>,
    /// BLAKE3 of each output tensor; at most [`Receipt::TENSORS_MAX`].
    pub outputs: Vec<ContentId>,
    /// The class the device was sold in.
    pub class: Class,
    /// The device's model.
    pub model: Name,
    /// Whether the device's time and energy were emulated.
    pub emulated: bool,
    /// The element type the speeds are for.
    pub dtype: Dtype,
    /// The advertised speed, in mega-operations per second.
    pub declared_mega_ops: u64,
    /// The delivered speed, in mega-operations per second; 0 where the job is too small to tell.
    pub delivered_mega_ops: u64,
    /// Device time used.
    pub usage: DeviceMicros,
    /// Time in which the device was held for further requests and not used.
    pub idle: DeviceMicros,
    /// What part of its price the lease says that such time costs.
    pub idle_part: Permille,
    /// The lease's price per device-second.
    pub price: Price,
    /// What is paid: price x (usage + the part of the idle time), rounded up.
    pub amount: Credits,
    /// Bytes of inputs and weights that came in over the network.
    pub bytes_in: u64,
    /// Bytes of outputs that went out over the network.
    pub bytes_out: u64,
    /// When the run started, by the provider's clock, in Unix milliseconds.
    pub started: Millis,
    /// When the run finished, by the provider's clock, in Unix milliseconds.
    pub finished: Millis,
}

/// A body with both signatures, each `None` until its party has signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// What is signed.
    pub body: ReceiptBody,
    /// The provider's signature.
    pub provider_signature: Option<Signature>,
    /// The buyer's signature.
    pub buyer_signature: Option<Signature>,
}

/// What is wrong with a receipt, by itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReceiptFault {
    /// More tensors than a receipt holds.
    #[error(
        "{inputs} inputs and {outputs} outputs, at most {} each fit",
        Receipt::TENSORS_MAX
    )]
    TensorsMany {
        /// How many inputs.
        inputs: u32,
        /// How many outputs.
        outputs: u32,
    },
    /// The amount is not the price of the usage and of the part of the idle time.
    #[error("the amount is {claimed} but {usage} device-us at {price} cost {due} micro-credits")]
    Amount {
        /// What the receipt says.
        claimed: Credits,
        /// What it should say.
        due: Credits,
        /// Device time that is paid.
        usage: DeviceMicros,
        /// Price per device-second.
        price: Price,
    },
    /// Price x usage is beyond 64 bits.
    #[error("{usage} device-us at {price} micro-credits per second overflow")]
    AmountOverflow {
        /// Device time used.
        usage: DeviceMicros,
        /// Price per device-second.
        price: Price,
    },
    /// It finished before it started.
    #[error("it finished at {finished} ms, before it started at {started} ms")]
    Times {
        /// Start.
        started: Millis,
        /// Finish.
        finished: Millis,
    },
    /// The class and the receipt disagree on whether the device was emulated.
    #[error("the class says emulated = {class}, the receipt says {receipt}")]
    Emulated {
        /// By the class.
        class: bool,
        /// By the receipt.
        receipt: bool,
    },
    /// The provider has not signed.
    #[error("the provider {provider} has not signed")]
    ProviderUnsigned {
        /// Whose signature is missing.
        provider: AccountKey,
    },
    /// The buyer has not signed.
    #[error("the buyer {buyer} has not signed")]
    BuyerUnsigned {
        /// Whose signature is missing.
        buyer: AccountKey,
    },
    /// The provider's signature is not over this body.
    #[error("the signature is not the provider's ({provider}) over this receipt")]
    ProviderSignature {
        /// Whose it should be.
        provider: AccountKey,
    },
    /// The buyer's signature is not over this body.
    #[error("the signature is not the buyer's ({buyer}) over this receipt")]
    BuyerSignature {
        /// Whose it should be.
        buyer: AccountKey,
    },
}

impl ReceiptBody {
    /// What this usage costs at this price: rounded up to a micro-credit.
    pub fn due(price: Price, usage: DeviceMicros) -> Option<Credits> {
        price.usage_cost(usage, Rounding::Up)
    }

    /// The device time that is paid at the full price: what was used, and the part of the idle
    /// time.
    pub fn charged(&self) -> DeviceMicros {
        let idle = self.idle.part(self.idle_part);
        DeviceMicros(self.usage.0.saturating_add(idle.0))
    }

    /// Everything but the signatures.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), ReceiptFault> {
        if self.inputs.len().max(self.outputs.len()) > Receipt::TENSORS_MAX {
            let count = |ids: &[ContentId]| u32::try_from(ids.len()).unwrap_or(u32::MAX);
            let (inputs, outputs) = (count(&self.inputs), count(&self.outputs));
            return Err(ReceiptFault::TensorsMany { inputs, outputs });
        }
        if self.finished < self.started {
            let (started, finished) = (self.started, self.finished);
            return Err(ReceiptFault::Times { started, finished });
        }
        if self.class.emulated != self.emulated {
            let (class, receipt) = (self.class.emulated, self.emulated);
            return Err(ReceiptFault::Emulated { class, receipt });
        }
        self.check_amount()
    }

    fn check_amount(&self) -> Result<(), ReceiptFault> {
        let (price, usage, claimed) = (self.price, self.charged(), self.amount);
        match Self::due(price, usage) {
            None => Err(ReceiptFault::AmountOverflow { usage, price }),
            Some(due) if due == claimed => Ok(()),
            Some(due) => Err(ReceiptFault::Amount {
                claimed,
                due,
                usage,
                price,
            }),
        }
    }
}

impl Receipt {
    /// The most input tensors, and the most output tensors, of one receipt.
    pub const TENSORS_MAX: usize = 256;

    /// A receipt that nobody has signed yet.
    pub fn new(body: ReceiptBody) -> Self {
        Self {
            body,
            provider_signature: None,
            buyer_signature: None,
        }
    }

    /// Signs as the provider; the key is the caller's to get right, [`Self::verify`] tells.
    pub fn sign_as_provider(mut self, key: &SigningKey) -> Self {
        self.provider_signature = Some(sign(key, PROVIDER_DOMAIN, &canonical(&self.body)));
        self
    }

    /// Signs as the buyer; the key is the caller's to get right, [`Self::verify`] tells.
    pub fn sign_as_buyer(mut self, key: &SigningKey) -> Self {
        self.buyer_signature = Some(sign(key, BUYER_DOMAIN, &canonical(&self.body)));
        self
    }

    /// Checks the body and the provider's signature: what a buyer does before it signs.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn verify_provider(&self) -> Result<(), ReceiptFault> {
        self.verify_provider_by(&mut holds_alone)
    }

    /// Checks the arithmetic and both signatures. Needs no node.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn verify(&self) -> Result<(), ReceiptFault> {
        self.verify_by(&mut holds_alone)
    }

    pub(crate) fn verify_provider_by(&self, judge: &mut Judge<'_>) -> Result<(), ReceiptFault> {
        self.body.check()?;
        let provider = self.body.provider;
        let signature = self
            .provider_signature
            .ok_or(ReceiptFault::ProviderUnsigned { provider })?;
        let bytes = canonical(&self.body);
        if !signed_by(judge, provider, PROVIDER_DOMAIN, &bytes, &signature) {
            return Err(ReceiptFault::ProviderSignature { provider });
        }
        Ok(())
    }

    pub(crate) fn verify_by(&self, judge: &mut Judge<'_>) -> Result<(), ReceiptFault> {
        self.verify_provider_by(judge)?;
        let buyer = self.body.buyer;
        let signature = self
            .buyer_signature
            .ok_or(ReceiptFault::BuyerUnsigned { buyer })?;
        let bytes = canonical(&self.body);
        if !signed_by(judge, buyer, BUYER_DOMAIN, &bytes, &signature) {
            return Err(ReceiptFault::BuyerSignature { buyer });
        }
        Ok(())
    }
}
