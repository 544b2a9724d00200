//! `souk operator rules|pending|upgrade`: shows and changes the rules of a market.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use souk_api::governance::GovernanceView;
use souk_api::time::format_moment;
use souk_folder::clock::unix_ms;
use souk_network::protocols::market::{Governance, Member, Standing};
use souk_node::market::{Acceptance, ClassRules, Command, Millis, Price, Setting, Units, Upgrade};

use super::{connect_operator, submit_command};
use crate::args::{OperatorKey, OperatorRules, Output, RulesChangeArgs};
use crate::commands::account::out_of_turn;
use crate::commands::market::views;
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{connect_broker, unreachable_market};
use crate::suggested_command;
use crate::{rules, show};

/// Additional notice: the market checks the notice when the command reaches the log, a moment after
/// this program computes the time.
const MARGIN: Millis = Millis(5_000);

/// Runs `souk operator rules show|list|change|cancel`.
pub async fn run(folder: &Path, output: Output, command: OperatorRules) -> Outcome {
    match command {
        OperatorRules::Show => show_rules(folder, output).await,
        OperatorRules::List => list_changes(folder, output).await,
        OperatorRules::Change(args) => change_rules(folder, output, &args).await,
        OperatorRules::Cancel { change, key } => {
            let operator = connect_operator(folder, &key).await?;
            let cancel = Command::KeepRules { change };
            if submit_command(&operator, output, cancel).await?.is_some() {
                let facts = json!({ "change": change, "state": "cancelled" });
                let text = format!("change {change} is cancelled: the rules stay as they are");
                show::print_result(output, &facts, &text);
            }
            Ok(())
        }
    }
}

async fn fetch_governance(folder: &Path) -> Result<Governance, Failure> {
    let broker = connect_broker(folder).await?;
    broker.fetch_governance().await.map_err(unreachable_market)
}

async fn show_rules(folder: &Path, output: Output) -> Outcome {
    let found = fetch_governance(folder).await?;
    match output {
        Output::Json => show::print_json(&GovernanceView::from(&found)),
        Output::Text => {
            show::print_line(rules::format_rules(&found.rules).trim_end());
            show::print_line("");
            show::governance::print_coming(&found);
        }
    }
    Ok(())
}

async fn list_changes(folder: &Path, output: Output) -> Outcome {
    let found = fetch_governance(folder).await?;
    match output {
        Output::Json => {
            let found = GovernanceView::from(&found);
            show::print_json(&json!({
                "changes": found.changes, "version": found.version, "upgrade": found.upgrade,
            }));
        }
        Output::Text => show::governance::print_coming(&found),
    }
    Ok(())
}

/// Lists the commands that wait for the approval of more operators.
pub async fn list_pending_commands(folder: &Path, output: Output) -> Outcome {
    let found = fetch_governance(folder).await?;
    match output {
        Output::Json => show::print_json(&show::governance::pending_json(&found)),
        Output::Text => show::governance::print_pending(&found),
    }
    Ok(())
}

async fn change_rules(folder: &Path, output: Output, args: &RulesChangeArgs) -> Outcome {
    let broker = connect_broker(folder).await?;
    let found = broker
        .fetch_governance()
        .await
        .map_err(unreachable_market)?;
    let mut settings = Vec::new();
    for set in &args.set {
        settings.push(parse_setting(set)?);
    }
    if let Some(name) = &args.class {
        let class = views::find_class(&broker, name).await?;
        settings.push(of_class(found.rules.of_class(class), args));
    }
    if settings.is_empty() {
        let hint = "give --set NAME=VALUE, or --class with --tick or --lot";
        return Err(Failure::new(
            Kind::Input,
            "there is nothing to change",
            hint,
        ));
    }
    let at = told_for(&found, args.notice);
    let operator = connect_operator(folder, &args.key).await?;
    let change = Command::ChangeRules { settings, at };
    let Some(done) = submit_command(&operator, output, change).await? else {
        return Ok(());
    };
    let Acceptance::Due { change, at } = done else {
        return Err(out_of_turn(&done));
    };
    let cancel = suggested_command::market_command(&format!("operator rules cancel {change}"));
    let text = format!(
        "change {change} takes effect at {} UTC; open leases and orders that rest keep what they \
         have\n  to cancel it: {cancel}",
        show::time_of_day(at.0)
    );
    show::print_result(
        output,
        &json!({ "change": change, "at": format_moment(at) }),
        &text,
    );
    Ok(())
}

/// Returns the log time at which a change takes effect if it is announced now, with this notice or
/// else with the market's shortest one.
fn told_for(found: &Governance, notice: Option<Duration>) -> Millis {
    let notice = notice.map(|notice| u64::try_from(notice.as_millis()).unwrap_or(u64::MAX));
    let notice = notice.map_or(found.rules.rules_notice, Millis);
    found
        .now
        .max(Millis(unix_ms()))
        .saturating_add(notice)
        .saturating_add(MARGIN)
}

/// Parses the NAME=VALUE of `--set`.
fn parse_setting(set: &str) -> Result<Setting, Failure> {
    let wrong = |why: &str| {
        let hint = format!(
            "rules, and what they are now: {}",
            suggested_command::market_command("operator rules show")
        );
        Failure::new(Kind::Input, format!("--set {set}: {why}"), hint)
    };
    let parts = set.split_once('=');
    let (name, value) = parts.ok_or_else(|| wrong("it is not NAME=VALUE"))?;
    let value = value.parse();
    let value = value.map_err(|_| wrong("the value is not a whole number from 0"))?;
    let (rule, value) = rules::parse_setting(name, value).map_err(|why| wrong(&why))?;
    Ok(Setting::Number { rule, value })
}

/// Returns the setting of a class: its present rules with the tick and the lot of the options.
fn of_class(now: ClassRules, args: &RulesChangeArgs) -> Setting {
    Setting::Class(ClassRules {
        tick: args.tick.map_or(now.tick, Price),
        lot: args.lot.map_or(now.lot, Units),
        ..now
    })
}

/// Announces the time from which version `to` of the rules applies. Refuses without `force` if a
/// validator supports only lower versions, because it would stop then.
pub async fn announce_upgrade(
    folder: &Path,
    output: Output,
    to: u16,
    notice: Option<Duration>,
    force: bool,
    key: &OperatorKey,
) -> Outcome {
    let broker = connect_broker(folder).await?;
    let found = broker
        .fetch_governance()
        .await
        .map_err(unreachable_market)?;
    let members = broker.fetch_members().await.map_err(unreachable_market)?;
    let stays = |member: &&Member| {
        !matches!(member.standing, Standing::Leaving | Standing::Removed) && member.speaks < to
    };
    let short: Vec<String> = members
        .validators
        .iter()
        .filter(stays)
        .map(|member| format!("{} (up to {})", member.raft_id, member.speaks))
        .collect();
    if !short.is_empty() && !force {
        let cause = format!(
            "validators do not speak version {to} of the rules and would stop: {}",
            short.join(", ")
        );
        let hint = "install a release that speaks it on each and start them anew; then try again";
        return Err(Failure::new(Kind::State, cause, hint));
    }
    let at = told_for(&found, notice);
    let operator = connect_operator(folder, key).await?;
    let command = Command::Upgrade(Upgrade { to, at });
    if submit_command(&operator, output, command).await?.is_some() {
        let text = format!(
            "version {to} of the rules applies from {} UTC on",
            show::time_of_day(at.0)
        );
        show::print_result(
            output,
            &json!({ "version": to, "at": format_moment(at) }),
            &text,
        );
    }
    Ok(())
}
