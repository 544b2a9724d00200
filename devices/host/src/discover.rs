//! Finds the processor of this machine: name, instruction set, cores, caches, memory.
//!
//! On Linux it reads `/proc` and `/sys`; elsewhere it can find only the facts that Rust itself
//! knows.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

use serde::{Deserialize, Serialize};
use souk_vocabulary::taxonomy::CpuIsa;
#[cfg(target_arch = "x86_64")]
use souk_vocabulary::taxonomy::X86Level;

use crate::system;

/// The properties of a CPU that need no measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuDescription {
    /// Name of the maker, such as `AMD`.
    pub vendor: String,
    /// The maker's name for the model.
    pub model: String,
    /// Its instruction set and vector level.
    pub isa: CpuIsa,
    /// Hardware threads this process can run on.
    pub threads: NonZeroUsize,
    /// Physical cores of the machine, where the system distinguishes them from hardware threads.
    pub cores: Option<usize>,
    /// Caches, smallest level first.
    pub caches: Vec<Cache>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
}

/// A cache as one core sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cache {
    /// 1 is nearest the core.
    pub level: u8,
    /// `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// Bytes.
    pub bytes: u64,
}

/// Describes the CPU on which this process runs.
#[must_use]
pub fn describe_cpu() -> CpuDescription {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name| find_field(&text, name).unwrap_or("unknown").to_owned();
    CpuDescription {
        vendor: vendor_name(&field("vendor_id")).to_owned(),
        model: field("model name"),
        isa: detect_isa(),
        threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        cores: count_cores(&text),
        caches: read_caches(Path::new("/sys/devices/system/cpu/cpu0/cache")),
        memory_bytes: system::memory_bytes(),
    }
}

impl CpuDescription {
    /// Returns a key that changes when anything measured on this CPU might. You should discard
    /// measurements that were stored with another key.
    #[must_use]
    pub fn key(&self) -> String {
        format!(
            "{} {} {:?} {}",
            self.vendor, self.model, self.isa, self.threads
        )
    }
}

/// The value of the first line `name : value`.
fn find_field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

/// Returns the maker's usual name for the processor's vendor string.
fn vendor_name(id: &str) -> &str {
    match id {
        "AuthenticAMD" => "AMD",
        "GenuineIntel" => "Intel",
        other => other,
    }
}

/// Distinct pairs of socket and core.
fn count_cores(text: &str) -> Option<usize> {
    let mut cores = BTreeMap::new();
    let mut socket = "";
    for line in text.lines() {
        match line
            .split_once(':')
            .map(|(key, value)| (key.trim(), value.trim()))
        {
            Some(("physical id", value)) => socket = value,
            Some(("core id", value)) => {
                cores.insert((socket, value), ());
            }
            _ => {}
        }
    }
    (!cores.is_empty()).then_some(cores.len())
}

fn read_caches(folder: &Path) -> Vec<Cache> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let read = |path: &Path, name: &str| fs::read_to_string(path.join(name)).ok();
    let cache = |path: &Path| {
        let level = read(path, "level")?.trim().parse().ok()?;
        let size = read(path, "size")?;
        let kilobytes: u64 = size.trim().strip_suffix('K')?.parse().ok()?;
        let kind = read(path, "type")?.trim().to_owned();
        Some(Cache {
            level,
            kind,
            bytes: kilobytes * 1024,
        })
    };
    let mut caches: Vec<Cache> = entries
        .filter_map(|entry| cache(&entry.ok()?.path()))
        .collect();
    caches.sort();
    caches
}

#[cfg(target_arch = "x86_64")]
fn detect_isa() -> CpuIsa {
    let level = if has_amx() {
        X86Level::Amx
    } else if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
        X86Level::Avx512
    } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        X86Level::Avx2
    } else if is_x86_feature_detected!("avx") {
        X86Level::Avx
    } else {
        X86Level::Sse2
    };
    CpuIsa::X86_64 { level }
}

/// Returns whether the system lets programs use matrix tiles. Rust's own detection is unstable.
#[cfg(target_arch = "x86_64")]
fn has_amx() -> bool {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    find_field(&text, "flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "amx_tile"))
}

#[cfg(target_arch = "aarch64")]
fn detect_isa() -> CpuIsa {
    CpuIsa::Arm64 {
        sve: std::arch::is_aarch64_feature_detected!("sve"),
    }
}

#[cfg(target_arch = "riscv64")]
fn detect_isa() -> CpuIsa {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let letters = find_field(&text, "isa")
        .and_then(|isa| isa.split('_').next())
        .unwrap_or_default();
    CpuIsa::RiscV64 {
        vector: letters.trim_start_matches("rv64").contains('v'),
    }
}

#[cfg(not(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "riscv64"
)))]
fn detect_isa() -> CpuIsa {
    CpuIsa::Other
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_processor_with_a_thread() {
        let cpu = describe_cpu();
        assert!(cpu.threads.get() >= 1);
        assert!(cpu.key().contains(&cpu.model));
    }

    #[test]
    fn hyperthreads_share_a_core() {
        let text = "physical id : 0\ncore id : 0\n\nphysical id : 0\ncore id : 0\n\n\
                    physical id : 1\ncore id : 0\n";
        assert_eq!(count_cores(text), Some(2));
        assert_eq!(count_cores("processor : 0\n"), None);
    }
}
