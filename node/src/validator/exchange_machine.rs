//! The replicated exchange of a validator, and the channel on which its changes are told.

use std::sync::Arc;

use souk_consensus::Position;
use souk_consensus::replica::ApplyError;
use souk_market::{AccountKey, Event, Millis};
use souk_roles::market::roster::Roster;
use souk_roles::validator::exchange::{self, Watch};
pub use souk_roles::validator::exchange::{BatchResult, LogCommand, StateFault};
use souk_roles::validator::questions::{Question, Reply};
use tokio::sync::broadcast;

use super::statements::StatementWriter;
use super::{Consistency, QueryError, Validator};
use crate::folder::market_file::MarketFile;

/// Changes a slow watcher may fall behind by; beyond them it is told that it missed some.
const CHANGES_MAX: usize = 1024;

/// Accounts that something happened to, in one step of the log.
pub type ChangedAccounts = Arc<[AccountKey]>;

/// What the replicated log of a validator drives.
pub type ExchangeMachine = exchange::ExchangeMachine<Changes>;

/// Where the changes of an exchange are told.
#[derive(Debug)]
pub struct Changes {
    accounts: broadcast::Sender<ChangedAccounts>,
    statements: StatementWriter,
}

impl Watch for Changes {
    fn on_events(&mut self, at: Position, time: Millis, events: &[Event]) {
        self.statements.note(at, time, events);
        let mut accounts: Vec<AccountKey> = events.iter().flat_map(Event::accounts).collect();
        accounts.sort_unstable();
        accounts.dedup();
        if !accounts.is_empty() {
            // Nobody listens on most validators most of the time.
            let _ = self.accounts.send(accounts.into());
        }
    }
}

impl Validator<ExchangeMachine> {
    /// The members, as this validator has them.
    ///
    /// # Errors
    /// When it does not answer.
    pub(super) async fn roster(&self) -> Result<Roster, QueryError> {
        match self.query(Consistency::Stale, Question::Roster).await? {
            (Reply::Roster(roster), _) => Ok(*roster),
            _ => unreachable!("the roster was asked for"),
        }
    }
}

/// Whether a state or an entry can't be taken because the market's rules have a later version than
/// this build carries out: another release can.
pub fn is_for_later_build(error: &ApplyError) -> bool {
    match error {
        ApplyError::Unable { .. } => true,
        ApplyError::Restore { cause, .. } => {
            let fault = cause.cause.downcast_ref::<StateFault>();
            matches!(fault, Some(StateFault::Version(_)))
        }
        ApplyError::Differs { .. } => false,
    }
}

/// A market at its beginning, and where its changes are told.
pub(super) fn begin(
    market: &MarketFile,
    statements: StatementWriter,
) -> (ExchangeMachine, broadcast::Sender<ChangedAccounts>) {
    let (accounts, _) = broadcast::channel(CHANGES_MAX);
    let watch = Changes {
        accounts: accounts.clone(),
        statements,
    };
    let machine = ExchangeMachine::new(&market.genesis, watch);
    (machine, accounts)
}
