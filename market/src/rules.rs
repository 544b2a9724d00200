//! The rules a market keeps to: each a number with a name, a range, and whether it may change.
//!
//! A rule that operators may change takes effect at a log time that is told beforehand. What a
//! lease or an order was made by stays: a lease has the fee of its trade, and the times of leases
//! are fixed.

use serde::{Deserialize, Serialize};

use crate::class::Class;
use crate::units::{Credits, Millis, Permille, Price, Units};

/// The longest time in a rule: a year. Sums of times then never overflow.
const TIME_MAX: u64 = 366 * 24 * 3_600_000;

/// The version of the rules that this build carries out: every replica must do the same with the
/// same command, so what a command does changes only with this number, at a time in the log.
pub const RULES_VERSION: u16 = 1;

/// Settings of one change.
pub const SETTINGS_MAX: usize = 32;

/// Changes that are told and not yet made.
pub const CHANGES_MAX: usize = 16;

/// A rule that is another number than it may be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the rule {rule} is {value}, and must be {least} to {most} (times in milliseconds)")]
pub struct RuleFault {
    /// Its name; times are in milliseconds.
    pub rule: &'static str,
    /// What it is.
    pub value: u64,
    /// The least it may be.
    pub least: u64,
    /// The most.
    pub most: u64,
}

/// What a rule becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// A number.
    Number {
        /// Which rule.
        rule: Rule,
        /// What it becomes; times in milliseconds.
        value: u64,
    },
    /// How a class is traded.
    Class(ClassRules),
}

/// A change of the rules that is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulesChange {
    /// Its number, from 1.
    pub id: u64,
    /// The log time at which it takes effect.
    pub at: Millis,
    /// What becomes what, in this order.
    pub settings: Vec<Setting>,
}

/// Another version of the rules, from a time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upgrade {
    /// The version.
    pub to: u16,
    /// The log time from which it applies.
    pub at: Millis,
}

/// What a rule's number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Pieces, or parts of what its name says.
    Number,
    /// Micro-credits.
    Credits,
    /// Milliseconds.
    Time,
    /// Thousandths.
    Permille,
}

/// The type of a rule.
trait Figure: Copy {
    const UNIT: Unit;
    fn number(self) -> u64;
    fn of(number: u64) -> Option<Self>;
}

macro_rules! figures {
    ($($kind:ty, $unit:ident, $number:expr, $of:expr;)+) => {$(
        impl Figure for $kind {
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
        /// The numbers a market is run by. All replicas have the same: the genesis and the log say
        /// them.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Rules {
            $($(#[doc = $doc])+ pub $field: $kind,)+
            /// Classes with a tick, a lot or a way of matching of their own.
            pub classes: Vec<ClassRules>,
        }

        impl Default for Rules {
            fn default() -> Self {
                Self { $($field: $default,)+ classes: Vec::new() }
            }
        }

        /// One of the rules that are a number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Rule {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Rule {
            /// Every rule.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// What it is called.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($field),)+ }
            }

            /// What it means, as people are told.
            pub fn means(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii(),)+ }
            }

            /// What its number counts.
            pub fn unit(self) -> Unit {
                match self { $(Self::$name => <$kind as Figure>::UNIT,)+ }
            }

            /// Whether operators may change it while the market runs.
            pub fn may_change(self) -> bool {
                match self { $(Self::$name => rules!(@$standing),)+ }
            }

            /// The least and the most it may be.
            pub fn range(self) -> (u64, u64) {
                match self { $(Self::$name => ($least, $most),)+ }
            }

            /// What it is.
            pub fn of(self, rules: &Rules) -> u64 {
                match self { $(Self::$name => rules.$field.number(),)+ }
            }

            /// Makes it another number, if it may be that.
            ///
            /// # Errors
            /// The range it is outside of.
            pub fn set(self, rules: &mut Rules, value: u64) -> Result<(), RuleFault> {
                let (least, most) = self.range();
                within(self.name(), value, least, most)?;
                let known = match self {
                    $(Self::$name => Figure::of(value).map(|value| rules.$field = value),)+
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
    /// The market's share of each settlement, in hundredths of a per cent. A lease has that of its
    /// trade.
    open FeeBasisPoints fee_basis_points: u16 = 0, 0, 10_000;
    /// Prices are multiples of this, per device-second.
    open Tick tick: Price = Price(1), 1, u64::MAX;
    /// Accounts there may be. Where there are as many, one that holds less than a deposit makes
    /// room for a new one.
    open AccountsMax accounts_max: u32 = 1_000_000, 1, u32::MAX.into();
    /// What an account holds, in whatever way, that keeps its place where there is no room.
    open AccountDeposit account_deposit: Credits = Credits(10_000), 0, u64::MAX;
    /// Classes there may be. Where there are as many, one in which nobody holds a deposit makes
    /// room for one that an ask with a deposit opens.
    open ClassesMax classes_max: u32 = 4_096, 1, u32::MAX.into();
    /// Open orders an account may have at once.
    open OpenOrdersMax open_orders_max: u32 = 4_096, 1, u32::MAX.into();
    /// Open orders there may be. Where there are as many, one that holds less than a deposit makes
    /// room for one that holds more.
    open OrdersMax orders_max: u32 = 1_000_000, 1, u32::MAX.into();
    /// What each open ask of an account holds beyond its first, until it ends.
    open AskDeposit ask_deposit: Credits = Credits(10_000), 0, u64::MAX;
    /// Requests for credits in or out that an account may have undecided at once.
    open RequestsMax requests_max: u32 = 8, 1, u32::MAX.into();
    /// Requests that may be undecided in all. Where there are as many, the oldest that holds less
    /// than a deposit makes room.
    open RequestsOpenMax requests_open_max: u32 = 65_536, 1, u32::MAX.into();
    /// The most that may come into an account in a day of log time; 0 for any amount.
    open DepositCapDay deposit_cap_day: Credits = Credits(0), 0, u64::MAX;
    /// The most that an account may ask to go out in a day of log time; 0 for any amount.
    open WithdrawalCapDay withdrawal_cap_day: Credits = Credits(0), 0, u64::MAX;
    /// The longest lease, extensions included.
    open LeaseMax lease_max: Millis = Millis(7 * 24 * 3_600_000), 1, TIME_MAX;
    /// Closed leases that stay readable; the oldest are forgotten first.
    open ClosedLeasesKept closed_leases_kept: u32 = 100_000, 0, u32::MAX.into();
    /// How long after a lease's end a receipt or a note may still come.
    fixed SettleGrace settle_grace: Millis = Millis(120_000), 1, TIME_MAX;
    /// How long a buyer has to dispute a usage note before it counts as accepted.
    fixed NoteDeadline note_deadline: Millis = Millis(60_000), 1, TIME_MAX;
    /// How much time of each unit notes may add to what the buyer accepted by word.
    fixed NoteSpan note_span: Millis = Millis(300_000), 1, TIME_MAX;
    /// After so many notes in a row that the buyer did not answer, the lease ends.
    fixed SilentNotesMax silent_notes_max: u8 = 2, 1, u8::MAX.into();
    /// How long a buyer has to say that it works, or to end a lease, once its provider said that it
    /// is ready.
    fixed ReserveWait reserve_wait: Millis = Millis(60_000), 1, TIME_MAX;
    /// The least part of its price that a second costs in which a device is held and not used.
    fixed Reserve reserve: Permille = Permille(100), 0, 1_000;
    /// How much time of each unit may be noted before the buyer said that the work began.
    fixed NoteUnstarted note_unstarted: Millis = Millis(2_000), 0, TIME_MAX;
    /// What two accounts must have settled with each other for a step of their reputations.
    fixed ReputationStep reputation_step: Credits = Credits(100_000), 1, u64::MAX;
    /// How long after its last lease a provider's stake stays.
    fixed StakeHold stake_hold: Millis = Millis(3_600_000), 0, TIME_MAX;
    /// What part of the stake a proven fault costs.
    fixed Slash slash: Permille = Permille(1_000), 0, 1_000;
    /// How far ahead a batch may expire: an account that has nothing is remembered for as long.
    fixed BatchLifeMax batch_life_max: Millis = Millis(3_600_000), 1_000, TIME_MAX;
    /// How long before it takes effect a change of the rules is told at least.
    fixed RulesNotice rules_notice: Millis = Millis(600_000), 0, TIME_MAX;
}

/// How one class is traded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassRules {
    /// Which.
    pub class: Class,
    /// Prices are multiples of this.
    pub tick: Price,
    /// Quantities are multiples of this.
    pub lot: Units,
    /// With an interval, orders meet only in a uniform-price auction whenever the log time passes
    /// a multiple of it, so that the order of arrival within an interval is worth nothing.
    pub auction: Option<Millis>,
}

impl ClassRules {
    /// Whether a class can be traded by them.
    ///
    /// # Errors
    /// The first one that makes no sense.
    pub fn check(&self) -> Result<(), RuleFault> {
        within("classes.tick", self.tick.0, 1, u64::MAX)?;
        within("classes.lot", self.lot.0.into(), 1, u32::MAX.into())?;
        match self.auction {
            Some(interval) => within("classes.auction", interval.0, 1, TIME_MAX),
            None => Ok(()),
        }
    }
}

impl Setting {
    /// Makes it so.
    ///
    /// # Errors
    /// When it is outside of what the rule may be.
    pub fn apply(&self, rules: &mut Rules) -> Result<(), RuleFault> {
        match self {
            Self::Number { rule, value } => rule.set(rules, *value),
            Self::Class(own) => {
                own.check()?;
                rules.classes.retain(|known| known.class != own.class);
                rules.classes.push(*own);
                Ok(())
            }
        }
    }
}

impl Rules {
    /// The rules of one class: its own, or the common tick, lots of one and continuous matching.
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
            auction: None,
        };
        let rules = own.unwrap_or(common);
        debug_assert!(rules.tick.0 > 0 && rules.lot.0 > 0, "the rules are sound");
        rules
    }

    /// Whether a market can be run by them.
    ///
    /// # Errors
    /// The first one that makes no sense.
    pub fn check(&self) -> Result<(), RuleFault> {
        for rule in Rule::ALL {
            let (least, most) = rule.range();
            within(rule.name(), rule.of(self), least, most)?;
        }
        self.classes.iter().try_for_each(ClassRules::check)
    }
}

fn within(rule: &'static str, value: u64, least: u64, most: u64) -> Result<(), RuleFault> {
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
