//! `souk bench models`: whole models, timed one after another.

use souk_node::devices::models::{self, ModelError, ModelTime};

use crate::args::{ModelsArgs, Output};
use crate::commands::device;
use crate::failure::{Failure, Kind, Outcome};
use crate::show::{self, say};

/// Times the models; one that cannot be timed is named, and the others are timed all the same.
pub fn run(output: Output, args: &ModelsArgs) -> Outcome {
    let device = device::open(args.backend, &args.device, args.threads)?;
    let files = models::files(&args.path).map_err(|error| refused(&error))?;
    let mut failed = None;
    for file in files {
        match models::time(&*device, &file, &args.sizes, args.runs) {
            Ok(time) => match output {
                Output::Json => show::json(&time),
                Output::Text => print(&time),
            },
            // The last error ends the command, those before it are told here.
            Err(error) => {
                if let Some(before) = failed.replace(error) {
                    eprintln!("error: {before}");
                }
            }
        }
    }
    failed.map_or(Ok(()), |error| Err(refused(&error)))
}

fn refused(error: &ModelError) -> Failure {
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
