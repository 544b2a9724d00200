//! Learns from works that could only be measured together, such as the operators of one piece of a
//! plan: it divides the difference between their measured and their estimated total time among
//! them.
//!
//! One sum says little about its parts. Like a Kalman filter, the estimator assigns the deviation
//! to parts that are a large share of the sum and have little evidence: if an operator ran alone
//! ten times, its record hardly moves when it next runs with a new one. Runs that mix the same
//! operators in other proportions separate the rest.

use serde::{Deserialize, Serialize};

use super::{Evidence, History, KEYS_MAX, KNOWN, Key, MODELS_MAX, RATIO_MAX, Record};

/// Weight of a key without any run, in runs: a model can be off by several times, but a run seldom
/// by a tenth.
const WEIGHT_FIRST: f64 = 0.02;
/// A key's evidence can weigh at most this much, in runs. Beyond it an old run fades, so that the
/// mean follows a device that changes gradually.
const WEIGHT_MAX: f64 = 16.0;
/// The names in a key can have at most this many bytes. Names of operators are short, so the
/// history ignores longer ones.
const KEY_BYTES_MAX: usize = 256;
/// A plan does not need to know of a correction that changes by less than this.
const NEWS: f64 = 0.02;

/// A part of a joint measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The part's operator, class, type and size.
    pub key: Key,
    /// How many works of this key ran.
    pub count: u32,
    /// Seconds of all of them by the uncorrected model; must be positive and finite, or the history
    /// will ignore the part.
    pub modelled: f64,
    /// The correction of the model to assume if the operator has no records.
    pub prior: f64,
}

/// Works that were measured together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JointMeasurement {
    /// The parts; each key must appear only once.
    pub parts: Vec<Part>,
    /// Seconds that all parts took together.
    pub seconds: f64,
    /// Joules that they used, if the device reports energy.
    pub joules: Option<f64>,
}

/// The estimate of a part before a measurement.
struct Prior {
    /// Logarithm of the correction.
    mean: f64,
    /// Weight of the evidence, in runs.
    weight: f64,
    seconds: f64,
}

impl History {
    /// Learns from works that were measured together, and returns whether a planner should react to
    /// the change. Ignores absurd ratios.
    pub fn learn_joint(&mut self, measured: &JointMeasurement) -> bool {
        let sound = |part: &&Part| {
            let named = part.key.operator.len() + part.key.class.len();
            part.modelled > 0.0 && part.modelled.is_finite() && named <= KEY_BYTES_MAX
        };
        let parts: Vec<&Part> = measured.parts.iter().filter(sound).collect();
        let believed: Vec<Prior> = parts.iter().map(|part| self.part_prior(part)).collect();
        let sum: f64 = believed.iter().map(|part| part.seconds).sum();
        let ratio = measured.seconds / sum;
        if !(1.0 / RATIO_MAX..RATIO_MAX).contains(&ratio) {
            return false;
        }
        let share = |part: &Prior| part.seconds / sum;
        let unsure = believed
            .iter()
            .map(|part| share(part).powi(2) / part.weight);
        let unsure: f64 = unsure.sum();
        let said = self.classify_deviation(&parts, &believed, ratio.ln(), unsure);
        let watts = self.watts_of(&parts, measured);
        let drew = believed.iter().zip(&watts);
        let drew = drew.map(|(part, watts)| share(part) * watts).sum::<f64>();
        let mut is_news = false;
        for ((part, before), watts) in parts.into_iter().zip(&believed).zip(watts) {
            let Some(record) = self.record_mut(&part.key) else {
                continue;
            };
            // Without this limit a part would be corrected for the errors of others.
            let gain = (share(before) / before.weight / (1.0 + unsure)).min(1.0);
            let (step, weight) = before.update_step(share(before), said, unsure);
            is_news |= step.abs() * share(before) > NEWS;
            if let Evidence::Change(off) = said {
                let slower = (off > 0.0).then_some(before.mean);
                record.before = slower.map(|mean| record.before.unwrap_or(mean));
            }
            record.mean = (before.mean + step).clamp(-RATIO_MAX.ln(), RATIO_MAX.ln());
            record.weight = weight;
            let each = before.seconds / f64::from(part.count.max(1));
            record.add_joint(gain * share(before), ratio.ln(), each.ln() + step);
            if let Some(joules) = measured.joules.filter(|joules| *joules >= 0.0) {
                let step = gain * (joules / measured.seconds - drew);
                is_news |= record.adjust_watts(watts, step) * share(before) > NEWS;
            }
        }
        assert!(self.records.len() <= KEYS_MAX, "the history is bounded");
        is_news
    }

    /// Returns the seconds that works measured together should take.
    #[must_use]
    pub fn expected_joint(&self, parts: &[Part]) -> f64 {
        parts.iter().map(|part| self.part_prior(part).seconds).sum()
    }

    /// Returns by which factor works take longer in this history than in the other, as a mean over
    /// their common keys; `None` if they have none.
    #[must_use]
    pub fn slowdown_over(&self, other: &Self) -> Option<f64> {
        let both = self.records.iter().filter_map(|(key, own)| {
            let other = other.find_record(key)?;
            Some((own.mean - other.mean, own.weight.min(other.weight)))
        });
        let (sum, weight) = both.fold((0.0, 0.0), |(sum, all), (apart, weight)| {
            (sum + apart * weight, all + weight)
        });
        (weight > 0.0).then(|| (sum / weight).exp())
    }

    /// Returns the factor that corrects the model of a part.
    #[must_use]
    pub fn correction_factor(&self, part: &Part) -> f64 {
        self.part_prior(part).mean.exp()
    }

    /// Returns the estimated watts of each part; a part without records gets the mean of the whole
    /// measurement.
    fn watts_of(&self, parts: &[&Part], measured: &JointMeasurement) -> Vec<f64> {
        let Some(joules) = measured.joules else {
            return vec![0.0; parts.len()];
        };
        let mean = joules / measured.seconds;
        let each = parts.iter().map(|part| self.expected_watts(&part.key));
        each.map(|watts| watts.unwrap_or(mean)).collect()
    }

    fn part_prior(&self, part: &Part) -> Prior {
        let weight = self
            .find_record(&part.key)
            .map_or(0.0, |record| record.weight);
        let each = part.modelled / f64::from(part.count.max(1));
        let known = self.expected_time(&part.key, each);
        let factor = known.map_or(part.prior, |seconds| seconds / each);
        let least = 1.0 / RATIO_MAX;
        let factor = if factor.is_finite() { factor } else { 1.0 };
        let factor = factor.clamp(least, RATIO_MAX);
        Prior {
            mean: factor.ln(),
            weight: weight.max(WEIGHT_FIRST),
            seconds: part.modelled * factor,
        }
    }

    /// Classifies a deviation as noise or change, by the part with the largest share of the time.
    /// `off` is the logarithm of the deviation, `unsure` the variance of the estimate.
    fn classify_deviation(
        &mut self,
        parts: &[&Part],
        believed: &[Prior],
        off: f64,
        unsure: f64,
    ) -> Evidence {
        self.record_measurement(false);
        let each = parts.iter().zip(believed);
        let most = each.max_by(|one, other| one.1.seconds.total_cmp(&other.1.seconds));
        // The mean of a part with little evidence follows without this.
        let Some((part, before)) = most.filter(|_| unsure <= 1.0 / KNOWN) else {
            return Evidence::Noise(off);
        };
        let Ok(place) = self.records.binary_search_by(|it| it.0.cmp(&part.key)) else {
            return Evidence::Noise(off);
        };
        let record = &mut self.records[place].1;
        let deviation = record.variance.sqrt();
        let said = record
            .outliers
            .classify_value(before.mean + off, before.mean, deviation);
        let is_near = record.outliers.is_empty();
        match said {
            Evidence::Noise(value) => {
                self.record_measurement(is_near);
                Evidence::Noise(value - before.mean)
            }
            Evidence::Change(value) => Evidence::Change(value - before.mean),
        }
    }

    /// Returns the record of a key, and adds one if it has none. If there is no room, the record
    /// with the least evidence goes; for the key of a whole model, one of another model.
    fn record_mut(&mut self, key: &Key) -> Option<&mut Record> {
        let place = |records: &[(Key, Record)]| records.binary_search_by(|it| it.0.cmp(key));
        if place(&self.records).is_err() {
            let models = self.records.iter().filter(|(key, _)| key.is_model());
            let has_all_models = key.is_model() && models.count() >= MODELS_MAX;
            if has_all_models || self.records.len() >= KEYS_MAX {
                let records = self.records.iter().enumerate();
                let may_go = records.filter(|(_, (held, _))| !has_all_models || held.is_model());
                let least = may_go.min_by(|one, other| one.1.1.weight.total_cmp(&other.1.1.weight));
                self.records.remove(least?.0);
            }
        }
        let index = match place(&self.records) {
            Ok(index) => index,
            Err(index) => {
                let new = (key.clone(), Record::default());
                self.records.insert(index, new);
                index
            }
        };
        Some(&mut self.records[index].1)
    }

    /// Returns the watts of some work, if any run reported energy: of this very key; else the mean
    /// of its operator in all sizes and classes; else the mean of all records.
    #[must_use]
    pub fn expected_watts(&self, key: &Key) -> Option<f64> {
        let own = self.find_record(key).and_then(|record| record.watts);
        own.or_else(|| mean_watts(self.of_operator(key)))
            .or_else(|| mean_watts(self.records.iter()))
    }
}

impl Prior {
    /// Returns the step of the correction and the new weight after a joint measurement. `share` is
    /// this part's share of the time, `unsure` the variance of the whole estimate. If the deviation
    /// is noise, the measurement's own noise takes a part of it; if it is a change, the works
    /// account for all of it.
    fn update_step(&self, share: f64, said: Evidence, unsure: f64) -> (f64, f64) {
        let pull = share / self.weight;
        match said {
            Evidence::Noise(off) => {
                let gain = (pull / (1.0 + unsure)).min(1.0);
                let left = (1.0 - gain * share).max(self.weight / WEIGHT_MAX);
                (gain * off, (self.weight / left).min(WEIGHT_MAX))
            }
            Evidence::Change(off) => {
                let gain = (pull / unsure).min(1.0);
                let own = gain * share;
                (gain * off, (1.0 - own) * self.weight + own * KNOWN)
            }
        }
    }
}

impl Record {
    /// Adds a joint measurement to the statistics, with this weight.
    fn add_joint(&mut self, weight: f64, distance: f64, seconds: f64) {
        let deviation = self.variance.sqrt();
        self.drift = if deviation > 0.0 {
            distance / deviation
        } else {
            0.0
        };
        self.variance = match self.count {
            0 => 0.0,
            _ => (1.0 - weight) * (self.variance + weight * distance * distance),
        };
        self.seconds = seconds;
        self.count += 1;
    }

    /// Moves the estimate of the power by `step`, and returns the relative size of the change.
    fn adjust_watts(&mut self, believed: f64, step: f64) -> f64 {
        let is_new = self.watts.is_none();
        self.watts = Some((believed + step).max(0.0));
        match is_new {
            true => 1.0,
            false => step.abs() / believed.max(f64::MIN_POSITIVE),
        }
    }
}

/// Returns the mean watts of the records, weighted by their evidence.
fn mean_watts<'a>(records: impl Iterator<Item = &'a (Key, Record)>) -> Option<f64> {
    let known = records.filter_map(|(_, record)| Some((record.watts?, record.weight)));
    let (sum, weight) = known.fold((0.0, 0.0), |(sum, all), (watts, weight)| {
        (sum + watts * weight, all + weight)
    });
    (weight > 0.0).then(|| sum / weight)
}

#[cfg(test)]
mod tests {
    use souk_memory::DType;
    use souk_onnx::work::Work;

    use super::*;

    fn key(operator: &str, class: &str) -> Key {
        let work = Work {
            operations: 1 << 20,
            bytes_read: 1 << 12,
            bytes_written: 1 << 12,
            launches: 1,
            dtype: Some(DType::F32),
        };
        Key::for_work(operator, class, &work)
    }

    /// Works of so many modelled seconds each that took so long in all.
    fn together(parts: &[(&str, &str, f64)], seconds: f64) -> JointMeasurement {
        let part = |&(operator, class, modelled): &(&str, &str, f64)| Part {
            key: key(operator, class),
            count: 1,
            modelled,
            prior: 1.0,
        };
        JointMeasurement {
            parts: parts.iter().map(part).collect(),
            seconds,
            joules: None,
        }
    }

    fn factor(history: &History, operator: &str, class: &str) -> f64 {
        let key = key(operator, class);
        history.expected_time(&key, 1.0).unwrap_or(1.0)
    }

    const SMALL: (&str, &str, f64) = ("Conv", "1x1/1", 1.0);
    const LARGE: (&str, &str, f64) = ("Conv", "3x3/1", 2.0);
    const PRODUCT: (&str, &str, f64) = ("MatMul", "", 1.0);

    #[test]
    fn names_without_measure_teach_nothing() {
        let mut history = History::default();
        let long = "x".repeat(KEY_BYTES_MAX + 1);
        assert!(!history.learn_joint(&together(&[(&long, "", 1.0)], 2.0)));
        assert_eq!(history, History::default());
        assert!(history.learn_joint(&together(&[SMALL, (&long, "", 1.0)], 2.0)));
        assert_eq!(history.records().len(), 1);
    }

    #[test]
    fn what_ran_alone_stays_where_it_is_when_it_runs_beside_the_unknown() {
        let mut history = History::default();
        for _ in 0..10 {
            history.learn_joint(&together(&[SMALL], 1.0));
            history.learn_joint(&together(&[PRODUCT], 1.0));
        }
        // Windows of nine taps take eight times what the model says: 1 + 16 + 1 seconds.
        for _ in 0..10 {
            history.learn_joint(&together(&[SMALL, LARGE, PRODUCT], 18.0));
        }
        let wrong = factor(&history, "Conv", "3x3/1");
        assert!((wrong / 8.0 - 1.0).abs() < 0.02, "{wrong}");
        for right in [
            factor(&history, "Conv", "1x1/1"),
            factor(&history, "MatMul", ""),
        ] {
            assert!((right - 1.0).abs() < 0.02, "{right}");
        }
    }

    #[test]
    fn other_mixes_tell_apart_what_never_ran_alone() {
        let mut history = History::default();
        let many = ("Conv", "1x1/1", 20.0);
        for _ in 0..20 {
            history.learn_joint(&together(&[SMALL, LARGE], 1.0 + 16.0));
            history.learn_joint(&together(&[many, LARGE], 20.0 + 16.0));
        }
        let (wrong, right) = (
            factor(&history, "Conv", "3x3/1"),
            factor(&history, "Conv", "1x1/1"),
        );
        assert!((wrong / 8.0 - 1.0).abs() < 0.1, "{wrong}");
        assert!((right - 1.0).abs() < 0.1, "{right}");
    }

    #[test]
    fn one_class_that_is_off_says_little_of_others_and_many_that_agree_say_much() {
        let mut history = History::default();
        let unseen = key("Conv", "7x7/2");
        assert_eq!(history.estimate_from_others(&unseen), None);
        history.learn_joint(&together(&[LARGE], 16.0));
        let by_one = history.estimate_from_others(&unseen).unwrap();
        assert!((by_one - 1.0).abs() < 1e-6, "it is tried: {by_one}");
        assert_eq!(history.expected_time(&unseen, 1.0), None);
        for class in 0..20 {
            history.learn_joint(&together(&[("Conv", &class.to_string(), 1.0)], 8.0));
        }
        let by_many = history.estimate_from_others(&unseen).unwrap();
        assert!(by_many > 4.0 && by_many < 8.0, "{by_many}");
    }

    #[test]
    fn a_run_of_one_work_is_a_run_of_its_own() {
        let (mut alone, mut apart) = (History::default(), History::default());
        for run in 0..10 {
            let seconds = 3.0 + f64::from(run % 2) / 3.0;
            alone.learn_joint(&together(&[PRODUCT], seconds));
            let time = std::time::Duration::from_secs_f64;
            apart.learn_measurement(key("MatMul", ""), time(1.0), time(seconds));
        }
        let of = |history: &History| factor(history, "MatMul", "");
        assert!((of(&alone) / of(&apart) - 1.0).abs() < 0.01);
    }

    #[test]
    fn a_device_that_changes_is_followed_and_its_change_is_news() {
        let mut history = History::default();
        assert!(history.learn_joint(&together(&[PRODUCT], 3.0)));
        let news = (0..100).filter(|_| history.learn_joint(&together(&[PRODUCT], 3.0)));
        assert!(news.count() < 3, "what is known is none");
        assert!(history.learn_joint(&together(&[PRODUCT], 9.0)));
        for _ in 0..64 {
            history.learn_joint(&together(&[PRODUCT], 9.0));
        }
        assert!((factor(&history, "MatMul", "") / 9.0 - 1.0).abs() < 0.05);
    }

    #[test]
    fn a_device_that_becomes_another_is_followed_in_three_runs_and_back() {
        let alike = [SMALL, LARGE, PRODUCT];
        let [one, several] = [&alike[2..], &alike[..]].map(|works| {
            let mut history = History::default();
            let modelled: f64 = works.iter().map(|work| work.2).sum();
            let parts = together(works, 1.0).parts;
            let mut after = |runs: usize, times: f64| {
                for _ in 0..runs {
                    history.learn_joint(&together(works, times * modelled));
                }
                history.expected_joint(&parts) / modelled
            };
            [
                after(100, 1.0),
                after(2, 4.0),
                after(1, 4.0),
                after(20, 4.0),
                after(2, 1.0),
                after(1, 1.0),
            ]
        });
        // Of several the next runs tell the rest.
        for [known, doubted, followed, stays, doubted_again, back] in [one, several] {
            assert!((known - 1.0).abs() < 1e-3, "{known}");
            assert!(doubted < 1.06, "it may have been held up: {doubted}");
            assert!((followed / 4.0 - 1.0).abs() < 0.15, "{followed}");
            assert!((stays / 4.0 - 1.0).abs() < 0.05, "{stays}");
            assert!(doubted_again > 3.0, "{doubted_again}");
            assert!((back - 1.0).abs() < 0.15, "{back}");
        }
    }

    #[test]
    fn what_became_slower_and_is_not_run_any_more_is_believed_quick_again_ever_later() {
        let mut history = History::default();
        let run = |history: &mut History, times: f64| {
            history.learn_joint(&together(&[PRODUCT], times * PRODUCT.2));
            factor(history, "MatMul", "")
        };
        // Others tell what they took until it is believed again.
        let passed = |history: &mut History| (1..10_000).find(|_| history.pass_over());
        (0..50).for_each(|_| assert!(run(&mut history, 1.0) < 1.01));
        assert_eq!(passed(&mut history), None, "it never became slower");
        let slow = [0, 1, 2].map(|_| run(&mut history, 4.0));
        assert!((slow[2] / 4.0 - 1.0).abs() < 0.05);
        let mut kept: History =
            serde_json::from_str(&serde_json::to_string(&history).unwrap()).unwrap();
        assert!(kept.is_sound());
        let first = passed(&mut history).unwrap();
        assert_eq!(
            passed(&mut kept),
            Some(first),
            "also by who reads it from a file"
        );
        assert!((factor(&history, "MatMul", "") - 1.0).abs() < 0.1);
        assert!(
            (run(&mut history, 4.0) / 4.0 - 1.0).abs() < 0.05,
            "it is slow still"
        );
        assert_eq!(passed(&mut history), Some(2 * first));
        assert!(run(&mut history, 1.0) < 1.1, "it is quick");
        assert_eq!(passed(&mut history), None);
        assert!([0, 1, 2].map(|_| run(&mut history, 4.0))[2] > 3.8);
        assert_eq!(passed(&mut history), Some(first));
    }

    #[test]
    fn who_is_held_up_now_and_then_is_known_as_before() {
        let mut history = History::default();
        for run in 0..200 {
            let held_up = if run % 40 == 39 { 20.0 } else { 1.0 };
            history.learn_joint(&together(&[PRODUCT], held_up));
            let known = factor(&history, "MatMul", "");
            assert!(known < 1.05, "run {run}: {known}");
        }
    }

    #[test]
    fn what_changes_in_one_work_is_not_taken_for_a_change_of_those_beside_it() {
        let mut history = History::default();
        for _ in 0..20 {
            history.learn_joint(&together(&[SMALL], 1.0));
            history.learn_joint(&together(&[LARGE], 2.0));
        }
        let long = ("Conv", "3x3/1", 20.0);
        for _ in 0..6 {
            history.learn_joint(&together(&[SMALL, long], 1.0 + 80.0));
        }
        let (one, other) = (
            factor(&history, "Conv", "1x1/1"),
            factor(&history, "Conv", "3x3/1"),
        );
        assert!((other / 4.0 - 1.0).abs() < 0.05, "{other}");
        assert!(one < 1.2, "{one}");
    }

    #[test]
    fn joules_are_learned_with_the_time() {
        let mut history = History::default();
        assert_eq!(history.expected_watts(&key("MatMul", "")), None);
        let mut drew = |work, joules| {
            let mut measured = together(&[work], 2.0);
            measured.joules = Some(joules);
            history.learn_joint(&measured)
        };
        assert!(drew(PRODUCT, 30.0), "plans want to know");
        for _ in 0..9 {
            drew(PRODUCT, 30.0);
        }
        for _ in 0..10 {
            drew(SMALL, 10.0);
        }
        assert!(!drew(PRODUCT, 30.0), "what is known is no news");
        assert!(drew(PRODUCT, 90.0), "another draw is");
        for _ in 0..99 {
            drew(PRODUCT, 30.0);
        }
        let watts = |operator, class| history.expected_watts(&key(operator, class)).unwrap();
        assert!((watts("MatMul", "") - 15.0).abs() < 0.1);
        let small = watts("Conv", "1x1/1");
        assert!((small - 5.0).abs() < 0.1, "{small}");
        assert_eq!(watts("Conv", "3x3/1"), small, "as its operator");
        let stranger = watts("Gelu", "");
        assert!(stranger > 5.0 && stranger < 15.0, "as all: {stranger}");
    }

    #[test]
    fn what_drew_much_by_itself_is_told_apart_where_it_runs_beside_others() {
        let mut history = History::default();
        let mut drew = |works: &[(&str, &str, f64)], seconds, joules| {
            let mut measured = together(works, seconds);
            measured.joules = Some(joules);
            history.learn_joint(&measured);
        };
        for _ in 0..10 {
            drew(&[PRODUCT], 1.0, 10.0);
            // A second of 10 W and two of 100 W.
            drew(&[PRODUCT, LARGE], 3.0, 210.0);
        }
        let watts = |operator, class| history.expected_watts(&key(operator, class)).unwrap();
        assert!((watts("MatMul", "") - 10.0).abs() < 2.0);
        assert!((watts("Conv", "3x3/1") - 100.0).abs() < 5.0);
    }

    #[test]
    fn a_full_history_forgets_what_it_knows_least_of() {
        let mut history = History::default();
        for _ in 0..3 {
            history.learn_joint(&together(&[PRODUCT], 2.0));
        }
        for class in 0..2 * KEYS_MAX {
            history.learn_joint(&together(&[("Conv", &class.to_string(), 1.0)], 1.0));
        }
        assert_eq!(history.records.len(), KEYS_MAX);
        assert!(history.find_record(&key("MatMul", "")).is_some());
        assert!(history.is_sound());
    }

    #[test]
    fn what_cannot_be_is_neither_learned_nor_sound() {
        let mut history = History::default();
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300] {
            assert!(!history.learn_joint(&together(&[PRODUCT], seconds)));
        }
        assert!(!history.learn_joint(&together(&[("MatMul", "", f64::NAN)], 1.0)));
        assert_eq!(history, History::default());
        history.learn_joint(&together(&[PRODUCT, SMALL], 4.0));
        assert!(history.is_sound());
        let mut swapped = history.clone();
        swapped.records.reverse();
        assert!(!swapped.is_sound());
        history.records[0].1.mean = f64::NAN;
        assert!(!history.is_sound());
    }
}
