//! `souk serve` and `souk dashboard`: runs the gateway, which serves the HTTP API and its page for
//! a folder's account, and prints the URL that opens the page.

use std::io::IsTerminal;
use std::path::Path;

use serde_json::json;
use souk_folder::market_file::MarketFile;
use souk_gateway::{
    Config, Gateway, GatewayError, ListenerError, Scope, TOKENS_FILE, TokenError, page_at, page_of,
};
use souk_testnet::process::READY;

use crate::args::{Output, PageArgs, ServeArgs};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{from_config, join_as_buyer};
use crate::show;
use crate::stop::Requests;

/// Hint for an unusable file.
const FOLDER_HINT: &str = "check the folder's permissions and the space left";

/// Serves HTTP until a signal stops it.
pub async fn run(folder: &Path, output: Output, args: &ServeArgs) -> Outcome {
    let mut stop = Requests::new();
    let market = MarketFile::read_nearest(folder).map_err(from_config)?;
    let buyer = join_as_buyer(folder).await?;
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let tokens = folder.join(TOKENS_FILE);
    #[cfg(feature = "generate")]
    let host = souk_openai::Sessions::new(buyer.clone(), folder.clone(), &args.model)?;
    #[cfg(feature = "generate")]
    let sessions = Some(std::sync::Arc::new(host.clone()) as std::sync::Arc<_>);
    #[cfg(not(feature = "generate"))]
    let sessions = None;
    let config = Config {
        folder: folder.clone(),
        name: market.genesis.chain.to_string(),
        address: args.http,
        sessions,
    };
    let gateway = Gateway::start(buyer, config).await.map_err(from_gateway)?;
    let url = format!("http://{}", gateway.address());
    let page = page_at(&folder, gateway.address(), page_scope(args.page)).map_err(from_tokens)?;
    let facts = json!({ "ready": true, "url": url, "page": page, "tokens": tokens });
    let tokens = tokens.display();
    // Without a terminal, standard output may be a log that others can read.
    let opened = match std::io::stdout().is_terminal() {
        true => format!("open {page}"),
        false => "`souk dashboard` opens its page".to_owned(),
    };
    let text = format!("{READY} {url}; {opened}; tokens in {tokens}; stop with Ctrl-C");
    show::print_result(output, &facts, &text);
    let stopped = async {
        match args.until_stdin_closes {
            true => stop.next_or_stdin_closed().await,
            false => stop.next().await,
        }
    };
    tokio::select! {
        () = gateway.run() => {}
        () = stopped => {}
    }
    // A second signal leaves the sessions' leases to run out.
    #[cfg(feature = "generate")]
    tokio::select! {
        () = host.close_all() => {}
        () = stop.next() => {}
    }
    Ok(())
}

/// Prints the URL that opens the page of the running gateway.
pub fn print_dashboard_url(folder: &Path, output: Output, args: PageArgs) -> Outcome {
    let page = page_of(folder, page_scope(args)).map_err(from_tokens)?;
    let page = page.ok_or_else(|| {
        let cause = format!("no gateway runs for {}", folder.display());
        let hint = "start it: souk serve; a testnet has one, unless it was started with --no-http";
        Failure::new(Kind::State, cause, hint)
    })?;
    show::print_result(output, &json!({ "page": page }), &page);
    Ok(())
}

/// Returns the scope of the page's token.
pub fn page_scope(args: PageArgs) -> Scope {
    match (args.operate, args.trade) {
        (true, _) => Scope::Operate,
        (false, true) => Scope::Trade,
        (false, false) => Scope::Read,
    }
}

/// Converts a failure to listen.
pub fn from_listener(error: ListenerError) -> Failure {
    match error {
        ListenerError::NotLoopback { .. } => Failure::new(
            Kind::Input,
            error,
            "give --http 127.0.0.1:0, and put a proxy with a password in front of it for others",
        ),
        ListenerError::Listen { .. } => Failure::new(
            Kind::Network,
            error,
            "another program may listen there: give --http another port",
        ),
    }
}

fn from_gateway(error: GatewayError) -> Failure {
    match error {
        GatewayError::HttpListener(error) => from_listener(error),
        GatewayError::Token(error) => from_tokens(error),
        GatewayError::Contents(_) | GatewayError::Keys(_) | GatewayError::Address(_) => {
            Failure::new(Kind::State, error, FOLDER_HINT)
        }
    }
}

/// Converts a failure to read or create tokens.
pub fn from_tokens(error: TokenError) -> Failure {
    let hint = match error {
        TokenError::Damaged { .. } => "",
        TokenError::File { .. } => FOLDER_HINT,
    };
    Failure::new(Kind::State, error, hint)
}
