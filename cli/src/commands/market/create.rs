//! `souk market create`: creates a market, by writing its folder with the rules, the keys, the
//! first validator, and the genesis, which is the market's initial state.

use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::path::Path;

use serde_json::json;
use souk_folder::config::{self, FORMAT, KEY_FILE, OPERATOR_FOLDER, VALIDATOR_FILE, ValidatorFile};
use souk_folder::contact::Multiaddr;
use souk_folder::key::NodeKey;
use souk_folder::market_file::MarketFile;
use souk_node::market::{AccountKey, Founder, Genesis, Name, Rules};
use souk_node::validator::node;

use super::{format_invitation, of_another, read_market_file};
use crate::args::{MarketCreateArgs, Output};
use crate::commands::key::from_key;
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::from_config;
use crate::{rules, show};

/// File with the rules for people to read, in the folder of the market's file.
const RULES_FILE: &str = "rules.toml";

/// Writes a market's folder: rules, keys, the first validator, and the genesis.
pub fn create_market(folder: &Path, output: Output, new: &MarketCreateArgs) -> Outcome {
    if let Some(market) = read_market_file(folder)? {
        return Err(of_another(folder, &market.genesis));
    }
    if folder.join(VALIDATOR_FILE).exists() {
        let cause = format!("{} is a validator's folder already", folder.display());
        return Err(Failure::new(Kind::State, cause, "give another with --dir"));
    }
    let name = Name::try_from(new.name.as_str()).map_err(|fault| {
        let cause = format!("the name \"{}\": {fault}", new.name);
        Failure::new(Kind::Input, cause, "give --name another one")
    })?;
    let rules = match &new.rules {
        Some(file) => rules::read(file).map_err(|cause| {
            let hint = "`souk market rules` prints every rule with what it means";
            Failure::new(Kind::Input, cause, hint)
        })?,
        None => Rules::default(),
    };
    let listen = assign_free_port(&listen_address(new)?)?;
    let alone = listen.to_string().starts_with("/ip4/127.");
    let key = |folder: &Path| NodeKey::load_or_create(&folder.join(KEY_FILE)).map_err(from_key);
    let home = folder.join(OPERATOR_FOLDER);
    let (operator, validator) = (key(&home)?, key(folder)?);
    let account = AccountKey(operator.public_key());
    let mut genesis = Genesis::new(name, account);
    genesis.operators.extend(&new.operator);
    genesis.operators_needed = new.threshold;
    genesis.check().map_err(|fault| {
        let hint = "name each other operator once, and need no more than there are";
        Failure::new(Kind::Input, fault, hint)
    })?;
    genesis.validators = vec![first_validator(&validator, &listen)?];
    genesis.rules = rules;
    let market = write(folder, genesis, listen)?;
    print_market(folder, output, &market)?;
    if alone && new.listen.is_none() {
        show::print_notice(
            "note: only this machine reaches 127.0.0.1; for others remove the folder and create \
             the market with --listen /ip4/ADDRESS/tcp/4001",
        );
    }
    Ok(())
}

/// Returns the first validator, whose address others must be able to reach.
fn first_validator(key: &NodeKey, listen: &Multiaddr) -> Result<Founder, Failure> {
    let address = node::reached_at(listen, key).ok_or_else(|| {
        let cause = format!("the others can't reach {listen}");
        let hint = "give --listen an address of this machine, such as /ip4/192.0.2.7/tcp/4001";
        Failure::new(Kind::Input, cause, hint)
    })?;
    Ok(Founder {
        raft_id: 1,
        account: AccountKey(key.public_key()),
        address,
    })
}

fn write(folder: &Path, genesis: Genesis, listen: Multiaddr) -> Result<MarketFile, Failure> {
    let file = ValidatorFile {
        format: FORMAT,
        raft_id: Some(1),
        listen,
    };
    config::write(&folder.join(VALIDATOR_FILE), &file).map_err(from_config)?;
    let path = folder.join(RULES_FILE);
    std::fs::write(&path, rules::format_rules(&genesis.rules)).map_err(|error| {
        let cause = format!("cannot write {}: {error}", path.display());
        Failure::new(
            Kind::State,
            cause,
            "check the folder's permissions and the space left",
        )
    })?;
    // This file must come last: it marks a complete folder.
    let market = MarketFile::new(genesis);
    market.write(folder).map_err(from_config)?;
    Ok(market)
}

fn print_market(folder: &Path, output: Output, market: &MarketFile) -> Outcome {
    let (invitation, id) = (
        format_invitation(market)?,
        market.genesis.market_id().to_string(),
    );
    let facts = json!({
        "market": id, "name": market.genesis.chain, "invitation": invitation, "dir": folder,
        "operators": market.genesis.operators, "operators_needed": market.genesis.operators_needed,
    });
    let dir = folder.display();
    let text = format!(
        "founded the market \"{}\" in {dir}\n\
         id        {id}\n\
         run it:   souk --dir {dir} validator run\n\
         others:   souk --dir {dir} market join {invitation}\n\
         keep a copy of {dir}/{OPERATOR_FOLDER}/{KEY_FILE}: anyone who has it can make credits \
         and name validators",
        market.genesis.chain.as_str(),
    );
    show::print_result(output, &facts, &text);
    Ok(())
}

/// Returns the address on which the first validator listens: the given one, or this machine's own.
fn listen_address(new: &MarketCreateArgs) -> Result<Multiaddr, Failure> {
    let text = match &new.listen {
        Some(text) => text.clone(),
        None => match own_address() {
            IpAddr::V4(ip) => format!("/ip4/{ip}/tcp/0"),
            IpAddr::V6(ip) => format!("/ip6/{ip}/tcp/0"),
        },
    };
    text.parse().map_err(|error| {
        let hint = "give --listen an address such as /ip4/192.0.2.7/tcp/4001";
        Failure::new(Kind::Input, format!("\"{text}\": {error}"), hint)
    })
}

/// Returns the address of this machine in its network, or loopback if it has none. Sends nothing.
fn own_address() -> IpAddr {
    let towards = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        Ok::<_, std::io::Error>(socket.local_addr()?.ip())
    };
    let others = || if_addrs::get_if_addrs().unwrap_or_default().into_iter();
    let first = |v4: bool| {
        let mut reached = others().filter(|one| !one.is_loopback() && !one.is_link_local());
        reached.find(|one| one.ip().is_ipv4() == v4)
    };
    let own = || first(true).or_else(|| first(false)).map(|one| one.ip());
    let own = towards().ok().or_else(own);
    own.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// Replaces port 0 by a free port.
fn assign_free_port(listen: &Multiaddr) -> Result<Multiaddr, Failure> {
    let text = listen.to_string();
    let parts: Vec<&str> = text.split('/').collect();
    let ["", "ip4" | "ip6", ip, "tcp", "0"] = parts[..] else {
        return Ok(listen.clone());
    };
    let no_port = |error: &dyn std::fmt::Display| {
        let cause = format!("no port is free at {ip}: {error}");
        Failure::new(
            Kind::Network,
            cause,
            "give --listen an address of this machine",
        )
    };
    let ip: IpAddr = ip.parse().map_err(|error| no_port(&error))?;
    let drawn = TcpListener::bind((ip, 0)).and_then(|socket| socket.local_addr());
    let port = drawn.map_err(|error| no_port(&error))?.port();
    let family = parts[1];
    let fixed = format!("/{family}/{ip}/tcp/{port}");
    Ok(fixed.parse().expect("an address with another port is one"))
}
