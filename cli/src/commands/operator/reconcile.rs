//! `souk operator reconcile`: compares the deposits and withdrawals that a market confirmed with
//! the statement of the outside account, such as a bank's, that received and paid the money.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::json;
use souk_network::protocols::statement::DECISIONS;
use souk_node::market::{Credits, Direction, Event, MoneyRequest};

use crate::args::{Output, credits};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{connect_broker, unreachable_market};
use crate::show;

/// Largest number of decisions to compare.
const DECISIONS_MAX: usize = 1_000_000;

/// A row of the statement's file.
#[derive(Debug, Deserialize)]
struct Row {
    direction: String,
    amount: String,
    reference: String,
}

/// A movement in the books of the market or of the outside account: the facts by which both
/// identify it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct BookEntry {
    direction: &'static str,
    micro_credits: Credits,
    reference: String,
}

/// Compares both sides. Fails unless every movement is on both.
pub(super) async fn run(folder: &Path, output: Output, file: &Path) -> Outcome {
    let outside = read_entries(file)?;
    let broker = connect_broker(folder).await?;
    let decided = broker.fetch_statement(DECISIONS, DECISIONS_MAX).await;
    let decided = decided.map_err(unreachable_market)?;
    let confirmed = decided.lines.iter().flat_map(|line| &line.causes);
    let confirmed = confirmed.filter_map(|event| match event {
        Event::Decided {
            request,
            confirmed: true,
            ..
        } => Some(to_book_entry(request)),
        _ => None,
    });
    let mut counts: BTreeMap<BookEntry, (usize, usize)> = BTreeMap::new();
    confirmed.for_each(|it| counts.entry(it).or_default().0 += 1);
    outside
        .into_iter()
        .for_each(|it| counts.entry(it).or_default().1 += 1);
    let matched: usize = counts.values().map(|(market, file)| market.min(file)).sum();
    let alone = |market: bool| -> Vec<(&BookEntry, usize)> {
        let over = |(here, there): (usize, usize)| here.saturating_sub(there);
        let over = counts
            .iter()
            .map(|(it, (in_market, in_file))| match market {
                true => (it, over((*in_market, *in_file))),
                false => (it, over((*in_file, *in_market))),
            });
        over.filter(|(_, count)| *count > 0).collect()
    };
    let (in_market, in_file) = (alone(true), alone(false));
    match output {
        Output::Json => show::print_json(&json!({
            "matched": matched, "only_in_market": in_market, "only_in_file": in_file,
        })),
        Output::Text => {
            show::print_line(&format!("{matched} movements are on both sides"));
            print_movements("confirmed in the market, and not in the file", &in_market);
            print_movements("in the file, and not confirmed in the market", &in_file);
        }
    }
    match in_market.len() + in_file.len() {
        0 => Ok(()),
        count => {
            let cause = format!("{count} movements are on one side only");
            let hint = "each is named above; `souk operator requests` shows the undecided requests";
            Err(Failure::new(Kind::Verification, cause, hint))
        }
    }
}

fn print_movements(what: &str, movements: &[(&BookEntry, usize)]) {
    for (movement, count) in movements {
        let BookEntry {
            direction,
            micro_credits,
            reference,
        } = movement;
        let amount = show::format_credits(micro_credits.0);
        show::print_line(&format!(
            "{what}: {count} x {direction} of {amount} \"{reference}\""
        ));
    }
}

fn to_book_entry(request: &MoneyRequest) -> BookEntry {
    BookEntry {
        direction: match request.direction {
            Direction::Deposit => "deposit",
            Direction::Withdrawal => "withdrawal",
        },
        micro_credits: request.amount,
        reference: request.reference.to_string(),
    }
}

fn read_entries(file: &Path) -> Result<Vec<BookEntry>, Failure> {
    let hint = "the first line is direction,amount,reference; then for example \
                deposit,12.5,invoice 7";
    let wrong = |cause: String| {
        let cause = format!("{}: {cause}", file.display());
        Failure::new(Kind::Input, cause, hint)
    };
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .from_path(file)
        .map_err(|error| wrong(error.to_string()))?;
    let rows = reader.deserialize::<Row>().zip(2_u64..).map(|(row, line)| {
        let row = row.map_err(|error| wrong(error.to_string()))?;
        let direction = match row.direction.as_str() {
            "deposit" => "deposit",
            "withdrawal" => "withdrawal",
            other => {
                let cause = format!("line {line}: `{other}` is neither deposit nor withdrawal");
                return Err(wrong(cause));
            }
        };
        let amount = credits(&row.amount);
        let amount = amount.map_err(|cause| wrong(format!("line {line}: {cause}")))?;
        Ok(BookEntry {
            direction,
            micro_credits: Credits(amount),
            reference: row.reference,
        })
    });
    rows.collect()
}
