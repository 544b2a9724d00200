//! The shell of the world: it checks each action of the core before it carries it out.

use souk_market::AccountKey;

use super::model::Computed;
use super::world::World;
use crate::clock::Micros;
use crate::effect::Ticket;
use crate::session::{Action, Caller, Notice, OutputId, SessionFailure};

impl World {
    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub fn live_output(&self, output: OutputId) -> &Computed {
        let made = &self.outputs[&output];
        assert!(made.is_live, "{output:?} was answered or dropped");
        &made.computed
    }

    pub fn carry_out(&mut self, ticket: Ticket, action: Action) {
        match action {
            Action::Quote {
                ref excluded,
                wait_longer,
                ..
            } => {
                self.check_quote(excluded, wait_longer);
                self.questions.push((ticket, action));
            }
            Action::LookUpSpending { .. } => {
                self.count("look-ups");
                self.questions.push((ticket, action));
            }
            Action::Compare { left, right, .. } => {
                let is_third = !self
                    .core
                    .active_sessions
                    .contains(&self.outputs[&right].session);
                self.note_accused(left, is_third);
                self.note_accused(right, false);
                self.questions.push((ticket, action));
            }
            Action::Check { output, .. } => {
                self.note_accused(output, true);
                self.questions.push((ticket, action));
            }
            Action::Open { session, window } => {
                assert!(!self.is_stopped, "a session is bought after the stop");
                assert!(window <= self.config.window_max, "a larger window");
                self.accused.remove(&session);
                self.market.open(&mut self.dice, session, window);
            }
            Action::SendStep {
                session,
                sequence,
                step,
            } => {
                assert!(!self.is_stopped, "a step is sent after the stop");
                let end = step.after + step.tokens.len().max(1);
                assert!(end <= self.config.positions, "beyond the positions");
                let job = self.market.jobs.get_mut(&session).expect("an open session");
                job.send(sequence, step);
            }
            Action::Cancel { session } => {
                let job = self.market.jobs.get_mut(&session).expect("an open session");
                let has_liar = job.machine.lies();
                assert!(self.is_stopped || has_liar, "nobody stops it");
                job.is_cancelled = true;
            }
            Action::Close { session } => {
                let job = self.market.jobs.get_mut(&session).expect("an open session");
                job.is_closing = true;
            }
            Action::Answer { caller, output } => self.check_answer(caller, output),
            Action::Fail { caller, failure } => self.check_failure(caller, &failure),
            Action::Drop { output } => {
                self.live_output(output);
                self.release_output(output);
            }
            Action::Notify(notice) => self.check_notice(&notice),
            Action::Finished { caller, .. } => {
                assert!(self.finishers.remove(&caller), "finished twice");
                assert!(self.market.jobs.is_empty(), "a session is open");
                self.count("ends");
            }
            Action::Stop(ticket) => {
                let place = self.questions.iter().position(|(of, _)| *of == ticket);
                self.questions.remove(place.expect("a pending question"));
            }
        }
    }

    fn check_quote(&mut self, excluded: &[AccountKey], wait_longer: Option<Micros>) {
        assert!(!self.is_stopped, "a session is chosen after the stop");
        let mut others = self.questions.iter().map(|(_, it)| it);
        let is_alone = !others.any(|it| matches!(it, Action::Quote { .. }));
        assert!(is_alone, "two sessions choose at a time");
        let mut outvoted = self.outvoted.iter();
        assert!(
            outvoted.all(|it| excluded.contains(it)),
            "an outvoted provider is chosen"
        );
        if wait_longer.is_some() {
            self.lost.clear();
            self.count("quotes that wait longer");
        }
        let mut lost = self.lost.iter();
        let are_lost_out = lost.all(|it| excluded.contains(it));
        assert!(
            self.config.sessions_per_step > 1 || are_lost_out,
            "a lost provider is chosen"
        );
    }

    /// Notes the providers of an output if a judgement uses it. If the session has other providers
    /// by now, notes nothing, because the notice only names the session.
    fn note_accused(&mut self, output: OutputId, is_judged: bool) {
        self.live_output(output);
        let made = &self.outputs[&output];
        let job = self.market.jobs.get(&made.session);
        let has_others = job.is_some_and(|job| job.machine.providers != made.providers);
        if has_others {
            self.accused.remove(&made.session);
        } else if is_judged {
            self.accused.insert(made.session, made.providers.clone());
        }
    }

    fn check_answer(&mut self, caller: Caller, output: OutputId) {
        let computed = self.live_output(output).clone();
        self.release_output(output);
        let wish = self.wishes.remove(&caller).expect("a caller that waits");
        assert!(!wish.is_bad, "unknown tokens are computed");
        assert_eq!(computed.before, wish.text, "the output of another text");
        assert_eq!(computed.step, wish.step, "the output of another step");
        let is_right = computed.is_honest();
        assert!(is_right, "a liar is believed");
        let reader = &mut self.readers[wish.sequence as usize];
        assert_eq!(reader.waiting.take(), Some(caller));
        reader.text = wish.text;
        reader.text.extend(&wish.step.tokens);
        reader.has = reader.text.len();
        let is_last = wish.step.rows.last() == Some(&(wish.step.tokens.len() - 1));
        let drawn = computed.drawn.last().filter(|_| is_last);
        reader.drawn = drawn.and_then(|token| u32::try_from(*token).ok());
        self.count("answers");
    }

    fn release_output(&mut self, output: OutputId) {
        let made = self.outputs.get_mut(&output).expect("it was made");
        made.is_live = false;
    }

    fn check_failure(&mut self, caller: Caller, failure: &SessionFailure) {
        let wish = self.wishes.remove(&caller).expect("a caller that waits");
        let reader = &mut self.readers[wish.sequence as usize];
        if *failure == SessionFailure::Busy {
            assert!(
                reader.waiting.is_some_and(|it| it != caller),
                "it is not busy"
            );
            return;
        }
        assert_eq!(reader.waiting.take(), Some(caller));
        if wish.is_bad {
            let known = [SessionFailure::UnknownTokens, SessionFailure::Finished];
            assert!(known.contains(failure), "{failure:?} of unknown tokens");
            return;
        }
        match failure {
            SessionFailure::NotQuoted { .. } => self.count("no quote"),
            SessionFailure::NotOpened { .. } => self.count("not opened"),
            SessionFailure::Ended { .. } => self.count("ended"),
            SessionFailure::EndsBeforeToken { .. } => self.count("ends before a token"),
            SessionFailure::Interrupted => {
                assert!(self.is_stopped, "nobody stops it");
                self.count("interrupted");
            }
            SessionFailure::Finished => {
                assert!(!self.finishers.is_empty(), "nobody finishes it");
                self.count("finished");
            }
            SessionFailure::Undecided { .. } => self.count("undecided"),
            SessionFailure::ThirdDiffers { .. } => self.count("third differs"),
            SessionFailure::Busy | SessionFailure::UnknownTokens => {
                panic!("{failure:?} of a step that is neither")
            }
        }
    }

    fn check_notice(&mut self, notice: &Notice) {
        match notice {
            Notice::Replaced { session, .. } => {
                let culprits = self.culprits.get(session).cloned().unwrap_or_default();
                self.lost.extend(culprits);
                self.count("replaced");
            }
            Notice::UsedUp { .. } => self.count("used up"),
            Notice::FalseToken { session } => {
                let job = &self.market.jobs[session];
                self.outvoted.extend(&job.machine.providers);
                self.check_outvoted();
                self.count("false token");
            }
            Notice::Differ { .. } => self.count("differ"),
            Notice::Outvoted { session, .. } => {
                let accused = self.accused.remove(session).unwrap_or_default();
                self.outvoted.extend(accused);
                self.check_outvoted();
                self.count("outvoted");
            }
        }
    }

    /// Checks that the providers which were outvoted just now are not all honest.
    fn check_outvoted(&mut self) {
        let outvoted = self.core.sellers.outvoted_providers().clone();
        let mut new = outvoted.difference(&self.outvoted_before).peekable();
        let is_same = new.peek().is_none();
        let has_liar = new.any(|account| !self.market.is_honest(account));
        assert!(is_same || has_liar, "honest providers are outvoted");
        self.outvoted_before = outvoted;
    }
}
