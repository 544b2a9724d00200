//! Fetches the contents (graphs, weights and tensors) that a lease needs from other peers: short
//! ones together, the others one by one.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use libp2p::PeerId;
use souk_market::AccountKey;
use souk_memory::transfers::Urgency as TransferUrgency;
use souk_memory::{ContentId, Tensor};
use souk_roles::access::Scope;
use souk_roles::lease::Failure;
use souk_roles::provider::{Content, ContentKind, Urgency};

use super::outcomes::ArrivedContent;
use super::*;
use souk_folder::clock::unix_us;
use souk_folder::contact::Contact;
use souk_folder::key;
use souk_network::content::transfers::{FetchError, FetchedContent};

/// Contents to fetch, with their job and their sources.
pub(super) struct FetchOrder {
    /// Contents that arrived inline with the message that named them.
    pub(super) inline_contents: Vec<(ContentId, Bytes)>,
    pub(super) is_session: bool,
    pub(super) scope: Scope,
    pub(super) contacts: Vec<Contact>,
    pub(super) contents: Vec<Content>,
    pub(super) holders: Vec<AccountKey>,
    pub(super) urgency: Urgency,
}

/// Fetches contents in their order: short ones together, then the others one by one.
pub(super) async fn fetch_contents(
    provider: Arc<Provider>,
    wanted: FetchOrder,
) -> Result<Vec<ArrivedContent>, Failure> {
    for contact in &wanted.contacts {
        if let Err(error) = provider.network.add_contact(contact).await {
            tracing::debug!(%error, "the address of another provider could not be added");
        }
    }
    let urgency = match wanted.urgency {
        Urgency::Planned => TransferUrgency::Planned,
        Urgency::Awaited => TransferUrgency::Awaited,
    };
    let peers = wanted.holders.iter();
    let peers: Vec<PeerId> = peers.filter_map(|it| key::peer_of(&it.0).ok()).collect();
    let nobody = || Failure::Input("no holder of it is named".to_owned());
    let first = peers.first().ok_or_else(nobody)?;
    let ids: Vec<ContentId> = wanted.contents.iter().map(|content| content.id).collect();
    let (tensors, scope, begin) = (&provider.tensors, wanted.scope, unix_us());
    let mut short = BTreeMap::new();
    for (id, bytes) in wanted.inline_contents {
        match tensors.take_in((scope, *first), (id, bytes), wanted.is_session) {
            Ok(came) => drop(short.insert(id, came)),
            Err(error) => tracing::debug!(%id, %error, "inline content was refused; fetching it"),
        }
    }
    if ids.len() - short.len() > 1 {
        let rest = ids.iter().filter(|id| !short.contains_key(id));
        let rest: Vec<ContentId> = rest.copied().collect();
        short.extend(tensors.fetch_short(urgency, scope, *first, &rest).await);
    }
    let together = (begin, unix_us());
    let mut shown = contents_label(&wanted.contents, &short);
    let mut came = Vec::with_capacity(ids.len());
    for content in &wanted.contents {
        let begin = unix_us();
        let (fetched, span) = match short.remove(&content.id) {
            Some(fetched) => (fetched, shown.take().map(|name| (name, together))),
            None => {
                let fetching = tensors.fetch_as(urgency, scope, &peers, content.id);
                let fetched = fetching.await;
                let failed = |error| match error {
                    FetchError::Store(error) => provider.disk.not_kept(&error),
                    error => Failure::Input(format!("{}: {error}", content.what)),
                };
                let times = (begin, unix_us());
                (
                    fetched.map_err(failed)?,
                    Some((content.what.clone(), times)),
                )
            }
        };
        if content.kind == ContentKind::Tensor {
            let read = Tensor::from_blob(&fetched.bytes);
            read.map_err(|error| Failure::Input(format!("{}: {error}", content.what)))?;
        }
        came.push(ArrivedContent {
            content: content.clone(),
            fetched,
            from: wanted.holders[0],
            span,
        });
    }
    Ok(came)
}

/// Returns the name of contents fetched together in a trace: their common label, or else their
/// number.
fn contents_label(
    contents: &[Content],
    together: &BTreeMap<ContentId, FetchedContent>,
) -> Option<String> {
    let came = contents.iter().filter(|it| together.contains_key(&it.id));
    let kinds: BTreeSet<&str> = came.map(|content| content.what.as_str()).collect();
    let mut kinds = kinds.into_iter();
    match (kinds.next()?, kinds.next()) {
        (kind, None) => Some(kind.to_owned()),
        _ => Some(format!("{} short contents", together.len())),
    }
}
