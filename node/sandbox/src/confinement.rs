//! Confines a sandbox's process before a job runs in it: with limits, a list of the allowed system
//! calls, no files and no network.
//!
//! The sandbox puts up each of these walls that the kernel supports and reports the reason for each
//! one that is missing. Then it tries to get out: its report shows attempts, not intentions. A
//! GPU's driver needs more files and system calls, so a sandbox with one can read the system's
//! files and has a longer list. Of `/dev` it can open only the device nodes of processors, and it
//! has no sockets.

mod calls;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fmt};

use landlock::{
    ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope, path_beneath_rules,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

use super::SandboxPolicy;
#[cfg(target_arch = "x86_64")]
use calls::OLDER_FORMS;
use calls::{
    ALLOWED, ALLOWED_TO_DRIVERS, DRIVER_CONTROLS, DRIVER_FILE_CONTROLS, FILE_CONTROLS, PR_SET_NAME,
};

/// Memory of the process itself, beyond the job's: stacks, the allocator, the program.
const OWN_BYTES: u64 = 256 << 20;

/// File descriptors: the channel, standard error and incoming shared memory.
const FILES_MAX: u64 = 256;

/// File descriptors of a sandbox with a driver, which opens many.
const DRIVER_FILES_MAX: u64 = 4096;

/// Memory that a driver can share with its device beyond the job's, in one piece.
const DRIVER_SHARED_BYTES: u64 = 1 << 30;

/// The threads of a process share these flags; `clone` without them starts another process.
const CLONE_THREAD: u64 = 0x0001_0000;

/// A mapping that can be executed.
const PROT_EXEC: u64 = 4;

/// Flags of a mapping: other processes share it; no file backs it.
const SHARED_ANONYMOUS: u64 = 0x21;
const ANONYMOUS: u64 = 0x20;

/// The parts of a system that drivers read: libraries, their settings, the list of devices.
const READ_BY_DRIVERS: [&str; 33] = [
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/bin",
    "/opt/rocm",
    "/opt/intel",
    "/nix/store",
    "/gnu/store",
    "/run/opengl-driver",
    "/sys",
    "/proc/self",
    "/proc/bus/pci",
    "/proc/cpuinfo",
    "/proc/devices",
    "/proc/driver",
    "/proc/filesystems",
    "/proc/meminfo",
    "/proc/modules",
    "/proc/stat",
    "/proc/sys/kernel",
    "/proc/sys/vm",
    "/proc/version",
    "/etc/alternatives",
    "/etc/drirc",
    "/etc/egl",
    "/etc/glvnd",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/nvidia",
    "/etc/OpenCL",
    "/etc/vulkan",
    "/etc/vulkan_implicit_layers.d",
];

/// The folder in which drivers open their devices.
const DEVICES: &str = "/dev";

/// Prefixes of the device nodes that drivers of processors open. Everything else under `/dev` stays
/// closed: memory shared between processes, disks, terminals, virtual machines.
const DEVICE_NODES: [&str; 29] = [
    // NVIDIA: cards, control, unified memory, capabilities of partitions; Tegra.
    "nvidia",
    "nvhost-",
    "nvmap",
    "nvgpu",
    "nvsciipc",
    // AMD's compute, Mesa's render nodes, accelerators of the kernel's own subsystem.
    "kfd",
    "dri",
    "accel",
    // Phones and boards: Adreno, Hexagon, Mali, Rockchip, MediaTek, buffers for all of them.
    "kgsl-",
    "adsprpc-",
    "fastrpc-",
    "mali",
    "rknpu",
    "mpp_service",
    "apusys",
    "dma_heap",
    "ion",
    "udmabuf",
    // Huawei Ascend.
    "davinci",
    "devmm_svm",
    "hisi_hdc",
    // AMD's FPGAs, Google's Edge TPU, Windows' GPUs under WSL.
    "xclmgmt",
    "apex_",
    "dxg",
    // Nodes that any program may open.
    "full",
    "null",
    "random",
    "urandom",
    "zero",
];

/// Where a driver names its threads: CUDA's driver does not start without it.
const OWN_THREADS: &str = "/proc/self/task";

/// Environment variables that name more folders for a driver.
const TELLING_PATHS: [&str; 5] = [
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
    "VK_ADD_DRIVER_FILES",
    "LD_LIBRARY_PATH",
    "OCL_ICD_VENDORS",
];

/// The processor that a sandbox computes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confinement {
    /// The CPU alone, which needs nothing else of the machine.
    Processor,
    /// A device with a driver, which needs its own files and system calls.
    Driver,
}

impl SandboxPolicy {
    /// Puts up every wall for this process and the threads that it will start. You must call it
    /// while the process has a single thread.
    #[must_use]
    ///
    /// Drivers can also read the folder of `library`.
    pub fn enforce_walls(
        confinement: Confinement,
        memory_bytes: u64,
        library: Option<&Path>,
    ) -> SandboxPolicy {
        let mut policy = SandboxPolicy::default();
        policy.record_wall("a process of its own", Ok(()));
        policy.record_wall("one thread, and it under the rules", check_single_thread());
        // Any process may volunteer to be the first that the kernel kills when memory runs out.
        let first_to_go = fs::write("/proc/self/oom_score_adj", "1000");
        policy.record_limit(
            "the first to go when memory runs out",
            describe_failure(first_to_go),
        );
        policy.record_wall(
            "no new privileges",
            describe_failure(rustix::thread::set_no_new_privs(true)),
        );
        policy.record_wall("no capabilities", drop_capabilities());
        let hidden = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        policy.record_wall("hidden from other processes", describe_failure(hidden));
        policy.record_wall(
            "limits on files, cores and memory",
            set_kernel_limits(confinement, memory_bytes),
        );
        if confinement == Confinement::Processor {
            policy.record_wall("no file system (Landlock)", close_all_access());
            policy.record_wall("a list of system calls (seccomp)", allow_listed());
        } else {
            policy.record_wall("not the superuser, who owns the system", is_no_superuser());
            policy.record_wall(
                "no files but the system's and its devices (Landlock)",
                shut_but_for_drivers(library),
            );
            policy.record_wall(
                "a list of system calls (seccomp)",
                allow_listed_to_drivers(),
            );
        }
        policy.try_to_leave(confinement);
        policy
    }

    /// Tries each thing that a job must not do.
    fn try_to_leave(&mut self, confinement: Confinement) {
        let kept_in = |tried: bool| match tried {
            true => Err("it was tried and succeeded".to_owned()),
            false => Ok(()),
        };
        // A driver can read the system's files, but not the provider's folder.
        let file = match confinement {
            Confinement::Processor => "/proc/self/status",
            Confinement::Driver => "/etc/passwd",
        };
        let opened = File::open(file).is_ok();
        self.record_wall("tried: reading a file is refused", kept_in(opened));
        let bound = TcpListener::bind(("127.0.0.1", 0)).is_ok();
        self.record_wall("tried: opening a socket is refused", kept_in(bound));
        let started = Command::new("/bin/true").spawn();
        let ran = match started {
            Ok(mut child) => child.wait().is_ok(),
            Err(_) => false,
        };
        self.record_wall("tried: starting a program is refused", kept_in(ran));
    }
}

/// Checks that this thread is the process's only one. A rule applies to a thread and those that it
/// starts, so another thread would stay outside.
///
/// # Errors
/// If there are others; the message says how many.
pub fn check_single_thread() -> Result<(), String> {
    let threads = fs::read_dir("/proc/self/task").map_err(|error| error.to_string())?;
    match threads.count() {
        1 => Ok(()),
        others => Err(format!("a library has started {} of its own", others - 1)),
    }
}

fn describe_failure<T, E: fmt::Display>(done: Result<T, E>) -> Result<(), String> {
    done.map(|_| ()).map_err(|error| error.to_string())
}

/// Drops every capability. Without them even a superuser's process cannot read or kill another one.
fn drop_capabilities() -> Result<(), String> {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    describe_failure(set_capabilities(None, sets))
}

/// Checks that the user is not the superuser, who owns most files whatever the capabilities.
fn is_no_superuser() -> Result<(), String> {
    match rustix::process::geteuid().is_root() {
        true => Err("the provider runs as root: give it a user of its own".to_owned()),
        false => Ok(()),
    }
}

/// Sets the kernel's limits for this process.
fn set_kernel_limits(confinement: Confinement, memory_bytes: u64) -> Result<(), String> {
    let at_most = |resource, most: u64| {
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        setrlimit(resource, limit).map_err(|error| format!("{resource:?}: {error}"))
    };
    at_most(Resource::Core, 0)?;
    match confinement {
        Confinement::Processor => {
            at_most(Resource::Fsize, 0)?;
            at_most(Resource::Nofile, FILES_MAX)?;
            at_most(Resource::Data, memory_bytes.saturating_add(OWN_BYTES))
        }
        // A driver maps the device's memory as its own, so the size of the mappings says nothing
        // about the job, and the device's own limit must do. Memory that the driver shares with its
        // device is an unnamed file.
        Confinement::Driver => {
            at_most(
                Resource::Fsize,
                memory_bytes.saturating_add(DRIVER_SHARED_BYTES),
            )?;
            at_most(Resource::Nofile, DRIVER_FILES_MAX)
        }
    }
}

/// Closes all files, ports and outside processes: Landlock with rules that allow nothing.
fn close_all_access() -> Result<(), String> {
    shut_but(&[], &[])
}

/// Closes all but the files that a driver reads, and the devices.
fn shut_but_for_drivers(library: Option<&Path>) -> Result<(), String> {
    let mut read: Vec<PathBuf> = READ_BY_DRIVERS.iter().map(PathBuf::from).collect();
    read.extend(library.and_then(Path::parent).map(Path::to_owned));
    for told in TELLING_PATHS.iter().filter_map(env::var_os) {
        // The file of a driver stands for the folder of its library.
        read.extend(
            env::split_paths(&told).flat_map(|path| match path.is_dir() {
                true => Some(path),
                false => path.parent().map(Path::to_owned),
            }),
        );
    }
    read.retain(|path| path.is_absolute());
    shut_but(&read, &device_nodes())
}

/// Returns the device nodes of this machine that drivers of processors open.
fn device_nodes() -> Vec<PathBuf> {
    let entries = fs::read_dir(DEVICES).into_iter().flatten().flatten();
    let is_for_drivers = |name: &str| DEVICE_NODES.iter().any(|begin| name.starts_with(begin));
    entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_for_drivers))
        .map(|entry| entry.path())
        .collect()
}

/// Closes all files but those of `read`, and those of `used`, which can be written too.
fn shut_but(read: &[PathBuf], used: &[PathBuf]) -> Result<(), String> {
    let abi = ABI::V6;
    let named = (!used.is_empty()).then_some(OWN_THREADS);
    let written = AccessFs::WriteFile | AccessFs::Truncate;
    let driven = written | AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::IoctlDev;
    let shut = || -> Result<_, RulesetError> {
        Ruleset::default()
            .handle_access(AccessFs::from_all(abi))?
            .handle_access(AccessNet::from_all(abi))?
            .scope(Scope::from_all(abi))?
            .create()?
            .add_rules(path_beneath_rules(read, AccessFs::from_read(abi)))?
            .add_rules(path_beneath_rules(used, driven))?
            .add_rules(path_beneath_rules(named, written))?
            .restrict_self()
    };
    match shut().map_err(|error| error.to_string())?.ruleset {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
        RulesetStatus::NotEnforced => Err("this kernel has no Landlock".to_owned()),
    }
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Refuses every system call that is not in the list.
fn allow_listed() -> Result<(), String> {
    let mut rules = listed_calls()?;
    let runs_nothing = one_rule(2, SeccompCmpOp::MaskedEq(PROT_EXEC), 0)?;
    rules.insert(libc::SYS_mprotect, vec![runs_nothing]);
    rules.insert(libc::SYS_mmap, mapping_rules()?);
    rules.insert(libc::SYS_prctl, any_of(0, &[PR_SET_NAME])?);
    let controls = FILE_CONTROLS.map(|control| control as u64);
    rules.insert(libc::SYS_fcntl, any_of(1, &controls)?);
    install_list(rules)
}

/// Refuses every system call that neither a sandbox nor its driver needs. A driver can run code
/// that it compiled.
fn allow_listed_to_drivers() -> Result<(), String> {
    let mut rules = listed_calls()?;
    rules.extend(ALLOWED_TO_DRIVERS.map(|call| (call, Vec::new())));
    #[cfg(target_arch = "x86_64")]
    rules.extend(OLDER_FORMS.map(|call| (call, Vec::new())));
    rules.insert(libc::SYS_prctl, any_of(0, &DRIVER_CONTROLS)?);
    let controls = [&FILE_CONTROLS[..], &DRIVER_FILE_CONTROLS].concat();
    let controls: Vec<u64> = controls.iter().map(|control| *control as u64).collect();
    rules.insert(libc::SYS_fcntl, any_of(1, &controls)?);
    install_list(rules)
}

/// Returns the calls that every sandbox may make, with the arguments that matter.
fn listed_calls() -> Result<Rules, String> {
    let mut rules: Rules = ALLOWED.map(|call| (call, Vec::new())).into();
    let own = u64::from(std::process::id());
    // A separate process would outlive the lease.
    let thread = one_rule(0, SeccompCmpOp::MaskedEq(CLONE_THREAD), CLONE_THREAD)?;
    rules.insert(libc::SYS_clone, vec![thread]);
    // An abort is a signal to the process itself.
    rules.insert(libc::SYS_tgkill, any_of(0, &[own])?);
    #[cfg(target_arch = "x86_64")]
    rules.insert(libc::SYS_poll, Vec::new());
    Ok(rules)
}

/// Returns rules that match if an argument is one of the values.
fn any_of(argument: u8, values: &[u64]) -> Result<Vec<SeccompRule>, String> {
    let rules = values
        .iter()
        .map(|value| one_rule(argument, SeccompCmpOp::Eq, *value));
    rules.collect()
}

fn install_list(rules: Rules) -> Result<(), String> {
    // This comes first, because the list forbids further filters.
    without_clone3()?;
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    install_filter(rules, refused, SeccompAction::Allow)
}

/// Disables `clone3`, whose flags lie in memory where a filter cannot read them; the C library
/// falls back on `clone`.
fn without_clone3() -> Result<(), String> {
    let unknown = SeccompAction::Errno(libc::ENOSYS as u32);
    let clone3 = Rules::from([(libc::SYS_clone3, Vec::new())]);
    install_filter(clone3, SeccompAction::Allow, unknown)
}

/// Returns rules for mappings that are not executable: of the provider's files, and of the
/// process's private memory. A shared mapping without a file has no owner, so the rules exclude it.
fn mapping_rules() -> Result<Vec<SeccompRule>, String> {
    let of_file = new_condition(3, SeccompCmpOp::MaskedEq(ANONYMOUS), 0)?;
    let own = new_condition(3, SeccompCmpOp::MaskedEq(SHARED_ANONYMOUS), ANONYMOUS)?;
    [of_file, own]
        .into_iter()
        .map(|kind| {
            let runs_nothing = new_condition(2, SeccompCmpOp::MaskedEq(PROT_EXEC), 0)?;
            SeccompRule::new(vec![runs_nothing, kind]).map_err(|error| error.to_string())
        })
        .collect()
}

fn one_rule(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompRule, String> {
    let only = vec![new_condition(argument, operator, value)?];
    SeccompRule::new(only).map_err(|error| error.to_string())
}

fn new_condition(
    argument: u8,
    operator: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, String> {
    let length = SeccompCmpArgLen::Dword;
    let condition = SeccompCondition::new(argument, length, operator, value);
    condition.map_err(|error| error.to_string())
}

fn install_filter(
    rules: Rules,
    otherwise: SeccompAction,
    on_match: SeccompAction,
) -> Result<(), String> {
    let arch = TargetArch::try_from(env::consts::ARCH).map_err(|error| error.to_string())?;
    let filter = SeccompFilter::new(rules, otherwise, on_match, arch);
    let filter = filter.map_err(|error| error.to_string())?;
    let program = BpfProgram::try_from(filter).map_err(|error| error.to_string())?;
    apply_filter(&program).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::thread;

    use rustix::net::{AddressFamily, SocketType, socket};
    use rustix::process::{Pid, test_kill_process};

    use super::*;

    /// Rules are a thread's: what this one loses, the others of the test keep.
    fn behind(rules: impl FnOnce() -> Result<(), String> + Send, tried: impl FnOnce() + Send) {
        thread::scope(|scope| {
            scope.spawn(|| {
                rustix::thread::set_no_new_privs(true).unwrap();
                rules().unwrap();
                tried();
            });
        });
    }

    #[test]
    fn a_driver_starts_no_process_and_ends_none() {
        behind(allow_listed_to_drivers, || {
            let other = Pid::from_raw(1).unwrap();
            assert_eq!(test_kill_process(other), Err(rustix::io::Errno::PERM));
            let own = rustix::process::getpid();
            assert_eq!(test_kill_process(own), Err(rustix::io::Errno::PERM));
            assert!(Command::new("/bin/true").spawn().is_err());
            // It has threads as it likes.
            assert_eq!(thread::spawn(|| 7).join().unwrap(), 7);
        });
    }

    #[test]
    fn a_driver_opens_no_socket_of_any_kind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("service");
        let _service = UnixListener::bind(&path).unwrap();
        behind(allow_listed_to_drivers, || {
            assert!(TcpListener::bind(("127.0.0.1", 0)).is_err());
            assert!(UnixStream::connect(&path).is_err());
            for family in 0..=libc::AF_VSOCK + 8 {
                let family = AddressFamily::from_raw(family as u16);
                let opened = socket(family, SocketType::STREAM, None);
                assert_eq!(opened.unwrap_err(), rustix::io::Errno::PERM);
            }
            assert!(UnixStream::pair().is_err());
        });
    }

    #[test]
    fn a_process_without_capabilities_has_none() {
        behind(drop_capabilities, || {
            let left = rustix::thread::capabilities(None).unwrap();
            assert!(left.effective.is_empty() && left.permitted.is_empty());
        });
    }

    #[test]
    fn a_driver_reads_the_system_and_nobodys_files() {
        let home = tempfile::tempdir().unwrap();
        let key = home.path().join("key");
        fs::write(&key, "secret").unwrap();
        let library = tempfile::tempdir().unwrap();
        let beside = library.path().join("plugin.so");
        fs::write(&beside, "code").unwrap();
        let named = library.path().join("library.so");
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero();
        behind(
            || shut_but_for_drivers(Some(&named)),
            || {
                assert!(fs::read_dir("/usr").is_ok() && fs::read("/proc/self/maps").is_ok());
                assert!(fs::read(&beside).is_ok() && fs::write("/dev/null", "gone").is_ok());
                let other = format!("/proc/{parent}/cmdline");
                for closed in [key.as_path(), Path::new("/etc/passwd"), Path::new(&other)] {
                    assert!(fs::read(closed).is_err(), "{}", closed.display());
                }
                assert!(fs::read_dir("/proc").is_err() && fs::read_dir("/dev").is_err());
                assert!(fs::write("/dev/shm/souk-left-behind", "kept").is_err());
                assert!(fs::write(&beside, "other code").is_err());
                let own = rustix::thread::gettid().as_raw_nonzero();
                assert!(fs::write(format!("/proc/self/task/{own}/comm"), "named").is_ok());
                assert!(fs::write("/proc/self/comm", "other").is_err());
            },
        );
    }

    #[test]
    fn a_job_of_the_processor_keeps_its_threads_and_loses_the_rest() {
        behind(allow_listed, || {
            assert_eq!(
                thread::spawn(|| vec![7_u8; 1 << 20].len()).join().unwrap(),
                1 << 20
            );
            assert!(fs::read("/proc/self/maps").is_err());
            assert!(Command::new("/bin/true").spawn().is_err());
        });
    }
}
