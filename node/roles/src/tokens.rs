//! Texts of language models, sold by the token through an *endpoint*: a provider that answers
//! requests through an inference engine of its own, instead of running graphs on a device.
//!
//! A buyer opens a *tab*: a lease of one unit, in which it sends one request after the other. An
//! output token counts as a millisecond of device time, whatever the engine took, so all rules of
//! the market about device time hold for tokens too. Both sides count the text by the same rule
//! ([`counting`]), and the buyer signs no receipt beyond its own count.
//!
//! The modules: [`card`] defines the model that an ask sells, and [`text`] a request and its
//! answer. [`router`] chooses the tab or offer that answers a request, [`tab`] is the buyer's state
//! machine of one tab, and [`seam`] checks text with which a provider continues another's.
//! [`prompts`] decides which messages are cached, [`keys`] how much each program of a buyer can
//! spend, [`capacity`] how many slots a provider sells, and [`audit`] tests whether answers come
//! from the model that the ask names. The provider's side of a tab is a lease of
//! [`crate::provider`], in which each request is a run.

pub mod audit;
pub mod capacity;
pub mod card;
pub mod counting;
pub mod keys;
pub mod prompts;
pub mod router;
pub mod seam;
pub mod tab;
pub mod text;
