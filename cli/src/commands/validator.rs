//! `souk validator …`: manages a validator's folder, its membership, and its backups.

use std::path::{Path, PathBuf};

use serde_json::json;
use souk_api::member::{MemberView, MembersView};
use souk_folder::config::ValidatorFile;
use souk_folder::config::{self, FORMAT, KEY_FILE, OPERATOR_FOLDER, VALIDATOR_FILE};
use souk_folder::contact::Multiaddr;
use souk_folder::key::NodeKey;
use souk_folder::market_file::MarketFile;
use souk_network::protocols::market::{Member, OrderRefusal};
use souk_network::protocols::roster::RosterRefusal;
use souk_node::validator::node::RestoreError;
use souk_node::validator::operator::{Operator, OrderError};
use souk_node::validator::{self, RestoreBackupError};

use super::node;
use crate::args::{OrderArgs, Output, Validator, ValidatorInitArgs};
use crate::failure::{Failure, Kind, Outcome};
use crate::folder::{from_config, from_reach, unreachable_market};
use crate::show;

/// Runs a command on validators.
pub async fn run(folder: &Path, output: Output, command: Validator) -> Outcome {
    match command {
        Validator::Run(run) => node::run_validator(folder, run).await,
        Validator::Init(new) => init_validator(folder, output, &new),
        Validator::List => list_validators(folder, output).await,
        Validator::Add { address, order } => {
            let operator = connect_operator(folder, &order).await?;
            let added = operator.add(&address, order.wait).await;
            report_change(output, added, "votes")
        }
        Validator::Remove { id, order } => {
            let operator = connect_operator(folder, &order).await?;
            let removed = operator.remove(id, order.wait).await;
            report_change(output, removed, "has left for good")
        }
        Validator::TransferLeader { id, order } => {
            let operator = connect_operator(folder, &order).await?;
            let leader = operator.transfer_leadership(id).await.map_err(from_order)?;
            let text = format!("validator {leader} leads");
            show::print_result(output, &json!({ "leader": leader }), &text);
            Ok(())
        }
        Validator::Backup { file, from, order } => {
            backup_validator(folder, output, &file, from, &order).await
        }
        Validator::Restore { file, new_market } => {
            restore_validator(folder, output, &file, new_market)
        }
    }
}

fn init_validator(folder: &Path, output: Output, new: &ValidatorInitArgs) -> Outcome {
    MarketFile::read_nearest(folder).map_err(from_config)?;
    if validator::node::has_begun(folder) && !new.new_log {
        let cause = format!(
            "{} is the folder of a validator that has begun",
            folder.display()
        );
        let hint = "choose another with --dir; --new-log puts its log aside and begins again";
        return Err(Failure::new(Kind::State, cause, hint));
    }
    let listen = listen_of(folder, new)?;
    let key = NodeKey::load_or_create(&folder.join(KEY_FILE))
        .map_err(|error| Failure::new(Kind::State, error, "check the folder's permissions"))?;
    let Some(address) = validator::node::reached_at(&listen, &key) else {
        let cause = format!("the others can't reach {listen}");
        let hint = "give --listen an address of this machine and a port, not 0";
        return Err(Failure::new(Kind::Input, cause, hint));
    };
    let aside = validator::node::put_aside(folder).map_err(node::from_validator)?;
    let file = ValidatorFile {
        format: FORMAT,
        raft_id: None,
        listen,
    };
    config::write(&folder.join(VALIDATOR_FILE), &file).map_err(from_config)?;
    let facts = json!({ "address": address, "dir": folder, "old_log": aside });
    let put = aside.map_or(String::new(), |to| {
        format!("\nits old log is in {}", to.display())
    });
    let text = format!(
        "a new validator in {}: start it with `souk --dir {} validator run`, then let the operator \
         add it:\n  souk --dir FOLDER validator add {address}{put}",
        folder.display(),
        folder.display(),
    );
    show::print_result(output, &facts, &text);
    Ok(())
}

/// Returns the address on which a new validator listens: the given one, or that of the existing
/// file.
fn listen_of(folder: &Path, new: &ValidatorInitArgs) -> Result<Multiaddr, Failure> {
    let hint = "give --listen an address such as /ip4/192.0.2.7/tcp/4001";
    if let Some(text) = &new.listen {
        return text
            .parse()
            .map_err(|error| Failure::new(Kind::Input, format!("\"{text}\": {error}"), hint));
    }
    let before = config::read::<ValidatorFile>(&folder.join(VALIDATOR_FILE));
    match before {
        Ok(file) => Ok(file.listen),
        Err(_) => Err(Failure::new(
            Kind::Input,
            "no address to listen on is given",
            hint,
        )),
    }
}

async fn list_validators(folder: &Path, output: Output) -> Outcome {
    let operator = join_as_operator(folder, NodeKey::generate()).await?;
    let members = operator.fetch_members().await.map_err(from_order)?;
    match output {
        Output::Json => show::print_json(&MembersView::from(&members)),
        Output::Text => show::members::print_members(&members),
    }
    Ok(())
}

fn report_change(output: Output, done: Result<Member, OrderError>, what: &str) -> Outcome {
    if let Err(OrderError::Declined(OrderRefusal::Refused(awaits))) = &done
        && let RosterRefusal::Awaits { given, needed } = awaits
    {
        let facts = json!({
            "state": "awaited", "approvals": given, "approvals_needed": needed,
        });
        let text = format!("{awaits}; each gives the same command with its own key");
        show::print_result(output, &facts, &text);
        return Ok(());
    }
    let member = done.map_err(from_order)?;
    let text = format!("validator {} {what} ({})", member.raft_id, member.address);
    show::print_result(output, &json!(MemberView::from(&member)), &text);
    Ok(())
}

async fn backup_validator(
    folder: &Path,
    output: Output,
    file: &Path,
    from: Option<u64>,
    order: &OrderArgs,
) -> Outcome {
    let own = config::read::<ValidatorFile>(&folder.join(VALIDATOR_FILE)).ok();
    let own = own.and_then(|file| file.raft_id);
    let asks_itself = own.is_some() && from.is_none_or(|id| Some(id) == own);
    let operator = match asks_itself && order.key.operator_key.is_none() {
        true => join_as_operator(folder, node::key(folder)?).await?,
        false => connect_operator(folder, order).await?,
    };
    let id = match from.or(own) {
        Some(id) => id,
        None => operator.fetch_members().await.map_err(from_order)?.leader,
    };
    let bytes = operator.download_backup(id).await.map_err(from_order)?;
    let index = validator::write_backup(file, &bytes).map_err(|error| {
        Failure::new(
            Kind::State,
            error,
            "check the file's folder and the space left",
        )
    })?;
    let facts = json!({ "file": file, "from": id, "index": index.0, "bytes": bytes.len() });
    let text = format!(
        "the market up to entry {index}, as validator {id} has it: {} ({})",
        file.display(),
        show::format_bytes(bytes.len() as u64),
    );
    show::print_result(output, &facts, &text);
    Ok(())
}

fn restore_validator(folder: &Path, output: Output, file: &Path, new_market: bool) -> Outcome {
    let market = MarketFile::read_nearest(folder).map_err(from_config)?;
    let key = node::key(folder)?;
    let restored = validator::node::restore_backup(folder, &key, &market, file, new_market)
        .map_err(from_restore)?;
    let next = match new_market {
        true => "restore every other validator of market.json from the same file, then start them",
        false => "start it with `souk validator run` and let the operator add its address",
    };
    let index = restored.index;
    let facts = json!({
        "index": index.0, "state": restored.state.to_string(), "new_market": new_market,
        "dir": folder,
    });
    let text = format!(
        "restored up to entry {index}, state {}\n{next}",
        restored.state
    );
    show::print_result(output, &facts, &text);
    Ok(())
}

/// Connects to the market with its operator's key.
async fn connect_operator(folder: &Path, order: &OrderArgs) -> Result<Operator, Failure> {
    join_as_operator(
        folder,
        operator_key(folder, order.key.operator_key.as_deref())?,
    )
    .await
}

/// Returns the key of the market's operator, from the given file or from the market's folder.
pub fn operator_key(folder: &Path, file: Option<&Path>) -> Result<NodeKey, Failure> {
    let file = operator_key_file(folder, file);
    NodeKey::load(&file).map_err(|error| {
        let hint = "only the market's operator may do this: give its key with --operator-key";
        Failure::new(Kind::State, error, hint)
    })
}

/// Returns the path of the operator's key: the given one, or that in this folder or its parent.
pub fn operator_key_file(folder: &Path, file: Option<&Path>) -> PathBuf {
    file.map_or_else(|| found_key(folder), Path::to_owned)
}

/// Returns the path of the operator's key in this folder, or in its parent if only that one has it.
fn found_key(folder: &Path) -> PathBuf {
    let key = |folder: &Path| folder.join(OPERATOR_FOLDER).join(KEY_FILE);
    let above = folder.parent().map(key);
    match above {
        Some(above) if !key(folder).exists() && above.exists() => above,
        _ => key(folder),
    }
}

async fn join_as_operator(folder: &Path, key: NodeKey) -> Result<Operator, Failure> {
    let market = MarketFile::read_nearest(folder).map_err(from_config)?;
    let joined = Operator::join(key, &market.with_known(folder)).await;
    joined.map_err(from_reach)
}

fn from_order(error: OrderError) -> Failure {
    let (kind, hint) = match &error {
        OrderError::Broker(error) => return unreachable_market(error),
        OrderError::NoLeader | OrderError::Leader { .. } => (
            Kind::Network,
            "start those that are down; `souk validator list` shows which",
        ),
        OrderError::Declined(declined) => of_declined(declined),
        OrderError::Unknown { .. } => (Kind::Input, "`souk validator list` shows their ids"),
        OrderError::Overtaken(_) => (
            Kind::State,
            "run `souk validator remove` with this id, then `souk validator add` once more",
        ),
        OrderError::Address(_) => (
            Kind::Input,
            "`souk validator init` and `run` print a validator's address",
        ),
        OrderError::Already { .. } | OrderError::Removed(_) => (Kind::State, "nothing more to do"),
        OrderError::Waiting {
            standing: "leaving",
            ..
        } => (
            Kind::Network,
            "start those that are down; it continues by itself: see `souk validator list`",
        ),
        OrderError::Waiting { .. } => (
            Kind::Network,
            "check that it runs and reaches the others; it continues by itself, and `souk \
             validator remove` gives it up",
        ),
        OrderError::Backup { .. } => (Kind::Network, "see that it runs, or take it --from another"),
    };
    Failure::new(kind, &error, hint)
}

fn of_declined(declined: &OrderRefusal) -> (Kind, &'static str) {
    match declined {
        OrderRefusal::Unreached(_) => (
            Kind::Network,
            "start it with `souk validator run` on its machine, and check that its port is open",
        ),
        OrderRefusal::Quorum { .. } => (
            Kind::State,
            "start those that are down, add a new one, or remove the dead one first",
        ),
        OrderRefusal::NotRunning(_) | OrderRefusal::NotHandedOver { .. } => {
            (Kind::Network, "`souk validator list` shows who runs")
        }
        OrderRefusal::NotAVoter(_) | OrderRefusal::AlreadyLeader(_) => (
            Kind::State,
            "`souk validator list` shows who leads and who votes",
        ),
        OrderRefusal::Address(_) => (
            Kind::Input,
            "give the address that `souk validator init` printed",
        ),
        OrderRefusal::Refused(RosterRefusal::Operator(_)) => (
            Kind::State,
            "sign with the operator's key: --operator-key FILE",
        ),
        OrderRefusal::Refused(RosterRefusal::Last(_)) => (Kind::State, "add another one first"),
        OrderRefusal::Refused(RosterRefusal::Full) => (Kind::State, "remove one first"),
        OrderRefusal::Refused(_) => (Kind::State, "`souk validator list` shows how they stand"),
    }
}

fn from_restore(error: RestoreError) -> Failure {
    let (kind, hint) = match &error {
        RestoreError::Backup(
            RestoreBackupError::Damaged { .. } | RestoreBackupError::Backup { .. },
        )
        | RestoreError::State(_)
        | RestoreError::Digest { .. } => (
            Kind::Verification,
            "nothing was restored: take another backup or copy",
        ),
        RestoreError::Backup(RestoreBackupError::Read { .. }) => (
            Kind::Input,
            "give the file that `souk validator backup` wrote",
        ),
        RestoreError::Backup(RestoreBackupError::Used(_)) | RestoreError::Begun => (
            Kind::State,
            "`souk validator init --new-log` puts the old log aside; an old id never comes back",
        ),
        RestoreError::Backup(_) => (Kind::State, "check the folder's permissions and the space"),
        RestoreError::Market { .. } => (Kind::Input, "give this market's backup, or another --dir"),
        RestoreError::ValidatorNode(_) | RestoreError::Config(_) => {
            (Kind::State, "restore market.json and validator.json")
        }
        RestoreError::NoFounder => (
            Kind::Input,
            "restore without --new-market, and let the operator add it once the market is up again",
        ),
    };
    Failure::new(kind, &error, hint)
}
