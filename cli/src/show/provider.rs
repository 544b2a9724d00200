//! Prints the state of a provider, or converts it to JSON: its offer, earnings, leases, devices,
//! and measured connections. `souk provider …` uses it.

use std::num::NonZeroU32;

use serde_json::{Value, json};
use souk_api::text_offer::{TokenPrice, TokenRates};
use souk_api::time::format_rfc3339;
use souk_folder::clock::unix_ms;
use souk_folder::config::{DeviceChoice, Isolation, ProviderFile};
use souk_network::content::links::Carrier;
use souk_network::content::links::LinkRecord;
use souk_node::endpoint::TokenFigures;
use souk_node::market::Price;
use souk_node::provider::{Entry, History, LiveFigures};
use souk_node::scheduler::planning::Objective;
use souk_sandbox::device::onnxruntime_library::LibraryRecord;
use souk_sandbox::executor::IsolationFile;

use super::text_offers::format_token_price;
use super::{Table, format_bytes, format_count, format_credits, print_line, short_id};

/// Leases that the text shows; the JSON has all.
const LEASES_SHOWN: usize = 10;

/// Returns the state as JSON; amounts are in micro-credits.
pub fn to_json(
    file: &ProviderFile,
    history: &History,
    runs: bool,
    kept: &Option<IsolationFile>,
) -> Value {
    let token_price = file.device.sells_tokens().then(|| token_price(file));
    let open: Vec<_> = history.open_leases().map(|(lease, _)| lease).collect();
    json!({
        "name": file.name, "runs": runs, "device": file.device, "prefer": file.prefer,
        "price": file.price, "token_price": token_price,
        "open_leases": open, "closed_lease_count": history.closed_count(),
        "earned": history.total_earned(),
        "leases": history.leases, "before": history.before, "isolation": kept,
    })
}

/// Prints the provider's offer, its earnings, and its last leases.
pub fn print_provider(
    file: &ProviderFile,
    history: &History,
    tokens: Option<&TokenFigures>,
    runs: bool,
    kept: &Option<IsolationFile>,
) {
    let device = describe_device(&file.device);
    let is_away = tokens.is_some_and(|figures| figures.slots == 0);
    let state = match (runs, is_away) {
        (true, true) => "runs, but offers nothing now",
        (true, false) => "runs",
        (false, _) => "does not run",
    };
    let joules = match file.prefer {
        Objective::Greenest => ", for few joules",
        _ => "",
    };
    print_line(&format!("{} {state}; it sells {device}{joules}", file.name));
    print_line(&format!(
        "{} closed, {} credits earned; {} open",
        format_count(history.closed_count(), "lease"),
        format_credits(history.total_earned().0),
        history.open_leases().count(),
    ));
    print_tokens(tokens, runs, file);
    if let Some(kept) = kept {
        print_isolation(kept);
    }
    if history.leases.is_empty() {
        return;
    }
    print_line("");
    let mut table = Table::new(&["lease", "buyer", ">device time", ">paid", "ended"]);
    for (lease, entry) in history.leases.iter().rev().take(LEASES_SHOWN) {
        table.add_row([
            lease.to_string(),
            short_id(&entry.buyer),
            entry.usage.map_or_else(String::new, |used| {
                super::format_seconds(used.0 as f64 / 1e6)
            }),
            entry
                .closed
                .and_then(|c| c.paid)
                .map_or_else(String::new, |paid| format_credits(paid.0)),
            describe_closing(entry),
        ]);
    }
    table.print();
}

/// Prints the slots, requests and tokens of a model that is sold by the token.
fn print_tokens(figures: Option<&TokenFigures>, runs: bool, file: &ProviderFile) {
    let Some(figures) = figures else { return };
    if runs {
        print_line(&format!(
            "{} of {} at work{}",
            figures.running,
            format_count(file.limits.leases, "slot"),
            match figures.slots < file.limits.leases {
                true => format!(
                    "; the engine is busy or away, so {} are on sale",
                    figures.slots
                ),
                false => String::new(),
            }
        ));
        if let Some(trouble) = &figures.trouble {
            print_line(&format!("last failure: {trouble}"));
        }
    }
    print_line(&format!(
        "{} since {}: {} answered, {} cancelled, {} refused, {} without room, {} failed",
        format_count(figures.request_count(), "request"),
        format_rfc3339(figures.since_ms),
        figures.answered,
        figures.cancelled,
        figures.refused,
        figures.busy,
        figures.broken,
    ));
    print_line(&format!(
        "{} input tokens, {} cached input tokens and {} output tokens billed",
        figures.input_tokens, figures.cached_tokens, figures.output_tokens
    ));
    let terms = file.pricing.tokens.to_terms();
    print_line(&format!(
        "{} unless the pricing changes them; a held slot costs {}",
        format_token_price(token_price(file)),
        match terms.floor_us {
            0 => "the market's reserve".to_owned(),
            floor => format!("{} output tokens a second at least", floor / 1_000),
        }
    ));
}

/// Returns the prices in the file of a provider of tokens.
fn token_price(file: &ProviderFile) -> TokenPrice {
    let terms = file.pricing.tokens.to_terms();
    TokenRates::new(Price(file.price), Some(terms)).into()
}

/// Prints which library of ONNX Runtime the provider uses, or why it uses none.
pub fn print_library(linked: Option<&LibraryRecord>) {
    let Some(linked) = linked else { return };
    let path = linked.path.display();
    print_line(&match &linked.refused {
        None => format!("ONNX Runtime: {path}, {}", linked.providers.join(", ")),
        Some(cause) => format!("NO ONNX Runtime: {cause}"),
    });
}

/// Returns the state of the devices as JSON, or null if there is no recent one.
pub fn live_json(live: Option<&LiveFigures>) -> Value {
    live.map_or(Value::Null, |live| json!(live.devices))
}

/// Prints the known state of the devices.
pub fn print_live(live: Option<&LiveFigures>) {
    let Some(live) = live.filter(|live| !live.devices.is_empty()) else {
        return;
    };
    print_line("");
    let mut table = Table::new(&["now", ">at work", ">memory free"]);
    for device in &live.devices {
        let free = device.memory_free_bytes;
        table.add_row([
            super::device_label(&device.device, device.emulated),
            super::device::format_share(device.utilisation),
            free.map_or_else(|| "not known".to_owned(), format_bytes),
        ]);
    }
    table.print();
    for device in &live.devices {
        if let Some(lost) = &device.lost {
            let name = super::device_label(&device.device, device.emulated);
            print_line(&format!("{name} is lost: {lost}"));
        }
    }
}

/// Returns the measurements of connections to a provider as JSON.
pub fn links_json(links: &[LinkRecord]) -> Value {
    let now = unix_ms();
    let link = |known: &LinkRecord| {
        json!({
            "from": known.from, "to": known.to,
            "bytes_per_second": known.samples.bytes_per_second(now),
            "latency_seconds": known.samples.latency_seconds(now),
            "transfers": known.samples,
        })
    };
    links.iter().map(link).collect()
}

/// Prints how fast content arrived from other peers, the latest first.
pub fn print_links(links: &[LinkRecord]) {
    let mut links: Vec<&LinkRecord> = links.iter().collect();
    let last = |known: &LinkRecord| known.samples.last_sample().map_or(0, |sample| sample.at_ms);
    links.sort_by_key(|known| std::cmp::Reverse(last(known)));
    if links.is_empty() {
        return;
    }
    print_line("");
    let now = unix_ms();
    let mut table = Table::new(&["content from", ">MB/s", ">latency", "over", ">seen"]);
    for known in links.into_iter().take(LEASES_SHOWN) {
        let over = known
            .samples
            .last_sample()
            .map_or("", |sample| match sample.way {
                Carrier::Direct => "a direct channel",
                Carrier::Stream => "libp2p",
            });
        let rate = known.samples.bytes_per_second(now);
        let latency = known.samples.latency_seconds(now);
        table.add_row([
            short_id(&known.from),
            rate.map_or_else(String::new, |rate| format!("{:.1}", rate / 1e6)),
            latency.map_or_else(String::new, super::format_seconds),
            over.to_owned(),
            format!("{} s ago", now.saturating_sub(last(known)) / 1000),
        ]);
    }
    table.print();
}

fn print_isolation(kept: &IsolationFile) {
    match kept.isolation {
        Isolation::None => print_line("jobs run in the provider's own process, in no sandbox"),
        Isolation::Process | Isolation::Partial => {
            print_line("each job runs in a process of its own:");
            kept.policy
                .enforced
                .iter()
                .for_each(|rule| print_line(&format!("  {rule}")));
            for missing in &kept.policy.missing {
                print_line(&format!("  MISSING {missing}"));
            }
        }
    }
}

fn describe_closing(entry: &Entry) -> String {
    match entry.closed {
        None => "not yet".to_owned(),
        Some(closing) => match closing.reason {
            Some(reason) => format!("{reason:?}").to_lowercase(),
            None => "forgotten by the market".to_owned(),
        },
    }
}

/// Describes the limit of a device's memory; empty without a limit.
fn describe_memory_limit(memory_mib: Option<NonZeroU32>) -> String {
    memory_mib.map_or_else(String::new, |mib| format!(", {mib} MiB of its memory"))
}

/// Describes the sold device.
fn describe_device(device: &DeviceChoice) -> String {
    match device {
        DeviceChoice::Cpu { threads: 0 } => "this machine's CPU".to_owned(),
        DeviceChoice::Cpu { threads } => format!("{threads} threads of this machine's CPU"),
        DeviceChoice::Exact { threads: 0 } => "this machine's CPU, with exact results".to_owned(),
        DeviceChoice::Exact { threads } => {
            format!("{threads} threads of this machine's CPU, with exact results")
        }
        DeviceChoice::Gpu { name, memory_mib } if name.is_empty() => {
            format!("this machine's GPU{}", describe_memory_limit(*memory_mib))
        }
        DeviceChoice::Gpu { name, memory_mib } => {
            format!("the GPU {name}{}", describe_memory_limit(*memory_mib))
        }
        DeviceChoice::Cuda {
            ordinal,
            memory_mib,
        } => format!(
            "CUDA device {ordinal}{}",
            describe_memory_limit(*memory_mib)
        ),
        DeviceChoice::Onnxruntime { provider } => {
            format!("ONNX Runtime {provider}").trim_end().to_owned()
        }
        DeviceChoice::Emulated { profile, manner } => {
            let told = manner.stated_entries().into_iter();
            let told = told.map(|(name, value)| format!(", {name} {value}"));
            format!("{profile} (emulated{})", told.collect::<String>())
        }
        DeviceChoice::Endpoint(endpoint) => {
            format!(
                "the model {} of the engine at {}",
                endpoint.model, endpoint.url
            )
        }
        DeviceChoice::Serve(served) => {
            format!("the model {} by souk's own decoder", served.model)
        }
        DeviceChoice::Group(devices) => {
            let each: Vec<String> = devices.iter().map(describe_device).collect();
            format!("as one: {}", each.join(", "))
        }
    }
}
