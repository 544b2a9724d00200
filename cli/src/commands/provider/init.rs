//! `souk provider init`: finds and measures a device, proposes a price and limits, asks the user to
//! confirm them, and writes `provider.toml` with comments.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use souk_api::ask::OfferView;
use souk_folder::config::{
    self, FORMAT, Isolation, KEY_FILE, OPERATOR_FOLDER, PROVIDER_TOML, ProviderFile,
};
use souk_folder::contact::Multiaddr;
use souk_folder::key::NodeKey;
use souk_folder::limits::ProviderLimits;
use souk_folder::market_file::MarketFile;
use souk_folder::pricing::{
    Basis, Costs, Pricing, SpotShare, Strategy, TokenPricing, propose_price,
};
use souk_host::{discover, power};
use souk_network::{Network, NetworkConfig};
use souk_node::client::broker::Broker;
use souk_node::market::{Listing, Name, Price, Quotes, Resources, SpotPrice, Units};
use souk_node::provider::{self, Conditions};
use souk_vocabulary::profile::Profile;

use super::super::device::parse_device;
use super::device_text::device_text;
use super::measure::{Source, describe_offer, measure_offer, open_devices, store_measurement};
use super::schedule::{bands_text, hours_text, parse_bands, parse_hours};
use crate::args::{LimitArgs, Output, PricingArgs, ProviderInitArgs, StrategyName};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::from_config;
use crate::show;

/// Longest wait for the market's history; without it the user must give the price.
const MARKET_PATIENCE: Duration = Duration::from_secs(3);

/// The market's quotes of a class, and all its asks.
#[derive(Default)]
struct MarketView {
    quotes: Option<Quotes>,
    book: Vec<Listing>,
}

/// Creates a provider's folder, or shows its ask.
pub async fn run(folder: &Path, output: Output, new: &ProviderInitArgs) -> Outcome {
    let market = MarketFile::read_nearest(folder).map_err(from_config)?;
    if has_provider(folder) && new.dry_run {
        let file = ProviderFile::read_folder(folder).map_err(from_config)?;
        let (profile, resources) = measure_offer(folder, &file).await?;
        let seen = fetch_market_view(&market, &resources)
            .await
            .unwrap_or_default();
        return show_ask(output, &market, file, &profile, &resources, &seen);
    }
    check_is_new(folder)?;
    let mut file = draft_file(folder, new)?;
    let known = open_devices(folder, &file, Source::Now).await?;
    let (profile, resources) = describe_offer(&file, &known.profiles);
    let seen = fetch_market_view(&market, &resources).await;
    let (price, basis) = choose_price(new, seen.as_ref(), &resources)?;
    file.price = price;
    file.pricing = build_pricing(&new.pricing, &profile)?;
    let text = format_file(&file, &profile, basis);
    // Reads the file back before anything relies on it.
    let path = folder.join(PROVIDER_TOML);
    let file = ProviderFile::parse_toml(&path, &text).map_err(from_config)?;
    if new.dry_run {
        return show_ask(
            output,
            &market,
            file,
            &profile,
            &resources,
            &seen.unwrap_or_default(),
        );
    }
    store_file(folder, &text)?;
    store_measurement(folder, &file, &known)?;
    let said = format!(
        "wrote {}; start it with `souk --dir {} provider run`",
        path.display(),
        folder.display()
    );
    let facts = json!({
        "file": path, "device": profile.name, "price": file.price, "basis": basis,
        "emulated": profile.emulated,
    });
    show::print_result(output, &facts, &said);
    Ok(())
}

fn has_provider(folder: &Path) -> bool {
    folder.join(PROVIDER_TOML).exists() || folder.join(config::PROVIDER_FILE).exists()
}

/// Checks that a folder holds no provider yet.
pub(super) fn check_is_new(folder: &Path) -> Outcome {
    if folder.join(OPERATOR_FOLDER).exists() && folder.join("buyer").exists() {
        let cause = format!("{} is the folder of a testnet", folder.display());
        let hint = format!(
            "give the provider a folder of its own, such as --dir {}",
            folder.join("mine").display()
        );
        return Err(Failure::new(Kind::State, cause, hint));
    }
    match has_provider(folder) {
        false => Ok(()),
        true => {
            let cause = format!("{} is the folder of a provider already", folder.display());
            let hint = "edit its provider.toml, or give another folder with --dir";
            Err(Failure::new(Kind::State, cause, hint))
        }
    }
}

/// Returns the file without its prices, from the arguments and the user's answers.
fn draft_file(folder: &Path, new: &ProviderInitArgs) -> Result<ProviderFile, Failure> {
    let default = folder
        .file_name()
        .map_or("provider".into(), |name| name.to_string_lossy());
    let name = match &new.name {
        Some(name) => check_name(name)?,
        None => ask_until_valid(new.yes, "name", &default, check_name)?,
    };
    let cpu = discover::describe_cpu();
    let device = match &new.device {
        Some(device) => parse_device(device)?,
        None => {
            let what = format!(
                "device (cpu is {}, {} threads; names of the catalogue, which `souk device list` \
                 shows, are emulated)",
                cpu.model, cpu.threads
            );
            ask_until_valid(new.yes, &what, "cpu", parse_device)?
        }
    };
    let listen = parse_listen(&new.listen)?;
    Ok(ProviderFile {
        format: FORMAT,
        name,
        listen,
        device,
        region: new.region.unwrap_or_default(),
        onnxruntime: new.onnxruntime.clone(),
        price: 0,
        limits: ask_limits(&new.limits, new.yes, &cpu.threads.to_string())?,
        pricing: Pricing::default(),
        prefer: Default::default(),
        traffic: Default::default(),
        isolation: if new.no_isolation {
            Isolation::None
        } else {
            Isolation::Process
        },
        fault: None,
        fault_after: 0,
    })
}

/// Parses the address of `--listen`.
pub(super) fn parse_listen(text: &str) -> Result<Multiaddr, Failure> {
    text.parse().map_err(|error| {
        let cause = format!("--listen \"{text}\" is no address: {error}");
        let hint = "give one such as /ip4/0.0.0.0/tcp/4001";
        Failure::new(Kind::Input, cause, hint)
    })
}

/// Checks that the market accepts a name.
pub(super) fn check_name(text: &str) -> Result<String, Failure> {
    let hint = "give --name another one";
    let name = Name::try_from(text)
        .map_err(|fault| Failure::new(Kind::Input, format!("the name \"{text}\": {fault}"), hint));
    name.map(|_| text.to_owned())
}

fn ask_limits(args: &LimitArgs, yes: bool, threads: &str) -> Result<ProviderLimits, Failure> {
    let cores = match args.cores {
        Some(cores) => Some(cores),
        None => ask_number(yes, "cores that jobs may use, or \"all\"", threads)?,
    };
    let memory_mib = match args.memory {
        Some(mib) => Some(mib),
        None => ask_number(yes, "MiB that a job may bring, or \"all\"", "all")?,
    };
    let hours = match args.hours.is_empty() {
        false => parse_hours(&args.hours),
        true => {
            let what = "hours at which it is sold (UTC), like 20:00-08:00";
            ask_until_valid(yes, what, "all", |answer| match answer {
                "all" => Ok(Vec::new()),
                hours => parse_hours(&[hours.to_owned()]),
            })
        }
    };
    let limits = ProviderLimits {
        leases: args.leases.unwrap_or(1),
        cores,
        memory_mib,
        outputs_mib: None,
        hours: hours?,
        classes: args.classes.clone(),
        operators: args.operators.clone(),
        wasm: !args.no_wasm,
        wgsl: !args.no_wgsl,
        price_min: args
            .min_price
            .map_or(Ok(0), |credits| to_micro_credits(credits, "--min-price"))?,
        idle_percent: args.idle_percent,
        buyer_reputation_min: args.min_reputation,
        notice_seconds: None,
        power_watts: power_limits(&args.power_limits)?,
    };
    match limits.leases_over() {
        None => Ok(limits),
        Some(most) => {
            let cause = format!("--leases {} is more than may be: {most}", limits.leases);
            let hint = "each has a core; sell fewer leases, or give --cores more";
            Err(Failure::new(Kind::Input, cause, hint))
        }
    }
}

/// Parses limits like `intel-rapl:0=65`. Each must have a domain and a whole number of watts.
fn power_limits(texts: &[String]) -> Result<BTreeMap<String, u32>, Failure> {
    let limit = |text: &String| {
        let (domain, watts) = text.rsplit_once('=')?;
        Some((domain.to_owned(), watts.parse().ok()?))
    };
    let limits = texts.iter().map(|text| {
        limit(text).ok_or_else(|| {
            let cause = format!("\"{text}\" is not a power limit like intel-rapl:0=65");
            Failure::new(Kind::Input, cause, "`souk device power` shows the domains")
        })
    });
    let limits: BTreeMap<String, u32> = limits.collect::<Result<_, Failure>>()?;
    for domain in limits.keys() {
        let found = power::find_domain(domain).and_then(|domain| domain.power_limit());
        found.map_err(|error| Failure::new(Kind::Input, error, "leave --power-limit out"))?;
    }
    Ok(limits)
}

fn build_pricing(args: &PricingArgs, profile: &Profile) -> Result<Pricing, Failure> {
    let strategy = match args.strategy {
        StrategyName::Fixed => Strategy::Fixed,
        StrategyName::Follow => Strategy::Follow {
            percent: args.percent,
        },
        StrategyName::CostPlus => {
            let own = profile.power.map(|power| power.busy_watts.ceil() as u32);
            let watts = args.watts.or(own).ok_or_else(|| {
                let cause = format!("the power that {} draws is not known", profile.model);
                Failure::new(
                    Kind::Input,
                    cause,
                    "give --watts, as a meter at the plug shows",
                )
            })?;
            Strategy::CostPlus(Costs {
                watts,
                price_per_kwh: to_micro_credits(args.kwh_price, "--kwh-price")?,
                price_per_hour: to_micro_credits(args.hour_price, "--hour-price")?,
                margin_percent: args.margin,
            })
        }
    };
    let spot = args.spot.iter().map(|(notice, percent)| SpotShare {
        notice_seconds: *notice,
        percent: *percent,
    });
    let pricing = Pricing {
        tokens: TokenPricing::default(),
        strategy,
        bands: parse_bands(&args.band)?,
        spot: spot.collect(),
    };
    if !pricing.has_sound_spot() {
        let cause = "the prices of spot leases must rise with their notice, from 1 to 99 per cent";
        let hint = "give --spot 5s=40 --spot 1m=70, at most four";
        return Err(Failure::new(Kind::Input, cause, hint));
    }
    Ok(pricing)
}

/// Asks the market, and returns `None` if it does not answer in time.
async fn fetch_market_view(market: &MarketFile, resources: &Resources) -> Option<MarketView> {
    let looked = async {
        let stranger = NodeKey::generate();
        let network = Network::start(&stranger, NetworkConfig::default())
            .await
            .ok()?;
        let broker = Broker::new(network, &market.contacts().ok()?).await.ok()?;
        let quotes = broker.fetch_quotes(resources.class()).await.ok()?;
        let book = broker.fetch_book().await.ok()?;
        Some(MarketView { quotes, book })
    };
    tokio::time::timeout(MARKET_PATIENCE, looked).await.ok()?
}

fn choose_price(
    new: &ProviderInitArgs,
    seen: Option<&MarketView>,
    resources: &Resources,
) -> Result<(u64, Option<Basis>), Failure> {
    if let Some(credits) = new.price {
        return Ok((to_micro_credits(credits, "--price")?, None));
    }
    let proposal = seen.and_then(|seen| propose_price(seen.quotes.as_ref(), &seen.book, resources));
    let Some((proposed, basis)) = proposal else {
        let none = "no price is given, and the market has none to propose";
        let missing = || {
            let hint = "give --price CREDITS for each second of the device, such as 0.1";
            Failure::new(Kind::Input, none, hint)
        };
        let what = "price of a device-second, in credits, such as 0.1";
        let default = match seen {
            Some(_) => "none: nothing like it is on offer yet, so name your own",
            None => "none: the market is not reached",
        };
        let read = |answer: &str| match answer == default {
            true => Err(missing()),
            false => parse_price(answer),
        };
        return Ok((ask_until_valid(new.yes, what, default, read)?, None));
    };
    let shown = show::format_credits(proposed.0);
    ask_until_valid(
        new.yes,
        "price of a device-second, in credits",
        &shown,
        |answer| match answer == shown {
            true => Ok((proposed.0, Some(basis))),
            false => Ok((parse_price(answer)?, None)),
        },
    )
}

/// Parses a price into micro-credits.
fn parse_price(answer: &str) -> Result<u64, Failure> {
    let cause = format!("\"{answer}\" is not a price");
    let credits = answer
        .parse()
        .map_err(|_| Failure::new(Kind::Input, cause, "give --price CREDITS"))?;
    to_micro_credits(credits, "the price")
}

fn show_ask(
    output: Output,
    market: &MarketFile,
    file: ProviderFile,
    profile: &Profile,
    resources: &Resources,
    seen: &MarketView,
) -> Outcome {
    let paid = seen
        .quotes
        .as_ref()
        .and_then(souk_folder::pricing::mean_price);
    let leases = Units(file.limits.leases);
    let conditions = Conditions::new(file, market.genesis.rules.tick);
    let terms = conditions.terms_for_minute(provider::minute_now(), paid);
    let ask = terms
        .as_ref()
        .map(|terms| terms.to_ask(resources, leases, leases));
    let text = match terms {
        None => "now: no ask, it is outside the hours of its limits".to_owned(),
        Some(terms) => format!(
            "now: {} at {} credits a second{}, leases up to {} s{}",
            show::device_label(&profile.model, profile.emulated),
            show::format_credits(terms.price.0),
            spot_text(&terms.spot),
            terms.duration_max.0 / 1_000,
            paid.map_or(String::new(), paid_text),
        ),
    };
    show::print_result(
        output,
        &json!({ "asks": ask.iter().map(OfferView::from).collect::<Vec<_>>() }),
        &text,
    );
    Ok(())
}

fn paid_text(price: Price) -> String {
    format!("; the market paid {} lately", show::format_credits(price.0))
}

pub(super) fn store_file(folder: &Path, text: &str) -> Outcome {
    let refused = |error: &dyn std::fmt::Display| {
        Failure::new(
            Kind::State,
            error,
            "check the folder's permissions and the space left",
        )
    };
    NodeKey::load_or_create(&folder.join(KEY_FILE)).map_err(|error| refused(&error))?;
    std::fs::write(folder.join(PROVIDER_TOML), text).map_err(|error| refused(&error))
}

/// Returns the text of the file.
fn format_file(file: &ProviderFile, profile: &Profile, basis: Option<Basis>) -> String {
    let quoted = |text: &str| serde_json::to_string(text).expect("text always encodes");
    let list = |items: Vec<String>| format!("[{}]", items.join(", "));
    let limits = &file.limits;
    let or_none = |name: &str, value: Option<u64>| match value {
        Some(value) => format!("{name} = {value}"),
        None => format!("# {name} = …"),
    };
    let device = device_text(&file.device);
    let spot = file.pricing.spot.iter().map(|spot| {
        let (notice, percent) = (spot.notice_seconds, spot.percent);
        format!("{{ notice_seconds = {notice}, percent = {percent} }}")
    });
    let names = |names: &[String]| list(names.iter().map(|name| quoted(name)).collect());
    format!(
        include_str!("provider.toml.txt"),
        format = file.format,
        name = quoted(&file.name),
        listen = quoted(&file.listen.to_string()),
        region = quoted(&String::from(file.region)),
        basis = basis_text(basis),
        price = file.price,
        measured = profile.source.replace('\n', " "),
        power = power_text(profile),
        device = device,
        library = match &file.onnxruntime {
            Some(path) => format!("onnxruntime = {}", quoted(&path.to_string_lossy())),
            None => "# onnxruntime = …".to_owned(),
        },
        isolation = match file.isolation {
            Isolation::Process => "process",
            Isolation::Partial => "partial",
            Isolation::None => "none",
        },
        leases = limits.leases,
        cores = or_none("cores", limits.cores.map(u64::from)),
        memory = or_none("memory_mib", limits.memory_mib),
        outputs = or_none("outputs_mib", limits.outputs_mib),
        hours = hours_text(&limits.hours),
        classes = names(&limits.classes),
        operators = names(&limits.operators),
        wasm = limits.wasm,
        wgsl = limits.wgsl,
        price_min = limits.price_min,
        idle_percent = limits.idle_percent,
        buyer_reputation_min = limits.buyer_reputation_min,
        power_watts = {
            let each = limits.power_watts.iter();
            let each = each.map(|(domain, watts)| format!("{} = {watts}", quoted(domain)));
            each.collect::<Vec<_>>().join(", ")
        },
        strategy = strategy_text(&file.pricing.strategy),
        bands = bands_text(&file.pricing.bands),
        spot = list(spot.collect()),
    )
}

fn strategy_text(strategy: &Strategy) -> String {
    match strategy {
        Strategy::Fixed => "\"fixed\"".to_owned(),
        Strategy::Follow { percent } => format!("{{ follow = {{ percent = {percent} }} }}"),
        Strategy::CostPlus(costs) => format!(
            "{{ cost_plus = {{ watts = {}, price_per_kwh = {}, price_per_hour = {}, \
             margin_percent = {} }} }}",
            costs.watts, costs.price_per_kwh, costs.price_per_hour, costs.margin_percent
        ),
    }
}

/// Formats the prices of spot leases by their notice.
fn spot_text(spot: &[SpotPrice]) -> String {
    let price = |spot: &SpotPrice| {
        let (notice, price) = (spot.notice.0 / 1_000, show::format_credits(spot.price.0));
        format!(", spot {price} with {notice} s notice")
    };
    spot.iter().map(price).collect()
}

fn basis_text(basis: Option<Basis>) -> String {
    match basis {
        None => "as given".to_owned(),
        Some(Basis::Trades(count)) => format!("the mean of the class's last {count} trades"),
        Some(Basis::Asks(count)) => format!("the cheapest of the class's {count} asks"),
        Some(Basis::Throughput(count)) => {
            format!("the middle price per operation of {count} asks of other classes")
        }
    }
}

fn power_text(profile: &Profile) -> String {
    match profile.power {
        None => "its power draw is not known".to_owned(),
        Some(power) => format!("it draws {} W by its data sheet", power.busy_watts),
    }
}

/// Asks for a number above 0; returns `None` for the answer "all".
fn ask_number<T: std::str::FromStr + Default + PartialEq>(
    yes: bool,
    what: &str,
    default: &str,
) -> Result<Option<T>, Failure> {
    // A proposal that the user did not enter is not a limit.
    let default = if yes { "all" } else { default };
    ask_until_valid(yes, what, default, |answer| match answer {
        "all" => Ok(None),
        text => match text.parse() {
            Ok(number) if number != T::default() => Ok(Some(number)),
            _ => {
                let cause = format!("\"{text}\" is not a number above 0");
                Err(Failure::new(Kind::Input, cause, format!("asked: {what}")))
            }
        },
    })
}

/// Asks until the answer is valid. If `yes` is set, it asks nothing, and the proposal must be
/// valid.
fn ask_until_valid<T>(
    yes: bool,
    what: &str,
    default: &str,
    read: impl Fn(&str) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if yes {
        return read(default);
    }
    loop {
        match read(&read_answer(what, default)?) {
            Ok(answer) => return Ok(answer),
            Err(wrong) => print_prompt(&format!("  {}\n", wrong.cause))?,
        }
    }
}

/// Reads one answer; an empty line stands for the proposal.
fn read_answer(what: &str, default: &str) -> Result<String, Failure> {
    print_prompt(&format!("{what} [{default}]: "))?;
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    match (read, answer.trim()) {
        (Err(error), _) => Err(prompt_failure(&error)),
        (Ok(0), _) => Err(prompt_failure(
            &"standard input ended before all questions were answered",
        )),
        (Ok(_), "") => Ok(default.to_owned()),
        (Ok(_), answer) => Ok(answer.to_owned()),
    }
}

/// Prints to standard error, because standard output is for the result.
fn print_prompt(text: &str) -> Result<(), Failure> {
    let mut stderr = std::io::stderr();
    write!(stderr, "{text}")
        .and_then(|()| stderr.flush())
        .map_err(|error| prompt_failure(&error))
}

fn prompt_failure(cause: &dyn std::fmt::Display) -> Failure {
    Failure::new(Kind::Input, cause, "give --yes to take the proposals")
}

pub(super) fn to_micro_credits(credits: f64, what: &str) -> Result<u64, Failure> {
    let micro = (credits * 1e6).round();
    match (0.0..=1e18).contains(&micro) {
        true => Ok(micro as u64),
        false => {
            let cause = format!("{what}: {credits} is not an amount of credits");
            Err(Failure::new(
                Kind::Input,
                cause,
                "give a number such as 0.04",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_testnets_own_folder_holds_no_provider() {
        let net = tempfile::tempdir().unwrap();
        assert!(check_is_new(net.path()).is_ok());
        for folder in [OPERATOR_FOLDER, "buyer"] {
            std::fs::create_dir(net.path().join(folder)).unwrap();
        }
        let refused = check_is_new(net.path()).unwrap_err();
        assert!(
            refused.cause.contains("the folder of a testnet"),
            "{refused:?}"
        );
        assert!(check_is_new(&net.path().join("mine")).is_ok());
    }

    #[test]
    fn a_wrong_address_names_its_option() {
        let refused = parse_listen("0.0.0.0:4001").unwrap_err();
        assert!(
            refused.cause.starts_with("--listen \"0.0.0.0:4001\""),
            "{refused:?}"
        );
        assert!(parse_listen("/ip4/0.0.0.0/tcp/4001").is_ok());
    }
}
