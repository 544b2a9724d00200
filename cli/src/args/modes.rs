//! Refuses options that would have no effect. `souk openai` and `souk provider init` have modes,
//! which their other arguments choose (such as `--endpoint`); an option of another mode is an
//! error, because ignoring it would mislead the user.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

#[cfg(feature = "generate")]
use super::OpenaiArgs;
use super::ProviderInitArgs;

/// The options of `souk openai` that have an effect without a model, and the model itself.
/// `--local` has an error of its own.
#[cfg(feature = "generate")]
const MARKET_OPTIONS: [&str; 7] = [
    "model",
    "keep_transcripts",
    "listen",
    "cors",
    "budget",
    "local",
    "until_stdin_closes",
];

/// The options of `souk provider init` that have an effect with `--endpoint`.
const ENDPOINT_OPTIONS: [&str; 19] = [
    "yes",
    "dry_run",
    "name",
    "listen",
    "endpoint",
    "model",
    "out",
    "input",
    "cached",
    "floor",
    "key_file",
    "ca_file",
    "resold",
    "field",
    "slots",
    "region",
    "hours",
    "min_reputation",
    "band",
];

/// The options of `souk provider init` that have an effect with `--serve`.
#[cfg(feature = "generate")]
const SERVE_OPTIONS: [&str; 17] = [
    "yes",
    "dry_run",
    "name",
    "listen",
    "serve",
    "model",
    "out",
    "input",
    "cached",
    "floor",
    "slots",
    "context",
    "threads",
    "region",
    "hours",
    "min_reputation",
    "band",
];

/// Checks that all options of a command with several modes have an effect in the chosen mode.
///
/// # Errors
/// With the first option that has no effect.
pub fn check_modes(matches: &ArgMatches) -> Result<(), clap::Error> {
    #[cfg(feature = "generate")]
    if let Some(("openai", given)) = matches.subcommand() {
        if given.contains_id("model") {
            return refuse_transcripts(given);
        }
        let all = <OpenaiArgs as clap::Args>::augment_args(Command::new("openai"));
        return refuse_others(&all, given, &MARKET_OPTIONS, |option| {
            format!(
                "{option} works only with a model that souk runs itself: name the model, or leave \
                 {option} out; without a model, souk buys from engines by the token"
            )
        });
    }
    if let Some(("provider", provider)) = matches.subcommand()
        && let Some(("init", given)) = provider.subcommand()
    {
        return check_provider_init(given);
    }
    Ok(())
}

/// Refuses to keep transcripts of a model that souk runs itself: nobody else answers there.
#[cfg(feature = "generate")]
fn refuse_transcripts(given: &ArgMatches) -> Result<(), clap::Error> {
    if !given.contains_id("keep_transcripts") {
        return Ok(());
    }
    let message = "--keep-transcripts works only without a model, where others answer: leave one \
                   of them out\n";
    Err(clap::Error::raw(ErrorKind::ArgumentConflict, message))
}

/// Checks the options of `souk provider init` for a model that is sold by the token.
fn check_provider_init(given: &ArgMatches) -> Result<(), clap::Error> {
    let all = <ProviderInitArgs as clap::Args>::augment_args(Command::new("init"));
    let check = |mode: &str, allowed: &[&str]| {
        refuse_others(&all, given, allowed, |option| {
            format!("{option} does not work with {mode}: leave it out; it is for devices")
        })
    };
    if given.contains_id("endpoint") {
        return check("--endpoint", &ENDPOINT_OPTIONS);
    }
    #[cfg(feature = "generate")]
    if given.contains_id("serve") {
        return check("--serve", &SERVE_OPTIONS);
    }
    Ok(())
}

/// Refuses a given option of a command that is not allowed.
fn refuse_others(
    command: &Command,
    given: &ArgMatches,
    allowed: &[&str],
    explain: impl Fn(&str) -> String,
) -> Result<(), clap::Error> {
    for option in command.get_arguments() {
        let id = option.get_id().as_str();
        let is_given = given.value_source(id) == Some(ValueSource::CommandLine);
        if is_given && !allowed.contains(&id) {
            let name = option.get_long().map(|long| format!("--{long}"));
            let message = explain(&name.unwrap_or_else(|| id.to_owned()));
            return Err(clap::Error::raw(
                ErrorKind::ArgumentConflict,
                message + "\n",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Args;
    use super::*;

    fn check(line: &str) -> Result<(), String> {
        let matches = Args::build_command().try_get_matches_from(line.split(' '));
        check_modes(&matches.unwrap()).map_err(|error| error.to_string())
    }

    #[cfg(feature = "generate")]
    #[test]
    fn options_of_a_model_are_refused_without_one() {
        let options = [
            "--keep-alive 9",
            "--sequences 2",
            "--alias a",
            "--embeddings",
            "--session 64",
            "--context 64",
            "--draft 1",
            "--verify 2",
            "--threads 1",
            "--min-providers 2",
            "--max-providers 2",
            "--device cpu",
            "--emulated",
            "--prefer cheapest",
            "--wait 3",
            "--out receipts",
        ];
        for option in options {
            let refused = check(&format!("souk openai --budget 3 {option}")).unwrap_err();
            let name = option.split(' ').next().unwrap();
            assert!(refused.contains(name), "{refused}");
            check(&format!("souk openai bundled --budget 3 {option}")).unwrap();
        }
        check("souk openai --budget 3 --listen 127.0.0.1:0 --cors * --json --until-stdin-closes")
            .unwrap();
        check("souk openai --budget 3 --keep-transcripts 100").unwrap();
        let refused = check("souk openai bundled --keep-transcripts 100").unwrap_err();
        assert!(refused.contains("--keep-transcripts"), "{refused}");
        check("souk openai key add alice --budget 3/day --models a,b/* --rate 6").unwrap();
    }

    #[test]
    fn options_of_a_device_are_refused_with_an_endpoint() {
        let endpoint = "souk provider init --endpoint http://127.0.0.1/v1 --model m --out 1";
        let mut lines = vec![endpoint];
        if cfg!(feature = "generate") {
            lines.push("souk provider init --serve bundled --out 1");
        }
        let options = [
            "--min-price 1",
            "--idle-percent 5",
            "--spot 5s=40",
            "--percent 90",
            "--watts 3",
            "--cores 2",
            "--memory 100",
            "--class cpu",
            "--operator MatMul",
            "--no-wasm",
            "--power-limit x=1",
        ];
        for line in &lines {
            for option in options {
                let refused = check(&format!("{line} {option}")).unwrap_err();
                let name = option.split(' ').next().unwrap();
                assert!(refused.contains(name), "{refused}");
            }
            let kept = "--yes --hours 20:00-08:00 --min-reputation 510 --band 22:00-06:00=70 \
                        --slots 3";
            check(&format!("{line} {kept}")).unwrap();
        }
        check(&format!("{endpoint} --resold --ca-file a")).unwrap();
    }

    #[cfg(feature = "generate")]
    #[test]
    fn a_served_model_needs_a_price_and_is_no_endpoint() {
        let parse = |more: &str| {
            let line = format!("souk provider init --serve bundled {more}");
            Args::build_command().try_get_matches_from(line.split_whitespace())
        };
        assert!(parse("--out 1 --model m --context 64 --threads 2").is_ok());
        for wrong in [
            "",
            "--out 1 --endpoint http://127.0.0.1/v1 --model m",
            "--out 1 --device cpu",
            "--out 1 --resold",
            "--out 1 --slots 17",
            "--out 1 --context 1",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
