//! The rules of a market: each is a number with a name and a range, and is fixed or can change.
//!
//! A change takes effect at a log time that the operators announce. It will not alter existing
//! leases and orders: for example, a lease keeps the fee of its trade. The times of leases are
//! fixed rules.

use serde::{Deserialize, Serialize};

use crate::class::Class;
use crate::units::{Credits, Millis, Permille, Price, Units};

/// The longest time in a rule: a year. It keeps sums of times from overflowing.
const TIME_MAX: u64 = 366 * 24 * 3_600_000;

/// The version of the rules with which every market begins: the genesis has no field for another
/// one, because it would change the id of every market that exists. The log raises the version.
pub const FIRST_RULES_VERSION: u16 = 1;

/// The version that counts verdicts again on every change of the list of validators, ends open
/// disputes when a market is founded again, and remembers leases that are not exact for as long as
/// a stake answers for them.
pub const RECOUNTING_RULES_VERSION: u16 = 2;

/// The latest version of the rules that this build implements. All replicas must apply a command in
/// the same way, so its effect can change only with this number, at a time in the log.
pub const RULES_VERSION: u16 = 2;

/// The most settings of one change.
pub const SETTINGS_MAX: usize = 32;

/// The most announced changes that have not taken effect.
pub const CHANGES_MAX: usize = 16;

/// A rule's value that is out of its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the rule {rule} is {value}, and must be {least} to {most} (times in milliseconds)")]
pub struct RuleFault {
    /// The rule's name.
    pub rule: &'static str,
    /// The value, in milliseconds for a time.
    pub value: u64,
    /// The least valid value.
    pub least: u64,
    /// The greatest valid value.
    pub most: u64,
}

/// The new value of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// The value of a rule that is a number.
    Number {
        /// The rule to set.
        rule: Rule,
        /// The new value, in milliseconds for a time.
        value: u64,
    },
    /// The rules of one class.
    Class(ClassRules),
}

/// An announced change of the rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulesChange {
    /// The change's number, from 1.
    pub id: u64,
    /// The log time at which the change takes effect.
    pub at: Millis,
    /// The new settings, applied in this order.
    pub settings: Vec<Setting>,
}

/// An announced upgrade to another version of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upgrade {
    /// The new version.
    pub to: u16,
    /// The log time from which the new version applies.
    pub at: Millis,
}

/// The unit of a rule's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A count, or a unit that the rule's name states.
    Number,
    /// Micro-credits.
    Credits,
    /// Milliseconds.
    Time,
    /// Thousandths.
    Permille,
}

/// A type that a rule can have.
trait RuleValue: Copy {
    const UNIT: Unit;
    fn number(self) -> u64;
    fn of(number: u64) -> Option<Self>;
}

macro_rules! figures {
    ($($kind:ty, $unit:ident, $number:expr, $of:expr;)+) => {$(
        impl RuleValue for $kind {
            const UNIT: Unit = Unit::$unit;
            fn number(self) -> u64 {
                let number: fn(Self) -> u64 = $number;
                number(self)
            }
            fn of(number: u64) -> Option<Self> {
                let of: fn(u64) -> Option<Self> = $of;
                of(number)
            }
        }
    )+};
}

figures! {
    u8, Number, |it| it.into(), |it| it.try_into().ok();
    u16, Number, |it| it.into(), |it| it.try_into().ok();
    u32, Number, |it| it.into(), |it| it.try_into().ok();
    Credits, Credits, |it| it.0, |it| Some(Self(it));
    Price, Credits, |it| it.0, |it| Some(Self(it));
    Millis, Time, |it| it.0, |it| Some(Self(it));
    Permille, Permille, |it| it.0.into(), |it| it.try_into().ok().map(Self);
}

macro_rules! rules {
    ($(
        $(#[doc = $doc:expr])+
        $standing:ident $name:ident
        $field:ident: $kind:ty = $default:expr, $least:expr, $most:expr;
    )+) => {
        /// The rules of a market. All replicas have the same, because the genesis and the log
        /// determine them.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Rules {
            $($(#[doc = $doc])+ pub $field: $kind,)+
            /// Classes with their own tick or lot.
            pub classes: Vec<ClassRules>,
        }

        impl Default for Rules {
            fn default() -> Self {
                Self { $($field: $default,)+ classes: Vec::new() }
            }
        }

        /// A rule whose value is a number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Rule {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Rule {
            /// All rules.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// Returns the rule's name.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($field),)+ }
            }

            /// Returns a description for people.
            pub fn description(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii(),)+ }
            }

            /// Returns the unit of the rule's number.
            pub fn unit(self) -> Unit {
                match self { $(Self::$name => <$kind as RuleValue>::UNIT,)+ }
            }

            /// Returns whether operators can change the rule while the market runs.
            pub fn is_changeable(self) -> bool {
                match self { $(Self::$name => rules!(@$standing),)+ }
            }

            /// Returns the least and the greatest valid value.
            pub fn range(self) -> (u64, u64) {
                match self { $(Self::$name => ($least, $most),)+ }
            }

            /// Returns the rule's value in `rules`.
            pub fn of(self, rules: &Rules) -> u64 {
                match self { $(Self::$name => rules.$field.number(),)+ }
            }

            /// Sets the rule's value in `rules`.
            ///
            /// # Errors
            /// The range, if the value is outside it.
            pub fn set(self, rules: &mut Rules, value: u64) -> Result<(), RuleFault> {
                let (least, most) = self.range();
                check_range(self.name(), value, least, most)?;
                let known = match self {
                    $(Self::$name => RuleValue::of(value).map(|value| rules.$field = value),)+
                };
                known.expect("what is in its range is of its type");
                Ok(())
            }
        }
    };
    (@open) => { true };
    (@fixed) => { false };
}

rules! {
    /// The market's share of each settlement, in hundredths of a per cent. A lease keeps the share
    /// of its trade.
    open FeeBasisPoints fee_basis_points: u16 = 0, 0, 10_000;
    /// Prices are multiples of this, per device-second.
    open Tick tick: Price = Price(1), 1, u64::MAX;
    /// The most accounts. At this limit, a new account replaces one that holds less than a deposit.
    open AccountsMax accounts_max: u32 = 1_000_000, 1, u32::MAX.into();
    /// The credits, held in any form, that secure an account's place in a full market.
    open AccountDeposit account_deposit: Credits = Credits(10_000), 0, u64::MAX;
    /// The most classes. At this limit, an ask with a deposit can open a class in place of one
    /// without any deposit.
    open ClassesMax classes_max: u32 = 4_096, 1, u32::MAX.into();
    /// The most open orders of one account.
    open OpenOrdersMax open_orders_max: u32 = 4_096, 1, u32::MAX.into();
    /// The most open orders. At this limit, an order that holds a deposit replaces one that holds
    /// less.
    open OrdersMax orders_max: u32 = 1_000_000, 1, u32::MAX.into();
    /// The deposit of each open ask of an account except its first; the ask holds it until it ends.
    open AskDeposit ask_deposit: Credits = Credits(10_000), 0, u64::MAX;
    /// The most undecided requests for credits in or out of one account.
    open RequestsMax requests_max: u32 = 8, 1, u32::MAX.into();
    /// The most undecided requests. At this limit, a new request replaces the oldest one that holds
    /// less than a deposit.
    open RequestsOpenMax requests_open_max: u32 = 65_536, 1, u32::MAX.into();
    /// The most credits that can come into an account in a day of log time; 0 means no limit.
    open DepositCapDay deposit_cap_day: Credits = Credits(0), 0, u64::MAX;
    /// The most credits that an account can ask to withdraw in a day of log time; 0 means no limit.
    open WithdrawalCapDay withdrawal_cap_day: Credits = Credits(0), 0, u64::MAX;
    /// The longest lease, extensions included.
    open LeaseMax lease_max: Millis = Millis(7 * 24 * 3_600_000), 1, TIME_MAX;
    /// Closed leases that stay readable; the market forgets the oldest first, but none for which a
    /// stake still answers.
    open ClosedLeasesKept closed_leases_kept: u32 = 100_000, 0, u32::MAX.into();
    /// How long after a lease's end the market accepts a receipt or a note.
    fixed SettleGrace settle_grace: Millis = Millis(120_000), 1, TIME_MAX;
    /// How long a buyer has to dispute a usage note before it counts as accepted.
    fixed NoteDeadline note_deadline: Millis = Millis(60_000), 1, TIME_MAX;
    /// How much time of each unit notes can add to the usage that the buyer accepted by command.
    fixed NoteSpan note_span: Millis = Millis(300_000), 1, TIME_MAX;
    /// The unanswered notes in a row after which the market ends the lease.
    fixed SilentNotesMax silent_notes_max: u8 = 2, 1, u8::MAX.into();
    /// How long a buyer has to state that it works, or to end the lease, after its provider states
    /// that it is ready.
    fixed ReserveWait reserve_wait: Millis = Millis(60_000), 1, TIME_MAX;
    /// The least part of the price that a second costs in which a device is held and not used.
    fixed Reserve reserve: Permille = Permille(100), 0, 1_000;
    /// How much time of each unit a provider can note before the buyer states that the work began.
    fixed NoteUnstarted note_unstarted: Millis = Millis(2_000), 0, TIME_MAX;
    /// The amount that two accounts must settle with each other for one step of their reputations.
    fixed ReputationStep reputation_step: Credits = Credits(100_000), 1, u64::MAX;
    /// How long after its last lease a provider's stake must stay.
    fixed StakeHold stake_hold: Millis = Millis(3_600_000), 0, TIME_MAX;
    /// The part of the stake that a proven fault costs.
    fixed Slash slash: Permille = Permille(1_000), 0, 1_000;
    /// How far ahead a batch can expire; the market remembers an idle account for as long.
    fixed BatchLifeMax batch_life_max: Millis = Millis(3_600_000), 1_000, TIME_MAX;
    /// The least time between the announcement of a change of the rules and its effect.
    fixed RulesNotice rules_notice: Millis = Millis(600_000), 0, TIME_MAX;
}

/// How the market trades one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassRules {
    /// The class to which they apply.
    pub class: Class,
    /// The tick: an order's price must be a multiple of it.
    pub tick: Price,
    /// The lot: an order's quantity must be a multiple of it.
    pub lot: Units,
}

impl ClassRules {
    /// Checks that each number is in its range.
    ///
    /// # Errors
    /// The first number out of its range.
    pub fn check_ranges(&self) -> Result<(), RuleFault> {
        check_range("classes.tick", self.tick.0, 1, u64::MAX)?;
        check_range("classes.lot", self.lot.0.into(), 1, u32::MAX.into())
    }
}

impl Setting {
    /// Applies the setting to `rules`.
    ///
    /// # Errors
    /// If the value is out of its range.
    pub fn apply_to(&self, rules: &mut Rules) -> Result<(), RuleFault> {
        match self {
            Self::Number { rule, value } => rule.set(rules, *value),
            Self::Class(own) => {
                own.check_ranges()?;
                rules.classes.retain(|known| known.class != own.class);
                rules.classes.push(*own);
                Ok(())
            }
        }
    }
}

impl Rules {
    /// Returns the rules of one class: its own, or the common tick and lots of one.
    pub fn of_class(&self, class: Class) -> ClassRules {
        let own = self
            .classes
            .iter()
            .find(|rules| rules.class == class)
            .copied();
        let common = ClassRules {
            class,
            tick: self.tick,
            lot: Units(1),
        };
        let rules = own.unwrap_or(common);
        debug_assert!(rules.tick.0 > 0 && rules.lot.0 > 0, "the rules are sound");
        rules
    }

    /// Checks that each number is in its range.
    ///
    /// # Errors
    /// The first number out of its range.
    pub fn check_ranges(&self) -> Result<(), RuleFault> {
        for rule in Rule::ALL {
            let (least, most) = rule.range();
            check_range(rule.name(), rule.of(self), least, most)?;
        }
        self.classes.iter().try_for_each(ClassRules::check_ranges)
    }
}

fn check_range(rule: &'static str, value: u64, least: u64, most: u64) -> Result<(), RuleFault> {
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(RuleFault {
            rule,
            value,
            least,
            most,
        }),
    }
}
