//! Prints the validators of a market as a table, with their standing and the leader, for
//! `souk validator …`.

use souk_network::protocols::market::{Member, Members, Standing};
use souk_node::validator::operator;

use super::{Table, print_line};

/// Prints the current validators, and lists the ids of the removed ones.
pub fn print_members(members: &Members) {
    let mut table = Table::new(&["validator", "standing", "runs", ">last entry", "address"]);
    let is_removed = |member: &&Member| member.standing == Standing::Removed;
    for member in members
        .validators
        .iter()
        .filter(|member| !is_removed(member))
    {
        let is_leader = member.raft_id == members.leader;
        let standing = operator::name(member.standing).to_owned();
        table.add_row([
            member.raft_id.to_string(),
            if is_leader {
                "leader".to_owned()
            } else {
                standing
            },
            match member.running {
                Some(true) => "yes",
                Some(false) => "no",
                None => "not known",
            }
            .to_owned(),
            member
                .reached
                .map_or(String::new(), |entry| entry.to_string()),
            member.address.clone(),
        ]);
    }
    table.print();
    let gone = members.validators.iter().filter(is_removed);
    let gone: Vec<String> = gone.map(|member| member.raft_id.to_string()).collect();
    if !gone.is_empty() {
        print_line(&format!("  left for good: {}", gone.join(", ")));
    }
    if members.leader == 0 {
        print_line(
            "  there is no leader now: too few validators run, or an election is in progress",
        );
    }
}
