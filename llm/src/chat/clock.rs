//! Formats dates for chat templates, which can print today's date: implements Python's `strftime`
//! in the C locale, for a time in UTC.

use std::fmt::Write;

use minijinja::{Error, ErrorKind};

const DAY_SECONDS: u64 = 24 * 60 * 60;
const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// Letters of an abbreviated name.
const SHORT: usize = 3;

/// A day of the calendar, and the second within it.
struct CalendarTime {
    year: u64,
    /// Counted from 0.
    month: u64,
    /// Counted from 1.
    day: u64,
    /// Counted from 1.
    day_of_year: u64,
    /// Days since Sunday.
    weekday: u64,
    second: u64,
}

impl CalendarTime {
    /// Converts seconds of Unix time.
    fn from_unix_seconds(seconds: u64) -> Self {
        let (days, second) = (seconds / DAY_SECONDS, seconds % DAY_SECONDS);
        let (mut year, mut left) = (1970, days);
        while left >= year_days(year) {
            left -= year_days(year);
            year += 1;
        }
        let day_of_year = left + 1;
        let mut month = 0;
        while left >= month_days(year, month) {
            left -= month_days(year, month);
            month += 1;
        }
        Self {
            year,
            month,
            day: left + 1,
            day_of_year,
            weekday: (days + 4) % 7,
            second,
        }
    }
}

fn year_days(year: u64) -> u64 {
    let is_long = year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    if is_long { 366 } else { 365 }
}

fn month_days(year: u64, month: u64) -> u64 {
    match month {
        1 => year_days(year) - 337,
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

/// Formats a time.
pub(super) fn format_time(seconds: u64, format: &str) -> Result<String, Error> {
    // The loop counts years one by one, so this limit must bound the work for a wrong time.
    let moment = CalendarTime::from_unix_seconds(seconds.min(10_000 * 366 * DAY_SECONDS));
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '%' => {
                let wrong = || {
                    let message = format!("strftime_now does not know the format {format:?}");
                    Error::new(ErrorKind::InvalidOperation, message)
                };
                let mut code = letters.next().ok_or_else(wrong)?;
                let is_bare = code == '-';
                if is_bare {
                    code = letters.next().ok_or_else(wrong)?;
                }
                write_part(&mut text, &moment, code, is_bare.then_some(NoPadding))
                    .ok_or_else(wrong)?;
            }
            letter => text.push(letter),
        }
    }
    Ok(text)
}

/// Formats a number without leading zeros.
#[derive(Clone, Copy)]
struct NoPadding;

fn write_part(
    text: &mut String,
    moment: &CalendarTime,
    code: char,
    bare: Option<NoPadding>,
) -> Option<()> {
    let (hour, minute) = (moment.second / 3600, moment.second / 60 % 60);
    let second = moment.second % 60;
    let half = match hour % 12 {
        0 => 12,
        hour => hour,
    };
    let month = MONTHS[moment.month as usize];
    let weekday = WEEKDAYS[moment.weekday as usize];
    let mut number = |value: u64, width: usize| match bare {
        Some(NoPadding) => write!(text, "{value}").ok(),
        None => write!(text, "{value:0width$}").ok(),
    };
    match code {
        'Y' => return number(moment.year, 4),
        'y' => return number(moment.year % 100, 2),
        'm' => return number(moment.month + 1, 2),
        'd' => return number(moment.day, 2),
        'j' => return number(moment.day_of_year, 3),
        'H' => return number(hour, 2),
        'I' => return number(half, 2),
        'M' => return number(minute, 2),
        'S' => return number(second, 2),
        'f' => return number(0, 6),
        'w' => return number(moment.weekday, 1),
        'u' => return number((moment.weekday + 6) % 7 + 1, 1),
        _ => {}
    }
    let parts = match code {
        'F' => "Y-m-d",
        'T' | 'X' => "H:M:S",
        'R' => "H:M",
        'D' | 'x' => "m/d/y",
        _ => "",
    };
    for part in parts.chars() {
        match part {
            '-' | ':' | '/' => text.push(part),
            code => write_part(text, moment, code, None)?,
        }
    }
    text.push_str(match code {
        'F' | 'T' | 'X' | 'R' | 'D' | 'x' => "",
        'B' => month,
        'b' | 'h' => &month[..SHORT],
        'A' => weekday,
        'a' => &weekday[..SHORT],
        'p' if hour < 12 => "AM",
        'p' => "PM",
        'Z' | 'z' => "",
        'n' => "\n",
        't' => "\t",
        '%' => "%",
        _ => return None,
    });
    Some(())
}
