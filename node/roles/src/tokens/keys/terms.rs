//! Defines what an organisation's API key allows: its budget, its models, and its requests and
//! tokens a minute.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use souk_market::{Credits, Millis};
use souk_memory::ContentId;

/// The most characters of a key's name.
const NAME_LENGTH_MAX: usize = 64;

/// The most patterns of models of a key.
pub const MODELS_MAX: usize = 64;

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// The id of a key: the first bytes of its hash. It is no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyId(pub u64);

impl KeyId {
    /// Returns the id of the key with this hash.
    #[must_use]
    pub fn of_hash(hash: ContentId) -> KeyId {
        let bytes = hash.as_bytes();
        let first = bytes.first_chunk().expect("a hash is longer");
        KeyId(u64::from_be_bytes(*first))
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:016x}", self.0)
    }
}

/// The requests of a key that are open at once, unless its issuer says otherwise: an eighth of the
/// connections of a server, and a quarter of the places to wait for a slot.
pub const REQUESTS_AT_ONCE: u32 = 64;

fn requests_at_once_default() -> u32 {
    REQUESTS_AT_ONCE
}

/// A key and what it allows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyTerms {
    /// The name that its issuer gave it.
    pub name: KeyName,
    /// The BLAKE3 of the key. Nobody can compute the key from it.
    pub hash: ContentId,
    /// When it was issued, in milliseconds since 1970.
    pub issued: Millis,
    /// How much it can spend; none if it has no limit of its own.
    pub budget: Option<KeyBudget>,
    /// The models that it can use; empty for all.
    pub models: Vec<ModelPattern>,
    /// The requests a minute; none for no limit.
    pub requests_per_minute: Option<u32>,
    /// The tokens a minute, of messages and answers; none for no limit.
    pub tokens_per_minute: Option<u64>,
    /// The requests that can be open at once. Older files do not state it.
    #[serde(default = "requests_at_once_default")]
    pub requests_at_once: u32,
    /// Whether it was revoked.
    pub is_revoked: bool,
}

impl KeyTerms {
    /// Returns the key's id.
    #[must_use]
    pub fn id(&self) -> KeyId {
        KeyId::of_hash(self.hash)
    }

    /// Returns whether the key can use a model.
    #[must_use]
    pub fn allows_model(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|pattern| pattern.fits(model))
    }

    /// Returns the number of the budget's period at a time.
    #[must_use]
    pub fn period_at(&self, at: Millis) -> u32 {
        let budget = self.budget.as_ref();
        budget.map_or(0, |budget| budget.period.number_at(at))
    }
}

/// The name of a key: letters, digits and signs, without spaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct KeyName(String);

/// A text is no name of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key's name has 1 to {NAME_LENGTH_MAX} letters, digits and signs, without spaces")]
pub struct InvalidKeyName;

impl KeyName {
    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for KeyName {
    type Error = InvalidKeyName;

    fn try_from(text: String) -> Result<KeyName, InvalidKeyName> {
        let is_short = (1..=NAME_LENGTH_MAX).contains(&text.len());
        match is_short && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(KeyName(text)),
            false => Err(InvalidKeyName),
        }
    }
}

impl FromStr for KeyName {
    type Err = InvalidKeyName;

    fn from_str(text: &str) -> Result<KeyName, InvalidKeyName> {
        KeyName::try_from(text.to_owned())
    }
}

impl fmt::Display for KeyName {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

/// How much a key can spend in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyBudget {
    /// The most credits.
    pub credits: Credits,
    /// When the budget begins anew.
    pub period: BudgetPeriod,
}

/// When a budget begins anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetPeriod {
    /// Never: it is for the life of the key.
    Whole,
    /// At midnight, in UTC.
    Day,
    /// On the first of each month, in UTC.
    Month,
}

impl BudgetPeriod {
    /// Returns the number of the period at a time; later periods have greater numbers.
    #[must_use]
    pub fn number_at(self, at: Millis) -> u32 {
        let days = at.0 / DAY_MS;
        let number = match self {
            BudgetPeriod::Whole => 0,
            BudgetPeriod::Day => days,
            BudgetPeriod::Month => month_of_day(days),
        };
        u32::try_from(number).unwrap_or(u32::MAX)
    }

    /// Returns the words that follow an amount, such as ` a day`; none for a whole budget.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            BudgetPeriod::Whole => "",
            BudgetPeriod::Day => " a day",
            BudgetPeriod::Month => " a month",
        }
    }
}

/// Returns the months from January of year 0 to that of a day, which is counted from 1970. The year
/// begins in March, so that the leap day is its last (H. Hinnant, `civil_from_days`).
fn month_of_day(days: u64) -> u64 {
    /// The days from 1 March of year 0 to 1970, and those of 400 years.
    const DAYS_TO_1970: u64 = 719_468;
    const ERA_DAYS: u64 = 146_097;
    let days = days.saturating_add(DAYS_TO_1970);
    let (era, day) = (days / ERA_DAYS, days % ERA_DAYS);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let months_from_march = (5 * day_of_year + 2) / 153;
    (era * 400 + year) * 12 + months_from_march + 2
}

/// A pattern of the models that a key can use: a name, or a prefix of names followed by `*`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ModelPattern(String);

/// A text names no models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a model is 1 to 64 characters; a * can be its last one only, for all that follows")]
pub struct InvalidModelPattern;

impl ModelPattern {
    /// The most bytes: those of a model's name.
    const LENGTH_MAX: usize = 64;

    fn fits(&self, model: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(beginning) => model.starts_with(beginning),
            None => self.0 == model,
        }
    }
}

impl TryFrom<String> for ModelPattern {
    type Error = InvalidModelPattern;

    fn try_from(text: String) -> Result<ModelPattern, InvalidModelPattern> {
        let is_short = (1..=Self::LENGTH_MAX).contains(&text.len());
        let name = text.strip_suffix('*').unwrap_or(&text);
        let is_plain = !name.contains('*') && !name.contains(char::is_whitespace);
        match is_short && is_plain {
            true => Ok(ModelPattern(text)),
            false => Err(InvalidModelPattern),
        }
    }
}

impl FromStr for ModelPattern {
    type Err = InvalidModelPattern;

    fn from_str(text: &str) -> Result<ModelPattern, InvalidModelPattern> {
        ModelPattern::try_from(text.to_owned())
    }
}

impl From<ModelPattern> for String {
    fn from(pattern: ModelPattern) -> String {
        pattern.0
    }
}

impl fmt::Display for ModelPattern {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_begin_with_the_days_and_months_of_the_calendar() {
        const DAY: u64 = DAY_MS;
        let month = |day| BudgetPeriod::Month.number_at(Millis(day * DAY));
        assert_eq!(month(0), 1970 * 12);
        // 31 January and 1 February 1970.
        assert_eq!((month(30), month(31)), (1970 * 12, 1970 * 12 + 1));
        // 29 February and 1 March 2024, 31 December 2026 and 1 January 2027.
        assert_eq!(
            (month(19_782), month(19_783)),
            (2024 * 12 + 1, 2024 * 12 + 2)
        );
        assert_eq!((month(20_818), month(20_819)), (2026 * 12 + 11, 2027 * 12));
        // 28 February and 1 March 2100, which is no leap year.
        assert_eq!(
            (month(47_540), month(47_541)),
            (2100 * 12 + 1, 2100 * 12 + 2)
        );
        let day = |ms| BudgetPeriod::Day.number_at(Millis(ms));
        assert_eq!((day(DAY - 1), day(DAY)), (0, 1));
        assert_eq!(BudgetPeriod::Whole.number_at(Millis(u64::MAX)), 0);
        assert!(BudgetPeriod::Month.number_at(Millis(u64::MAX)) > 0);
    }

    #[test]
    fn a_pattern_fits_one_model_or_all_that_begin_like_it() {
        let fits = |pattern: &str, model| pattern.parse::<ModelPattern>().unwrap().fits(model);
        assert!(fits("qwen/qwen3-8b", "qwen/qwen3-8b"));
        assert!(!fits("qwen/qwen3-8b", "qwen/qwen3-8b-x"));
        assert!(fits("qwen/*", "qwen/qwen3-8b") && !fits("qwen/*", "qwen"));
        assert!(fits("*", "any"));
        for wrong in ["", "a*b", "**", "a b", &"x".repeat(65)] {
            assert!(wrong.parse::<ModelPattern>().is_err(), "{wrong}");
        }
        for wrong in ["", "a b", "ä", &"x".repeat(65)] {
            assert!(wrong.parse::<KeyName>().is_err(), "{wrong}");
        }
    }
}
