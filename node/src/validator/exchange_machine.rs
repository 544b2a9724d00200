//! The replicated exchange of a validator, and the channel on which its changes are told.

use std::sync::Arc;

use souk_market::{AccountKey, Event};
use souk_roles::market::roster::Roster;
use souk_roles::validator::exchange::{self, Watch};
pub use souk_roles::validator::exchange::{BatchResult, LogCommand, StateFault};
use souk_roles::validator::questions::{Question, Reply};
use tokio::sync::broadcast;

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
pub struct Changes(broadcast::Sender<ChangedAccounts>);

impl Watch for Changes {
    fn on_events(&mut self, events: &[Event]) {
        let mut accounts: Vec<AccountKey> = events.iter().flat_map(Event::accounts).collect();
        accounts.sort_unstable();
        accounts.dedup();
        if !accounts.is_empty() {
            // Nobody listens on most validators most of the time.
            let _ = self.0.send(accounts.into());
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

/// A market at its beginning, and where its changes are told.
pub fn begin(market: &MarketFile) -> (ExchangeMachine, broadcast::Sender<ChangedAccounts>) {
    let (changes, _) = broadcast::channel(CHANGES_MAX);
    let watch = Changes(changes.clone());
    let machine = ExchangeMachine::new(&market.genesis, watch);
    (machine, changes)
}
