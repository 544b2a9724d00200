//! `souk market …`: creates, joins, shows and verifies a market, and shows its prices and trades.

mod create;
mod evidence;
mod look;
mod verify;
pub mod views;
mod witness;

use std::path::Path;

use serde_json::json;
use souk_api::governance::{GovernanceView, RulesView};
use souk_api::member::{FounderView, MembersView};
use souk_folder::invitation::Invitation;
use souk_folder::market_file::{MARKET_FILE, MarketFile};
use souk_network::protocols::market::{Governance, Members};
use souk_node::client::join::{self, JoiningError};
use souk_node::market::Genesis;

use crate::args::{Market, Output};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{connect_broker, create_folder, from_config, from_network, unreachable_market};
use crate::{rules, show};

/// Runs a command on markets.
pub async fn run(folder: &Path, output: Output, command: Market) -> Outcome {
    match command {
        Market::Create(new) => create::create_market(folder, output, &new),
        Market::Join { invitation } => join_market(folder, output, &invitation).await,
        Market::Show => show_market(folder, output).await,
        Market::Verify(args) => verify::verify_history(folder, output, &args).await,
        Market::Witness(args) => witness::witness_history(folder, output, &args).await,
        Market::Rules => {
            show::print_line(rules::format_rules(&Default::default()).trim_end());
            Ok(())
        }
        Market::Classes(freshness) => views::show_classes(folder, freshness, output).await,
        Market::Price(freshness) => views::show_prices(folder, freshness, output).await,
        Market::Depth { class, freshness } => {
            views::show_depth(folder, &class, freshness, output).await
        }
        Market::Trades { class, freshness } => {
            views::show_trades(folder, &class, freshness, output).await
        }
        Market::Candles {
            class,
            step,
            freshness,
        } => views::show_candles(folder, &class, step, freshness, output).await,
    }
}

async fn join_market(folder: &Path, output: Output, invitation: &str) -> Outcome {
    let invitation = parse_invitation(invitation)?;
    let present = read_market_file(folder)?;
    if let Some(market) = &present
        && market.genesis.market_id() != invitation.market
    {
        return Err(of_another(folder, &market.genesis));
    }
    let (genesis, members) = join::fetch_market(&invitation)
        .await
        .map_err(from_joining)?;
    create_folder(folder)?;
    MarketFile::store_known(folder, members.addresses()).map_err(from_config)?;
    let market = MarketFile::new(genesis);
    market.write(folder).map_err(from_config)?;
    let name = &market.genesis.chain;
    let facts = json!({
        "market": invitation.market.to_string(), "name": name, "dir": folder,
        "validators": members.addresses(),
    });
    let dir = folder.display();
    let text = format!(
        "{} \"{}\" in {dir}\n\
         to buy:   souk --dir {dir} account new\n\
         to sell:  souk --dir {dir}/provider provider init\n\
         to validate:  souk --dir {dir}/validator validator init --listen ADDRESS",
        match present {
            Some(_) => "already joined the market",
            None => "joined the market",
        },
        name.as_str(),
    );
    show::print_result(output, &facts, &text);
    Ok(())
}

/// Parses the invitation to a market.
fn parse_invitation(text: &str) -> Result<Invitation, Failure> {
    text.parse().map_err(|error| {
        let hint = "give the whole line that `souk market create` or `souk market show` printed";
        Failure::new(Kind::Input, error, hint)
    })
}

/// Returns the market of this folder, if it has one.
fn read_market_file(folder: &Path) -> Result<Option<MarketFile>, Failure> {
    let path = folder.join(MARKET_FILE);
    match path.exists() {
        true => MarketFile::read(&path).map(Some).map_err(from_config),
        false => Ok(None),
    }
}

fn of_another(folder: &Path, genesis: &Genesis) -> Failure {
    let cause = format!(
        "{} is the folder of the market \"{}\" already ({})",
        folder.display(),
        genesis.chain.as_str(),
        genesis.market_id()
    );
    Failure::new(
        Kind::State,
        cause,
        "give each market a folder of its own with --dir; remove one that nobody has joined",
    )
}

async fn show_market(folder: &Path, output: Output) -> Outcome {
    let market = MarketFile::read_nearest(folder).map_err(from_config)?;
    let market = market.with_known(folder);
    let invitation = format_invitation(&market)?;
    let genesis = &market.genesis;
    // The facts of the folder are shown even if no validator answers.
    let asked = fetch_governance_and_members(folder).await;
    let facts = json!({
        "market": genesis.market_id().to_string(), "name": genesis.chain, "invitation": invitation,
        "operators": genesis.operators, "operators_needed": genesis.operators_needed,
        "validators": genesis.validators.iter().map(FounderView::from).collect::<Vec<_>>(),
        "rules": RulesView::from(&genesis.rules),
        "now": asked.as_ref().ok().map(|(found, _)| GovernanceView::from(found)),
        "members": asked.as_ref().ok().map(|(_, members)| MembersView::from(members)),
    });
    let rules = asked
        .as_ref()
        .map_or(&genesis.rules, |(found, _)| &found.rules);
    let operators: Vec<String> = genesis.operators.iter().map(ToString::to_string).collect();
    let text = format!(
        "market      {}\nid          {}\noperators   {} of {}\ninvitation  {invitation}\n\n{}",
        genesis.chain.as_str(),
        genesis.market_id(),
        genesis.operators_needed,
        operators.join("\n            "),
        rules::format_rules(rules).trim_end(),
    );
    show::print_result(output, &facts, &text);
    match (&asked, output) {
        (_, Output::Json) => {}
        (Ok((found, members)), Output::Text) => {
            show::print_line("");
            show::governance::print_coming(found);
            show::governance::print_versions(found, members);
        }
        (Err(failure), Output::Text) => show::print_notice(&format!(
            "note: it was founded with these rules; no validator says what they are now: {}",
            failure.cause
        )),
    }
    Ok(())
}

/// Asks the market for its governance and its validators.
async fn fetch_governance_and_members(folder: &Path) -> Result<(Governance, Members), Failure> {
    let broker = connect_broker(folder).await?;
    let found = broker
        .fetch_governance()
        .await
        .map_err(unreachable_market)?;
    let members = broker.fetch_members().await.map_err(unreachable_market)?;
    Ok((found, members))
}

/// Returns the invitation to a market, with all validators that the folder knows.
fn format_invitation(market: &MarketFile) -> Result<String, Failure> {
    let invitation = Invitation {
        market: market.genesis.market_id(),
        contacts: market.contacts().map_err(from_config)?,
    };
    Ok(invitation.to_string())
}

fn from_joining(error: JoiningError) -> Failure {
    match error {
        JoiningError::Network(error) => from_network(error),
        JoiningError::Broker(error) => unreachable_market(error),
        JoiningError::Other { .. } => Failure::new(
            Kind::Verification,
            error,
            "nothing was stored: ask for the invitation again where you got it",
        ),
        JoiningError::Genesis(_) => Failure::new(
            Kind::Verification,
            error,
            "nothing was stored: the market was founded by another version of souk",
        ),
    }
}
