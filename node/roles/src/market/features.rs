//! The names of the bits in [`Features`]: the languages of a buyer's own kernels that a device
//! runs, the backend through which it runs operators, whether it sells sessions, and whether it
//! promises exact results. Of these the market itself knows only the last. A bit must never change
//! its meaning.

use souk_market::Features;

/// Languages of a buyer's own kernels, as providers' limits call them.
pub const KERNELS: [(&str, Features); 2] = [("wasm", Features(1)), ("wgsl", Features(1 << 1))];

/// The backends through which devices run their operators.
pub const BACKENDS: [(&str, Features); 5] = [
    ("cpu", Features(1 << 2)),
    ("wgpu", Features(1 << 3)),
    ("cuda", Features(1 << 4)),
    ("onnxruntime", Features(1 << 5)),
    ("emulated", Features(1 << 6)),
];

/// The other services that devices sell: leases that keep states from request to request, as
/// texts need.
pub const SERVICES: [(&str, Features); 1] = [("sessions", Features(1 << 7))];

/// The promises about results: `exact-1` are the same bits on every machine, so that the validators
/// can judge a single wrong element.
pub const PROMISES: [(&str, Features); 1] = [("exact-1", Features::EXACT_1)];

/// Returns the bit of a name in one of the tables; no bit if the table has no such name.
#[must_use]
pub fn find_feature(table: &[(&str, Features)], name: &str) -> Features {
    let found = table.iter().find(|(word, _)| *word == name);
    found.map_or(Features(0), |(_, feature)| *feature)
}

/// Returns the names in one of the tables whose bits are in `needed` and not in `there`.
pub fn missing_names<'a>(
    table: &'a [(&'static str, Features)],
    needed: Features,
    there: Features,
) -> impl Iterator<Item = &'static str> + 'a {
    let lacks = move |feature: Features| feature.0 & needed.0 & !there.0 != 0;
    let missing = table.iter().filter(move |(_, feature)| lacks(*feature));
    missing.map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_features_are_one() {
        let all = KERNELS
            .iter()
            .chain(&BACKENDS)
            .chain(&SERVICES)
            .chain(&PROMISES);
        all.fold(0, |bits, (name, feature)| {
            assert_eq!((bits & feature.0, feature.0.count_ones()), (0, 1), "{name}");
            bits | feature.0
        });
    }

    #[test]
    fn what_is_missing_is_named() {
        let of_kernels = |there| missing_names(&KERNELS, Features(3), Features(there));
        assert_eq!(of_kernels(0).collect::<Vec<_>>(), ["wasm", "wgsl"]);
        assert_eq!(of_kernels(1).collect::<Vec<_>>(), ["wgsl"]);
        let cuda = find_feature(&BACKENDS, "cuda");
        let of_backends = |there| missing_names(&BACKENDS, cuda, there).next();
        assert_eq!(of_backends(cuda), None);
        assert_eq!(of_backends(Features(0)), Some("cuda"));
        assert_eq!(find_feature(&BACKENDS, "abacus"), Features(0));
    }
}
