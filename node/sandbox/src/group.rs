//! Creates a control group (Linux's limits on a set of processes) for each sandbox, if the system
//! lets this process create some.
//!
//! The limits of a process alone count its mappings and each core separately. A group counts the
//! memory and cores that its processes really use together, and ends as one. The system must have
//! cgroup v2, and this process must own a part of the tree: under systemd `Delegate=cpu memory
//! pids`, or the root of a container. Otherwise only the limits of the process hold, and the
//! provider reports why.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The controllers that limit a sandbox.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// The group that this process moves into, because a group with processes cannot have limited
/// groups below it.
const OWN: &str = "souk-provider";

/// The prefix of the names of sandboxes' groups.
const GROUP_PREFIX: &str = "souk-sandbox-";

/// Threads beyond those that compute.
const THREADS_BESIDE: u64 = 64;

/// The default weight of a group, and the most it can be: the kernel's values.
const WEIGHT: u64 = 100;
const WEIGHT_MAX: u64 = 10_000;

/// The period of a CPU quota, in microseconds; the kernel's own default.
const PERIOD_MICROS: u64 = 100_000;

/// Why there are no control groups.
#[derive(Debug, thiserror::Error)]
pub enum ControlGroupError {
    /// The system has no cgroup v2, or this process is in no group of it.
    #[error("this system has no cgroup v2")]
    Absent,
    /// The parent group does not delegate a controller.
    #[error("the control group of this process does not delegate the controller \"{0}\"")]
    Controller(&'static str),
    /// The group has other processes.
    #[error(
        "other processes ({others}) are in the control group of this one: give it its own, under \
         systemd with Delegate=yes"
    )]
    SharedContents {
        /// The number of these processes.
        others: usize,
    },
    /// The system refused.
    #[error("{path}: {cause}")]
    Refused {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
}

/// The part of the tree that this process divides among its sandboxes.
#[derive(Debug)]
pub struct ControlGroups {
    root: PathBuf,
    next: AtomicU64,
}

/// The limits of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupLimits {
    pub(super) memory_bytes: u64,
    pub(super) threads: Option<u32>,
}

/// The group of one sandbox. Dropping it kills its processes.
#[derive(Debug)]
pub(super) struct ControlGroup {
    path: PathBuf,
}

impl ControlGroups {
    /// Finds the part of the tree that this process owns, and prepares it.
    ///
    /// # Errors
    /// [`ControlGroupError`], worded for the owner of the provider.
    pub fn open_tree() -> Result<ControlGroups, ControlGroupError> {
        let read = |path: &str| fs::read_to_string(path).map_err(|_| ControlGroupError::Absent);
        let mounted = read("/proc/self/mountinfo")?;
        let mounted = mounted.lines().find_map(mount_point);
        let within = read("/proc/self/cgroup")?;
        let within = within
            .lines()
            .find_map(|channel| channel.strip_prefix("0::/"));
        let (Some(mounted), Some(within)) = (mounted, within) else {
            return Err(ControlGroupError::Absent);
        };
        ControlGroups::take_over(&mounted.join(within), within.is_empty(), std::process::id())
    }

    /// Prepares a group for others below it; `process` is the only one in it, unless it is the root
    /// of the tree, where any may stay.
    fn take_over(
        root: &Path,
        is_root: bool,
        process: u32,
    ) -> Result<ControlGroups, ControlGroupError> {
        let given = read(&root.join("cgroup.controllers"))?;
        let lacks = |name: &&&str| !given.split_whitespace().any(|given| given == **name);
        if let Some(controller) = CONTROLLERS.iter().find(lacks) {
            return Err(ControlGroupError::Controller(controller));
        }
        if !is_root {
            let inside = read(&root.join("cgroup.procs"))?;
            let own = process.to_string();
            let others = inside.lines().filter(|channel| *channel != own).count();
            if others > 0 {
                return Err(ControlGroupError::SharedContents { others });
            }
            let home = root.join(OWN);
            create_folder(&home)?;
            write(&home.join("cgroup.procs"), &own)?;
        }
        let wanted = CONTROLLERS.map(|name| format!("+{name}")).join(" ");
        write(&root.join("cgroup.subtree_control"), &wanted)?;
        let groups = ControlGroups {
            root: root.to_owned(),
            next: AtomicU64::new(0),
        };
        groups.sweep_empty();
        Ok(groups)
    }

    /// Creates a group with these limits and moves a process into it.
    pub(super) fn create_group(
        &self,
        share: GroupLimits,
        process: u32,
    ) -> Result<ControlGroup, ControlGroupError> {
        self.sweep_empty();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("{GROUP_PREFIX}{}-{number}", std::process::id());
        let path = self.root.join(name);
        create_folder(&path)?;
        let group = ControlGroup { path };
        group.set_value("memory.max", share.memory_bytes)?;
        // At the limit the kernel kills the whole group, not a single process of it.
        group.set_value("memory.oom.group", 1)?;
        // A kernel without swap has no such file.
        let _ = group.set_value("memory.swap.max", 0);
        let threads = u64::from(share.threads.unwrap_or_else(available_cores));
        group.set_value("pids.max", threads + THREADS_BESIDE)?;
        let time = format!("{} {PERIOD_MICROS}", threads * PERIOD_MICROS);
        write(&group.path.join("cpu.max"), &time)?;
        group.set_value("cgroup.procs", u64::from(process))?;
        Ok(group)
    }

    /// Removes groups that are empty: the last process of a group exits a moment after the kill.
    fn sweep_empty(&self) {
        let Ok(entries) = fs::read_dir(&self.root) else {
            return;
        };
        for entry in entries.flatten() {
            if entry
                .file_name()
                .to_string_lossy()
                .starts_with(GROUP_PREFIX)
            {
                // The call fails if a group is not empty, which then stays.
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}

impl ControlGroup {
    /// Sets the group's weight, as a multiple of the default, for when processes of several groups
    /// compete for the same cores.
    pub(super) fn set_weight(&self, times: f64) -> Result<(), ControlGroupError> {
        let weight = (WEIGHT as f64 * times) as u64;
        self.set_value("cpu.weight", weight.clamp(1, WEIGHT_MAX))
    }

    /// Returns whether the kernel killed it because its memory ran out.
    pub(super) fn ran_out_of_memory(&self) -> bool {
        let events = fs::read_to_string(self.path.join("memory.events"));
        let killed = |text: &str| {
            let count = text
                .lines()
                .find_map(|channel| channel.strip_prefix("oom_kill "));
            count.is_some_and(|count| count.trim() != "0")
        };
        events.is_ok_and(|text| killed(&text))
    }

    fn set_value(&self, file: &str, value: u64) -> Result<(), ControlGroupError> {
        write(&self.path.join(file), &value.to_string())
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // Older kernels have no such file; the sandbox's process is killed separately as well.
        let _ = self.set_value("cgroup.kill", 1);
        let _ = fs::remove_dir(&self.path);
    }
}

/// Returns the mount point in a line of the mount table, if the line is that of cgroup v2.
fn mount_point(channel: &str) -> Option<PathBuf> {
    let (mount, kind) = channel.split_once(" - ")?;
    kind.starts_with("cgroup2 ").then_some(())?;
    mount.split(' ').nth(4).map(PathBuf::from)
}

fn available_cores() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    u32::try_from(cores).unwrap_or(u32::MAX)
}

fn read(path: &Path) -> Result<String, ControlGroupError> {
    fs::read_to_string(path).map_err(|cause| refused_error(path, cause))
}

/// Writes in one call, as the kernel requires.
fn write(path: &Path, text: &str) -> Result<(), ControlGroupError> {
    fs::write(path, text).map_err(|cause| refused_error(path, cause))
}

fn create_folder(path: &Path) -> Result<(), ControlGroupError> {
    match fs::create_dir(path) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => {
            Err(refused_error(path, cause))
        }
        _ => Ok(()),
    }
}

fn refused_error(path: &Path, cause: io::Error) -> ControlGroupError {
    let path = path.to_owned();
    ControlGroupError::Refused { path, cause }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    const SHARE: GroupLimits = GroupLimits {
        memory_bytes: 64 << 20,
        threads: Some(2),
    };

    /// A folder that looks like a group with this process in it.
    fn drawn(controllers: &str, inside: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| fs::write(folder.path().join(file), text).unwrap();
        put("cgroup.controllers", controllers);
        put("cgroup.procs", inside);
        folder
    }

    #[test]
    fn what_is_written_where_is_what_the_kernel_takes() {
        let folder = drawn("cpuset cpu io memory pids", "7\n");
        let groups = ControlGroups::take_over(folder.path(), false, 7).unwrap();
        let holds = |path: &Path, file: &str| fs::read_to_string(path.join(file)).unwrap();
        assert_eq!(
            holds(folder.path(), "cgroup.subtree_control"),
            "+cpu +memory +pids"
        );
        assert_eq!(holds(&folder.path().join(OWN), "cgroup.procs"), "7");
        let group = groups.create_group(SHARE, 9).unwrap();
        let limits = ["memory.max", "pids.max", "cpu.max", "cgroup.procs"];
        let said = limits.map(|file| holds(&group.path, file));
        assert_eq!(said, ["67108864", "66", "200000 100000", "9"]);
        for (times, weight) in [(1.0, "100"), (2.5, "250"), (0.0, "1"), (1e9, "10000")] {
            group.set_weight(times).unwrap();
            assert_eq!(holds(&group.path, "cpu.weight"), weight);
        }
        assert!(!group.ran_out_of_memory());
        fs::write(group.path.join("memory.events"), "oom 1\noom_kill 1\n").unwrap();
        assert!(group.ran_out_of_memory());
    }

    #[test]
    fn what_is_not_this_processs_own_is_left_alone() {
        let shared = drawn("cpu memory pids", "7\n8\n9\n");
        let refused = ControlGroups::take_over(shared.path(), false, 7).unwrap_err();
        assert!(matches!(
            refused,
            ControlGroupError::SharedContents { others: 2 }
        ));
        assert!(!shared.path().join(OWN).exists());
        let poor = drawn("cpu pids", "7\n");
        let refused = ControlGroups::take_over(poor.path(), false, 7).unwrap_err();
        assert!(refused.to_string().contains("\"memory\""), "{refused}");
        assert!(ControlGroups::take_over(Path::new("/nowhere"), false, 7).is_err());
    }

    #[test]
    fn the_table_of_mounts_is_read() {
        let channel = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw";
        assert_eq!(mount_point(channel), Some("/sys/fs/cgroup".into()));
        assert_eq!(mount_point(&channel.replace("cgroup2", "cgroup")), None);
    }

    /// A program that would live for long.
    fn sleeper() -> Child {
        Command::new("sleep").arg("600").spawn().unwrap()
    }

    /// The groups of a system that lets this process make some; elsewhere says why nothing is
    /// tried.
    fn here() -> Option<ControlGroups> {
        let opened = ControlGroups::open_tree();
        opened
            .inspect_err(|why| eprintln!("SKIPPED: no control groups here: {why}"))
            .ok()
    }

    #[test]
    fn who_takes_more_memory_than_its_group_may_is_ended_and_it_is_known_why() {
        let Some(groups) = here() else {
            return;
        };
        // It keeps all that it reads until a line ends, and none does. It waits until it is told.
        let mut child = Command::new("sh")
            .args(["-c", "read go; tail /dev/zero"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let group = groups.create_group(SHARE, child.id()).unwrap();
        assert!(!group.ran_out_of_memory());
        drop(child.stdin.take());
        assert!(!child.wait().unwrap().success(), "it was ended");
        assert!(group.ran_out_of_memory());
        drop(group);
    }

    #[test]
    fn a_group_is_ended_as_one() {
        let Some(groups) = here() else {
            return;
        };
        let mut child = sleeper();
        let group = groups.create_group(SHARE, child.id()).unwrap();
        let limit = fs::read_to_string(group.path.join("memory.max")).unwrap();
        assert_eq!(limit.trim(), SHARE.memory_bytes.to_string());
        let inside = fs::read_to_string(group.path.join("cgroup.procs")).unwrap();
        assert_eq!(inside.trim(), child.id().to_string());
        let path = group.path.clone();
        drop(group);
        assert!(!child.wait().unwrap().success(), "it was ended");
        groups.sweep_empty();
        assert!(!path.exists());
    }
}
