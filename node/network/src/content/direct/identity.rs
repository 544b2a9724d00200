//! Authenticates the ends of a channel: TLS 1.3 with the nodes' own keys instead of certificates.
//!
//! A node's ed25519 key is its peer id, and also its raw public key (RFC 7250) in TLS: each end
//! will accept only the key of the peer with which it agreed on the channel, so there is no name,
//! authority or date to check. A signature in TLS covers 64 spaces and a TLS label first, so
//! neither noise nor the market will accept it.

use std::sync::Arc;

use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
    UnixTime,
};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};
use souk_folder::key::NodeKey;

/// The prefix of the 32 bytes of an ed25519 key in a SubjectPublicKeyInfo (RFC 8410).
const PUBLIC_PREFIX: [u8; 12] = [48, 42, 48, 5, 6, 3, 43, 101, 112, 3, 33, 0];

/// The prefix of the 32 bytes of an ed25519 secret in PKCS#8 (RFC 8410).
const SECRET_PREFIX: [u8; 16] = [48, 46, 2, 1, 0, 48, 5, 6, 3, 43, 101, 112, 4, 34, 4, 32];

/// Returns the configuration of the end that dials.
pub(super) fn dialling(key: &NodeKey, peer: [u8; 32]) -> Result<Arc<ClientConfig>, Error> {
    let provider = crypto_provider();
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ExpectedPeerVerifier::new(peer, &provider)))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
            certified_key(key)?,
        )));
    config.resumption = rustls::client::Resumption::disabled();
    config.enable_sni = false;
    config.enable_secret_extraction = true;
    Ok(Arc::new(config))
}

/// Returns the configuration of the end that accepts.
pub(super) fn dialled(key: &NodeKey, peer: [u8; 32]) -> Result<Arc<ServerConfig>, Error> {
    let provider = crypto_provider();
    let mut config = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::new(ExpectedPeerVerifier::new(peer, &provider)))
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(
            certified_key(key)?,
        )));
    config.send_tls13_tickets = 0;
    config.enable_secret_extraction = true;
    Ok(Arc::new(config))
}

/// Returns ring, which noise already uses, with the ciphers that processors have instructions for.
pub(super) fn crypto_provider() -> Arc<CryptoProvider> {
    let cipher_suites = vec![
        ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
        ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
    ];
    Arc::new(CryptoProvider {
        cipher_suites,
        ..ring::default_provider()
    })
}

fn certified_key(key: &NodeKey) -> Result<Arc<CertifiedKey>, Error> {
    let secret = [&SECRET_PREFIX[..], &key.signing_key().to_bytes()].concat();
    let secret = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(secret));
    let signing = crypto_provider().key_provider.load_private_key(secret)?;
    let public = CertificateDer::from(spki(&key.public_key()));
    Ok(Arc::new(CertifiedKey::new(vec![public], signing)))
}

fn spki(key: &[u8; 32]) -> Vec<u8> {
    [&PUBLIC_PREFIX[..], key].concat()
}

/// Accepts only one peer.
#[derive(Debug)]
struct ExpectedPeerVerifier {
    spki: Vec<u8>,
    provider: Arc<CryptoProvider>,
}

impl ExpectedPeerVerifier {
    fn new(peer: [u8; 32], provider: &Arc<CryptoProvider>) -> ExpectedPeerVerifier {
        ExpectedPeerVerifier {
            spki: spki(&peer),
            provider: provider.clone(),
        }
    }

    fn check_key(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        match **shown == *self.spki {
            true => Ok(()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(&**shown);
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
    }
}

/// Refuses TLS 1.2.
fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::General(
        "only TLS 1.3 is spoken on a direct channel".to_owned(),
    ))
}

/// Implements the checks of signatures, which are the same for both traits of verifiers.
macro_rules! checks_of_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            no_tls12()
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            shown: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.verify_signature(message, shown, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for ExpectedPeerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check_key(end_entity)
            .map(|()| ServerCertVerified::assertion())
    }

    checks_of_signatures!();
}

impl ClientCertVerifier for ExpectedPeerVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check_key(end_entity)
            .map(|()| ClientCertVerified::assertion())
    }

    checks_of_signatures!();
}
