//! Lists example lines for every command of `souk-lab`, and adds them to the end of its help.

use clap::Command;
use souk_cli::options::{Example, add_examples};

/// The examples of each command.
const EXAMPLES: &[Example] = &[
    (
        "testnet sim",
        &["souk testnet sim --seed 7 --seeds 20 --minutes 2"],
    ),
    ("testnet attacks", &["souk testnet attacks"]),
    (
        "testnet chaos",
        &[
            "souk testnet chaos --seed 7 --minutes 10",
            "souk testnet chaos --running --minutes 1 --per-hour 360",
        ],
    ),
    (
        "testnet hostile",
        &["souk testnet hostile --seed 7 --minutes 2"],
    ),
    ("testnet liars", &["souk testnet liars -o liars"]),
    (
        "testnet gossip",
        &["souk testnet gossip --nodes 100 --seconds 30"],
    ),
    (
        "bench conformance",
        &["souk bench conformance onnx/backend/test/data/node"],
    ),
    (
        "bench models",
        &[
            "souk bench models model.onnx --sizes 8,128",
            "souk bench models testnet/models/digits --exact",
        ],
    ),
    ("bench memory", &["souk bench memory minilm.onnx:8,128"]),
    ("bench cost", &["souk bench cost minilm.onnx:8,128"]),
    (
        "bench market",
        &[
            "souk bench market --flow a",
            "souk bench market --readers 1000",
        ],
    ),
    ("bench plan", &["souk bench plan instances/la01"]),
    (
        "bench partition",
        &["souk bench partition graphs/bert.json"],
    ),
    ("bench tasks", &["souk bench tasks --devices 4"]),
    ("bench split", &["souk bench split"]),
    ("bench mixes", &["souk bench mixes"]),
    (
        "bench overhead",
        &["souk bench overhead --model model.onnx --sizes 8,128"],
    ),
    ("bench tensors", &["souk bench tensors --size 1GiB"]),
    (
        "bench certificates",
        &["souk bench certificates --rounds 1"],
    ),
    ("bench proofs", &["souk bench proofs --accounts 1000000"]),
    ("bench choose", &["souk bench choose --asks 10000"]),
    ("bench submit", &["souk bench submit --jobs 100 --buyers 4"]),
    ("bench tokens", &["souk bench tokens --rate 200 --kills 20"]),
    ("bench consensus", &["souk bench consensus --clients 64"]),
];

/// Adds the examples to the command line.
pub fn with(command: Command) -> Command {
    add_examples(command, "", EXAMPLES)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::Args;
    use super::*;

    #[test]
    fn examples_parse() {
        for example in EXAMPLES.iter().flat_map(|(_, examples)| *examples) {
            let parsed = Args::command().try_get_matches_from(example.split(' '));
            assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
        }
    }
}
