//! Sets the power limits in watts that a provider's file requests for its processors, and restores
//! the earlier limits when the provider stops.
//!
//! The provider must first record the earlier limits durably in its folder, so that it can restore
//! them at its next start if it was killed. If the system refuses to restore a limit, the provider
//! starts nevertheless, keeps the record, and tries again at each later start.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use souk_host::power::{PowerDomain, PowerError};

/// The file with the earlier limits, in watts by domain.
const FILE: &str = "power.json";

/// Finds a domain by its name.
type Find = fn(&str) -> Result<Box<dyn PowerDomain>, PowerError>;

/// Why power limits could not be set or restored.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// The system refuses a limit.
    #[error("limits.power_watts: {0}")]
    Power(#[from] PowerError),
    /// The earlier limits could not be stored or read.
    #[error("cannot store or read the earlier power limits in {}: {source}", path.display())]
    File {
        /// The file of the earlier limits.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Power limits that hold until this value is dropped.
pub(super) struct HeldLimits {
    path: PathBuf,
    /// Whether there are limits to restore.
    changed: bool,
    find: Find,
}

impl HeldLimits {
    /// Restores the limits that an earlier run left changed, and sets limits of domains in watts.
    pub(super) fn set_limits(
        home: &Path,
        wanted: &BTreeMap<String, u32>,
        find: Find,
    ) -> Result<Self, HoldError> {
        let mut held = Self {
            path: home.join(FILE),
            changed: true,
            find,
        };
        let unrestored = held.restore_limits()?;
        if wanted.is_empty() {
            return Ok(held);
        }
        let found = |(name, watts): (&String, &u32)| Ok((find(name)?, f64::from(*watts)));
        let domains: Vec<_> = wanted
            .iter()
            .map(found)
            .collect::<Result<_, PowerError>>()?;
        let before = |(domain, _): &(Box<dyn PowerDomain>, f64)| {
            Ok((domain.name().to_owned(), domain.power_limit()?.watts))
        };
        let mut before: BTreeMap<String, f64> = domains
            .iter()
            .map(before)
            .collect::<Result<_, PowerError>>()?;
        // The present limit of such a domain is one that an earlier run set.
        before.extend(unrestored);
        held.store_before(&before)?;
        held.changed = true;
        for (domain, watts) in &domains {
            domain.set_limit(*watts)?;
            let (domain, before) = (domain.name(), before[domain.name()]);
            tracing::warn!(domain, watts, before, "set a power limit");
        }
        Ok(held)
    }

    /// Restores the earlier limits.
    pub(super) fn give_back(&mut self) -> Result<(), HoldError> {
        self.restore_limits().map(drop)
    }

    /// Restores the earlier limits, and returns and keeps those that the system refused.
    fn restore_limits(&mut self) -> Result<BTreeMap<String, f64>, HoldError> {
        let mut refused = BTreeMap::new();
        if !std::mem::take(&mut self.changed) {
            return Ok(refused);
        }
        let failed = |source| HoldError::File {
            path: self.path.clone(),
            source,
        };
        let text = match fs::read_to_string(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(refused),
            read => read.map_err(failed)?,
        };
        let before: BTreeMap<String, f64> =
            serde_json::from_str(&text).map_err(|error| failed(error.into()))?;
        for (name, watts) in before {
            match (self.find)(&name).and_then(|domain| domain.restore_limit(watts)) {
                Ok(()) => tracing::warn!(domain = name, watts, "restored a power limit"),
                Err(PowerError::Unknown { .. }) => {
                    tracing::warn!(domain = name, watts, "a limited power domain disappeared");
                }
                Err(error) => {
                    tracing::warn!(
                        domain = name,
                        watts,
                        %error,
                        "could not restore a power limit; the next start will try again. To do it \
                         now, run `souk device power {name} --watts {watts}` as root; to keep the \
                         present limit, remove {} while the provider is stopped",
                        self.path.display()
                    );
                    refused.insert(name, watts);
                }
            }
        }
        match refused.is_empty() {
            true => fs::remove_file(&self.path).map_err(failed)?,
            false => self.store_before(&refused)?,
        }
        Ok(refused)
    }

    fn store_before(&self, before: &BTreeMap<String, f64>) -> Result<(), HoldError> {
        let draft = self.path.with_extension("json.new");
        let written = || {
            let mut file = File::create(&draft)?;
            file.write_all(&serde_json::to_vec(before)?)?;
            file.sync_all()?;
            fs::rename(&draft, &self.path)?;
            File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()
        };
        written().map_err(|source| HoldError::File {
            path: self.path.clone(),
            source,
        })
    }
}

impl Drop for HeldLimits {
    fn drop(&mut self) {
        if let Err(error) = self.give_back() {
            tracing::error!(%error, "a power limit could not be restored");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use souk_host::power::Limit;

    use super::*;

    /// The limit of the one domain of each test, by its name: tests run side by side.
    static WATTS: Mutex<BTreeMap<String, f64>> = Mutex::new(BTreeMap::new());

    struct Socket(String);

    impl PowerDomain for Socket {
        fn name(&self) -> &str {
            &self.0
        }

        fn title(&self) -> &str {
            "a socket"
        }

        fn energy_joules(&self) -> Option<f64> {
            None
        }

        fn power_limit(&self) -> Result<Limit, PowerError> {
            Ok(Limit {
                watts: watts(&self.0),
                watts_min: None,
                watts_max: None,
            })
        }

        fn set_limit(&self, watts: f64) -> Result<(), PowerError> {
            self.restore_limit(watts)
        }

        fn restore_limit(&self, watts: f64) -> Result<(), PowerError> {
            if watts == 13.0 {
                return Err(PowerError::Unlimited {
                    domain: self.0.clone(),
                });
            }
            WATTS.lock().unwrap().insert(self.0.clone(), watts);
            Ok(())
        }
    }

    fn find(name: &str) -> Result<Box<dyn PowerDomain>, PowerError> {
        Ok(Box::new(Socket(name.to_owned())))
    }

    fn watts(name: &str) -> f64 {
        WATTS.lock().unwrap()[name]
    }

    /// A domain at 95 W that is to have `watts`.
    fn wanted(name: &str, watts: u32) -> BTreeMap<String, u32> {
        WATTS.lock().unwrap().insert(name.to_owned(), 95.0);
        BTreeMap::from([(name.to_owned(), watts)])
    }

    #[test]
    fn a_limit_holds_until_its_provider_stops() {
        let home = tempfile::tempdir().unwrap();
        let wanted = wanted("stops", 60);
        let held = HeldLimits::set_limits(home.path(), &wanted, find).unwrap();
        assert_eq!(watts("stops"), 60.0);
        drop(held);
        assert_eq!(watts("stops"), 95.0);
        assert!(!home.path().join(FILE).exists());
    }

    #[test]
    fn a_provider_that_was_killed_gives_back_when_it_starts_again() {
        let home = tempfile::tempdir().unwrap();
        let wanted = wanted("killed", 60);
        std::mem::forget(HeldLimits::set_limits(home.path(), &wanted, find).unwrap());
        let again = HeldLimits::set_limits(home.path(), &wanted, find).unwrap();
        assert_eq!(watts("killed"), 60.0);
        drop(again);
        assert_eq!(watts("killed"), 95.0, "and not what it had set itself");
        std::mem::forget(HeldLimits::set_limits(home.path(), &wanted, find).unwrap());
        HeldLimits::set_limits(home.path(), &BTreeMap::new(), find).unwrap();
        assert_eq!(watts("killed"), 95.0, "though it asks for none now");
    }

    #[test]
    fn a_limit_that_is_refused_leaves_the_others_as_they_were() {
        let home = tempfile::tempdir().unwrap();
        let mut wanted = wanted("allowed", 60);
        WATTS.lock().unwrap().insert("refused".to_owned(), 95.0);
        wanted.insert("refused".to_owned(), 13);
        assert!(HeldLimits::set_limits(home.path(), &wanted, find).is_err());
        assert_eq!((watts("allowed"), watts("refused")), (95.0, 95.0));
    }

    #[test]
    fn a_limit_that_cannot_be_restored_keeps_no_provider_from_starting() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(FILE);
        fs::write(&path, r#"{"refuses": 13.0, "given back": 95.0}"#).unwrap();
        WATTS.lock().unwrap().insert("given back".to_owned(), 60.0);
        let wanted = wanted("refuses", 60);
        for _start in 0..2 {
            let held = HeldLimits::set_limits(home.path(), &wanted, find).unwrap();
            assert_eq!((watts("given back"), watts("refuses")), (95.0, 60.0));
            drop(held);
            let earlier = fs::read_to_string(&path).unwrap();
            assert_eq!(
                earlier, r#"{"refuses":13.0}"#,
                "the next start tries it again"
            );
        }
        HeldLimits::set_limits(home.path(), &BTreeMap::new(), find).unwrap();
        assert!(path.exists());
    }

    #[test]
    fn what_is_gone_has_nothing_to_give_back() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join(FILE), r#"{"gone": 95.0}"#).unwrap();
        let gone = |name: &str| {
            Err(PowerError::Unknown {
                name: name.to_owned(),
                known: Vec::new(),
            })
        };
        HeldLimits::set_limits(home.path(), &BTreeMap::new(), gone).unwrap();
        assert!(!home.path().join(FILE).exists());
    }

    #[test]
    fn garbage_where_the_limits_were_kept_is_named() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join(FILE), "garbage").unwrap();
        let refused = HeldLimits::set_limits(home.path(), &BTreeMap::new(), find)
            .err()
            .unwrap();
        assert!(refused.to_string().contains("power.json"), "{refused}");
    }
}
