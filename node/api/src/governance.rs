//! Defines the public JSON of a market's operators and rules, of coming changes, and of commands
//! that wait for operators.

use std::collections::BTreeMap;

use serde::Serialize;
use souk_market::{Approval, ClassRules, Rule, Rules, RulesChange, Setting, Unit, Upgrade};
use souk_roles::market::market_protocol::Governance;

use crate::class_name;
use crate::time::format_moment;

/// The operators and rules of a market, with coming changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GovernanceView {
    /// The accounts of the operators.
    pub operators: Vec<String>,
    /// How many operators must give the same command.
    pub operators_needed: u32,
    /// The version of the rules that applies.
    pub version: u16,
    /// The next version; null if none was announced.
    pub upgrade: Option<UpgradeView>,
    /// The rules that apply.
    pub rules: RulesView,
    /// The announced changes of the rules.
    pub changes: Vec<RulesChangeView>,
    /// The commands that wait for more operators.
    pub approvals: Vec<ApprovalView>,
    /// The log's time.
    pub now: String,
}

/// The rules of a market, under the names of its file of rules: durations are whole seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RulesView {
    /// The rules that are numbers.
    #[serde(flatten)]
    pub numbers: BTreeMap<String, u64>,
    /// Classes with a tick or a lot of their own.
    pub classes: Vec<ClassRulesView>,
}

/// The rules of one class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ClassRulesView {
    /// The name of the class.
    pub class: String,
    /// Each price must be a multiple of it, in micro-credits per device-second.
    pub tick: u64,
    /// Each number of units must be a multiple of it.
    pub lot: u32,
}

/// An announced change of the rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RulesChangeView {
    /// The number of the change.
    pub change: u64,
    /// When it takes effect.
    pub at: String,
    /// The rules that it sets: those that it does not name stay.
    pub rules: RulesView,
}

/// An announced upgrade to another version of the rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UpgradeView {
    /// The next version.
    pub version: u16,
    /// When it applies.
    pub at: String,
}

/// A command that waits for more operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ApprovalView {
    /// The number by which operators approve the command.
    pub command: u64,
    /// The operators that have given it.
    pub given: Vec<String>,
    /// When the market forgets it.
    pub until: String,
}

impl From<&Governance> for GovernanceView {
    fn from(found: &Governance) -> GovernanceView {
        GovernanceView {
            operators: found.operators.iter().map(ToString::to_string).collect(),
            operators_needed: found.operators_needed,
            version: found.version,
            upgrade: found.upgrade.as_ref().map(UpgradeView::from),
            rules: RulesView::from(&found.rules),
            changes: found.changes.iter().map(RulesChangeView::from).collect(),
            approvals: found.approvals.iter().map(ApprovalView::from).collect(),
            now: format_moment(found.now),
        }
    }
}

impl From<&Rules> for RulesView {
    fn from(rules: &Rules) -> RulesView {
        let number = |rule: &Rule| (rule_name(*rule), to_public_unit(*rule, rule.of(rules)));
        RulesView {
            numbers: Rule::ALL.iter().map(number).collect(),
            classes: rules.classes.iter().map(ClassRulesView::from).collect(),
        }
    }
}

impl From<&ClassRules> for ClassRulesView {
    fn from(rules: &ClassRules) -> ClassRulesView {
        ClassRulesView {
            class: class_name::format_class(&rules.class),
            tick: rules.tick.0,
            lot: rules.lot.0,
        }
    }
}

impl From<&RulesChange> for RulesChangeView {
    fn from(change: &RulesChange) -> RulesChangeView {
        let mut rules = RulesView {
            numbers: BTreeMap::new(),
            classes: Vec::new(),
        };
        for setting in &change.settings {
            match setting {
                Setting::Number { rule, value } => {
                    let value = to_public_unit(*rule, *value);
                    rules.numbers.insert(rule_name(*rule), value);
                }
                Setting::Class(class) => rules.classes.push(ClassRulesView::from(class)),
            }
        }
        RulesChangeView {
            change: change.id,
            at: format_moment(change.at),
            rules,
        }
    }
}

impl From<&Upgrade> for UpgradeView {
    fn from(upgrade: &Upgrade) -> UpgradeView {
        UpgradeView {
            version: upgrade.to,
            at: format_moment(upgrade.at),
        }
    }
}

impl From<&Approval> for ApprovalView {
    fn from(approval: &Approval) -> ApprovalView {
        ApprovalView {
            command: approval.id,
            given: approval.given.iter().map(ToString::to_string).collect(),
            until: format_moment(approval.until),
        }
    }
}

/// Returns the public name of a rule, which includes its unit.
#[must_use]
pub fn rule_name(rule: Rule) -> String {
    let name = rule.name();
    match rule.unit() {
        Unit::Time => format!("{name}_seconds"),
        Unit::Permille => format!("{name}_permille"),
        Unit::Number | Unit::Credits => name.to_owned(),
    }
}

/// Converts the value of a rule to the unit of its public name.
#[must_use]
pub fn to_public_unit(rule: Rule, value: u64) -> u64 {
    match rule.unit() {
        Unit::Time => value / 1_000,
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_rule_is_one_field_beside_the_classes() {
        let rules = json!(RulesView::from(&Rules::default()));
        let fields = rules.as_object().unwrap();
        assert_eq!(fields.len(), Rule::ALL.len() + 1);
        assert_eq!(rules["classes"], json!([]));
    }
}
