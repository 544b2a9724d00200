//! The names of the regions behind the numbers that asks and bids carry, and the search for a
//! region by its name. A number must never change its meaning.

use serde::{Deserialize, Serialize};
use souk_market::{Region, Regions};

/// The regions' names, by number. Each begins with the continent.
pub const NAMES: [&str; 19] = [
    "unstated",
    "africa-north",
    "africa-south",
    "america-central",
    "america-north-central",
    "america-north-east",
    "america-north-west",
    "america-south",
    "asia-central",
    "asia-east",
    "asia-north",
    "asia-south",
    "asia-south-east",
    "asia-west",
    "europe-east",
    "europe-north",
    "europe-south",
    "europe-west",
    "oceania",
];

/// A region as files have it: by its name, or by a number where it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NamedRegion(pub Region);

/// A word that names no region.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a region; the regions are {regions}", regions = NAMES.join(", "))]
pub struct RegionUnknown(String);

impl TryFrom<String> for NamedRegion {
    type Error = RegionUnknown;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl std::str::FromStr for NamedRegion {
    type Err = RegionUnknown;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let region = find_region(text).map(NamedRegion);
        region.ok_or_else(|| RegionUnknown(text.to_owned()))
    }
}

impl From<NamedRegion> for String {
    fn from(region: NamedRegion) -> String {
        match NAMES.get(usize::from(region.0.0)) {
            Some(name) => (*name).to_owned(),
            None => region.0.to_string(),
        }
    }
}

/// Returns a region's name, or its number if it has no name.
#[must_use]
pub fn name(region: Region) -> String {
    let known = NAMES.get(usize::from(region.0));
    known.map_or_else(|| format!("region {region}"), |name| (*name).to_owned())
}

/// Returns the region with a name, or with a number from 0 to 31.
#[must_use]
pub fn find_region(text: &str) -> Option<Region> {
    let place = NAMES.iter().position(|name| *name == text);
    let number = place.and_then(|place| u8::try_from(place).ok());
    let given = || text.parse().ok().filter(|number: &u8| *number < 32);
    number.or_else(given).map(Region)
}

/// Returns the region with a name or number, or all regions whose names begin with these whole
/// words: `europe` is four of them. None if there is no such region.
#[must_use]
pub fn find_regions(text: &str) -> Option<Regions> {
    if let Some(region) = find_region(text) {
        return Some(Regions::from_regions(&[region]));
    }
    let begins = |name: &str| {
        let rest = name.strip_prefix(text);
        !text.is_empty() && rest.is_some_and(|rest| rest.starts_with('-'))
    };
    let all: Vec<Region> = NAMES
        .iter()
        .filter(|name| begins(name))
        .filter_map(|name| find_region(name))
        .collect();
    (!all.is_empty()).then(|| Regions::from_regions(&all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_named_numbered_or_begun() {
        for (number, name) in (0..).zip(NAMES) {
            assert_eq!(find_region(name), Some(Region(number)));
            assert_eq!(super::name(Region(number)), name);
        }
        assert_eq!(find_region("31"), Some(Region(31)));
        assert_eq!(name(Region(31)), "region 31");
        assert_eq!(
            find_regions("europe").map(|all| all.0.count_ones()),
            Some(4)
        );
        assert_eq!(
            find_regions("asia-south").map(|all| all.0.count_ones()),
            Some(1)
        );
        for unknown in ["", "eur", "32", "mars"] {
            assert_eq!(find_regions(unknown), None, "{unknown}");
        }
    }
}
