//! Tests which peers a node serves a content to, and for which buyers it uses a content that it
//! holds.

use super::*;

fn account(node: &Tensors) -> AccountKey {
    node.0.account
}

fn only(node: &Tensors) -> Readers {
    Readers::new([account(node)].into())
}

/// A job of this buyer.
fn job_of(buyer: AccountKey) -> Scope {
    let job = JobId([7; 32]);
    Scope { buyer, job }
}

async fn three(channel: DirectListen) -> (Tensors, [Tensors; 2], PeerId) {
    let (holder, contact) = node(channel.clone()).await;
    let (party, _) = node(channel.clone()).await;
    let (stranger, _) = node(channel).await;
    for node in [&party, &stranger] {
        node.0.network.add_contact(&contact).await.unwrap();
    }
    (holder, [party, stranger], contact.peer_id().unwrap())
}

fn is_missing<T>(fetched: Result<T, FetchError>) -> bool {
    matches!(fetched, Err(FetchError::Missing { .. }))
}

#[tokio::test]
async fn who_knows_an_id_and_is_no_party_is_answered_as_if_it_were_not_here() {
    for channel in [DirectListen::Off, dialled()] {
        let (holder, [party, stranger], peer) = three(channel).await;
        let scope = job_of(account(&party));
        for length in [10, DIRECT_BYTES_MIN as usize + 1] {
            let id = holder.store().put(content(length)).unwrap();
            assert!(
                is_missing(party.fetch_content(scope, peer, id).await),
                "not given"
            );
            give(&holder, scope, &only(&party), id);
            assert!(is_missing(stranger.fetch_content(scope, peer, id).await));
            assert!(is_missing(
                stranger.fetch_many(scope, peer, &[id, id]).await
            ));
            let own = job_of(account(&stranger));
            assert!(is_missing(stranger.fetch_content(own, peer, id).await));
            let fetched = party.fetch_content(scope, peer, id).await.unwrap();
            assert_eq!(fetched.moved as usize, length);
        }
    }
}

#[tokio::test]
async fn what_two_share_of_one_buyer_is_not_had_for_another() {
    let (holder, [provider, stranger], peer) = three(DirectListen::Off).await;
    let id = holder.store().put(content(1_000)).unwrap();
    let owner = job_of(AccountKey([1; 32]));
    give(&holder, owner, &only(&provider), id);
    // The stranger buys of the provider, and names what is another's and who has it.
    let theirs = job_of(account(&stranger));
    assert!(is_missing(provider.fetch_content(theirs, peer, id).await));
    assert_eq!(
        provider.fetch_content(owner, peer, id).await.unwrap().moved,
        1_000
    );
    // Nor is what is here now used for the stranger: it is asked for, and does not come.
    assert!(is_missing(provider.fetch_content(theirs, peer, id).await));
    assert!(is_missing(
        provider.fetch_many(theirs, peer, &[id, id]).await
    ));
    assert_eq!(
        provider.fetch_content(owner, peer, id).await.unwrap().moved,
        0
    );
    // Who has it itself sends it once, and then it is here for both.
    give(&holder, theirs, &only(&provider), id);
    assert_eq!(
        provider
            .fetch_content(theirs, peer, id)
            .await
            .unwrap()
            .moved,
        1_000
    );
    assert_eq!(
        provider
            .fetch_content(theirs, peer, id)
            .await
            .unwrap()
            .moved,
        0
    );
}

#[tokio::test]
async fn many_short_ones_come_once_for_each_buyer() {
    let (holder, [provider, _], peer) = three(DirectListen::Off).await;
    let put = |n: u8| holder.store().put(Bytes::from(vec![n; 100])).unwrap();
    let ids: Vec<ContentId> = (0..9).map(put).collect();
    for buyer in [1, 2] {
        let scope = job_of(AccountKey([buyer; 32]));
        for id in &ids {
            give(&holder, scope, &only(&provider), *id);
        }
        let moved = |fetched: Vec<FetchedContent>| fetched.iter().map(|it| it.moved).sum::<u64>();
        let first = provider.fetch_many(scope, peer, &ids).await.unwrap();
        assert_eq!(moved(first), 900);
        let again = provider.fetch_many(scope, peer, &ids).await.unwrap();
        assert_eq!(moved(again), 0);
    }
}
