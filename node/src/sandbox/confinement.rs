//! What keeps a job in: limits, a list of system calls, no files, no network.
//!
//! Each rule is put up where the kernel has it, and what could not be put up is told with the
//! reason. Then a sandbox tries to get out: what it says of itself is what it tried, not what it
//! meant. A GPU's driver needs files and system calls that nobody lists, so a sandbox with one
//! keeps the file system and loses the network.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::net::TcpListener;
use std::process::Command;

use landlock::{
    ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
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

/// What a driver may not do either: reach another machine, start a program, look into another
/// process.
const REFUSED_TO_DRIVERS: [i64; 6] = [
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_bpf,
];

/// Families of sockets that lead out of the machine.
const FAMILIES_OUT: [i32; 4] = [
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
    libc::AF_PACKET,
];

/// What a job's process may ask of the kernel: memory, threads, time, and its channel.
const ALLOWED: [i64; 49] = [
    libc::SYS_brk,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    // Answered by another filter, so that the C library takes the older call.
    libc::SYS_clone3,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fcntl,
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
    pub fn enforce(confinement: Confinement, memory_bytes: u64) -> SandboxPolicy {
        let mut policy = SandboxPolicy::default();
        policy.note("a process of its own", Ok(()));
        policy.note("one thread, and it under the rules", alone());
        // Anybody may ask to be the first whom the kernel ends when memory runs out.
        let first_to_go = fs::write("/proc/self/oom_score_adj", "1000");
        policy.note("the first to go when memory runs out", told(first_to_go));
        policy.note(
            "no new privileges",
            told(rustix::thread::set_no_new_privs(true)),
        );
        let hidden = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        policy.note("hidden from other processes", told(hidden));
        policy.note(
            "limits on files, cores and memory",
            limit(confinement, memory_bytes),
        );
        if confinement == Confinement::Processor {
            policy.note("no file system (Landlock)", shut());
            policy.note("a list of system calls (seccomp)", allow_listed());
        } else {
            policy.leave_out("no file system", "a device's driver needs files");
            policy.note("no network, no programs (seccomp)", refuse_to_drivers());
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
        if confinement == Confinement::Processor {
            let opened = File::open("/proc/self/status").is_ok();
            self.note("tried: reading a file is refused", kept_in(opened));
        }
        let bound = TcpListener::bind(("127.0.0.1", 0)).is_ok();
        self.note("tried: opening a socket is refused", kept_in(bound));
        let started = Command::new("/bin/true").spawn();
        let ran = match started {
            Ok(mut child) => child.wait().is_ok(),
            Err(_) => false,
        };
        self.note("tried: starting a program is refused", kept_in(ran));
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
    let abi = ABI::V6;
    let shut = || -> Result<_, RulesetError> {
        Ruleset::default()
            .handle_access(AccessFs::from_all(abi))?
            .handle_access(AccessNet::from_all(abi))?
            .scope(Scope::from_all(abi))?
            .create()?
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
            libc::SYS_mmap,
            when(2, SeccompCmpOp::MaskedEq(PROT_EXEC), 0)?,
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
    #[cfg(target_arch = "x86_64")]
    rules.insert(libc::SYS_poll, Vec::new());
    // Its flags lie in memory where a filter cannot read them; the C library falls back on `clone`.
    // First, since the list refuses to add to the filters.
    let unknown = SeccompAction::Errno(libc::ENOSYS as u32);
    let clone3 = Rules::from([(libc::SYS_clone3, Vec::new())]);
    install(clone3, SeccompAction::Allow, unknown)?;
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    install(rules, refused, SeccompAction::Allow)
}

fn refuse_to_drivers() -> Result<(), String> {
    let mut rules: Rules = REFUSED_TO_DRIVERS.map(|call| (call, Vec::new())).into();
    let families = FAMILIES_OUT.map(|family| one_rule(0, SeccompCmpOp::Eq, family as u64));
    let families = families.into_iter().collect::<Result<_, _>>()?;
    rules.insert(libc::SYS_socket, families);
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    install(rules, SeccompAction::Allow, refused)
}

fn one_rule(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompRule, String> {
    let length = SeccompCmpArgLen::Dword;
    let condition = SeccompCondition::new(argument, length, operator, value);
    let rule = condition.and_then(|condition| SeccompRule::new(vec![condition]));
    rule.map_err(|error| error.to_string())
}

fn install(rules: Rules, otherwise: SeccompAction, on_match: SeccompAction) -> Result<(), String> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
    let filter = SeccompFilter::new(rules, otherwise, on_match, arch);
    let filter = filter.map_err(|error| error.to_string())?;
    let program = BpfProgram::try_from(filter).map_err(|error| error.to_string())?;
    apply_filter(&program).map_err(|error| error.to_string())
}
