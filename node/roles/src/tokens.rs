//! Texts of language models, sold by the token through an *endpoint*: a provider that answers
//! requests through an inference engine of its own, instead of running graphs on a device.
//!
//! A buyer opens a *tab*: a lease of one unit, in which it sends one request after the other. An
//! output token counts as a millisecond of device time, whatever the engine took, so all rules of
//! the market about device time hold for tokens too. Both sides count the text by the same rule
//! ([`counting`]), and the buyer signs no receipt beyond its own count.
//!
//! [`card`] says what an ask sells, [`audit`] whether answers are those of the model that it names,
//! [`capacity`] how many slots it has, [`text`] what a request and an answer carry, [`prompts`]
//! which messages are cached, [`router`] which tab or offer answers a request, [`seam`] how one
//! provider goes on with the text of another, [`keys`] what each program of a buyer can spend, and
//! [`tab`] is the buyer's state machine of one tab. The provider's side of a tab is the lease of
//! [`crate::provider`]: each request is a run.

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
