//! Builds the metrics page of a provider in the text format of Prometheus: its leases, money,
//! devices and memory.

use std::sync::Weak;

use souk_scheduler::execution::report::{DeviceReport, MemoryReport, Report};

use souk_folder::clock::unix_ms;
use souk_network::metrics::{MetricKind, Page, peers, to_seconds};
use souk_roles::provider::{ProviderStatus, Stage};
use souk_sandbox::executor::Executor;

use super::journal::Sums;
use super::{LiveDevice, LiveFigures, Provider, Statistics};
use crate::endpoint::TokenFigures;

/// Returns a page of metrics, or none if the provider has stopped.
pub(super) async fn metrics_page(provider: Weak<Provider>) -> Option<Page> {
    let provider = provider.upgrade()?;
    let mut page = Page::of_machine();
    add_state(&mut page, &provider).await;
    add_money(&mut page, &provider);
    let home = provider.home.clone();
    let read = tokio::task::spawn_blocking(move || Statistics::read(&home)).await;
    match read.expect("reading a file does not panic") {
        Ok(done) => add_statistics(
            &mut page,
            &done.unwrap_or_else(|| Statistics::new(unix_ms())),
        ),
        Err(error) => tracing::debug!(%error, "could not read the statistics for the metrics"),
    }
    Some(page)
}

/// Adds the provider's current state.
async fn add_state(page: &mut Page, provider: &Provider) {
    let status = provider.shell_status();
    let is_selling = |status: &ProviderStatus| status.stage < Stage::Draining;
    let stopping = !status.as_ref().is_none_or(is_selling);
    page.add_gauge(
        "souk_provider_stopping",
        "1 once it was told to stop.",
        stopping,
    );
    page.add_gauge(
        "souk_provider_leases_running",
        "Leases at work, those that fetch what they need among them.",
        status.map_or(0, |status| status.at_work.len()),
    );
    page.add_gauge(
        "souk_provider_speed_ratio",
        "The share of its peak that its ask states.",
        provider.pace.advertised_share(),
    );
    let executor = provider.engine.as_executor();
    if let Some(sandboxes) = executor.and_then(Executor::sandbox_counts) {
        let help = "Processes for leases: those that wait for one, those that start, and leases \
                    that wait for a process.";
        page.add_family(MetricKind::Gauge, "souk_provider_sandboxes", help)
            .add_figure(&[("state", "ready")], sandboxes.ready)
            .add_figure(&[("state", "starting")], sandboxes.starting)
            .add_figure(&[("state", "wanted")], sandboxes.wanted);
    }
    if let Some(endpoint) = provider.engine.as_endpoint() {
        add_token_figures(page, &endpoint.token_figures());
    }
    add_live_figures(page, &provider.live.last_figures());
    let (sent, received) = provider.tensors.bytes_moved();
    let help = "Bytes of content that went to other peers and came from them, since the start.";
    page.add_family(
        MetricKind::Counter,
        "souk_content_transferred_bytes_total",
        help,
    )
    .add_figure(&[("direction", "sent")], sent)
    .add_figure(&[("direction", "received")], received);
    let store = provider.tensors.store().usage();
    let help = "Bytes of content in memory: held for use, and kept free for content that comes.";
    page.add_family(MetricKind::Gauge, "souk_content_memory_bytes", help)
        .add_figure(&[("state", "held")], store.memory_bytes)
        .add_figure(&[("state", "spare")], store.spare_bytes);
    let help = "Bytes of content that memory may hold.";
    page.add_gauge(
        "souk_content_memory_limit_bytes",
        help,
        store.memory_bytes_max,
    );
    page.add_gauge(
        "souk_content_items",
        "Contents in memory.",
        store.memory_items,
    );
    page.add_gauge(
        "souk_content_pinned_items",
        "Contents of leases at work.",
        store.pinned_items,
    );
    page.add_counter(
        "souk_content_blocking_reads_total",
        "Contents that somebody waited for while they were read from the folder.",
        store.awaited_reads,
    );
    peers::add_metrics(page, &provider.network).await;
}

/// Adds the requests and tokens of a model that is sold by the token.
fn add_token_figures(page: &mut Page, figures: &TokenFigures) {
    let help = "Requests that the engine should get at once now.";
    page.add_gauge("souk_provider_slots", help, u64::from(figures.slots));
    let help = "Requests that the engine answers now.";
    page.add_gauge(
        "souk_provider_requests_running",
        help,
        u64::from(figures.running),
    );
    let help = "Requests that ended, by how.";
    let ends = [
        ("answered", figures.answered),
        ("cancelled", figures.cancelled),
        ("refused", figures.refused),
        ("busy", figures.busy),
        ("broken", figures.broken),
    ];
    let mut family = page.add_family(MetricKind::Counter, "souk_provider_requests_total", help);
    for (end, count) in ends {
        family.add_figure(&[("end", end)], count);
    }
    let help = "Billed tokens of messages, cached or not, and of answers.";
    page.add_family(MetricKind::Counter, "souk_provider_tokens_total", help)
        .add_figure(&[("side", "input")], figures.input_tokens)
        .add_figure(&[("side", "cached")], figures.cached_tokens)
        .add_figure(&[("side", "output")], figures.output_tokens);
}

/// Adds the state of its devices, as far as this process knows it.
fn add_live_figures(page: &mut Page, figures: &LiveFigures) {
    type LiveFigure = (&'static str, &'static str, fn(&LiveDevice) -> Option<f64>);
    let gauges: [LiveFigure; 2] = [
        (
            "souk_device_utilisation",
            "The part of it at work in the last seconds, 0 to 1.",
            |it| it.utilisation,
        ),
        (
            "souk_device_memory_free_bytes",
            "Bytes of its memory that are free.",
            |it| it.memory_free_bytes.map(|bytes| bytes as f64),
        ),
    ];
    for (name, help, figure) in gauges {
        let mut family = page.add_family(MetricKind::Gauge, name, help);
        for device in &figures.devices {
            let emulated = if device.emulated { "true" } else { "false" };
            let labels = [
                ("device", device.device.as_str()),
                ("kind", device.kind.as_str()),
                ("emulated", emulated),
            ];
            if let Some(figure) = figure(device) {
                family.add_figure(&labels, figure);
            }
        }
    }
}

fn add_money(page: &mut Page, provider: &Provider) {
    let Sums {
        open,
        closed,
        earned,
    } = provider.lease_sums();
    page.add_gauge(
        "souk_provider_leases_open",
        "Leases that the market has not closed, begun ones.",
        open,
    );
    page.add_counter(
        "souk_provider_leases_closed_total",
        "Leases that the market closed.",
        closed,
    );
    page.add_counter(
        "souk_provider_earned_micro_credits_total",
        "What leases were paid.",
        earned.0,
    );
}

/// Adds the statistics.
fn add_statistics(page: &mut Page, done: &Statistics) {
    page.add_counter(
        "souk_leases_done_total",
        "Leases whose work was done.",
        done.leases,
    );
    page.add_counter(
        "souk_lease_received_bytes_total",
        "Bytes that came over the network for leases.",
        done.received_bytes,
    );
    page.add_counter(
        "souk_lease_produced_bytes_total",
        "Bytes of tensors that leases made.",
        done.made_bytes,
    );
    add_devices(page, &done.report);
    let report = &done.report;
    page.add_counter(
        "souk_partitioned_tasks_total",
        "Operators that several devices shared.",
        report.partitioned_tasks,
    );
    page.add_counter(
        "souk_joined_bytes_total",
        "Bytes copied to put parts of shared operators together.",
        report.joined_bytes,
    );
    add_memories(page, report);
}

/// A figure of a device: its name, its help, and its value in a report.
type DeviceFigure = (&'static str, &'static str, fn(&DeviceReport) -> f64);

/// The figures of each device.
const OF_DEVICES: [DeviceFigure; 6] = [
    ("souk_device_tasks_total", "Subgraphs run.", |it| {
        it.tasks as f64
    }),
    ("souk_device_operators_total", "Operators run.", |it| {
        it.operators as f64
    }),
    (
        "souk_device_busy_seconds_total",
        "Time spent computing.",
        |it| to_seconds(it.busy_micros),
    ),
    (
        "souk_device_transfer_seconds_total",
        "Time in which weights or tensors were on their way to it or from it.",
        |it| to_seconds(it.transfer_micros),
    ),
    (
        "souk_device_in_bytes_total",
        "Bytes of tensors and weights taken in.",
        |it| it.bytes_in as f64,
    ),
    (
        "souk_device_out_bytes_total",
        "Bytes of tensors given out.",
        |it| it.bytes_out as f64,
    ),
];

fn add_devices(page: &mut Page, report: &Report) {
    for (name, help, figure) in OF_DEVICES {
        let mut family = page.add_family(MetricKind::Counter, name, help);
        for (device, done) in &report.devices {
            let emulated = if done.emulated { "true" } else { "false" };
            let labels = [
                ("device", device.as_str()),
                ("kind", done.kind.as_str()),
                ("emulated", emulated),
            ];
            family.add_figure(&labels, figure(done));
        }
    }
    let help = "Time of leases in which a device did not compute, and why.";
    let mut idle = page.add_family(MetricKind::Counter, "souk_device_idle_seconds_total", help);
    for (device, done) in &report.devices {
        let causes = [
            ("data", done.idle.data_micros),
            ("dependency", done.idle.dependency_micros),
            ("nothing_to_do", done.idle.nothing_to_do_micros),
        ];
        for (cause, micros) in causes {
            idle.add_figure(
                &[("device", device.as_str()), ("cause", cause)],
                to_seconds(micros),
            );
        }
    }
    let help = "Energy, by a meter or from a description of the device.";
    let mut joules = page.add_family(MetricKind::Counter, "souk_device_joules_total", help);
    for (device, done) in &report.devices {
        let Some(energy) = done.energy else { continue };
        joules
            .add_figure(
                &[("device", device.as_str()), ("source", "meter")],
                energy.measured_joules,
            )
            .add_figure(
                &[("device", device.as_str()), ("source", "description")],
                energy.modelled_joules,
            );
    }
}

/// A figure of a memory.
type MemoryFigure = (
    MetricKind,
    &'static str,
    &'static str,
    fn(&MemoryReport) -> u64,
);

/// The figures of each memory that holds tensors between devices.
const OF_MEMORIES: [MemoryFigure; 11] = [
    (
        MetricKind::Gauge,
        "souk_memory_limit_bytes",
        "What it may hold, at the last run's end.",
        |it| it.limit_bytes,
    ),
    (
        MetricKind::Gauge,
        "souk_memory_used_bytes",
        "What it held, at the last run's end.",
        |it| it.used_bytes,
    ),
    (
        MetricKind::Gauge,
        "souk_memory_peak_bytes",
        "The most that it held at a time.",
        |it| it.peak_bytes,
    ),
    (
        MetricKind::Counter,
        "souk_memory_copied_bytes_total",
        "Bytes copied between memories.",
        |it| it.copied_bytes,
    ),
    (
        MetricKind::Counter,
        "souk_memory_shared_bytes_total",
        "Bytes handed on by reference.",
        |it| it.shared_bytes,
    ),
    (
        MetricKind::Counter,
        "souk_memory_spilled_bytes_total",
        "Bytes written to disk for want of room.",
        |it| it.spilled_bytes,
    ),
    (
        MetricKind::Counter,
        "souk_memory_restored_bytes_total",
        "Bytes read back from there.",
        |it| it.restored_bytes,
    ),
    (
        MetricKind::Counter,
        "souk_memory_nvlink_bytes_total",
        "Bytes over direct links between devices.",
        |it| it.nvlink_bytes,
    ),
    (
        MetricKind::Counter,
        "souk_memory_pcie_bytes_total",
        "Bytes over PCI Express.",
        |it| it.pcie_bytes,
    ),
    (
        MetricKind::Counter,
        "souk_memory_host_bytes_total",
        "Bytes that the host's processor copied to a device or from it.",
        |it| it.host_bytes,
    ),
    (
        MetricKind::Counter,
        "souk_memory_unified_bytes_total",
        "Bytes handed over in a memory that device and host have together.",
        |it| it.unified_bytes,
    ),
];

fn add_memories(page: &mut Page, report: &Report) {
    for (kind, name, help, figure) in OF_MEMORIES {
        let mut family = page.add_family(kind, name, help);
        for (place, held) in &report.memory {
            family.add_figure(&[("place", place.as_str())], figure(held));
        }
    }
}
