//! `souk peers`: shows a node's view of its network, from the file that the node writes.

use std::path::Path;

use souk_network::swarm::routes::{Reach, Route};
use souk_network::swarm::view::View;

use crate::args::Output;
use crate::failure::{Failure, Kind, Outcome};
use crate::show::{self, print_line};

/// Shows the last view of the node of `folder`.
pub fn run(folder: &Path, output: Output) -> Outcome {
    let view = View::read(folder).map_err(|error| {
        let hint = "--dir is the folder of a validator or provider; one that has just started \
                    writes it after some seconds";
        Failure::new(Kind::State, error, hint)
    })?;
    match output {
        Output::Json => show::print_json(&view),
        Output::Text => print_view(&view),
    }
    Ok(())
}

fn print_view(view: &View) {
    let reach = match view.reach {
        Reach::Unknown => "it is not known yet whether it can be dialled from outside",
        Reach::Public => "others can dial it",
        Reach::Private => "others cannot dial it",
    };
    print_line(&format!("{}: {reach}", view.peer));
    for address in &view.listens {
        print_line(&format!("  listens on {address}"));
    }
    for relay in &view.relays {
        print_line(&format!("  listens through relay {relay}"));
    }
    print_line(&format!(
        "{} peer(s) connected, {} provider(s) heard of",
        view.peers.len(),
        view.providers
    ));
    for peer in &view.peers {
        let way = match peer.way {
            Route::Direct => "direct",
            Route::Relayed => "relayed",
        };
        let score = peer
            .score
            .map_or("-".to_owned(), |score| format!("{score:.1}"));
        print_line(&format!(
            "  {} {way} {} points {} gossip {score}",
            peer.peer, peer.address, peer.points
        ));
    }
    for blocked in &view.blocked {
        print_line(&format!(
            "  {} is blocked until {} ms since 1970: {:?}",
            blocked.peer, blocked.until_ms, blocked.fault
        ));
    }
}
