//! `souk top`: shows the market live in a terminal.

use std::io::{IsTerminal, Write, stdout};
use std::path::Path;

use serde_json::{Value, json};
use souk_api::account::AccountView;
use souk_api::ask::AskView;
use souk_api::market::ClassView;
use souk_api::time::format_rfc3339;
use souk_folder::clock::unix_ms;
use souk_folder::market_file::MarketFile;
use souk_network::protocols::market::Status;
use souk_node::buyer::Journal;
use souk_node::buyer::journal::Record;
use souk_node::client::broker::{AttemptError, Broker, BrokerError};
use souk_node::market::{Account, ClassSummary, Listing};

use super::submit::JOBS_FOLDER;
use crate::args::{Output, TopArgs};
use crate::failure::Outcome;
use crate::folder::{connect_broker, from_config, own_account};
use crate::show::{self, print_line};
use crate::stop;

/// Largest number of rows of each table.
const OFFERS_MAX: usize = 10;
const CLASSES_MAX: usize = 8;
const JOBS_MAX: usize = 5;

/// Control sequences of xterm: switch to the alternate screen and hide the cursor, switch back, and
/// clear the screen.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const CLEAR: &str = "\x1b[H\x1b[2J";

/// The state of a market at a moment.
struct View {
    market: String,
    validators: Vec<Result<Status, AttemptError>>,
    offers: Vec<Listing>,
    classes: Vec<ClassSummary>,
    account: Option<Account>,
    jobs: Vec<Record>,
}

/// The terminal's alternate screen; dropping this leaves it.
struct Screen;

impl Screen {
    fn enter_screen() -> Screen {
        write(ENTER);
        Screen
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        write(LEAVE);
    }
}

fn write(text: &str) {
    // A terminal that went away shows nothing more.
    let _ = stdout().write_all(text.as_bytes());
    let _ = stdout().flush();
}

/// Shows the market until Ctrl-C, or once.
pub async fn run(folder: &Path, output: Output, args: TopArgs) -> Outcome {
    let market = MarketFile::read_nearest(folder).map_err(from_config)?;
    let market = market.genesis.chain.to_string();
    let broker = connect_broker(folder).await?.with_stale_reads();
    let mut stops = stop::Requests::new();
    let is_terminal = output == Output::Text && stdout().is_terminal();
    let is_once = args.once || !(is_terminal || show::is_by_line());
    let screen = (is_terminal && !is_once).then(Screen::enter_screen);
    loop {
        let view = View::read(&market, &broker, folder).await;
        if screen.is_some() {
            write(CLEAR);
        }
        match (view, output) {
            (Ok(view), Output::Text) => view.print_view(),
            (Ok(view), Output::Json) => show::print_json(&view.to_json()),
            (Err(error), _) if is_once => return Err(super::book::market_failure(error)),
            // The market can come back.
            (Err(error), Output::Text) => print_line(&format!("{market} does not answer: {error}")),
            (Err(error), Output::Json) => {
                show::print_json(&json!({ "unreachable": error.to_string() }))
            }
        }
        if is_once {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(args.every) => {}
            () = stops.next() => return Ok(()),
        }
    }
}

impl View {
    async fn read(market: &str, broker: &Broker, folder: &Path) -> Result<View, BrokerError> {
        let own = own_account(folder);
        let mut offers = broker.fetch_book().await?;
        offers.sort_by_key(|offer| offer.price);
        let account = match own {
            Some(own) => broker.fetch_account(own).await?,
            None => None,
        };
        Ok(View {
            market: market.to_owned(),
            validators: broker.fetch_statuses().await,
            offers,
            classes: broker.fetch_classes().await?,
            account,
            jobs: Journal::list_records(&folder.join(JOBS_FOLDER)),
        })
    }

    fn to_json(&self) -> Value {
        json!({
            "at": format_rfc3339(unix_ms()), "market": self.market,
            "validators": show::status::validators_json(&self.validators),
            "asks": self.offers.iter().map(AskView::from).collect::<Vec<_>>(),
            "classes": self.classes.iter().map(ClassView::from).collect::<Vec<_>>(),
            "account": self.account.as_ref().map(AccountView::from), "jobs": self.jobs,
        })
    }

    fn print_view(&self) {
        let time = show::time_of_day(unix_ms());
        print_line(&format!("{}, {time} UTC", self.market));
        show::status::print_validators(&self.validators);
        print_line("");
        show::book::print_asks(&self.offers[..self.offers.len().min(OFFERS_MAX)]);
        print_more_rows(self.offers.len(), OFFERS_MAX, "`souk book`");
        print_line("");
        show::market::print_classes(&self.classes[..self.classes.len().min(CLASSES_MAX)]);
        print_more_rows(self.classes.len(), CLASSES_MAX, "`souk market classes`");
        if let Some(account) = &self.account {
            let (free, held) = (account.available.0, account.escrow.0);
            let (free, held) = (show::format_credits(free), show::format_credits(held));
            print_line("");
            print_line(&format!(
                "{}: {free} credits, {held} in escrow",
                account.name
            ));
            let first = self.jobs.len().saturating_sub(JOBS_MAX);
            show::jobs::print_jobs(&self.jobs[first..], unix_ms());
        }
    }
}

/// Reports how many more rows there are, and where to see them.
fn print_more_rows(all: usize, most: usize, where_else: &str) {
    if all > most {
        print_line(&format!("  and {} more: {where_else}", all - most));
    }
}
