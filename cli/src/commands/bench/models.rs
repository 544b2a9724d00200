//! `souk bench models`: times whole models one after another.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use souk_devices_bench::models::{self, ModelError, ModelTime};
use souk_devices_bench::rten_alone::time_alone;

use crate::args::{ModelsArgs, Output};
use crate::commands::device;
use crate::failure::{Failure, Kind, Outcome};
use crate::show::{self, say};

/// Times the models. If some cannot be timed, reports them and still times the others.
pub fn run(output: Output, args: &ModelsArgs) -> Outcome {
    let time = timer(args)?;
    let files = models::files(&args.path).map_err(|error| refused(&error))?;
    let mut failed = None;
    for file in files {
        match time(&file) {
            Ok(time) => match output {
                Output::Json => show::json(&time),
                Output::Text => print(&time),
            },
            // The last error ends the command; this prints the earlier ones.
            Err(error) => {
                if let Some(before) = failed.replace(error) {
                    eprintln!("error: {before}");
                }
            }
        }
    }
    failed.map_or(Ok(()), |error| Err(refused(&error)))
}

/// Returns the function that times a model: on the chosen device, or with rten alone.
fn timer(args: &ModelsArgs) -> Result<Timer<'_>, Failure> {
    if args.alone {
        let all = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let threads = NonZeroUsize::new(args.threads as usize).unwrap_or(all);
        return Ok(Box::new(move |file| {
            time_alone(file, &args.sizes, threads, args.runs)
        }));
    }
    let device = device::open(args.backend, &args.device, args.threads)?;
    Ok(Box::new(move |file| {
        models::time(&*device, file, &args.sizes, args.runs)
    }))
}

type Timer<'a> = Box<dyn Fn(&Path) -> Result<ModelTime, ModelError> + 'a>;

/// Parses a model and the open sizes of its inputs, as `FILE` or `FILE:8,128`.
pub fn named(text: &str) -> Result<(PathBuf, Vec<usize>), Failure> {
    let Some((file, sizes)) = text.rsplit_once(':') else {
        return Ok((PathBuf::from(text), Vec::new()));
    };
    let sizes: Result<Vec<usize>, _> = sizes.split(',').map(str::parse).collect();
    match sizes {
        Ok(sizes) => Ok((PathBuf::from(file), sizes)),
        // A file name may contain a colon.
        Err(_) if Path::new(text).exists() => Ok((PathBuf::from(text), Vec::new())),
        Err(cause) => Err(Failure::new(
            Kind::Input,
            format!("{text}: {cause}"),
            "write sizes as numbers after a colon, such as minilm.onnx:8,128",
        )),
    }
}

pub fn refused(error: &ModelError) -> Failure {
    Failure::new(
        Kind::Input,
        error,
        "give an .onnx file, or a folder of them",
    )
}

fn print(time: &ModelTime) {
    let memory = time
        .memory_peak_bytes
        .map_or("unknown".to_owned(), |bytes| {
            format!("{:.0} MB", bytes as f64 / 1e6)
        });
    say(&format!(
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
