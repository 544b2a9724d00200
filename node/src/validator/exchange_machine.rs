//! Creates the state machine that a validator replicates, the exchange, and passes on its changes:
//! each step's events go to the thread that writes statements (the accounts' histories), and the
//! watchers of the affected accounts are woken.

use souk_consensus::Position;
use souk_folder::market_file::MarketFile;
use souk_market::{Event, Millis};
use souk_roles::market::roster::Roster;
use souk_roles::validator::exchange::{self, Watch};
pub use souk_roles::validator::exchange::{BatchResult, LogCommand, is_for_later_build};
use souk_roles::validator::questions::{Question, Reply};

use super::account_watchers::AccountWatchers;
use super::statements::StatementWriter;
use super::{Consistency, QueryError, Validator};

/// The state machine that the replicated log of a validator drives.
pub type ExchangeMachine = exchange::ExchangeMachine<Changes>;

/// The observer of the exchange, which announces each step's changes.
#[derive(Debug)]
pub struct Changes {
    watchers: AccountWatchers,
    statements: StatementWriter,
}

impl Watch for Changes {
    fn on_events(&mut self, at: Position, time: Millis, events: &[Event]) {
        self.statements.submit_step(at, time, events);
        self.watchers.notify_watchers(events);
    }
}

impl Validator<ExchangeMachine> {
    /// Returns the members, as this validator knows them.
    ///
    /// # Errors
    /// If the validator does not answer.
    pub(super) async fn fetch_roster(&self) -> Result<Roster, QueryError> {
        match self
            .query_machine(Consistency::Stale, Question::Roster)
            .await?
        {
            (Reply::Roster(roster), _) => Ok(*roster),
            _ => unreachable!("the roster was asked for"),
        }
    }
}

/// Returns the state machine of a new market, and the table of the watchers of its accounts.
pub(super) fn new_machine(
    market: &MarketFile,
    statements: StatementWriter,
) -> (ExchangeMachine, AccountWatchers) {
    let watchers = AccountWatchers::default();
    let watch = Changes {
        watchers: watchers.clone(),
        statements,
    };
    let machine = ExchangeMachine::new(&market.genesis, watch);
    (machine, watchers)
}
