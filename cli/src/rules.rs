//! Reads and writes a market's rules as one commented TOML file with times in seconds, for
//! `souk market …` and `souk operator rules`.

use std::path::Path;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use souk_api::class_name;
use souk_api::governance::{rule_name, to_public_unit};
use souk_node::market::{Class, ClassRules, Price, Rule, Rules, Unit, Units};

/// Name of the list of classes.
const CLASSES: &str = "classes";

/// Width of the lines.
const COLUMNS: usize = 100;

/// Head of the file.
const HEAD: &str = "\
# The rules of a market. They are part of what its id is made of: whoever joins by its line begins
# with the same ones. Operators may change those that are not fixed while it runs, with notice.
# Prices, deposits and caps are in micro-credits (a million is a credit), prices per device-second.
";

const CLASSES_HEAD: &str = "\
# Classes of devices with a tick or a lot of their own, by the names that `souk market classes`
# shows.
# [[classes]]
# class = \"cpu-m3-t5-b3-emulated\"
# tick = 1
# lot = 1";

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassEntry {
    #[serde(deserialize_with = "class_by_name")]
    class: Class,
    #[serde(default = "one")]
    tick: u64,
    #[serde(default = "one_unit")]
    lot: u32,
}

/// Reads a class by its name.
fn class_by_name<'d, D: Deserializer<'d>>(from: D) -> Result<Class, D::Error> {
    let name = String::deserialize(from)?;
    let unknown = || D::Error::custom(format!("\"{name}\" is not the name of a class"));
    class_name::parse_class(&name).ok_or_else(unknown)
}

fn one() -> u64 {
    1
}

fn one_unit() -> u32 {
    1
}

impl ClassEntry {
    fn from_rules(rules: &ClassRules) -> ClassEntry {
        ClassEntry {
            class: rules.class,
            tick: rules.tick.0,
            lot: rules.lot.0,
        }
    }

    fn class_rules(&self) -> ClassRules {
        ClassRules {
            class: self.class,
            tick: Price(self.tick),
            lot: Units(self.lot),
        }
    }
}

/// Converts seconds to milliseconds. An overflow saturates above the range of every rule, so the
/// check of the range reports it.
fn to_millis(seconds: u64) -> u64 {
    seconds.saturating_mul(1_000)
}

/// Finds the rule with this name in the file, and converts its value.
pub fn parse_setting(name: &str, number: u64) -> Result<(Rule, u64), String> {
    let rule = Rule::ALL.iter().find(|rule| rule_name(**rule) == name);
    let rule = *rule.ok_or_else(|| format!("there is no rule `{name}`"))?;
    match rule.unit() {
        Unit::Time => Ok((rule, to_millis(number))),
        _ => Ok((rule, number)),
    }
}

/// Reads the rules of a file. Each must have a known name and a value within its range.
pub fn read(path: &Path) -> Result<Rules, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
    let file: toml::Table = toml::from_str(&text).map_err(|error| wrong(&error))?;
    let mut rules = Rules::default();
    for (name, value) in file {
        if name == CLASSES {
            let classes = Vec::<ClassEntry>::deserialize(value).map_err(|error| wrong(&error))?;
            rules.classes = classes.iter().map(ClassEntry::class_rules).collect();
            continue;
        }
        let number = value.as_integer().and_then(|number| number.try_into().ok());
        let number =
            number.ok_or_else(|| wrong(&format!("{name} is not a whole number from 0")))?;
        let (rule, number) = parse_setting(&name, number).map_err(|error| wrong(&error))?;
        rule.set(&mut rules, number)
            .map_err(|fault| wrong(&fault))?;
    }
    rules.check_ranges().map_err(|fault| wrong(&fault))?;
    Ok(rules)
}

/// Writes the rules as a file with comments.
pub fn format_rules(rules: &Rules) -> String {
    let rule = |rule: &Rule| {
        let means = match rule.is_changeable() {
            true => rule.description().to_owned(),
            false => format!("{} Fixed.", rule.description()),
        };
        let (key, number) = (rule_name(*rule), to_public_unit(*rule, rule.of(rules)));
        format!("{}\n{key} = {number}\n", format_comment(&means))
    };
    let numbers: String = Rule::ALL.iter().map(rule).collect();
    let classes = rules.classes.iter().map(ClassEntry::from_rules);
    let classes: String = classes.map(|entry| class_text(&entry)).collect();
    let text = format!("{HEAD}\n{numbers}\n{CLASSES_HEAD}\n{classes}");
    format!("{}\n", text.trim_end())
}

/// Wraps a text into comment lines.
fn format_comment(words: &str) -> String {
    let mut lines = vec!["#".to_owned()];
    for word in words.split_whitespace() {
        let last = lines.last().map_or(0, String::len);
        match last + 1 + word.len() > COLUMNS {
            true => lines.push(format!("# {word}")),
            false => {
                if let Some(line) = lines.last_mut() {
                    line.push(' ');
                    line.push_str(word);
                }
            }
        }
    }
    lines.join("\n")
}

fn class_text(entry: &ClassEntry) -> String {
    format!(
        "[[classes]]\nclass = \"{}\"\ntick = {}\nlot = {}\n",
        class_name::format_class(&entry.class),
        entry.tick,
        entry.lot,
    )
}

#[cfg(test)]
mod tests {
    use souk_node::market::{Band, KindCode};

    use super::*;

    fn read_text(text: &str) -> Result<Rules, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.toml");
        std::fs::write(&path, text).unwrap();
        read(&path)
    }

    #[test]
    fn what_is_printed_reads_back_with_classes() {
        let mut rules = Rules::default();
        assert_eq!(read_text(&format_rules(&rules)).unwrap(), rules);
        let own = |kind, lot| ClassRules {
            class: Class {
                kind: KindCode(kind),
                memory: Band(3),
                throughput: Band(5),
                bandwidth: Band(3),
                emulated: true,
            },
            tick: Price(5),
            lot: Units(lot),
        };
        rules.classes = vec![own(1, 2), own(2, 1)];
        rules.ask_deposit = souk_node::market::Credits(7);
        assert_eq!(read_text(&format_rules(&rules)).unwrap(), rules);
    }

    #[test]
    fn a_rule_that_makes_no_sense_is_refused_by_its_name() {
        let cause = |text: &str| read_text(text).unwrap_err();
        assert!(cause("tick = 0").contains("tick"));
        assert!(cause("fee_basis_points = 10001").contains("fee_basis_points"));
        assert!(cause("lease_max_seconds = 99999999999999999").contains("lease_max"));
        assert!(cause("reserve_permille = 1001").contains("reserve"));
        assert!(cause("fees = 1").contains("no rule `fees`"));
        assert!(cause("tick = -1").contains("tick is not a whole number"));
    }
}
