//! Connects to the one origin of an inference engine: over plain TCP on this machine, or over TLS
//! to any host. A certificate must be valid for the host, by the authorities that the system trusts
//! or by those of a file that the provider's owner names. Requests that follow each other share a
//! connection.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Uri;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tower_service::Service;

/// How long an engine can take to accept a connection, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection can be idle before it is closed. Engines close idle connections after five
/// seconds at the earliest, and a request must not meet such an end.
const IDLE_MAX: Duration = Duration::from_secs(3);

/// How many idle connections are kept.
const IDLE_CONNECTIONS_MAX: usize = 16;

/// The variable that names the file of trusted authorities in place of the system's own.
const AUTHORITIES_VARIABLE: &str = "SSL_CERT_FILE";

/// Where systems keep the authorities that they trust: Debian and Alpine, Fedora, SUSE, BSD and
/// macOS.
const AUTHORITY_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Why an engine with this URL cannot be sold.
#[derive(Debug, thiserror::Error)]
pub enum UrlFault {
    /// It has more than an origin and a path.
    #[error(
        "the URL of an engine must have no user, password or query; put the key into a file and \
         give --key-file"
    )]
    Secret,
    /// It does not parse.
    #[error("\"{0}\" is not a URL; give one such as http://127.0.0.1:8000/v1")]
    Syntax(String),
    /// It is neither HTTP nor HTTPS.
    #[error("\"{0}\" is neither an http nor an https URL")]
    Scheme(String),
    /// It would send texts and the key to another machine in plain text.
    #[error("\"{0}\" is not on this machine, and http is not encrypted: give an https URL")]
    NotLoopback(String),
    /// No authority can vouch for its host.
    #[error(transparent)]
    Authorities(#[from] AuthorityError),
}

/// Why souk has no certificate authorities to check the engine's certificate.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The system has no file of them.
    #[error("no file of trusted certificate authorities is on this system")]
    Missing,
    /// The file cannot be used.
    #[error("the certificate authorities in {path} cannot be used: {why}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
}

/// Scheme, host and port: the only place to which souk sends requests and the engine's key.
#[derive(Clone)]
pub(super) struct Origin {
    /// The host and the port, as a `Host` header has them.
    authority: String,
    /// The name or address to connect to.
    name: String,
    port: u16,
    tls: Option<TlsClient>,
}

/// How the origin's certificate is checked.
#[derive(Clone)]
struct TlsClient {
    config: Arc<ClientConfig>,
    server: ServerName<'static>,
}

/// The URL of an engine, parsed but without its TLS settings.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OriginAddress {
    authority: String,
    name: String,
    port: u16,
    server: Option<ServerName<'static>>,
}

impl std::fmt::Debug for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Origin")
            .field("authority", &self.authority)
            .field("is_encrypted", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

impl OriginAddress {
    /// Reads the origin of an engine's base URL: `https` of any host, or `http` of this machine.
    pub(super) fn read(url: &str, parsed: &Uri) -> Result<OriginAddress, UrlFault> {
        let syntax = || UrlFault::Syntax(url.to_owned());
        let is_encrypted = match parsed.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            Some(_) => return Err(UrlFault::Scheme(url.to_owned())),
            None => return Err(syntax()),
        };
        let authority = parsed.authority().ok_or_else(syntax)?;
        if parsed.query().is_some() || authority.as_str().contains('@') {
            return Err(UrlFault::Secret);
        }
        // A port that is no number of a port would be taken for none.
        let port = authority.as_str().rsplit_once(':');
        let has_port = port.is_some_and(|(_, port)| !port.contains(']'));
        if has_port && authority.port_u16().is_none() {
            return Err(syntax());
        }
        let name = authority.host().trim_matches(['[', ']']);
        let name = match (is_encrypted, name) {
            // It must not depend on a resolver that plain text stays on this machine.
            (false, "localhost") => "127.0.0.1",
            (_, name) => name,
        };
        let is_loopback = || {
            let ip: Option<std::net::IpAddr> = name.parse().ok();
            ip.is_some_and(|ip| ip.is_loopback())
        };
        if !is_encrypted && !is_loopback() {
            return Err(UrlFault::NotLoopback(url.to_owned()));
        }
        let server = is_encrypted.then(|| ServerName::try_from(name.to_owned()));
        Ok(OriginAddress {
            authority: authority.to_string(),
            name: name.to_owned(),
            port: authority
                .port_u16()
                .unwrap_or(if is_encrypted { 443 } else { 80 }),
            server: server.transpose().map_err(|_| syntax())?,
        })
    }

    /// Reads the authorities that can vouch for the origin, if it is one of TLS.
    pub(super) fn into_origin(self, authorities: Option<&Path>) -> Result<Origin, AuthorityError> {
        let tls = match self.server {
            None => None,
            Some(server) => Some(TlsClient {
                config: Arc::new(load_config(authorities)?),
                server,
            }),
        };
        Ok(Origin {
            authority: self.authority,
            name: self.name,
            port: self.port,
            tls,
        })
    }
}

impl Origin {
    /// Returns whether texts and the key travel encrypted.
    pub(super) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns scheme, host and port, as the URIs of requests begin.
    pub(super) fn base_url(&self) -> String {
        let scheme = if self.is_encrypted() { "https" } else { "http" };
        format!("{scheme}://{}", self.authority)
    }

    /// Returns a client whose requests all go to this origin.
    pub(super) fn into_client(self) -> Client<Origin, Full<Bytes>> {
        Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .build(self)
    }

    async fn connect(self) -> io::Result<EngineStream> {
        let connecting = async {
            let socket = TcpStream::connect((self.name.as_str(), self.port)).await?;
            // Without it, a short request waits for the acknowledgement of the one before.
            let _ = socket.set_nodelay(true);
            let Some(TlsClient { config, server }) = self.tls else {
                return Ok(EngineStream(Box::pin(socket)));
            };
            let encrypted = TlsConnector::from(config).connect(server, socket).await?;
            Ok(EngineStream(Box::pin(encrypted)))
        };
        let connection = timeout(CONNECT_TIMEOUT, connecting).await;
        connection.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }
}

/// Connects to the origin, whatever a request's URI names.
impl Service<Uri> for Origin {
    type Response = TokioIo<EngineStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<EngineStream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connecting = self.clone().connect();
        Box::pin(async { connecting.await.map(TokioIo::new) })
    }
}

/// A stream of bytes in both directions.
trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> Duplex for S {}

/// A connection to an engine, encrypted or not.
pub(super) struct EngineStream(Pin<Box<dyn Duplex>>);

impl AsyncRead for EngineStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_read(context, buffer)
    }
}

impl AsyncWrite for EngineStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.as_mut().poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_shutdown(context)
    }
}

impl Connection for EngineStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

/// Returns the settings of TLS 1.3 with the authorities in a file, or those of the system.
fn load_config(authorities: Option<&Path>) -> Result<ClientConfig, AuthorityError> {
    let path = match authorities {
        Some(path) => path.to_owned(),
        None => find_authorities().ok_or(AuthorityError::Missing)?,
    };
    let unusable = |why: String| AuthorityError::Unusable {
        path: path.clone(),
        why,
    };
    let text = std::fs::read(&path).map_err(|error| unusable(error.to_string()))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| unusable(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found);
    if added == 0 {
        return Err(unusable("it holds no certificate in PEM".to_owned()));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| unusable(error.to_string()))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn find_authorities() -> Option<PathBuf> {
    let named = std::env::var_os(AUTHORITIES_VARIABLE).map(PathBuf::from);
    let known = AUTHORITY_FILES.iter().map(PathBuf::from);
    named.or_else(|| known.into_iter().find(|path| path.is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<OriginAddress, UrlFault> {
        OriginAddress::read(
            url,
            &url.parse().map_err(|_| UrlFault::Syntax(url.to_owned()))?,
        )
    }

    #[test]
    fn plain_text_stays_on_this_machine_and_tls_goes_to_one_host() {
        let local = read("http://localhost:8000/v1/").unwrap();
        assert_eq!((local.name.as_str(), local.port), ("127.0.0.1", 8000));
        assert_eq!(local.server, None);
        assert!(read("http://[::1]:80").is_ok());
        let far = read("https://api.example.org/openai/v1").unwrap();
        assert_eq!((far.name.as_str(), far.port), ("api.example.org", 443));
        assert!(far.server.is_some());
        assert!(read("https://127.0.0.1:8443/v1").unwrap().server.is_some());
        for plain in [
            "http://10.0.0.1/v1",
            "http://example.org",
            "http://0.0.0.0:80",
        ] {
            let fault = read(plain).unwrap_err();
            assert!(matches!(fault, UrlFault::NotLoopback(_)), "{plain}");
        }
        assert!(matches!(read("ftp://a/v1"), Err(UrlFault::Scheme(_))));
        // A port that is none would be taken for that of the scheme.
        for wrong in ["", "127.0.0.1:8000", "https://h:84433/v1", "https://h:/v1"] {
            assert!(matches!(read(wrong), Err(UrlFault::Syntax(_))), "{wrong}");
        }
        for secret in ["https://h/?key=5ecret", "https://5ecret@h/v1"] {
            let fault = read(secret).unwrap_err();
            assert!(matches!(fault, UrlFault::Secret), "{secret}");
            assert!(!fault.to_string().contains("5ecret"), "{fault}");
        }
    }

    #[test]
    fn a_file_without_a_certificate_vouches_for_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("authority.pem");
        let load = || {
            let address = read("https://localhost/v1").unwrap();
            address.into_origin(Some(&path)).unwrap_err().to_string()
        };
        assert!(load().contains("authority.pem"));
        std::fs::write(&path, "no certificate").unwrap();
        assert!(load().contains("holds no certificate"));
    }
}
