//! Checks the machine for `souk doctor`: cores, memory, disk space, the limit of open files,
//! processors.

use std::path::Path;

use souk_host::{discover, system};

use super::super::device::sellable_devices;
use super::Finding;
use crate::show;

/// Free memory that a small model and a few processes need, in bytes.
const MEMORY_MIN: u64 = 1 << 30;

/// Disk space in bytes: the least that contents and logs need, and the amount that they soon fill.
const DISK_MIN: u64 = 256 << 20;
const DISK_LOW: u64 = 4 << 30;

/// Files and connections that a busy node can keep open.
const FILES_MIN: u64 = 4_096;

/// Checks the machine, and the disk of `dir`.
pub fn check_machine(dir: &Path) -> Vec<Finding> {
    let cpu = discover::describe_cpu();
    let version = env!("CARGO_PKG_VERSION");
    let found = format!("{version} on {} with {} threads", cpu.model, cpu.threads);
    let mut findings = vec![Finding::good("souk", found)];
    findings.extend(check_memory());
    findings.extend(check_disk(dir));
    findings.extend(check_open_files());
    findings.push(check_devices());
    findings
}

fn check_memory() -> Option<Finding> {
    let (free, all) = (system::memory_free_bytes()?, system::memory_bytes()?);
    let found = format!(
        "{} of {} are free",
        show::format_bytes(free),
        show::format_bytes(all)
    );
    Some(match free < MEMORY_MIN {
        false => Finding::good("memory", found),
        true => {
            let fix = "end other programs, or sell and run smaller models";
            Finding::warning("memory", found, fix)
        }
    })
}

fn check_disk(dir: &Path) -> Option<Finding> {
    let dir = std::path::absolute(dir).ok()?;
    let there = dir.ancestors().find(|path| path.exists())?;
    let free = free_disk_bytes(there)?;
    let found = format!(
        "{} are free at {}",
        show::format_bytes(free),
        there.display()
    );
    Some(match free {
        0..DISK_MIN => {
            let fix = "make room: a node whose disk is full stops";
            Finding::problem("disk", found, fix)
        }
        DISK_MIN..DISK_LOW => {
            let fix = "make room: contents of jobs take up to 16 GiB";
            Finding::warning("disk", found, fix)
        }
        _ => Finding::good("disk", found),
    })
}

fn check_open_files() -> Option<Finding> {
    let now = files_max()?;
    let found = format!("a process may have {now} open");
    Some(match now < FILES_MIN {
        false => Finding::good("files", found),
        true => {
            let fix = format!("`ulimit -n {FILES_MIN}`, or LimitNOFILE in a unit of systemd");
            Finding::warning("files", found, fix)
        }
    })
}

/// Returns the free bytes on the disk of `place`, on systems that souk can ask.
fn free_disk_bytes(place: &Path) -> Option<u64> {
    #[cfg(unix)]
    return rustix::fs::statvfs(place)
        .ok()
        .map(|system| system.f_bavail.saturating_mul(system.f_frsize));
    #[cfg(not(unix))]
    (|_| None)(place)
}

/// Returns the limit of open files of a process, if souk knows of one.
fn files_max() -> Option<u64> {
    #[cfg(unix)]
    return rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    #[cfg(not(unix))]
    None
}

/// Lists the devices of this machine that can be sold.
fn check_devices() -> Finding {
    let names = sellable_devices();
    Finding::good("devices", format!("{} can be sold", names.join(", ")))
}
