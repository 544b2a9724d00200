//! Opens the decoder of a model that a provider serves by the token, for `souk provider init` and
//! `souk provider run`.

use std::sync::Arc;

use souk_folder::config::{ProviderFile, ServedModelChoice};
use souk_node::endpoint::own_engine::OwnEngine;
use souk_texts::{ServedDecoder, ServingSize, TextError};
use tokio::runtime::Handle;
use tokio::task::{JoinError, spawn_blocking};

use crate::failure::Failure;

/// Opens the decoder of the model that a provider's file sells; none if it sells no such model.
pub async fn open_own_engine(file: &ProviderFile) -> Result<Option<Arc<dyn OwnEngine>>, Failure> {
    let Some(choice) = file.device.as_served_model() else {
        return Ok(None);
    };
    let decoder = open_decoder(choice, file.limits.leases).await?;
    Ok(Some(Arc::new(decoder)))
}

/// Opens the decoder of a model with so many slots.
pub async fn open_decoder(
    choice: &ServedModelChoice,
    slots: u32,
) -> Result<ServedDecoder, Failure> {
    let (source, handle) = (choice.source.clone(), Handle::current());
    let size = ServingSize {
        slots,
        context: choice.context,
        threads: choice.threads,
    };
    let opening = spawn_blocking(move || ServedDecoder::open(&source, size, handle));
    Ok(opening.await.map_err(unexpected_failure)??)
}

/// Converts the failure of a task that should not fail.
pub fn unexpected_failure(error: JoinError) -> Failure {
    TextError::unexpected(error).into()
}
