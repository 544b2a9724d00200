//! `souk openai key`: issues, lists and revokes the keys with which an organisation's programs can
//! use its `souk openai` server. Each key has its own budget, models and rates.

use std::path::Path;

use serde_json::json;
use souk_api::text_key::TextKeyView;
use souk_folder::facts::FactLogError;
use souk_folder::market_file::MarketFile;
use souk_node::buyer::text_keys::{
    IssueError, KeyAccount, KeyBudget, KeyName, KeyTerms, MODELS_MAX, NewKey, issue_key, now,
    read_book, revoke_key,
};
use souk_node::market::Credits;

use crate::args::{OpenaiKey, OpenaiKeyArgs, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{create_folder, from_config};
use crate::show::{self, Table};

/// The folder of the keys' files in that of the market.
const BUYER_FOLDER: &str = "buyer";

/// Runs a command on the keys.
pub fn run(folder: &Path, output: Output, command: &OpenaiKey) -> Outcome {
    // A mistyped folder must not get keys.
    MarketFile::read_nearest(folder).map_err(from_config)?;
    match command {
        OpenaiKey::Add(args) => add_key(folder, output, args),
        OpenaiKey::List { all } => list_keys(folder, output, *all),
        OpenaiKey::Revoke { name } => revoke(folder, output, name),
    }
}

fn add_key(folder: &Path, output: Output, args: &OpenaiKeyArgs) -> Outcome {
    if args.models.len() > MODELS_MAX {
        let cause = format!("a key has at most {MODELS_MAX} models");
        return Err(Failure::new(
            Kind::Input,
            cause,
            "use * for several of them",
        ));
    }
    create_folder(&folder.join(BUYER_FOLDER))?;
    let new = NewKey {
        name: args.name.clone(),
        budget: args.budget,
        models: args.models.clone(),
        requests_per_minute: args.rate,
        tokens_per_minute: args.token_rate,
        requests_at_once: args.at_once,
    };
    let (key, terms) = issue_key(folder, new).map_err(from_issue)?;
    let facts = json!({ "name": terms.name, "id": terms.id().to_string(), "key": key });
    let text = format!(
        "{key}\n  is the key {}; souk shows it only now. {}",
        terms.name,
        describe_terms(&terms)
    );
    show::print_result(output, &facts, &text);
    Ok(())
}

fn revoke(folder: &Path, output: Output, name: &KeyName) -> Outcome {
    let terms = revoke_key(folder, name).map_err(from_issue)?;
    let facts = json!({ "name": terms.name, "id": terms.id().to_string(), "revoked": true });
    show::print_result(output, &facts, &format!("the key {name} is revoked"));
    Ok(())
}

fn list_keys(folder: &Path, output: Output, all: bool) -> Outcome {
    let book = read_book(folder).map_err(|error| from_file(&error))?;
    let mut accounts = book.accounts(now());
    accounts.retain(|(terms, _)| all || !terms.is_revoked);
    match output {
        Output::Json => {
            let views = accounts
                .iter()
                .map(|(terms, at)| TextKeyView::new(terms, at));
            let views: Vec<TextKeyView> = views.collect();
            show::print_json(&views);
        }
        Output::Text if accounts.is_empty() => {
            show::print_notice("no key is issued; `souk openai key add NAME` issues one");
        }
        Output::Text => print_keys(&accounts),
    }
    Ok(())
}

fn print_keys(accounts: &[(&KeyTerms, KeyAccount)]) {
    let header = [
        "name",
        ">budget",
        ">spent",
        ">held",
        ">left",
        ">requests",
        "models",
        "rates",
        ">at once",
    ];
    let mut table = Table::new(&header);
    for (terms, account) in accounts {
        let mark = if terms.is_revoked { " (revoked)" } else { "" };
        let left = account.left.map(format);
        table.add_row([
            format!("{}{mark}", terms.name),
            terms.budget.map_or("none".to_owned(), describe_budget),
            format(account.usage.spent),
            format(account.held),
            left.unwrap_or_default(),
            account.usage.requests.to_string(),
            describe_models(terms),
            describe_rates(terms),
            terms.requests_at_once.to_string(),
        ]);
    }
    table.print();
}

fn describe_terms(terms: &KeyTerms) -> String {
    let budget = terms.budget.map(describe_budget);
    format!(
        "Budget: {}; models: {}; rates: {}; at once: {}",
        budget.as_deref().unwrap_or("that of the server"),
        describe_models(terms),
        describe_rates(terms),
        terms.requests_at_once
    )
}

fn describe_budget(budget: KeyBudget) -> String {
    format!("{}{}", format(budget.credits), budget.period.describe())
}

fn describe_models(terms: &KeyTerms) -> String {
    let models: Vec<String> = terms.models.iter().map(ToString::to_string).collect();
    match models.is_empty() {
        true => "all".to_owned(),
        false => models.join(", "),
    }
}

fn describe_rates(terms: &KeyTerms) -> String {
    let requests = terms
        .requests_per_minute
        .map(|most| format!("{most} requests"));
    let tokens = terms.tokens_per_minute.map(|most| format!("{most} tokens"));
    let rates: Vec<String> = requests.into_iter().chain(tokens).collect();
    match rates.is_empty() {
        true => "any".to_owned(),
        false => format!("{} a minute", rates.join(", ")),
    }
}

fn format(credits: Credits) -> String {
    show::format_credits(credits.0)
}

/// Converts a failure to use the files of keys.
pub fn from_file(error: &FactLogError) -> Failure {
    let hint = match error {
        FactLogError::File { .. } => "check the folder's permissions and the space left",
        FactLogError::Damaged { .. } => "put back a backup of the file",
        FactLogError::Format { .. } => "use the version of souk that wrote it",
        FactLogError::Busy { .. } => "another command changes the keys: try again in a moment",
    };
    Failure::new(Kind::State, error, hint)
}

fn from_issue(error: IssueError) -> Failure {
    match error {
        IssueError::File(error) => from_file(&error),
        IssueError::NameUsed { ref name } => {
            let hint = format!("give another name, or first `souk openai key revoke {name}`");
            Failure::new(Kind::Input, &error, &hint)
        }
        IssueError::NoSuchKey { .. } => {
            Failure::new(Kind::Input, error, "`souk openai key list` lists the keys")
        }
        IssueError::TooMany => {
            let hint = "use another folder, with an account of its own";
            Failure::new(Kind::State, error, hint)
        }
    }
}
