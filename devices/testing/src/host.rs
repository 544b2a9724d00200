//! Runs translated GPU kernels on this machine's CPU, so that tests need no card. The system's C++
//! compiler compiles each kernel with `host.cpp`, which simulates the card.

#![expect(unsafe_code, reason = "compiled kernels are called with addresses")]

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use libloading::{Library, Symbol};
use souk_memory::ContentId;

const HOST: &str = include_str!("host.cpp");

/// Returns whether the system has a C++ compiler. Only the first call starts it: a property test
/// asks this for each of its cases.
pub fn has_compiler() -> bool {
    compiler_version().is_some()
}

/// Returns what the system's C++ compiler says of its version, if there is one.
fn compiler_version() -> Option<&'static str> {
    static FOUND: OnceLock<Option<String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let version = Command::new("c++").arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&version.stdout).into_owned();
        version.status.success().then_some(text)
    });
    found.as_deref()
}

/// The compiler's options. Without C++'s own headers and library, three kernels are compiled in the
/// time of one.
const OPTIONS: [&str; 7] = [
    "-std=c++17",
    "-O1",
    "-w",
    "-shared",
    "-fPIC",
    "-nostdinc++",
    "-nodefaultlibs",
];

/// A kernel compiled for the CPU.
pub struct HostKernel {
    library: Library,
    threads: [u32; 3],
    bindings: Vec<usize>,
}

#[repr(C)]
struct Dim3 {
    x: u32,
    y: u32,
    z: u32,
}

type Entry = unsafe extern "C" fn(*const *mut c_void, *const u32, Dim3, Dim3);

impl HostKernel {
    /// Compiles a kernel, or takes it from an earlier test that compiled the same source: the
    /// compiler takes longer than the tests themselves.
    pub fn compile(kernel: &str, threads: [u32; 3], bindings: Vec<usize>) -> Self {
        let waits = kernel.contains("__syncthreads");
        let text = HOST.replace("SOUK_KERNEL", kernel);
        let folder = kernel_folder();
        let compiler = compiler_version().unwrap_or_default();
        let all = format!("{compiler}{OPTIONS:?}{waits}{text}");
        let name = ContentId::for_content(all.as_bytes());
        let library = folder.join(format!("{name}.so"));
        if !library.exists() {
            compile_library(&text, waits, &folder, &library);
        }
        Self {
            library: open_library(&library),
            threads,
            bindings,
        }
    }

    /// Runs it on arrays of 32-bit words, by binding.
    pub fn launch(&self, arrays: &[(*mut c_void, u32)], groups: [u32; 3]) {
        let bound = self.bindings.iter().map(|&binding| arrays[binding]);
        let (addresses, lengths): (Vec<*mut c_void>, Vec<u32>) = bound.unzip();
        let place = |[x, y, z]: [u32; 3]| Dim3 { x, y, z };
        // SAFETY: the symbol is that of `host.cpp`, which has this type; the arrays are the
        // kernel's, in its order, and it stays within their lengths.
        unsafe {
            let entry: Symbol<'_, Entry> = self
                .library
                .get(b"souk_host")
                .expect("a test is built from what holds");
            let (grid, block) = (place(groups), place(self.threads));
            entry(addresses.as_ptr(), lengths.as_ptr(), grid, block);
        }
    }
}

/// Returns the folder of compiled kernels, next to the folder of the tests' programs.
fn kernel_folder() -> PathBuf {
    let program = std::env::current_exe().expect("a test has a program");
    let deps = program.parent().expect("a program lies in a folder");
    let folder = deps.with_file_name("host-kernels");
    std::fs::create_dir_all(&folder).expect("tests may write where they were built");
    folder
}

/// Compiles the source of a library, and puts it into its place at once: other tests may look for
/// it meanwhile.
fn compile_library(text: &str, waits: bool, folder: &Path, library: &Path) {
    let scratch = tempfile::tempdir_in(folder).expect("a test is built from what holds");
    let (source, made) = (scratch.path().join("k.cpp"), scratch.path().join("k.so"));
    std::fs::write(&source, text).expect("a test is built from what holds");
    let mut compiler = Command::new("c++");
    compiler.args(OPTIONS);
    compiler.arg(format!("-DSOUK_WAITS={waits}"));
    let ended = compiler
        .arg("-o")
        .arg(&made)
        .arg(&source)
        .args(["-lm", "-lc"])
        .output();
    let ended = ended.expect("a test is built from what holds");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}\n{text}");
    std::fs::rename(&made, library).expect("a test is built from what holds");
}

/// Opens a copy of a library, because a compiled kernel has variables of its own: tests that use
/// the same kernel side by side must not share them.
fn open_library(compiled: &Path) -> Library {
    let folder = tempfile::tempdir().expect("a test is built from what holds");
    let path = folder.path().join("k.so");
    std::fs::copy(compiled, &path).expect("a test is built from what holds");
    // SAFETY: the library was just compiled here and does nothing when it is opened.
    unsafe { Library::new(&path) }.expect("a test is built from what holds")
}
