//! A market's rules as people write them: one commented file, times in seconds.

use std::path::Path;

use serde::Deserialize;
use souk_node::market::{Class, ClassRules, Millis, Permille, Price, Rules, Units};

use crate::failure::{Failure, Kind};

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RulesFile {
    fee_basis_points: u16,
    tick: u64,
    accounts_max: u32,
    classes_max: u32,
    open_orders_max: u32,
    requests_max: u32,
    lease_max_seconds: u64,
    settle_grace_seconds: u64,
    note_deadline_seconds: u64,
    note_span_seconds: u64,
    silent_notes_max: u8,
    reserve_wait_seconds: u64,
    reserve_permille: u16,
    stake_hold_seconds: u64,
    slash_permille: u16,
    closed_leases_kept: u32,
    classes: Vec<ClassEntry>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassEntry {
    class: Class,
    #[serde(default = "one")]
    tick: u64,
    #[serde(default = "one_unit")]
    lot: u32,
    #[serde(default)]
    auction_seconds: Option<u64>,
}

fn one() -> u64 {
    1
}

fn one_unit() -> u32 {
    1
}

impl Default for RulesFile {
    fn default() -> RulesFile {
        RulesFile::of(&Rules::default())
    }
}

impl RulesFile {
    fn of(rules: &Rules) -> RulesFile {
        let seconds = |time: Millis| time.0 / 1_000;
        let entry = |rules: &ClassRules| ClassEntry {
            class: rules.class,
            tick: rules.tick.0,
            lot: rules.lot.0,
            auction_seconds: rules.auction.map(seconds),
        };
        RulesFile {
            fee_basis_points: rules.fee_basis_points,
            tick: rules.tick.0,
            accounts_max: rules.accounts_max,
            classes_max: rules.classes_max,
            open_orders_max: rules.open_orders_max,
            requests_max: rules.requests_max,
            lease_max_seconds: seconds(rules.lease_max),
            settle_grace_seconds: seconds(rules.settle_grace),
            note_deadline_seconds: seconds(rules.note_deadline),
            note_span_seconds: seconds(rules.note_span),
            silent_notes_max: rules.silent_notes_max,
            reserve_wait_seconds: seconds(rules.reserve_wait),
            reserve_permille: rules.reserve.0,
            stake_hold_seconds: seconds(rules.stake_hold),
            slash_permille: rules.slash.0,
            closed_leases_kept: rules.closed_leases_kept,
            classes: rules.classes.iter().map(entry).collect(),
        }
    }

    fn rules(&self) -> Rules {
        // What overflows is more than any rule may be, which is then said.
        let time = |seconds: u64| Millis(seconds.saturating_mul(1_000));
        let own = |entry: &ClassEntry| ClassRules {
            class: entry.class,
            tick: Price(entry.tick),
            lot: Units(entry.lot),
            auction: entry.auction_seconds.map(time),
        };
        Rules {
            fee_basis_points: self.fee_basis_points,
            tick: Price(self.tick),
            classes: self.classes.iter().map(own).collect(),
            accounts_max: self.accounts_max,
            classes_max: self.classes_max,
            open_orders_max: self.open_orders_max,
            requests_max: self.requests_max,
            lease_max: time(self.lease_max_seconds),
            settle_grace: time(self.settle_grace_seconds),
            note_deadline: time(self.note_deadline_seconds),
            note_span: time(self.note_span_seconds),
            silent_notes_max: self.silent_notes_max,
            reserve_wait: time(self.reserve_wait_seconds),
            reserve: Permille(self.reserve_permille),
            stake_hold: time(self.stake_hold_seconds),
            slash: Permille(self.slash_permille),
            closed_leases_kept: self.closed_leases_kept,
        }
    }
}

/// Reads the rules of a file; each is checked.
pub fn read(path: &Path) -> Result<Rules, Failure> {
    let wrong = |error: &dyn std::fmt::Display| {
        let cause = format!("{}: {error}", path.display());
        let hint = "`souk market rules` prints every rule with what it means";
        Failure::new(Kind::Input, cause, hint)
    };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
    let file: RulesFile = toml::from_str(&text).map_err(|error| wrong(&error))?;
    let rules = file.rules();
    rules.check().map_err(|fault| wrong(&fault))?;
    Ok(rules)
}

/// The rules as a file with comments.
pub fn text(rules: &Rules) -> String {
    let file = RulesFile::of(rules);
    let classes: Vec<String> = file.classes.iter().map(class_text).collect();
    let text = format!(
        include_str!("rules.toml.txt"),
        fee_basis_points = file.fee_basis_points,
        tick = file.tick,
        accounts_max = file.accounts_max,
        classes_max = file.classes_max,
        open_orders_max = file.open_orders_max,
        requests_max = file.requests_max,
        lease_max_seconds = file.lease_max_seconds,
        settle_grace_seconds = file.settle_grace_seconds,
        note_deadline_seconds = file.note_deadline_seconds,
        note_span_seconds = file.note_span_seconds,
        silent_notes_max = file.silent_notes_max,
        reserve_wait_seconds = file.reserve_wait_seconds,
        reserve_permille = file.reserve_permille,
        stake_hold_seconds = file.stake_hold_seconds,
        slash_permille = file.slash_permille,
        closed_leases_kept = file.closed_leases_kept,
        classes = classes.join("\n"),
    );
    format!("{}\n", text.trim_end())
}

fn class_text(entry: &ClassEntry) -> String {
    let class = &entry.class;
    let auction = match entry.auction_seconds {
        Some(seconds) => format!("auction_seconds = {seconds}\n"),
        None => String::new(),
    };
    format!(
        "[[classes]]\nclass = {{ kind = {}, memory = {}, throughput = {}, bandwidth = {}, \
         emulated = {} }}\ntick = {}\nlot = {}\n{auction}",
        class.kind.0,
        class.memory.0,
        class.throughput.0,
        class.bandwidth.0,
        class.emulated,
        entry.tick,
        entry.lot,
    )
}

#[cfg(test)]
mod tests {
    use souk_node::market::{Band, KindCode};

    use super::*;

    fn read_text(text: &str) -> Result<Rules, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.toml");
        std::fs::write(&path, text).unwrap();
        read(&path)
    }

    #[test]
    fn what_is_printed_reads_back_with_classes_and_auctions() {
        let mut rules = Rules::default();
        assert_eq!(read_text(&text(&rules)).unwrap(), rules);
        let class = Class {
            kind: KindCode(1),
            memory: Band(3),
            throughput: Band(5),
            bandwidth: Band(3),
            emulated: true,
        };
        let own = |auction| ClassRules {
            class,
            tick: Price(5),
            lot: Units(2),
            auction,
        };
        rules.classes = vec![own(Some(Millis(60_000))), own(None)];
        assert_eq!(read_text(&text(&rules)).unwrap(), rules);
    }

    #[test]
    fn a_rule_that_makes_no_sense_is_refused_by_its_name() {
        let cause = |text: &str| format!("{:?}", read_text(text).unwrap_err());
        assert!(cause("tick = 0").contains("tick"));
        assert!(cause("fee_basis_points = 10001").contains("fee_basis_points"));
        assert!(cause("lease_max_seconds = 99999999999999999").contains("lease_max"));
        assert!(cause("reserve_permille = 1001").contains("reserve"));
        assert!(cause("fees = 1").contains("unknown field `fees`"));
    }
}
