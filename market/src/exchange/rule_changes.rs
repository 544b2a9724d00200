//! Changes the rules of a running market, and their version, at log times that the operators
//! announce.
//!
//! A change touches no open lease, which keeps the fee of its trade, and no resting order, whose
//! price may be off a new tick.

use crate::command::Acceptance;
use crate::event::Event;
use crate::refusal::Refusal;
use crate::rules::{CHANGES_MAX, Rules, RulesChange, SETTINGS_MAX, Setting, Upgrade};
use crate::units::{Count, Millis};

use super::{Context, Exchange, Timer};

impl Exchange {
    pub(super) fn on_change(
        &mut self,
        context: &mut Context<'_>,
        settings: &[Setting],
        at: Millis,
    ) -> Result<Acceptance, Refusal> {
        let count = u32::try_from(settings.len()).unwrap_or(u32::MAX);
        if settings.is_empty() || settings.len() > SETTINGS_MAX {
            let limit = SETTINGS_MAX as u32;
            return Err(Refusal::SettingsMany { count, limit });
        }
        if self.changes.len() >= CHANGES_MAX {
            let limit = CHANGES_MAX as u32;
            return Err(Refusal::ChangesMany { limit });
        }
        self.check_notice(at)?;
        check_settings(settings, &self.rules)?;
        self.changes_made.count_up();
        let id = self.changes_made;
        let settings = settings.to_vec();
        let change = RulesChange { id, at, settings };
        context.events.push(Event::RulesDue { change: id, at });
        let earlier = self.changes.insert(id, change);
        assert!(earlier.is_none(), "a number is given once");
        self.timers.insert((at, Timer::Rules(id)));
        Ok(Acceptance::Due { change: id, at })
    }

    fn check_notice(&self, at: Millis) -> Result<(), Refusal> {
        let earliest = self.now.saturating_add(self.rules.rules_notice);
        match at > self.now && at >= earliest {
            true => Ok(()),
            false => Err(Refusal::NoticeShort { at, earliest }),
        }
    }

    /// Cancels an announced change.
    pub(super) fn on_keep(
        &mut self,
        context: &mut Context<'_>,
        id: u64,
    ) -> Result<Acceptance, Refusal> {
        let change = self.changes.remove(&id);
        let change = change.ok_or(Refusal::ChangeUnknown { change: id })?;
        let timed = self.timers.remove(&(change.at, Timer::Rules(id)));
        assert!(timed, "a change that is told is timed");
        context.events.push(Event::RulesKept { change: id });
        Ok(Acceptance::Kept)
    }

    /// Applies an announced change.
    pub(super) fn change_rules(&mut self, id: u64, events: &mut Vec<Event>) {
        let change = self.changes.remove(&id).expect("a change's timer has one");
        assert!(change.at <= self.now, "not before its time");
        for setting in &change.settings {
            let done = setting.apply_to(&mut self.rules);
            done.expect("what was told was checked");
        }
        self.books.change_rules(&self.rules);
        self.light = self.light_orders();
        let light = self.light.iter().map(|(_, order)| order);
        self.books.recount_light(light);
        assert!(self.rules.check_ranges().is_ok(), "the rules are sound");
        events.push(Event::RulesChanged { change: id });
    }

    pub(super) fn on_upgrade(
        &mut self,
        context: &mut Context<'_>,
        upgrade: Upgrade,
    ) -> Result<Acceptance, Refusal> {
        let current = self.version;
        if upgrade.to <= current {
            let to = upgrade.to;
            return Err(Refusal::VersionOld { to, current });
        }
        self.check_notice(upgrade.at)?;
        if let Some(earlier) = self.upgrade.replace(upgrade) {
            self.timers.remove(&(earlier.at, Timer::Upgrade));
        }
        self.timers.insert((upgrade.at, Timer::Upgrade));
        context.events.push(Event::UpgradeDue(upgrade));
        Ok(Acceptance::UpgradeDue(upgrade))
    }

    /// Applies an announced version of the rules.
    pub(super) fn raise_version(&mut self, events: &mut Vec<Event>) {
        let upgrade = self.upgrade.take().expect("its timer has an upgrade");
        assert!(upgrade.at <= self.now, "not before its time");
        assert!(upgrade.to > self.version, "versions rise");
        self.version = upgrade.to;
        events.push(Event::Upgraded { to: upgrade.to });
    }
}

/// Queries that anyone may make.
impl Exchange {
    /// Iterates over the announced changes that have not taken effect, the oldest first.
    pub fn pending_changes(&self) -> impl Iterator<Item = &RulesChange> {
        self.changes.values()
    }

    /// Returns the version of the rules that applies, and the announced next one.
    pub fn rules_version(&self) -> (u16, Option<Upgrade>) {
        (self.version, self.upgrade)
    }

    /// Returns the version of the rules that applies at a log time from now on, as far as the
    /// operators have announced it.
    pub fn version_at(&self, now: Millis) -> u16 {
        let due = self.upgrade.filter(|upgrade| upgrade.at <= now);
        due.map_or(self.version, |upgrade| upgrade.to)
    }

    /// Returns the version that applies at `now`, if it is later than `spoken`. A replica that
    /// implements versions up to `spoken` must apply nothing from then on.
    pub fn unsupported_version(&self, now: Millis, spoken: u16) -> Option<u16> {
        let version = self.version_at(now);
        (version > spoken).then_some(version)
    }
}

/// Checks that each rule can change to its new value, and that all rules are valid together.
fn check_settings(settings: &[Setting], rules: &Rules) -> Result<(), Refusal> {
    let mut changed = rules.clone();
    for setting in settings {
        if let Setting::Number { rule, .. } = setting
            && !rule.is_changeable()
        {
            return Err(Refusal::RuleFixed {
                rule: rule.name().to_owned(),
            });
        }
        setting.apply_to(&mut changed).map_err(|fault| {
            let (rule, value) = (fault.rule.to_owned(), fault.value);
            let (least, most) = (fault.least, fault.most);
            Refusal::RuleRange {
                rule,
                value,
                least,
                most,
            }
        })?;
    }
    debug_assert!(changed.check_ranges().is_ok(), "each was checked by itself");
    Ok(())
}
