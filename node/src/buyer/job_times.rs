//! Computes how long a job takes, in three parts: as planned, from a quote, and as measured, from
//! the events of the job.
//!
//! Upload lasts from the purchase of leases until their providers have all their inputs. Compute
//! lasts from the start of the first part to the end of the last, including the tensors that travel
//! between. All else is waiting: for the market, for providers that prepare, for outputs and
//! receipts. The price of the devices' time is either planned by the providers' statements or paid
//! for the actual time.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use souk_roles::job::JobEvent;
use souk_scheduler::execution::timeline::{SpanKind, Timeline};

use super::Quote;

/// The three parts, in seconds, and the price.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct JobTimes {
    /// Until the providers have all their inputs.
    pub upload: f64,
    /// Everything else.
    pub wait: f64,
    /// From the first part to the last.
    pub compute: f64,
    /// The price of the devices' time, in micro-credits.
    pub price: u64,
}

/// Measures a job's times by its events.
#[derive(Clone, Copy, Debug)]
pub struct JobStopwatch {
    begun: Instant,
    upload: Duration,
    compute: Duration,
    bought: Option<Instant>,
    uploaded: Option<Instant>,
    running: Option<Instant>,
    done: Option<Instant>,
}

impl JobTimes {
    /// Returns the times of a plan, with the overheads of earlier jobs at its providers.
    #[must_use]
    pub fn from_quote(quote: &Quote) -> JobTimes {
        let overheads = quote.overheads;
        JobTimes {
            upload: quote.upload_seconds() + overheads.upload,
            wait: quote.hop_seconds + overheads.wait,
            compute: quote.run_seconds() * overheads.compute,
            price: quote.price().0,
        }
    }

    /// Returns the whole time, in seconds.
    #[must_use]
    pub fn total_seconds(&self) -> f64 {
        self.upload + self.wait + self.compute
    }

    /// Replaces the price by the amount that the buyer paid.
    #[must_use]
    pub fn with_price(self, price: u64) -> JobTimes {
        JobTimes { price, ..self }
    }

    /// Replaces compute by the time on the devices' own clocks, because the buyer learns of it
    /// later.
    #[must_use]
    pub fn by_devices(self, timeline: &Timeline) -> JobTimes {
        let computed = timeline.spans().iter();
        let computed = computed.filter(|span| span.kind == SpanKind::Compute);
        let ends = computed.map(|span| (span.start.0, span.end.0));
        let Some((start, end)) = ends.reduce(|(a, b), (c, d)| (a.min(c), b.max(d))) else {
            return self;
        };
        let compute = (end.saturating_sub(start) as f64 / 1e6).min(self.total_seconds());
        JobTimes {
            upload: self.upload.min(self.total_seconds() - compute),
            wait: (self.total_seconds() - compute - self.upload).max(0.0),
            compute,
            price: self.price,
        }
    }

    /// Returns the times as a JSON value.
    #[must_use]
    pub fn to_json(self) -> Value {
        json!({
            "upload_seconds": self.upload, "wait_seconds": self.wait,
            "compute_seconds": self.compute, "all_seconds": self.total_seconds(),
            "micro_credits": self.price,
        })
    }

    /// Returns upload, wait, compute and the whole, in seconds.
    #[must_use]
    pub fn to_rows(self) -> [f64; 4] {
        [self.upload, self.wait, self.compute, self.total_seconds()]
    }
}

impl JobStopwatch {
    /// Starts measuring now.
    #[must_use]
    pub fn start() -> JobStopwatch {
        JobStopwatch {
            begun: Instant::now(),
            upload: Duration::ZERO,
            compute: Duration::ZERO,
            bought: None,
            uploaded: None,
            running: None,
            done: None,
        }
    }

    /// Records an event of the job.
    pub fn on_event(&mut self, event: &JobEvent, now: Instant) {
        match event {
            JobEvent::Leased { .. } => {
                self.close_attempt();
                self.bought = Some(now);
            }
            JobEvent::Fetched { .. } => self.uploaded = Some(now),
            JobEvent::Running { .. } => {
                self.running.get_or_insert(now);
                self.done = Some(now);
            }
            JobEvent::Finished { .. } => self.done = Some(now),
            _ => {}
        }
    }

    /// Returns the times measured up to `now`.
    #[must_use]
    pub fn into_times(mut self, now: Instant) -> JobTimes {
        self.close_attempt();
        let all = now.duration_since(self.begun);
        let wait = all.saturating_sub(self.upload).saturating_sub(self.compute);
        JobTimes {
            upload: self.upload.as_secs_f64(),
            wait: wait.as_secs_f64(),
            compute: self.compute.as_secs_f64(),
            price: 0,
        }
    }

    /// Adds the times of an attempt that ended.
    fn close_attempt(&mut self) {
        let bought = self.bought.take();
        let uploaded = self.uploaded.take().zip(bought);
        if let Some((uploaded, bought)) = uploaded {
            self.upload += uploaded.duration_since(bought);
        }
        let began = self.running.take();
        // Time in which one provider computes while another still fetches counts once.
        let began = began.map(|began| uploaded.map_or(began, |(uploaded, _)| began.max(uploaded)));
        if let Some((began, done)) = began.zip(self.done.take()) {
            self.compute += done.saturating_duration_since(began);
        }
    }
}

#[cfg(test)]
mod tests {
    use souk_market::AccountKey;

    use super::*;

    #[test]
    fn a_job_is_uploaded_computed_and_waited_for() {
        let mut watch = JobStopwatch::start();
        let at = |ms| watch.begun + Duration::from_millis(ms);
        let provider = AccountKey([1; 32]);
        let part = String::new();
        let (bought, there, begins) = (at(10), at(50), at(60));
        let (ends, all) = (at(90), at(100));
        let leased = JobEvent::Leased {
            attempt: 0,
            leases: Vec::new(),
        };
        let fetched = JobEvent::Fetched {
            provider,
            pieces: 1,
            held: 0,
            bytes: 1,
        };
        watch.on_event(&leased, bought);
        watch.on_event(&fetched, there);
        watch.on_event(&JobEvent::Running { provider, part }, begins);
        watch.on_event(&JobEvent::Finished { provider }, ends);
        let times = watch.into_times(all);
        let ms = times.to_rows().map(|seconds| (seconds * 1e3).round());
        assert_eq!(ms, [40.0, 30.0, 30.0, 100.0]);
    }
}
