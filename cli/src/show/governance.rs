//! Prints how operators govern a market: the coming changes of its rules and version, and the
//! commands that wait for the approval of more operators.

use serde_json::{Value, json};
use souk_api::class_name;
use souk_api::governance::{ApprovalView, rule_name, to_public_unit};
use souk_network::protocols::market::{Governance, Member, Members, Standing};
use souk_node::market::{Approval, Command, RulesChange, Setting};

use super::{Table, format_credits, print_line, short_id, time_of_day};
use crate::suggested_command;

/// Prints the coming changes of the rules.
pub fn print_coming(found: &Governance) {
    print_line(&format!("version {} of the rules applies", found.version));
    if let Some(upgrade) = found.upgrade {
        print_line(&format!(
            "version {} applies from {} UTC on: validators that do not speak it stop then",
            upgrade.to,
            time_of_day(upgrade.at.0)
        ));
    }
    if found.changes.is_empty() {
        print_line("no change of the rules is pending");
        return;
    }
    for RulesChange { id, at, settings } in &found.changes {
        print_line(&format!("change {id}, from {} UTC on", time_of_day(at.0)));
        for setting in settings {
            print_line(&format!("  {}", describe_setting(setting)));
        }
    }
}

fn describe_setting(setting: &Setting) -> String {
    match setting {
        Setting::Number { rule, value } => {
            let value = to_public_unit(*rule, *value);
            format!("{} becomes {value}", rule_name(*rule))
        }
        Setting::Class(own) => {
            let name = class_name::format_class(&own.class);
            format!("{name}: tick {}, lot {}", own.tick, own.lot)
        }
    }
}

/// Returns the commands that wait for more operators as JSON, each with its description.
pub fn pending_json(found: &Governance) -> Value {
    let one = |approval: &Approval| {
        let mut value = json!(ApprovalView::from(approval));
        value["description"] = describe_command(&approval.command).into();
        value
    };
    found.approvals.iter().map(one).collect()
}

/// Prints commands that wait for more operators.
pub fn print_pending(found: &Governance) {
    if found.approvals.is_empty() {
        print_line("no command waits for operators");
        return;
    }
    let mut table = Table::new(&[">command", "given by", "until", "what"]);
    for approval in &found.approvals {
        let given: Vec<String> = approval.given.iter().map(short_id).collect();
        let needed = found.operators_needed;
        table.add_row([
            approval.id.to_string(),
            format!("{} of {needed}: {}", given.len(), given.join(" ")),
            time_of_day(approval.until.0),
            describe_command(&approval.command),
        ]);
    }
    table.print();
    let approve = suggested_command::market_command("operator approve COMMAND");
    print_line(&format!("  to give one too: {approve}"));
}

/// Describes a command of the operators.
pub fn describe_command(command: &Command) -> String {
    match command {
        Command::Deposit { account, amount } => {
            format!(
                "credit {} to {}",
                format_credits(amount.0),
                short_id(account)
            )
        }
        Command::Lock { request } => format!("lock withdrawal {request} before it is paid"),
        Command::Confirm { request } => format!("confirm request {request}"),
        Command::Refuse { request, reason } => format!("refuse request {request}: {reason}"),
        Command::Collect { to, amount } => {
            format!("collect {} for {}", format_credits(amount.0), short_id(to))
        }
        Command::Freeze { account, reason } => format!("freeze {}: {reason}", short_id(account)),
        Command::Thaw { account } => format!("thaw {}", short_id(account)),
        Command::ChangeRules { settings, at } => {
            let settings: Vec<String> = settings.iter().map(describe_setting).collect();
            let from = time_of_day(at.0);
            format!("{}, from {from} UTC on", settings.join("; "))
        }
        Command::KeepRules { change } => format!("take change {change} back"),
        Command::Upgrade(upgrade) => {
            let from = time_of_day(upgrade.at.0);
            format!("version {} of the rules from {from} UTC on", upgrade.to)
        }
        other => format!("{other:?}"),
    }
}

/// Prints which versions of the rules the validators support, and how to go over to a later one
/// that all of them do.
pub fn print_versions(found: &Governance, members: &Members) {
    let stays =
        |member: &&Member| !matches!(member.standing, Standing::Leaving | Standing::Removed);
    let staying: Vec<&Member> = members.validators.iter().filter(stays).collect();
    let spoken = staying.iter();
    let spoken: Vec<String> = spoken
        .map(|member| format!("{} up to {}", member.raft_id, member.speaks))
        .collect();
    print_line(&format!(
        "validators carry out versions: {}",
        spoken.join(", ")
    ));
    let common = staying.iter().map(|member| member.speaks).min();
    if let Some(to) = common.filter(|to| *to > found.version && found.upgrade.is_none()) {
        let upgrade = format!("operator upgrade --to {to} --notice 1h");
        print_line(&format!(
            "  the operators can set when version {to} applies: {}",
            suggested_command::market_command(&upgrade)
        ));
    }
}
