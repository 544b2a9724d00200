//! `souk bench models`: times whole models one after another.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use souk_devices_bench::models::{self, ModelError, ModelTime};
use souk_devices_bench::rten_alone::time_alone;
use souk_folder::config::DeviceChoice;
use souk_vocabulary::processor::Processor;

use crate::args::ModelsArgs;
use souk_cli::commands::device;
use souk_cli::failure::{Failure, Kind, Outcome};
use souk_cli::options::Output;
use souk_cli::show::{self, print_line};

/// The rounds of a comparison; each times both kinds of kernels.
const EXACT_ROUNDS: usize = 5;

/// Times the models. If some cannot be timed, reports them and still times the others.
pub fn run(output: Output, args: &ModelsArgs) -> Outcome {
    let files = models::model_files(&args.path).map_err(|error| model_failure(&error))?;
    if args.exact {
        return compare_exact(output, args, &files);
    }
    let time = model_timer(args)?;
    let mut failed = None;
    for file in files {
        match time(&file) {
            Ok(time) => match output {
                Output::Json => show::print_json(&time),
                Output::Text => print_model_time(&time),
            },
            // The last error ends the command; this prints the earlier ones.
            Err(error) => {
                if let Some(before) = failed.replace(error) {
                    eprintln!("error: {before}");
                }
            }
        }
    }
    failed.map_or(Ok(()), |error| Err(model_failure(&error)))
}

/// A model on the quickest kernels and on the exact ones.
#[derive(Serialize)]
struct ExactTimes {
    /// The name of the model's file.
    model: String,
    /// The shortest run on the quickest kernels, in seconds.
    quick_seconds: f64,
    /// The shortest run on the exact kernels, in seconds.
    exact_seconds: f64,
    /// The median, over the rounds, of the shortest exact run divided by the shortest quick run.
    ratio: f64,
}

/// Times each model on the quickest and on the exact kernels in turn.
fn compare_exact(output: Output, args: &ModelsArgs, files: &[PathBuf]) -> Outcome {
    let threads = args.threads;
    let quick = open_cpu(&DeviceChoice::Cpu { threads })?;
    let exact = open_cpu(&DeviceChoice::Exact { threads })?;
    for file in files {
        let time = |device: &dyn Processor| {
            let timed = models::time_model(device, file, &args.sizes, args.runs);
            timed.map_err(|error| model_failure(&error))
        };
        let mut times = Vec::new();
        for _ in 0..EXACT_ROUNDS {
            times.push([time(&*quick)?, time(&*exact)?]);
        }
        let best = |place: usize| {
            let times = times.iter().map(|pair| pair[place].best_seconds);
            times.fold(f64::INFINITY, f64::min)
        };
        let pairs = times.iter();
        let ratios = pairs.map(|[quick, exact]| exact.best_seconds / quick.best_seconds);
        let mut ratios: Vec<f64> = ratios.collect();
        ratios.sort_by(f64::total_cmp);
        let found = ExactTimes {
            model: times[0][0].model.clone(),
            quick_seconds: best(0),
            exact_seconds: best(1),
            ratio: ratios[EXACT_ROUNDS / 2],
        };
        match output {
            Output::Json => show::print_json(&found),
            Output::Text => print_line(&format!(
                "{}: {:.3} ms quick, {:.3} ms exact; {:.2} times the time; goal 1.10",
                found.model,
                found.quick_seconds * 1e3,
                found.exact_seconds * 1e3,
                found.ratio,
            )),
        }
    }
    Ok(())
}

fn open_cpu(choice: &DeviceChoice) -> Result<Arc<dyn Processor>, Failure> {
    let hint = "`souk device list` shows what there is";
    let opened = souk_sandbox::device::open_devices(choice, None);
    let mut devices = opened.map_err(|error| Failure::new(Kind::State, error, hint))?;
    let opened = devices.pop();
    opened.ok_or_else(|| Failure::new(Kind::State, "there is no CPU", hint))
}

/// Returns the function that times a model: on the chosen device, or with rten alone.
fn model_timer(args: &ModelsArgs) -> Result<Timer<'_>, Failure> {
    if args.rten_only {
        let all = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let threads = NonZeroUsize::new(args.threads as usize).unwrap_or(all);
        return Ok(Box::new(move |file| {
            time_alone(file, &args.sizes, threads, args.runs)
        }));
    }
    let device = device::open_device(args.backend, &args.device, args.threads)?;
    Ok(Box::new(move |file| {
        models::time_model(&*device, file, &args.sizes, args.runs)
    }))
}

type Timer<'a> = Box<dyn Fn(&Path) -> Result<ModelTime, ModelError> + 'a>;

/// Parses a model and the open sizes of its inputs, as `FILE` or `FILE:8,128`.
pub fn parse_model_spec(text: &str) -> Result<(PathBuf, Vec<usize>), Failure> {
    let Some((file, sizes)) = text.rsplit_once(':') else {
        return Ok((PathBuf::from(text), Vec::new()));
    };
    let sizes: Result<Vec<usize>, _> = sizes.split(',').map(str::parse).collect();
    match sizes {
        Ok(sizes) => Ok((PathBuf::from(file), sizes)),
        // A file name can contain a colon.
        Err(_) if Path::new(text).exists() => Ok((PathBuf::from(text), Vec::new())),
        Err(cause) => Err(Failure::new(
            Kind::Input,
            format!("{text}: {cause}"),
            "write sizes as numbers after a colon, such as minilm.onnx:8,128",
        )),
    }
}

pub fn model_failure(error: &ModelError) -> Failure {
    Failure::new(
        Kind::Input,
        error,
        "give an .onnx file, or a folder of them",
    )
}

fn print_model_time(time: &ModelTime) {
    let memory = time
        .memory_peak_bytes
        .map_or("unknown".to_owned(), |bytes| {
            format!("{:.0} MB", bytes as f64 / 1e6)
        });
    print_line(&format!(
        "{}: best {:.2} ms, median {:.2} ms of {} runs; {} operators, made ready in {:.0} ms, \
         peak memory {memory}",
        time.model,
        time.best_seconds * 1e3,
        time.median_seconds * 1e3,
        time.runs,
        time.operators,
        time.compile_seconds * 1e3,
    ));
}
