//! The benchmark of replication without the `souk` binary:
//! `bench_consensus run CLIENTS SIZE SECONDS none|each|batch64 DIR`, or
//! `bench_consensus failover KILLS DIR`, or `bench_consensus restart COMMANDS DIR`. It starts
//! itself again as `node` for each replica.

use std::path::PathBuf;

use souk_testnet::bench::{
    Bench, NodeArguments, Signing, run, run_failover, run_restart, serve_replica,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    match words[..] {
        [
            "node",
            "--id",
            id,
            "--ports",
            ports,
            "--signed",
            signed,
            "--dir",
            folder,
        ] => {
            let ports = ports.split(',').map(str::parse).collect::<Result<_, _>>()?;
            let signed = Signing::of_name(signed).ok_or("--signed none|each|batch64")?;
            let folder = PathBuf::from(folder);
            let node = NodeArguments {
                id: id.parse()?,
                ports,
                folder,
                signed,
            };
            Ok(runtime.block_on(serve_replica(node))?)
        }
        ["run", clients, size, seconds, signed, folder] => {
            let mut bench = bench(folder)?;
            bench.clients = clients.parse()?;
            bench.size_bytes = size.parse()?;
            bench.seconds = seconds.parse()?;
            bench.signed = Signing::of_name(signed).ok_or("none|each|batch64")?;
            println!(
                "{}",
                serde_json::to_string(&runtime.block_on(run(&bench))?)?
            );
            Ok(())
        }
        ["failover", kills, folder] => {
            let measured = runtime.block_on(run_failover(&bench(folder)?, kills.parse()?))?;
            println!("{}", serde_json::to_string(&measured)?);
            Ok(())
        }
        ["restart", commands, folder] => {
            let mut bench = bench(folder)?;
            bench.clients = 1_024;
            let measured = runtime.block_on(run_restart(&bench, commands.parse()?))?;
            println!("{}", serde_json::to_string(&measured)?);
            Ok(())
        }
        _ => Err("see the top of this file".into()),
    }
}

fn bench(folder: &str) -> Result<Bench, std::io::Error> {
    Ok(Bench {
        nodes: 3,
        clients: 1,
        size_bytes: 256,
        seconds: 10,
        signed: Signing::None,
        folder: PathBuf::from(folder),
        program: (std::env::current_exe()?, vec!["node".to_owned()]),
    })
}
