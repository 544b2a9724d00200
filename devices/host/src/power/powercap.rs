//! Reads the energy counters of the CPU's packages, and reads and changes their power limits, in
//! the folders in which Linux shows them (powercap, by RAPL).

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::{Limit, POWERCAP, PowerDomain, PowerError, check_range};

/// Numbers that a package's limits can have.
const CONSTRAINTS: Range<u32> = 0..4;

/// The energy counters of the processor packages, where they can be read.
#[derive(Debug)]
pub struct Meter {
    packages: Vec<Package>,
}

/// One package.
#[derive(Debug)]
pub(super) struct Package {
    folder: PathBuf,
    name: String,
    title: String,
    /// Microjoules at which the counter begins anew; `None` where that is not said.
    range: Option<u64>,
    counted: Mutex<CounterReading>,
}

/// The readings of a counter.
#[derive(Clone, Copy, Debug, Default)]
struct CounterReading {
    last: u64,
    /// Microjoules of the times it began anew.
    before: u64,
}

impl Meter {
    /// The counters of this machine; `None` where there are none or this process cannot read them.
    #[must_use]
    pub fn for_machine() -> Option<Self> {
        Self::find_in(Path::new(POWERCAP))
    }

    /// The counters that a folder shows as Linux does in `/sys/class/powercap`.
    #[must_use]
    pub fn find_in(folder: &Path) -> Option<Self> {
        let mut packages = list_packages(folder);
        packages.retain(|package| package.energy_joules().is_some());
        (!packages.is_empty()).then_some(Self { packages })
    }

    /// Joules counted by all packages since an unknown start. You must read them at least once
    /// before a counter begins anew twice, or a range of it will be missing.
    #[must_use]
    pub fn energy_joules(&self) -> Option<f64> {
        self.packages.iter().map(Package::energy_joules).sum()
    }
}

/// Returns the packages in a folder of powercap, by name.
pub(super) fn list_packages(folder: &Path) -> Vec<Package> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let entries = entries.filter_map(Result::ok).map(|entry| entry.path());
    let mut packages: Vec<Package> = entries.filter_map(Package::open_zone).collect();
    packages.sort_by(|one, other| one.name.cmp(&other.name));
    packages
}

impl Package {
    /// A zone that is a whole package (`intel-rapl:0`), not a part of one (`intel-rapl:0:0`).
    fn open_zone(folder: PathBuf) -> Option<Self> {
        let name = folder.file_name()?.to_str()?.to_owned();
        if !name.starts_with("intel-rapl:") || name.matches(':').count() != 1 {
            return None;
        }
        let title = fs::read_to_string(folder.join("name")).unwrap_or_default();
        Some(Self {
            title: title.trim().to_owned(),
            range: read_number(&folder.join("max_energy_range_uj")),
            name,
            folder,
            counted: Mutex::default(),
        })
    }

    /// The number of the constraint over seconds: that over milliseconds is for the power supply.
    fn find_constraint(&self) -> Option<u32> {
        CONSTRAINTS.clone().find(|number| {
            let name = self.folder.join(format!("constraint_{number}_name"));
            fs::read_to_string(name).is_ok_and(|name| name.trim() == "long_term")
        })
    }

    fn limit_file(&self) -> Result<PathBuf, PowerError> {
        let number = self
            .find_constraint()
            .ok_or_else(|| PowerError::Unlimited {
                domain: self.name.clone(),
            })?;
        Ok(self
            .folder
            .join(format!("constraint_{number}_power_limit_uw")))
    }

    /// Returns the highest limit that the maker states or that is in force. The BIOS often sets
    /// limits above the maker's, and the limit over milliseconds is at least the one over seconds.
    fn highest_limit(&self, number: u32) -> Option<u64> {
        let read = |name: String| read_number(&self.folder.join(name));
        // Some systems say 0 where they do not know.
        let stated = read(format!("constraint_{number}_max_power_uw")).filter(|most| *most > 0)?;
        let in_force = CONSTRAINTS.filter_map(|it| read(format!("constraint_{it}_power_limit_uw")));
        Some(in_force.fold(stated, u64::max))
    }

    fn write_limit(&self, watts: f64) -> Result<(), PowerError> {
        let file = self.limit_file()?;
        fs::write(&file, format!("{:.0}", watts * 1e6))
            .map_err(|cause| self.refusal_error(&file, &cause))
    }

    fn refusal_error(&self, file: &Path, cause: &std::io::Error) -> PowerError {
        PowerError::Refused {
            domain: self.name.clone(),
            cause: format!("{}: {cause}; it takes root", file.display()),
        }
    }
}

impl PowerDomain for Package {
    fn name(&self) -> &str {
        &self.name
    }

    fn title(&self) -> &str {
        &self.title
    }

    fn energy_joules(&self) -> Option<f64> {
        let now = read_number(&self.folder.join("energy_uj"))?;
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if now < counted.last {
            counted.before += self.range?;
        }
        counted.last = now;
        Some((counted.before + now) as f64 / 1e6)
    }

    fn power_limit(&self) -> Result<Limit, PowerError> {
        let file = self.limit_file()?;
        let text = fs::read_to_string(&file).map_err(|cause| self.refusal_error(&file, &cause))?;
        let number: Option<u64> = text.trim().parse().ok();
        let watts = number.ok_or_else(|| PowerError::Unlimited {
            domain: self.name.clone(),
        })?;
        let most = self.find_constraint().and_then(|it| self.highest_limit(it));
        Ok(Limit {
            watts: watts as f64 / 1e6,
            watts_min: None,
            watts_max: most.map(|most| most as f64 / 1e6),
        })
    }

    fn set_limit(&self, watts: f64) -> Result<(), PowerError> {
        check_range(&self.name, watts, &self.power_limit()?)?;
        self.write_limit(watts)
    }

    fn restore_limit(&self, watts: f64) -> Result<(), PowerError> {
        let unbounded = Limit {
            watts_max: None,
            ..self.power_limit()?
        };
        check_range(&self.name, watts, &unbounded)?;
        self.write_limit(watts)
    }
}

fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A zone with these files.
    fn zone(folder: &Path, name: &str, files: &[(&str, &str)]) {
        fs::create_dir(folder.join(name)).unwrap();
        for (file, text) in files {
            fs::write(folder.join(name).join(file), text).unwrap();
        }
    }

    /// A package of 95 W, whose maker states 125 W, and whose short limit is 200 W.
    fn limited(folder: &Path) -> Package {
        let files = [
            ("name", "package-0\n"),
            ("constraint_0_name", "short_term\n"),
            ("constraint_0_power_limit_uw", "200000000\n"),
            ("constraint_1_name", "long_term\n"),
            ("constraint_1_power_limit_uw", "95000000\n"),
            ("constraint_1_max_power_uw", "125000000\n"),
        ];
        zone(folder, "intel-rapl:0", &files);
        list_packages(folder).remove(0)
    }

    #[test]
    fn packages_are_counted_and_their_parts_are_not() {
        let folder = tempfile::tempdir().unwrap();
        zone(folder.path(), "intel-rapl:0", &[("energy_uj", "1500000\n")]);
        zone(folder.path(), "intel-rapl:0:0", &[("energy_uj", "9")]);
        zone(folder.path(), "x", &[("energy_uj", "9")]);
        assert_eq!(
            Meter::find_in(folder.path()).unwrap().energy_joules(),
            Some(1.5)
        );
    }

    #[test]
    fn a_counter_that_begins_anew_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let files = [
            ("energy_uj", "9000000"),
            ("max_energy_range_uj", "10000000"),
        ];
        zone(folder.path(), "intel-rapl:0", &files);
        let meter = Meter::find_in(folder.path()).unwrap();
        assert_eq!(meter.energy_joules(), Some(9.0));
        fs::write(folder.path().join("intel-rapl:0/energy_uj"), "500000").unwrap();
        assert_eq!(meter.energy_joules(), Some(10.5));
    }

    #[test]
    fn a_machine_without_counters_has_no_meter() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Meter::find_in(folder.path()).is_none());
        zone(folder.path(), "intel-rapl:0", &[]);
        assert!(Meter::find_in(folder.path()).is_none());
    }

    #[test]
    fn the_long_limit_is_read_and_set() {
        let folder = tempfile::tempdir().unwrap();
        let package = limited(folder.path());
        let limit = package.power_limit().unwrap();
        assert_eq!((limit.watts, limit.watts_max), (95.0, Some(200.0)));
        package.set_limit(60.5).unwrap();
        assert_eq!(package.power_limit().unwrap().watts, 60.5);
        let short = package.folder.join("constraint_0_power_limit_uw");
        assert_eq!(
            read_number(&short),
            Some(200_000_000),
            "the other is left alone"
        );
    }

    #[test]
    fn a_limit_above_the_stated_maximum_can_be_lowered_and_restored() {
        let folder = tempfile::tempdir().unwrap();
        let package = limited(folder.path());
        let file = package.limit_file().unwrap();
        fs::write(&file, "253000000\n").unwrap();
        let before = package.power_limit().unwrap().watts;
        assert_eq!(before, 253.0);
        package.set_limit(200.0).unwrap();
        package.set_limit(65.0).unwrap();
        assert!(package.set_limit(201.0).is_err(), "no limit is so high now");
        package.restore_limit(before).unwrap();
        assert_eq!(package.power_limit().unwrap().watts, before);
        for watts in [0.0, -3.0, f64::NAN, f64::INFINITY] {
            let refused = package.restore_limit(watts).unwrap_err();
            assert!(matches!(refused, PowerError::Range { .. }), "{refused}");
        }
    }

    #[test]
    fn what_is_no_limit_is_refused_and_nothing_changes() {
        let folder = tempfile::tempdir().unwrap();
        let package = limited(folder.path());
        for watts in [0.0, -3.0, 201.0, f64::NAN, f64::INFINITY] {
            let refused = package.set_limit(watts).unwrap_err();
            assert!(matches!(refused, PowerError::Range { .. }), "{refused}");
        }
        assert_eq!(package.power_limit().unwrap().watts, 95.0);
        zone(folder.path(), "intel-rapl:1", &[]);
        let refused = list_packages(folder.path())[1].set_limit(50.0).unwrap_err();
        assert_eq!(refused.to_string(), "intel-rapl:1 has no power limit");
    }
}
