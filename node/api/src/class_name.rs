//! Formats and parses the readable names of the market's classes (devices that trade together):
//! `gpu-m5-t7-b6-emulated` is an emulated GPU in band 5 of memory, 7 of throughput and 6 of
//! bandwidth. A band is four times as wide as the one below.

use souk_market::{Band, Class, KindCode};

/// The names of kinds and the market's numbers, in the order of the taxonomy, which can only grow
/// at its end.
pub const KINDS: [(&str, KindCode); 9] = [
    ("cpu", KindCode(1)),
    ("gpu", KindCode(2)),
    ("tpu", KindCode(3)),
    ("npu", KindCode(4)),
    ("lpu", KindCode(5)),
    ("fpga", KindCode(6)),
    ("dsp", KindCode(7)),
    ("wasm", KindCode(8)),
    ("custom", KindCode(9)),
];

const EMULATED: &str = "-emulated";

/// Returns the name of a class.
#[must_use]
pub fn format_class(class: &Class) -> String {
    let known = KINDS.iter().find(|(_, code)| *code == class.kind);
    let kind = known.map_or_else(|| format!("kind{}", class.kind), |(name, _)| (*name).into());
    let emulated = if class.emulated { EMULATED } else { "" };
    format!(
        "{kind}-m{}-t{}-b{}{emulated}",
        class.memory, class.throughput, class.bandwidth
    )
}

/// Returns the class of a name; none if the name is not valid.
#[must_use]
pub fn parse_class(name: &str) -> Option<Class> {
    let (rest, emulated) = match name.strip_suffix(EMULATED) {
        Some(rest) => (rest, true),
        None => (name, false),
    };
    let [kind, memory, throughput, bandwidth] = rest.split('-').collect::<Vec<_>>()[..] else {
        return None;
    };
    let known = KINDS.iter().find(|(name, _)| *name == kind);
    let kind = match known {
        Some((_, code)) => *code,
        None => KindCode(kind.strip_prefix("kind")?.parse().ok()?),
    };
    let band = |text: &str, mark| Some(Band(text.strip_prefix(mark)?.parse().ok()?));
    Some(Class {
        kind,
        memory: band(memory, 'm')?,
        throughput: band(throughput, 't')?,
        bandwidth: band(bandwidth, 'b')?,
        emulated,
    })
}

/// Describes the ranges of a class's bands.
#[must_use]
pub fn in_words(class: &Class) -> String {
    format!(
        "{} GiB, {} Gop/s, {} GiB/s",
        format_range(class.memory),
        format_range(class.throughput),
        format_range(class.bandwidth)
    )
}

fn format_range(band: Band) -> String {
    match band.0 {
        0 => "under 1".to_owned(),
        band => format!("{} to {}", 1_u128 << (2 * band - 2), 1_u128 << (2 * band)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_what_is_none_is_none() {
        for (_, kind) in KINDS.iter().copied().chain([("", KindCode(77))]) {
            let class = Class {
                kind,
                memory: Band(5),
                throughput: Band(12),
                bandwidth: Band(0),
                emulated: kind.0 % 2 == 0,
            };
            assert_eq!(
                parse_class(&format_class(&class)),
                Some(class),
                "{}",
                format_class(&class)
            );
        }
        for wrong in [
            "",
            "gpu",
            "gpu-m5-t7",
            "gpu-m5-t7-b6-x",
            "gpx-m5-t7-b6",
            "gpu-m500-t7-b6",
        ] {
            assert_eq!(parse_class(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn bands_are_told_in_words() {
        assert_eq!(format_range(Band::from_figure(0, 1)), "under 1");
        assert_eq!(format_range(Band::from_figure(80, 1)), "64 to 256");
    }
}
