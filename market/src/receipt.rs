//! The receipt: which graph a provider ran, on which device and for which price, signed by both
//! parties.
//!
//! It binds the inputs, graph, outputs, usage and price together. [`Receipt::verify`] checks it
//! without a connection to the market.

use serde::{Deserialize, Serialize};

use crate::class::{Class, Dtype};
use crate::ids::{
    AccountKey, ContentId, JobId, LeaseId, MarketId, Signature, SigningKey, canonical_bytes,
};
use crate::signing::{Judge, holds_alone, sign_bytes, signed_by};
use crate::text::Name;
use crate::tokens::TokenUsage;
use crate::units::{Credits, DeviceMicros, Millis, Permille, Price, Rounding};

const PROVIDER_DOMAIN: &str = "souk receipt v3 provider";
const BUYER_DOMAIN: &str = "souk receipt v3 buyer";

/// The part of a receipt that both parties sign.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptBody {
    /// The market of the lease.
    pub market: MarketId,
    /// The lease that the receipt closes.
    pub lease: LeaseId,
    /// The buyer's job.
    pub job: JobId,
    /// The buyer's account.
    pub buyer: AccountKey,
    /// The account that ran the job.
    pub provider: AccountKey,
    /// BLAKE3 of the graph or subgraph that the provider ran.
    pub graph: ContentId,
    /// BLAKE3 of each input tensor; at most [`Receipt::TENSORS_MAX`].
    pub inputs: Vec<ContentId>,
    /// BLAKE3 of each output tensor; at most [`Receipt::TENSORS_MAX`].
    pub outputs: Vec<ContentId>,
    /// The class in which the provider sold the device.
    pub class: Class,
    /// The name of the device model.
    pub model: Name,
    /// Whether the device's time and energy were emulated.
    pub emulated: bool,
    /// The element type to which the speeds apply.
    pub dtype: Dtype,
    /// The advertised speed, in mega-operations per second.
    pub declared_mega_ops: u64,
    /// The delivered speed, in mega-operations per second; 0 if the job is too small to measure it.
    pub delivered_mega_ops: u64,
    /// The device time that the job used on this lease.
    pub usage: DeviceMicros,
    /// The token counts from which the usage follows, if the lease sold tokens.
    #[serde(default)]
    pub metered: Option<TokenUsage>,
    /// The device time for which the buyer held the device between requests and did not use it.
    pub idle: DeviceMicros,
    /// The share of the price that idle time costs, as the lease states.
    pub idle_part: Permille,
    /// The lease's price per device-second.
    pub price: Price,
    /// The credits to pay: price x (usage + idle time x `idle_part`), rounded up.
    pub amount: Credits,
    /// Bytes of inputs and weights that the provider received over the network.
    pub bytes_in: u64,
    /// Bytes of outputs that the provider sent over the network.
    pub bytes_out: u64,
    /// When the run started, by the provider's clock, in Unix milliseconds.
    pub started: Millis,
    /// When the run finished, by the provider's clock, in Unix milliseconds.
    pub finished: Millis,
}

/// A receipt's body and the signatures of both parties, each `None` until its party has signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The signed body.
    pub body: ReceiptBody,
    /// The provider's signature.
    pub provider_signature: Option<Signature>,
    /// The buyer's signature.
    pub buyer_signature: Option<Signature>,
}

/// The fault that makes a receipt invalid, whatever the market's state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReceiptFault {
    /// It has more tensors than a receipt can hold.
    #[error(
        "the receipt has {inputs} inputs and {outputs} outputs, and can have at most {} of each",
        Receipt::TENSORS_MAX
    )]
    TensorsMany {
        /// The number of inputs.
        inputs: u32,
        /// The number of outputs.
        outputs: u32,
    },
    /// The amount is not the price of the usage and the paid part of the idle time.
    #[error(
        "the amount is {claimed} micro-credits, but {usage} device-us at {price} micro-credits a \
         second cost {due}"
    )]
    Amount {
        /// The amount in the receipt.
        claimed: Credits,
        /// The correct amount.
        due: Credits,
        /// The device time to pay.
        usage: DeviceMicros,
        /// The price per device-second.
        price: Price,
    },
    /// The cost of the usage does not fit in 64 bits.
    #[error("the cost of {usage} device-us at {price} micro-credits per second exceeds 64 bits")]
    AmountOverflow {
        /// The device time to pay.
        usage: DeviceMicros,
        /// The price per device-second.
        price: Price,
    },
    /// The usage is more than the device time that follows from the counted tokens.
    #[error("the receipt bills {claimed} device-us, but its counted tokens allow only {counted}")]
    Tokens {
        /// The billed device time.
        claimed: DeviceMicros,
        /// The device time that follows from the counted tokens.
        counted: DeviceMicros,
    },
    /// The run finished before it started.
    #[error("the run finished at {finished} ms, before it started at {started} ms")]
    Times {
        /// When the run started.
        started: Millis,
        /// When the run finished.
        finished: Millis,
    },
    /// The class and the receipt disagree on whether the device was emulated.
    #[error("the class says emulated = {class}, the receipt says {receipt}")]
    Emulated {
        /// Whether the class says so.
        class: bool,
        /// Whether the receipt says so.
        receipt: bool,
    },
    /// The provider has not signed.
    #[error("the provider {provider} has not signed")]
    ProviderUnsigned {
        /// The provider, whose signature is missing.
        provider: AccountKey,
    },
    /// The buyer has not signed.
    #[error("the buyer {buyer} has not signed")]
    BuyerUnsigned {
        /// The buyer, whose signature is missing.
        buyer: AccountKey,
    },
    /// The provider's key did not sign this body.
    #[error("the signature is not the provider's ({provider}) over this receipt")]
    ProviderSignature {
        /// The provider whose key should have signed.
        provider: AccountKey,
    },
    /// The buyer's key did not sign this body.
    #[error("the signature is not the buyer's ({buyer}) over this receipt")]
    BuyerSignature {
        /// The buyer whose key should have signed.
        buyer: AccountKey,
    },
}

impl ReceiptBody {
    /// Returns the cost of `usage` at `price`, rounded up to a micro-credit, or `None` if it does
    /// not fit in 64 bits.
    pub fn amount_due(price: Price, usage: DeviceMicros) -> Option<Credits> {
        price.usage_cost(usage, Rounding::Up)
    }

    /// Returns the device time to pay at the full price: the usage, and the paid part of the idle
    /// time.
    pub fn billable_usage(&self) -> DeviceMicros {
        let idle = self.idle.scale_by(self.idle_part);
        DeviceMicros(self.usage.0.saturating_add(idle.0))
    }

    /// Checks the body: number of tensors, times, device, tokens and amount.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check_body(&self) -> Result<(), ReceiptFault> {
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
        if let Some(metered) = self.metered.filter(|it| it.usage() < self.usage) {
            let (claimed, counted) = (self.usage, metered.usage());
            return Err(ReceiptFault::Tokens { claimed, counted });
        }
        self.check_amount()
    }

    fn check_amount(&self) -> Result<(), ReceiptFault> {
        let (price, usage, claimed) = (self.price, self.billable_usage(), self.amount);
        match Self::amount_due(price, usage) {
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

    /// Creates a receipt without signatures.
    pub fn new(body: ReceiptBody) -> Self {
        Self {
            body,
            provider_signature: None,
            buyer_signature: None,
        }
    }

    /// Adds the provider's signature. You must pass the provider's key; only [`Self::verify`] and
    /// [`Self::verify_provider`] check that.
    pub fn sign_as_provider(mut self, key: &SigningKey) -> Self {
        self.provider_signature = Some(sign_bytes(
            key,
            PROVIDER_DOMAIN,
            &canonical_bytes(&self.body),
        ));
        self
    }

    /// Adds the buyer's signature. You must pass the buyer's key; only [`Self::verify`] checks
    /// that.
    pub fn sign_as_buyer(mut self, key: &SigningKey) -> Self {
        self.buyer_signature = Some(sign_bytes(key, BUYER_DOMAIN, &canonical_bytes(&self.body)));
        self
    }

    /// Checks the body and the provider's signature. A buyer must call this before it signs.
    ///
    /// # Errors
    /// The first fault found.
    pub fn verify_provider(&self) -> Result<(), ReceiptFault> {
        self.verify_provider_by(&mut holds_alone)
    }

    /// Checks the body and both signatures.
    ///
    /// # Errors
    /// The first fault found.
    pub fn verify(&self) -> Result<(), ReceiptFault> {
        self.verify_by(&mut holds_alone)
    }

    pub(crate) fn verify_provider_by(&self, judge: &mut Judge<'_>) -> Result<(), ReceiptFault> {
        self.body.check_body()?;
        let provider = self.body.provider;
        let signature = self
            .provider_signature
            .ok_or(ReceiptFault::ProviderUnsigned { provider })?;
        let bytes = canonical_bytes(&self.body);
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
        let bytes = canonical_bytes(&self.body);
        if !signed_by(judge, buyer, BUYER_DOMAIN, &bytes, &signature) {
            return Err(ReceiptFault::BuyerSignature { buyer });
        }
        Ok(())
    }
}
