//! Measures how long clients of the gateway wait for answers, plans and jobs, and adds the times to
//! its metrics page.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use prometheus::{Histogram, HistogramOpts, HistogramVec, exponential_buckets};
use souk_network::metrics::Page;

/// The first bucket ends at a millisecond and each further one is twice as wide: 17 reach a minute.
const FIRST: f64 = 0.001;
const BUCKETS: usize = 17;

/// Histograms of durations.
#[derive(Debug)]
pub struct Figures {
    answers: HistogramVec,
    plans: Histogram,
    jobs: Histogram,
}

impl Default for Figures {
    fn default() -> Figures {
        let labels = &["path", "method", "status"];
        Figures {
            answers: HistogramVec::new(
                histogram_options(
                    "souk_gateway_answer_seconds",
                    "Until an answer begins, by path.",
                ),
                labels,
            )
            .expect("the name and the labels are fine"),
            plans: new_histogram("souk_gateway_plan_seconds", "Until a plan is made."),
            jobs: new_histogram(
                "souk_gateway_job_seconds",
                "From a job's begin to its end, in each life.",
            ),
        }
    }
}

fn histogram_options(name: &str, help: &str) -> HistogramOpts {
    let buckets = exponential_buckets(FIRST, 2.0, BUCKETS).expect("they grow");
    HistogramOpts::new(name, help).buckets(buckets)
}

fn new_histogram(name: &str, help: &str) -> Histogram {
    Histogram::with_opts(histogram_options(name, help)).expect("the name is fine")
}

impl Figures {
    /// Counts an answer on a path of the API.
    pub fn observe_answer(&self, path: &str, method: &Method, status: StatusCode, took: Duration) {
        let class = match status.as_u16() / 100 {
            2 => "2xx",
            3 => "3xx",
            4 => "4xx",
            _ => "5xx",
        };
        // Clients can invent methods; the known ones are few.
        let known = [
            Method::GET,
            Method::HEAD,
            Method::PUT,
            Method::POST,
            Method::PATCH,
            Method::DELETE,
        ];
        let method = if known.contains(method) {
            method.as_str()
        } else {
            "other"
        };
        let answers = self.answers.with_label_values(&[path, method, class]);
        answers.observe(took.as_secs_f64());
    }

    /// Counts a plan.
    pub fn observe_plan(&self, took: Duration) {
        self.plans.observe(took.as_secs_f64());
    }

    /// Counts a job that ended.
    pub fn observe_job(&self, took: Duration) {
        self.jobs.observe(took.as_secs_f64());
    }

    /// Adds the metrics to a page.
    pub fn add_to_page(&self, page: &mut Page) {
        page.add_collector(&self.answers);
        page.add_collector(&self.plans);
        page.add_collector(&self.jobs);
    }
}
