//! Parses and formats times of the day in a provider's file: the hours at which it sells, and the
//! hours with another price, such as `22:00-06:00=70` (per cent).

use souk_folder::limits::{Hours, NoHours};
use souk_folder::pricing::Band;

use crate::failure::{Failure, Kind};

/// Parses the hours at which a provider sells.
pub fn parse_hours(texts: &[String]) -> Result<Vec<Hours>, Failure> {
    let parse = |text: &String| {
        let parsed = text.parse();
        parsed.map_err(|error: NoHours| Failure::new(Kind::Input, error, "give --hours again"))
    };
    texts.iter().map(parse).collect()
}

/// Parses prices at times of the day.
pub fn parse_bands(texts: &[String]) -> Result<Vec<Band>, Failure> {
    let band = |text: &String| {
        let (hours, percent) = text.split_once('=')?;
        Some(Band {
            hours: hours.parse().ok()?,
            percent: percent.trim_end_matches('%').parse().ok()?,
        })
    };
    let parse = |text: &String| {
        band(text).ok_or_else(|| {
            let cause = format!("\"{text}\" is not a band like 22:00-06:00=70");
            Failure::new(Kind::Input, cause, "give --band HOURS=PERCENT again")
        })
    };
    texts.iter().map(parse).collect()
}

/// Formats hours for the provider's file.
pub fn hours_text(hours: &[Hours]) -> String {
    let each = hours.iter().map(|hours| format!("\"{hours}\""));
    format!("[{}]", each.collect::<Vec<_>>().join(", "))
}

/// Formats prices at times of the day for the provider's file.
pub fn bands_text(bands: &[Band]) -> String {
    let band = |band: &Band| {
        let (hours, percent) = (&band.hours, band.percent);
        format!("{{ hours = \"{hours}\", percent = {percent} }}")
    };
    let each = bands.iter().map(band);
    format!("[{}]", each.collect::<Vec<_>>().join(", "))
}
