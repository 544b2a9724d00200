//! Lists the reasons why a prepared run of training cannot begin or continue.

use souk_roles::train::Payer;

use super::journal::RunJournalError;
use crate::client::broker::BrokerError;
use crate::client::trader::TradeError;

/// Why a run cannot begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum TrainingRunError {
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] RunJournalError),
    /// The model, the data or a setting is not that with which the run began.
    #[error("the model, the examples or the settings have changed since the run began")]
    Subject,
    /// Another account of the market began the run, or one of another market. Only it can end the
    /// run's leases and learn what they cost.
    #[error("the account {} of the market {} began the run", .began.account, .began.market)]
    Payer {
        /// The account that pays for the run.
        began: Payer,
    },
    /// All its steps are done, and its result is written.
    #[error("all steps of this run are done")]
    Done,
    /// The market did not answer how the last lease of the earlier life ended.
    #[error("the market does not say what the run's last lease cost: {0}")]
    Market(#[from] Box<BrokerError>),
    /// The market did not end the last lease of the earlier life.
    #[error("the run's last lease could not be ended: {0}")]
    Trade(#[from] Box<TradeError>),
}
