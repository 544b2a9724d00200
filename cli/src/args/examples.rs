//! Lists example lines for every command, and adds them to the end of its help. A test parses each.

use clap::Command;

/// The name of a command, and the lines that a user types.
pub type Example = (&'static str, &'static [&'static str]);

/// Default width of a terminal.
pub const COLUMNS: usize = 80;

/// The examples of each command.
const EXAMPLES: &[Example] = &[
    ("demo", &["souk demo", "souk demo --train"]),
    (
        "testnet up",
        &[
            "souk testnet up",
            "souk --dir net testnet up --detach --validators 5",
            "souk --dir phones testnet up --profile phones --providers 12",
        ],
    ),
    #[cfg(feature = "gateway")]
    (
        "serve",
        &[
            "souk serve",
            "souk --dir bazaar serve --http 127.0.0.1:8000",
        ],
    ),
    (
        "doctor",
        &["souk doctor", "souk --dir bazaar doctor --json"],
    ),
    ("top", &["souk top", "souk --dir bazaar top --every 5s"]),
    ("config show", &["souk --dir bazaar/seller config show"]),
    ("debug bundle", &["souk --dir bazaar debug bundle"]),
    (
        "testnet fund",
        &["souk testnet fund buyer 50", "souk testnet fund ACCOUNT 50"],
    ),
    (
        "testnet logs",
        &["souk testnet logs", "souk testnet logs provider-2 --follow"],
    ),
    (
        "provider price",
        &[
            "souk --dir bazaar/seller provider price",
            "souk --dir bazaar/seller provider price 0.25",
        ],
    ),
    ("completions", &["souk completions bash"]),
    ("man", &["souk man ~/.local/share/man/man1"]),
    #[cfg(feature = "gateway")]
    ("dashboard", &["souk dashboard", "souk dashboard --trade"]),
    ("testnet down", &["souk testnet down"]),
    ("testnet status", &["souk testnet status"]),
    (
        "plan",
        &[
            "souk plan model.onnx -i x=x.npy",
            "souk plan model.onnx -i x=x.npy --prefer fastest --exclude provider-2",
        ],
    ),
    (
        "submit",
        &[
            "souk submit model.onnx -i x=x.npy -o out --budget 5",
            "souk submit model.onnx --stream x=requests/ -o out",
            "souk submit model.onnx -i x=x.npy -o out --bid 0.05 --wait 2h",
        ],
    ),
    (
        "train",
        &[
            "souk train net.onnx -i x=x.npy --target y=y.npy --loss mse -o tuned.onnx --budget 5",
            "souk train net.onnx -i x=x.npy --target y=y.npy --loss cross-entropy --plan",
            "souk train MODEL data.jsonl -o tuned/ --budget 5",
            "souk train MODEL data.jsonl --eval held.jsonl -o tuned/ --budget 5",
        ],
    ),
    (
        "train resume",
        &[
            "souk train resume tuned/",
            "souk train resume tuned.onnx --budget 10",
        ],
    ),
    ("train list", &["souk train list"]),
    ("job list", &["souk job list"]),
    ("job status", &["souk job status b1d8316abfce"]),
    ("job resume", &["souk job resume b1d8"]),
    (
        "job watch",
        &["souk job watch b1d8", "souk --json job watch b1d8"],
    ),
    ("job cancel", &["souk job cancel b1d8"]),
    ("job logs", &["souk job logs b1d8"]),
    ("job explain", &["souk job explain b1d8"]),
    (
        "job result",
        &[
            "souk job result b1d8",
            "souk job result b1d8 -o again --format safetensors",
        ],
    ),
    ("job trace", &["souk job trace b1d8 -o trace.json"]),
    ("peers", &["souk --dir souk-testnet/provider-1 peers"]),
    ("account new", &["souk account new --name alice"]),
    ("account show", &["souk account show"]),
    (
        "account history",
        &[
            "souk account history",
            "souk account history --last 20 --csv",
        ],
    ),
    (
        "account prove",
        &[
            "souk account prove",
            "souk account prove ACCOUNT -o alice.account-proof",
        ],
    ),
    (
        "account verify",
        &["souk account verify alice.account-proof"],
    ),
    (
        "account deposit",
        &["souk account deposit 100 --reference invoice-17"],
    ),
    (
        "account withdraw",
        &["souk account withdraw 40 --reference IBAN"],
    ),
    (
        "account transfer",
        &["souk account transfer ACCOUNT 5 --reference rent"],
    ),
    ("account stake", &["souk --dir provider account stake 100"]),
    (
        "account unstake",
        &["souk --dir provider account unstake 100"],
    ),
    ("account cancel", &["souk account cancel 3"]),
    (
        "order bid",
        &[
            "souk order bid gpu-m4 --price 0.5 --lease 10m",
            "souk order bid gpu-m4 --price 0.5 --rest 2h --min-reputation 600 --region europe",
            "souk order bid gpu-m4 --at-market --budget 3 --units 2 --time-in-force fok",
        ],
    ),
    (
        "order ask",
        &["souk --dir provider order ask --price 0.5 --rest 2h"],
    ),
    ("order explain", &["souk order explain gpu-m4 --price 0.5"]),
    ("order show", &["souk order show 12"]),
    ("order list", &["souk order list"]),
    ("order cancel", &["souk order cancel 12"]),
    ("order amend", &["souk order amend 12 --price 0.6"]),
    ("lease list", &["souk lease list"]),
    ("lease show", &["souk lease show 7"]),
    ("lease end", &["souk lease end 7"]),
    ("lease start", &["souk lease start 7"]),
    ("lease refuse", &["souk lease refuse 7"]),
    ("lease extend", &["souk lease extend 7 600"]),
    ("lease resell", &["souk lease resell 7 0.4"]),
    ("lease give-up", &["souk --dir provider lease give-up 7"]),
    ("lease reclaim", &["souk --dir provider lease reclaim 7"]),
    ("operator requests", &["souk operator requests"]),
    (
        "operator decide",
        &[
            "souk operator decide --faucet 100",
            "souk operator decide --hook ./decide.py",
        ],
    ),
    ("operator reconcile", &["souk operator reconcile bank.csv"]),
    ("operator lock", &["souk operator lock 2"]),
    ("operator confirm", &["souk operator confirm 1 2"]),
    ("operator refuse", &["souk operator refuse 3 unpaid"]),
    ("operator credit", &["souk operator credit ACCOUNT 100"]),
    ("key new", &["souk --dir bazaar key new"]),
    ("operator collect", &["souk operator collect 2.5"]),
    (
        "operator freeze",
        &["souk operator freeze ACCOUNT --reason stolen-key"],
    ),
    ("operator thaw", &["souk operator thaw ACCOUNT"]),
    ("operator pending", &["souk operator pending"]),
    ("operator approve", &["souk operator approve 3"]),
    (
        "operator upgrade",
        &["souk operator upgrade --to 2 --notice 1d"],
    ),
    ("operator rules show", &["souk operator rules show"]),
    ("operator rules list", &["souk operator rules list"]),
    (
        "operator rules change",
        &[
            "souk operator rules change --set fee_basis_points=50 --notice 1d",
            "souk operator rules change --class gpu-m4-t7 --tick 10",
        ],
    ),
    ("operator rules cancel", &["souk operator rules cancel 2"]),
    (
        "market create",
        &["souk --dir market market create --name bazaar"],
    ),
    (
        "market join",
        &["souk --dir buyer market join souk:ID@/ip4/192.0.2.7/tcp/4001"],
    ),
    ("market show", &["souk market show"]),
    ("market classes", &["souk market classes"]),
    ("market depth", &["souk market depth gpu-m4"]),
    ("market trades", &["souk market trades gpu-m4"]),
    (
        "market verify",
        &[
            "souk market verify",
            "souk market verify --from validator/replica/history",
            "souk market verify -o heads",
            "souk market verify --from heads --from theirs",
        ],
    ),
    (
        "market witness",
        &[
            "souk market witness",
            "souk market witness --once",
            "souk --dir there market witness --pause 60",
        ],
    ),
    ("market candles", &["souk market candles gpu-m4 --step 60"]),
    ("market price", &["souk market price"]),
    ("market rules", &["souk market rules"]),
    ("book", &["souk book", "souk --wide book --stale"]),
    ("balance", &["souk balance"]),
    (
        "receipt verify",
        &["souk receipt verify out/receipt-1.json"],
    ),
    (
        "receipt chain",
        &["souk receipt chain out/receipt-1.json -i images.npy --result out/logits.npy"],
    ),
    (
        "receipt prove",
        &["souk receipt prove out/receipt-1.json other/receipt-1.json"],
    ),
    ("model list", &["souk model list"]),
    ("model show", &["souk model show qwen/qwen3-8b"]),
    (
        "model inspect",
        &["souk model inspect model.onnx --symbol batch=8"],
    ),
    #[cfg(feature = "generate")]
    (
        "model import",
        &[
            "souk model import SmolLM2-135M-Instruct smollm2",
            "souk model import qwen2.5-0.5b-q8_0.gguf qwen --context 8192",
        ],
    ),
    #[cfg(feature = "generate")]
    (
        "model merge",
        &["souk model merge bundled --adapter tuned/ -o merged/"],
    ),
    #[cfg(feature = "generate")]
    (
        "generate",
        &[
            "souk generate smollm2 Dear --local",
            "souk generate smollm2 Hello --local --chat --temperature 0.7",
        ],
    ),
    #[cfg(feature = "generate")]
    (
        "chat",
        &[
            "souk chat smollm2 --local",
            "souk chat smollm2 --budget 5 --system Briefly.",
        ],
    ),
    #[cfg(feature = "generate")]
    (
        "openai",
        &[
            "souk openai smollm2 --local",
            "souk openai smollm2 --listen 127.0.0.1:8081 --budget 20 --keep-alive 300",
            "souk openai --budget 20",
            "souk openai --budget 20 --keep-transcripts 100",
        ],
    ),
    #[cfg(feature = "generate")]
    (
        "openai key add",
        &[
            "souk openai key add alice --budget 5/month --models qwen/* --rate 60",
            "souk --dir bazaar openai key add nightly --budget 20 --token-rate 100000",
        ],
    ),
    #[cfg(feature = "generate")]
    (
        "openai key list",
        &["souk openai key list", "souk openai key list --all --json"],
    ),
    #[cfg(feature = "generate")]
    ("openai key revoke", &["souk openai key revoke alice"]),
    ("device list", &["souk device list"]),
    ("device show", &["souk device show cpu"]),
    (
        "device power",
        &[
            "souk device power",
            "souk device power intel-rapl:0 --watts 65",
        ],
    ),
    ("device bench", &["souk device bench --quick"]),
    (
        "audit",
        &[
            "souk audit souk-testnet/validator-1",
            "souk audit run qwen/qwen3-8b --reference Qwen3-8B",
        ],
    ),
    #[cfg(feature = "generate")]
    (
        "audit run",
        &[
            "souk audit run qwen/qwen3-8b --reference Qwen3-8B",
            "souk --dir bazaar audit run bundled --reference bundled --last 20 --json",
            "souk audit run qwen/qwen3-8b --reference Qwen3-8B --leave",
        ],
    ),
    ("dispute open", &["souk dispute open out/receipt-7.json"]),
    ("dispute check", &["souk dispute check out/receipt-7.json"]),
    ("dispute list", &["souk dispute list"]),
    ("dispute show", &["souk dispute show 1"]),
    ("audit list", &["souk audit list"]),
    (
        "audit forget",
        &["souk audit forget 001764470123456-3c8a9e77"],
    ),
    #[cfg(feature = "generate")]
    (
        "audit verify",
        &["souk audit verify evidence.json --reference Qwen3-8B"],
    ),
    ("validator run", &["souk --dir validator validator run"]),
    (
        "validator init",
        &["souk --dir validator validator init --listen /ip4/192.0.2.8/tcp/4001"],
    ),
    (
        "validator add",
        &["souk validator add /ip4/192.0.2.8/tcp/4001/p2p/PEER"],
    ),
    ("validator remove", &["souk validator remove 2"]),
    ("validator list", &["souk validator list"]),
    (
        "validator transfer-leader",
        &["souk validator transfer-leader 3"],
    ),
    ("validator backup", &["souk validator backup market.backup"]),
    (
        "validator restore",
        &["souk --dir validator validator restore market.backup"],
    ),
    (
        "provider run",
        &["souk --dir provider provider run --http 127.0.0.1:9464"],
    ),
    (
        "provider init",
        &[
            "souk --dir provider provider init",
            "souk --dir provider provider init --yes --device cpu --price 0.1 --region europe-west",
            "souk --dir qwen provider init --endpoint http://127.0.0.1:8000/v1 --model m --out 0.2",
            #[cfg(feature = "generate")]
            "souk --dir own provider init --serve bundled --out 0.2 --in 0.05 --cached 0.005",
        ],
    ),
    (
        "provider measure",
        &["souk --dir provider provider measure"],
    ),
    ("provider status", &["souk --dir provider provider status"]),
    ("key lock", &["souk --dir provider key lock"]),
    ("key unlock", &["souk --dir provider key unlock"]),
    ("bench", &["souk bench tasks --devices 4"]),
    (
        "testnet sim",
        &["souk testnet sim --seed 7 --seeds 20 --minutes 2"],
    ),
    ("testnet attacks", &["souk testnet attacks"]),
    (
        "testnet chaos",
        &["souk testnet chaos --running --minutes 1 --per-hour 360"],
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
];

/// Adds the examples of `souk` to its command line.
pub fn with(command: Command) -> Command {
    add_examples(command, "", EXAMPLES)
}

/// Adds examples to the command at a path and to those below it.
pub fn add_examples(command: Command, path: &str, examples: &[Example]) -> Command {
    let names: Vec<String> = command
        .get_subcommands()
        .map(|sub| sub.get_name().to_owned())
        .collect();
    let of = |name: &str| match path {
        "" => name.to_owned(),
        path => format!("{path} {name}"),
    };
    let known = examples.iter().find(|(words, _)| *words == path);
    let command = match known {
        Some((_, examples)) => {
            let examples: Vec<String> = examples
                .iter()
                .map(|example| fold_example(example))
                .collect();
            command.after_help(format!("Examples:\n{}", examples.join("\n")))
        }
        None => command,
    };
    names.into_iter().fold(command, |command, name| {
        let path = of(&name);
        command.mut_subcommand(&name, |sub| add_examples(sub, &path, examples))
    })
}

/// Folds an example into lines that fit a terminal and that a user can paste.
fn fold_example(example: &str) -> String {
    let mut lines = vec![" ".to_owned()];
    for word in example.split(' ') {
        let last = lines.last_mut().expect("there is one");
        // The line also needs a space before the word and a backslash at its end.
        if last.len() + word.len() + 3 > COLUMNS {
            last.push_str(" \\");
            lines.push(format!("      {word}"));
            continue;
        }
        last.push(' ');
        last.push_str(word);
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;
    use crate::args::Args;

    /// The words of each command that does something and is shown.
    fn leaves(command: &Command, path: &str, found: &mut BTreeSet<String>) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let words = format!("{path} {}", sub.get_name()).trim().to_owned();
            assert!(sub.get_about().is_some(), "{words} says what it does");
            leaves(sub, &words, found);
            // One command does something by itself, and has commands below it.
            if !sub.is_subcommand_required_set() {
                let mut help = add_examples(sub.clone(), &words, EXAMPLES);
                let help = help.render_long_help().to_string();
                assert!(help.contains("Examples:"), "{words} has an example");
                found.insert(words);
            }
        }
    }

    #[test]
    fn each_command_says_what_it_does_and_has_examples_that_parse() {
        let mut found = BTreeSet::new();
        leaves(&Args::command(), "", &mut found);
        let known: BTreeSet<String> = EXAMPLES
            .iter()
            .map(|(path, _)| (*path).to_owned())
            .collect();
        assert_eq!(known, found, "examples are of commands that there are");
        let account = "0".repeat(63) + "1";
        for example in EXAMPLES.iter().flat_map(|(_, examples)| *examples) {
            let words = example.replace("ACCOUNT", &account);
            let parsed = Args::command().try_get_matches_from(words.split(' '));
            assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
        }
    }
}
