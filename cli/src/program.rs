//! Finds the executables that a command starts as new processes: the running program itself, and
//! `souk`, which must lie in the same folder as `souk-lab`.

use std::path::{Path, PathBuf};

use crate::failure::{Failure, Kind};

/// Returns the path of this program.
///
/// # Errors
/// Fails if the system does not report it.
pub fn program_path() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| {
        let cause = format!("cannot tell where this program is: {error}");
        Failure::new(Kind::Unexpected, cause, "")
    })
}

/// Returns the path of `souk`, which runs nodes and probes: this program or, if this is `souk-lab`,
/// the one next to it.
///
/// # Errors
/// Fails as [`program_path`].
pub fn souk_path() -> Result<PathBuf, Failure> {
    program_path().map(|program| souk_of(&program))
}

fn souk_of(program: &Path) -> PathBuf {
    match program.file_stem().is_some_and(|stem| stem == "souk-lab") {
        true => program.with_file_name(format!("souk{}", std::env::consts::EXE_SUFFIX)),
        false => program.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn souk_lab_finds_souk_beside_it_and_souk_finds_itself() {
        let souk = format!("souk{}", std::env::consts::EXE_SUFFIX);
        assert_eq!(
            souk_of(Path::new("bin/souk-lab")),
            Path::new("bin").join(souk)
        );
        let other = Path::new("bin/souk-0.1");
        assert_eq!(souk_of(other), other);
    }
}
