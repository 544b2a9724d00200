//! What keeps a job in: limits, a list of system calls, no files, no network.
//!
//! Each rule is put up where the kernel has it, and what could not be put up is told with the
//! reason. Then a sandbox tries to get out: what it says of itself is what it tried, not what it
//! meant. A GPU's driver needs files and system calls that nobody lists, so a sandbox with one
//! reads what a system is made of, keeps the devices, and loses the network and everybody's files.

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
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter, sock_filter,
};

use super::SandboxPolicy;

/// Memory of the process itself beside what a job may use: stacks, the allocator, the program.
const OWN_BYTES: u64 = 256 << 20;

/// Descriptors: the channel, standard error and memory on its way in.
const FILES_MAX: u64 = 256;

/// A driver opens many.
const DRIVER_FILES_MAX: u64 = 4096;

/// Threads of one process share these flags; what is started without is another process.
const CLONE_THREAD: u64 = 0x0001_0000;

/// A mapping that may be executed.
const PROT_EXEC: u64 = 4;

/// Sets the name of a thread.
const PR_SET_NAME: u64 = 15;

/// Bits of a mapping's flags: others see it; no file is behind it.
const SHARED_ANONYMOUS: u64 = 0x21;
const ANONYMOUS: u64 = 0x20;

/// What may be done to a descriptor: not, above all, to have signals sent for it.
const FILE_CONTROLS: [i32; 6] = [
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_GET_SEALS,
];

/// What a driver may not do either: reach another machine, start a program, look into another
/// process or end it, take another way to the same calls, change what the machine is.
const REFUSED_TO_DRIVERS: [i64; 32] = [
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_perf_event_open,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_open_by_handle_at,
];

/// From this number on a call is one of another kind of program (x32), which means the same and
/// which no list names.
#[cfg(target_arch = "x86_64")]
const OTHER_KIND: u32 = 0x4000_0000;

/// What a system is made of, which drivers read: libraries, their settings, what devices there are.
const READ_BY_DRIVERS: [&str; 22] = [
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
    "/proc",
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

/// Where drivers talk to their devices.
const DEVICES: &str = "/dev";

/// Where a driver names its threads: CUDA's does not start without.
const OWN_THREADS: &str = "/proc/self/task";

/// By what a driver is told of more folders.
const TELLING_PATHS: [&str; 5] = [
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
    "VK_ADD_DRIVER_FILES",
    "LD_LIBRARY_PATH",
    "OCL_ICD_VENDORS",
];

/// Families of sockets that lead out of the machine.
const FAMILIES_OUT: [i32; 4] = [
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
    libc::AF_PACKET,
];

/// What a job's process may ask of the kernel: memory, threads, time, and its channel.
const ALLOWED: [i64; 48] = [
    libc::SYS_brk,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    // Answered by another filter, so that the C library takes the older call.
    libc::SYS_clone3,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getcpu,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getrusage,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_statx,
    libc::SYS_uname,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_set_tid_address,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
];

/// What a sandbox computes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confinement {
    /// The CPU alone, which needs nothing of the machine.
    Processor,
    /// A device with a driver, which needs files and system calls of its own.
    Driver,
}

impl SandboxPolicy {
    /// Puts up everything there is for this process and the threads it will start. Called before
    /// it has any.
    #[must_use]
    ///
    /// Drivers read what lies beside `library`, too.
    pub fn enforce(
        confinement: Confinement,
        memory_bytes: u64,
        library: Option<&Path>,
    ) -> SandboxPolicy {
        let mut policy = SandboxPolicy::default();
        policy.wall("a process of its own", Ok(()));
        policy.wall("one thread, and it under the rules", alone());
        // Anybody may ask to be the first whom the kernel ends when memory runs out.
        let first_to_go = fs::write("/proc/self/oom_score_adj", "1000");
        policy.note("the first to go when memory runs out", told(first_to_go));
        policy.wall(
            "no new privileges",
            told(rustix::thread::set_no_new_privs(true)),
        );
        let hidden = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        policy.wall("hidden from other processes", told(hidden));
        policy.wall(
            "limits on files, cores and memory",
            limit(confinement, memory_bytes),
        );
        if confinement == Confinement::Processor {
            policy.wall("no file system (Landlock)", shut());
            policy.wall("a list of system calls (seccomp)", allow_listed());
        } else {
            policy.wall(
                "no files but the system's and its devices (Landlock)",
                shut_but_for_drivers(library),
            );
            policy.wall("no network, no programs (seccomp)", refuse_to_drivers());
        }
        policy.try_to_leave(confinement);
        policy
    }

    /// Tries what a job must not do.
    fn try_to_leave(&mut self, confinement: Confinement) {
        let kept_in = |tried: bool| match tried {
            true => Err("it was tried and succeeded".to_owned()),
            false => Ok(()),
        };
        // What a driver may read too is the system's; the provider's own folder is not.
        let file = match confinement {
            Confinement::Processor => "/proc/self/status",
            Confinement::Driver => "/etc/passwd",
        };
        let opened = File::open(file).is_ok();
        self.wall("tried: reading a file is refused", kept_in(opened));
        let bound = TcpListener::bind(("127.0.0.1", 0)).is_ok();
        self.wall("tried: opening a socket is refused", kept_in(bound));
        let started = Command::new("/bin/true").spawn();
        let ran = match started {
            Ok(mut child) => child.wait().is_ok(),
            Err(_) => false,
        };
        self.wall("tried: starting a program is refused", kept_in(ran));
    }
}

/// Whether this thread is the process's only one. Rules are a thread's and those it starts: another
/// one would stand outside.
///
/// # Errors
/// How many others there are.
pub fn alone() -> Result<(), String> {
    let threads = fs::read_dir("/proc/self/task").map_err(|error| error.to_string())?;
    match threads.count() {
        1 => Ok(()),
        others => Err(format!("a library has started {} of its own", others - 1)),
    }
}

fn told<T, E: fmt::Display>(done: Result<T, E>) -> Result<(), String> {
    done.map(|_| ()).map_err(|error| error.to_string())
}

/// Limits that the kernel holds a process to.
fn limit(confinement: Confinement, memory_bytes: u64) -> Result<(), String> {
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
        // A driver maps the device's memory as its own: what that comes to says nothing of the
        // job, so the device's own limit has to do.
        Confinement::Driver => at_most(Resource::Nofile, DRIVER_FILES_MAX),
    }
}

/// No file, no port, no process outside: Landlock with rules that allow nothing.
fn shut() -> Result<(), String> {
    shut_but(&[], None)
}

/// The same but for what a driver reads, and the devices.
fn shut_but_for_drivers(library: Option<&Path>) -> Result<(), String> {
    let mut read: Vec<PathBuf> = READ_BY_DRIVERS.iter().map(PathBuf::from).collect();
    read.extend(library.and_then(Path::parent).map(Path::to_owned));
    for told in TELLING_PATHS.iter().filter_map(env::var_os) {
        // A driver's file stands for the folder that its library lies in.
        read.extend(
            env::split_paths(&told).flat_map(|path| match path.is_dir() {
                true => Some(path),
                false => path.parent().map(Path::to_owned),
            }),
        );
    }
    read.retain(|path| path.is_absolute());
    shut_but(&read, Some(Path::new(DEVICES)))
}

fn shut_but(read: &[PathBuf], used: Option<&Path>) -> Result<(), String> {
    let abi = ABI::V6;
    let named = used.map(|_| OWN_THREADS);
    let written = AccessFs::WriteFile | AccessFs::Truncate;
    let shut = || -> Result<_, RulesetError> {
        Ruleset::default()
            .handle_access(AccessFs::from_all(abi))?
            .handle_access(AccessNet::from_all(abi))?
            .scope(Scope::from_all(abi))?
            .create()?
            .add_rules(path_beneath_rules(read, AccessFs::from_read(abi)))?
            .add_rules(path_beneath_rules(used, AccessFs::from_all(abi)))?
            .add_rules(path_beneath_rules(named, written))?
            .restrict_self()
    };
    match shut().map_err(|error| error.to_string())?.ruleset {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
        RulesetStatus::NotEnforced => Err("this kernel has no Landlock".to_owned()),
    }
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Every system call is refused but those of the list.
fn allow_listed() -> Result<(), String> {
    let mut rules: Rules = ALLOWED.map(|call| (call, Vec::new())).into();
    let own = u64::from(std::process::id());
    let when = |argument, operator, value| one_rule(argument, operator, value);
    let conditions = [
        (
            libc::SYS_clone,
            when(0, SeccompCmpOp::MaskedEq(CLONE_THREAD), CLONE_THREAD)?,
        ),
        (
            libc::SYS_mprotect,
            when(2, SeccompCmpOp::MaskedEq(PROT_EXEC), 0)?,
        ),
        (libc::SYS_prctl, when(0, SeccompCmpOp::Eq, PR_SET_NAME)?),
        // An abort is a signal to oneself.
        (libc::SYS_tgkill, when(0, SeccompCmpOp::Eq, own)?),
    ];
    rules.extend(conditions.map(|(call, rule)| (call, vec![rule])));
    rules.insert(libc::SYS_mmap, mappings()?);
    let controls = FILE_CONTROLS.map(|control| when(1, SeccompCmpOp::Eq, control as u64));
    rules.insert(
        libc::SYS_fcntl,
        controls.into_iter().collect::<Result<_, _>>()?,
    );
    #[cfg(target_arch = "x86_64")]
    rules.insert(libc::SYS_poll, Vec::new());
    // First, since the list refuses to add to the filters.
    without_clone3()?;
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    install(rules, refused, SeccompAction::Allow)
}

/// Its flags lie in memory where a filter cannot read them; the C library falls back on `clone`.
fn without_clone3() -> Result<(), String> {
    let unknown = SeccompAction::Errno(libc::ENOSYS as u32);
    let clone3 = Rules::from([(libc::SYS_clone3, Vec::new())]);
    install(clone3, SeccompAction::Allow, unknown)
}

/// Mappings that run nothing: of files, which come from the provider, and of memory that counts as
/// this process's own. What is shared and has no file behind it counts as nobody's.
fn mappings() -> Result<Vec<SeccompRule>, String> {
    let of_file = condition(3, SeccompCmpOp::MaskedEq(ANONYMOUS), 0)?;
    let own = condition(3, SeccompCmpOp::MaskedEq(SHARED_ANONYMOUS), ANONYMOUS)?;
    [of_file, own]
        .into_iter()
        .map(|kind| {
            let runs_nothing = condition(2, SeccompCmpOp::MaskedEq(PROT_EXEC), 0)?;
            SeccompRule::new(vec![runs_nothing, kind]).map_err(|error| error.to_string())
        })
        .collect()
}

fn refuse_to_drivers() -> Result<(), String> {
    let mut rules: Rules = REFUSED_TO_DRIVERS.map(|call| (call, Vec::new())).into();
    let families = FAMILIES_OUT.map(|family| one_rule(0, SeccompCmpOp::Eq, family as u64));
    let families = families.into_iter().collect::<Result<_, _>>()?;
    rules.insert(libc::SYS_socket, families);
    // A process of its own would outlive the lease.
    let process = one_rule(0, SeccompCmpOp::MaskedEq(CLONE_THREAD), 0)?;
    rules.insert(libc::SYS_clone, vec![process]);
    let own = u64::from(std::process::id());
    rules.insert(libc::SYS_tgkill, vec![one_rule(0, SeccompCmpOp::Ne, own)?]);
    #[cfg(target_arch = "x86_64")]
    {
        rules.extend([libc::SYS_fork, libc::SYS_vfork].map(|call| (call, Vec::new())));
        apply_filter(&without_another_kind()).map_err(|error| error.to_string())?;
    }
    without_clone3()?;
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    install(rules, SeccompAction::Allow, refused)
}

/// Refuses every call whose number is that of another kind of program. Rules of the library name
/// single numbers.
#[cfg(target_arch = "x86_64")]
fn without_another_kind() -> [sock_filter; 4] {
    let word = |code: u32, jt, jf, k| sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    [
        // The number is the first word of what a filter is given.
        word(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        word(
            libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K,
            0,
            1,
            OTHER_KIND,
        ),
        word(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        ),
        word(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

fn one_rule(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompRule, String> {
    let only = vec![condition(argument, operator, value)?];
    SeccompRule::new(only).map_err(|error| error.to_string())
}

fn condition(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompCondition, String> {
    let length = SeccompCmpArgLen::Dword;
    let condition = SeccompCondition::new(argument, length, operator, value);
    condition.map_err(|error| error.to_string())
}

fn install(rules: Rules, otherwise: SeccompAction, on_match: SeccompAction) -> Result<(), String> {
    let arch = TargetArch::try_from(env::consts::ARCH).map_err(|error| error.to_string())?;
    let filter = SeccompFilter::new(rules, otherwise, on_match, arch);
    let filter = filter.map_err(|error| error.to_string())?;
    let program = BpfProgram::try_from(filter).map_err(|error| error.to_string())?;
    apply_filter(&program).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::thread;

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
        behind(refuse_to_drivers, || {
            let other = Pid::from_raw(1).unwrap();
            assert_eq!(test_kill_process(other), Err(rustix::io::Errno::PERM));
            let own = rustix::process::getpid();
            assert_eq!(test_kill_process(own), Err(rustix::io::Errno::PERM));
            assert!(Command::new("/bin/true").spawn().is_err());
            assert!(TcpListener::bind(("127.0.0.1", 0)).is_err());
            // It has threads as it likes.
            assert_eq!(thread::spawn(|| 7).join().unwrap(), 7);
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
        behind(
            || shut_but_for_drivers(Some(&named)),
            || {
                assert!(fs::read_dir("/usr").is_ok() && fs::read("/proc/self/maps").is_ok());
                assert!(fs::read(&beside).is_ok() && fs::read("/dev/null").is_ok());
                for closed in [key.as_path(), Path::new("/etc/passwd")] {
                    assert!(fs::read(closed).is_err(), "{}", closed.display());
                }
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
