//! Paths between places that can hold content (for example from the host's memory to a GPU's):
//! estimates the time of a copy over each path, and finds the best route for a number of bytes.
//!
//! The figures of a path begin as declared and adapt to measurements: each transfer updates the fit
//! of its latency and bandwidth, and the latest weigh most. A route can have several hops, so that
//! a device reaches another one through the host.

mod fit;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::location::Location;
use fit::LineFit;

/// The medium of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathKind {
    /// Both places are the same memory, as on a system on a chip.
    Unified,
    /// Both places are addresses of one process, so a copy is a reference.
    Shared,
    /// A direct link between accelerators, such as NVLink.
    NvLink,
    /// PCI Express, between peers or to the host.
    Pcie {
        /// The PCI Express generation.
        generation: u8,
        /// The number of lanes.
        lanes: u8,
    },
    /// A copy by the host's processor.
    HostCopy,
    /// A file system.
    File,
    /// A connection to another peer.
    Network(NetworkKind),
}

/// Bytes that went over paths between memories, by kind of path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathBytes {
    /// Bytes over [`PathKind::NvLink`].
    pub nvlink: u64,
    /// Bytes over [`PathKind::Pcie`].
    pub pcie: u64,
    /// Bytes over [`PathKind::HostCopy`].
    pub host: u64,
    /// Bytes over [`PathKind::Unified`], which need not move.
    pub unified: u64,
    /// Bytes over [`PathKind::Shared`], which do not move.
    pub shared: u64,
}

/// The kind of connection to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NetworkKind {
    /// A TCP connection.
    Tcp,
    /// A QUIC connection.
    Quic,
    /// A connection through another peer.
    Relay,
}

/// A path from one place to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Path {
    /// The medium of the path.
    pub kind: PathKind,
    /// The time before the first byte arrives.
    pub latency: Duration,
    /// Bytes per second after that.
    pub bytes_per_second: f64,
}

/// One path of a route.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hop {
    /// The place where it begins.
    pub from: Location,
    /// The place where it ends.
    pub to: Location,
    /// The medium of the path.
    pub kind: PathKind,
}

/// A route over one or several paths.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Its hops in order; empty if both ends are one place.
    pub hops: Vec<Hop>,
    /// The time that it takes: each hop begins when the one before has ended.
    pub time: Duration,
}

/// A transfer that takes more than this many times the expected time is an outlier.
const FAR: u32 = 4;
/// Outliers in a row after which a path takes them into its figures.
const BELIEVED: u8 = 3;

#[derive(Clone, Debug)]
struct KnownPath {
    path: Path,
    fit: LineFit,
    /// The number of last transfers in a row that were outliers.
    doubted: u8,
}

/// All known paths.
#[derive(Clone, Debug, Default)]
pub struct Paths {
    known: BTreeMap<Location, BTreeMap<Location, Vec<KnownPath>>>,
}

impl PathBytes {
    /// Counts bytes that went over one path, unless its kind is a file or the network, which have
    /// other counts.
    pub fn add(&mut self, kind: PathKind, bytes: u64) {
        let count = match kind {
            PathKind::NvLink => &mut self.nvlink,
            PathKind::Pcie { .. } => &mut self.pcie,
            PathKind::HostCopy => &mut self.host,
            PathKind::Unified => &mut self.unified,
            PathKind::Shared => &mut self.shared,
            PathKind::File | PathKind::Network(_) => return,
        };
        *count += bytes;
    }

    /// Returns the bytes counted since `before`, which must be an earlier value of the same counts.
    #[must_use]
    pub fn bytes_since(&self, before: &Self) -> Self {
        Self {
            nvlink: self.nvlink - before.nvlink,
            pcie: self.pcie - before.pcie,
            host: self.host - before.host,
            unified: self.unified - before.unified,
            shared: self.shared - before.shared,
        }
    }
}

impl Path {
    /// Returns the time that `bytes` take over the path; zero if both ends are one memory.
    #[must_use]
    pub fn transfer_time(&self, bytes: u64) -> Duration {
        if matches!(self.kind, PathKind::Unified | PathKind::Shared) {
            return Duration::ZERO;
        }
        let seconds = bytes as f64 / self.bytes_per_second;
        let moving = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        self.latency.saturating_add(moving)
    }
}

impl Paths {
    /// Adds a path, or resets the figures of a path of that kind between these places, which must
    /// differ.
    ///
    /// # Panics
    /// If the bandwidth is not a positive number.
    pub fn declare_path(&mut self, from: Location, to: Location, path: Path) {
        assert!(path.bytes_per_second > 0.0, "a path carries something");
        assert!(from != to, "a place needs no path to itself");
        let between = self.known.entry(from).or_default().entry(to).or_default();
        between.retain(|known| known.path.kind != path.kind);
        between.push(KnownPath {
            path,
            fit: LineFit::default(),
            doubted: 0,
        });
    }

    /// Adds a path in both directions.
    pub fn declare_both(&mut self, one: Location, other: Location, path: Path) {
        self.declare_path(one, other, path);
        self.declare_path(other, one, path);
    }

    /// Records the time that a transfer over a declared path took. An outlier counts only as the
    /// third in a row: the thread that moved the bytes can have been delayed, and a path that looks
    /// slow would not be used again.
    pub fn observe_transfer(&mut self, hop: Hop, bytes: u64, took: Duration) {
        let between = self.known.get_mut(&hop.from);
        let between = between.and_then(|onward| onward.get_mut(&hop.to));
        let mut all = between.into_iter().flatten();
        let Some(known) = all.find(|known| known.path.kind == hop.kind) else {
            return;
        };
        if took > known.path.transfer_time(bytes).saturating_mul(FAR)
            && known.doubted + 1 < BELIEVED
        {
            known.doubted += 1;
            return;
        }
        known.doubted = 0;
        known.fit.add(bytes as f64, took.as_secs_f64());
        if let Some((latency, rate)) = known
            .fit
            .latency_and_bandwidth(known.path.latency.as_secs_f64())
        {
            known.path.latency = Duration::from_secs_f64(latency);
            known.path.bytes_per_second = rate;
            assert!(
                rate > 0.0 && rate.is_finite(),
                "a fitted path carries something"
            );
        }
    }

    /// Returns the single path that carries `bytes` fastest.
    #[must_use]
    pub fn direct_path(&self, from: Location, to: Location, bytes: u64) -> Option<Path> {
        let between = self.known.get(&from)?.get(&to)?;
        let paths = between.iter().map(|known| known.path);
        paths.min_by_key(|path| path.transfer_time(bytes))
    }

    /// Returns the fastest route for `bytes`, or `None` if no path leads there.
    #[must_use]
    pub fn fastest_route(&self, from: Location, to: Location, bytes: u64) -> Option<Route> {
        self.route_through(&|_| true, [from, to], bytes)
    }

    /// Like [`Paths::fastest_route`], but only over places for which `takes` returns true.
    #[must_use]
    pub fn route_through(
        &self,
        takes: &dyn Fn(Location) -> bool,
        [from, to]: [Location; 2],
        bytes: u64,
    ) -> Option<Route> {
        let mut reached = BTreeMap::from([(from, (Duration::ZERO, None))]);
        let mut settled = BTreeSet::new();
        loop {
            let open = reached
                .iter()
                .filter(|(place, _)| !settled.contains(*place));
            let (&here, &(time, _)) = open.min_by_key(|(_, (time, _))| *time)?;
            if here == to {
                break;
            }
            settled.insert(here);
            for &next in self.known.get(&here).into_iter().flat_map(BTreeMap::keys) {
                let path = self.direct_path(here, next, bytes);
                let Some(path) = path.filter(|_| next == to || takes(next)) else {
                    continue;
                };
                let arrival = time.saturating_add(path.transfer_time(bytes));
                let hop = Hop {
                    from: here,
                    to: next,
                    kind: path.kind,
                };
                let known = reached.get(&next).map(|(known, _)| *known);
                if known.is_none_or(|known| arrival < known) {
                    reached.insert(next, (arrival, Some(hop)));
                }
            }
        }
        let time = reached[&to].0;
        let mut hops: Vec<Hop> =
            std::iter::successors(reached[&to].1, |hop| reached[&hop.from].1).collect();
        hops.reverse();
        Some(Route { hops, time })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: Location = Location::Device(crate::location::DeviceIndex(0));
    const OTHER: Location = Location::Device(crate::location::DeviceIndex(1));

    fn path(kind: PathKind, latency_us: u64, bytes_per_second: f64) -> Path {
        Path {
            kind,
            latency: Duration::from_micros(latency_us),
            bytes_per_second,
        }
    }

    const PCIE: PathKind = PathKind::Pcie {
        generation: 4,
        lanes: 16,
    };

    #[test]
    fn size_decides_between_latency_and_bandwidth() {
        let mut paths = Paths::default();
        paths.declare_path(GPU, OTHER, path(PathKind::NvLink, 20, 300e9));
        paths.declare_path(GPU, OTHER, path(PCIE, 5, 25e9));
        assert_eq!(paths.direct_path(GPU, OTHER, 1_000).unwrap().kind, PCIE);
        let large = paths.direct_path(GPU, OTHER, 1 << 30).unwrap();
        assert_eq!(large.kind, PathKind::NvLink);
    }

    #[test]
    fn devices_without_a_path_meet_in_host_memory() {
        let mut paths = Paths::default();
        paths.declare_both(GPU, Location::Host, path(PCIE, 5, 25e9));
        paths.declare_both(OTHER, Location::Host, path(PCIE, 5, 25e9));
        let route = paths.fastest_route(GPU, OTHER, 25_000_000).unwrap();
        assert_eq!(route.hops.len(), 2);
        assert_eq!(route.time, Duration::from_micros(2 * (5 + 1_000)));
        assert_eq!(paths.fastest_route(GPU, Location::Disk, 1), None);
    }

    #[test]
    fn one_memory_moves_nothing() {
        assert_eq!(
            path(PathKind::Shared, 9, 1.0).transfer_time(1 << 40),
            Duration::ZERO
        );
        assert_eq!(
            path(PathKind::Unified, 9, 1.0).transfer_time(1 << 40),
            Duration::ZERO
        );
    }

    #[test]
    fn measured_transfers_replace_declared_figures() {
        let mut paths = Paths::default();
        paths.declare_path(GPU, Location::Host, path(PCIE, 5, 64e9));
        let hop = Hop {
            from: GPU,
            to: Location::Host,
            kind: PCIE,
        };
        for round in 0..20u64 {
            let bytes = 1_000_000 * (1 + round % 5);
            // 12 GB/s after 30 us.
            let nanoseconds = 30_000 + bytes / 12;
            paths.observe_transfer(hop, bytes, Duration::from_nanos(nanoseconds));
        }
        let learned = paths.direct_path(GPU, Location::Host, 1).unwrap();
        assert!(
            (learned.bytes_per_second / 12e9 - 1.0).abs() < 0.01,
            "{learned:?}"
        );
        let latency = learned.latency.as_secs_f64() * 1e6;
        assert!((latency - 30.0).abs() < 1.0, "{learned:?}");
    }

    #[test]
    fn one_transfer_that_was_held_up_changes_no_way_and_three_do() {
        let mut paths = Paths::default();
        paths.declare_both(GPU, OTHER, path(PathKind::NvLink, 5, 300e9));
        for place in [GPU, OTHER] {
            paths.declare_both(place, Location::Host, path(PCIE, 5, 64e9));
        }
        let hop = Hop {
            from: GPU,
            to: OTHER,
            kind: PathKind::NvLink,
        };
        let mut hops = |took: u64| {
            paths.observe_transfer(hop, 4096, Duration::from_micros(took));
            paths.fastest_route(GPU, OTHER, 4096).unwrap().hops.len()
        };
        assert_eq!(
            [hops(900), hops(900), hops(6), hops(900), hops(900)],
            [1; 5]
        );
        assert_eq!(hops(900), 2, "it is slow");
    }
}
