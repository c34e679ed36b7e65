//! Opens a connection for commands: connects, performs the TLS handshake, authenticates and loads the scripts.
//! Password and authorities are read from their files each time, so that they may change.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

use redis::Value;
use rustix::fs::OFlags;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{CertificateError, ClientConfig, Error, RootCertStore};

use super::connection::{ServerConnection, ServerStream};
use super::failure::{FailureClass, LinkError};
use super::url::{ServerAddress, Url};
use super::{LinkOptions, Script};
use crate::clock::{Timestamp, read_boot_nanos};
use crate::fleet::round_trip::TIMEOUT_MAX;

/// Opens a connection with the scripts loaded, and returns it with its first round trip.
pub(super) async fn open(
    url: &Url,
    options: &LinkOptions,
    scripts: &[Script],
) -> Result<(ServerConnection, Duration), LinkError> {
    let password = in_time(read_credentials(options)).await?;
    let connection = ServerConnection::new(in_time(reach(url, options)).await?).await?;
    // Redis closes an unauthenticated connection at an argument over 16 KiB, as some scripts are, before the
    // reason arrives. So only the first script goes out with AUTH.
    let (first, rest) = scripts.split_at(scripts.len().min(1));
    let (mut commands, mut expected) = (redis::pipe(), Vec::new());
    if let Some(Password(password)) = &password {
        commands.cmd("AUTH").arg(&options.user).arg(password.as_slice());
        expected.push(Value::Okay);
    }
    if url.database > 0 {
        commands.cmd("SELECT").arg(url.database);
        expected.push(Value::Okay);
    }
    if scripts.is_empty() {
        commands.cmd("PING");
        expected.push(Value::SimpleString("PONG".into()));
    }
    load(first, &mut commands, &mut expected);
    let since = now();
    let replies = in_time(connection.send(&commands)).await?;
    let took = now().since(since);
    if let (Some(_), Some(Value::ServerError(error))) = (&password, replies.first())
        && LinkError::of_reply(error).class == FailureClass::Other
    {
        return Err(LinkError::new(FailureClass::Auth, "the server does not take this user or password"));
    }
    check(&replies, &expected)?;
    if !rest.is_empty() {
        let (mut commands, mut expected) = (redis::pipe(), Vec::new());
        load(rest, &mut commands, &mut expected);
        check(&in_time(connection.send(&commands)).await?, &expected)?;
    }
    Ok((connection, took))
}

pub(super) fn now() -> Timestamp {
    Timestamp::from_nanos(read_boot_nanos())
}

/// Bounds one step of an attempt. All steps take up to five round trips, and a server may be most of a second away.
async fn in_time<T>(step: impl Future<Output = Result<T, LinkError>>) -> Result<T, LinkError> {
    let timed_out =
        |_| Err(LinkError::new(FailureClass::Timeout, "no answer within two seconds while connecting"));
    timeout(TIMEOUT_MAX, step).await.unwrap_or_else(timed_out)
}

fn load(scripts: &[Script], commands: &mut redis::Pipeline, expected: &mut Vec<Value>) {
    for script in scripts {
        script.load(commands);
        expected.push(Value::BulkString(script.sha.clone().into_bytes()));
    }
}

fn check(replies: &[Value], expected: &[Value]) -> Result<(), LinkError> {
    match replies.iter().zip(expected).find(|(reply, expected)| reply != expected) {
        None => Ok(()),
        Some((Value::ServerError(error), _)) => Err(LinkError::of_reply(error)),
        Some(_) => Err(LinkError::new(FailureClass::Protocol, "the reply is not one of Redis")),
    }
}

/// A password, without `Debug` so that it is not printed.
pub(crate) struct Password(Vec<u8>);

async fn read_credentials(options: &LinkOptions) -> Result<Option<Password>, LinkError> {
    let Some(path) = options.password_file.clone() else { return Ok(None) };
    let wrong = move |path: &Path, cause| {
        LinkError::new(FailureClass::Auth, format!("the password file {}: {cause}", path.display()))
    };
    let read = move || read_password(&path).map_err(|cause| wrong(&path, cause));
    read_apart("password-file", read).await.map(Some)
}

/// Reads a file on its own thread, as the disk may hang. Without a thread it fails, where `spawn_blocking` of
/// tokio panics.
async fn read_apart<T: Send + 'static>(
    name: &str,
    read: impl FnOnce() -> Result<T, LinkError> + Send + 'static,
) -> Result<T, LinkError> {
    let (done, answer) = oneshot::channel();
    let spawned = Builder::new().name(name.into()).spawn(move || drop(done.send(read())));
    let failed =
        |cause: &dyn Display| LinkError::new(FailureClass::Down, format!("the {name} was not read: {cause}"));
    spawned.map_err(|error| failed(&format_args!("{error}: raise TasksMax of the unit")))?;
    answer.await.map_err(|error| failed(&error))?
}

/// Reads the file, without line ends after the password.
///
/// # Errors
/// The reason, without the path.
pub(crate) fn read_password(path: &Path) -> Result<Password, String> {
    let mut password = read_at_most(path, PASSWORD_BYTES_MAX + 2).map_err(|error| error.to_string())?;
    // Editors append a newline.
    let end = password.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r')).map_or(0, |last| last + 1);
    password.truncate(end);
    match password.len() {
        0 => Err("it is empty".to_owned()),
        length if length as u64 > PASSWORD_BYTES_MAX => {
            Err(format!("it is longer than {PASSWORD_BYTES_MAX} bytes"))
        }
        _ => Ok(Password(password)),
    }
}

/// Reads a file up to a maximum, as a device may never end. A named pipe without a writer reads as empty.
fn read_at_most(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

async fn reach(url: &Url, options: &LinkOptions) -> Result<Box<dyn ServerStream>, LinkError> {
    match &url.place {
        ServerAddress::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(|error| LinkError::of_io(&error))?;
            Ok(Box::new(stream))
        }
        ServerAddress::Tcp { host, port, tls } => {
            let config = if *tls { Some(read_authorities(options).await?) } else { None };
            let stream =
                TcpStream::connect((host.as_str(), *port)).await.map_err(|error| LinkError::of_io(&error))?;
            // Nagle's algorithm would only delay the commands.
            let _ = stream.set_nodelay(true);
            match config {
                None => Ok(Box::new(stream)),
                Some(config) => shake_hands(stream, host, config).await,
            }
        }
    }
}

async fn shake_hands(
    stream: TcpStream,
    host: &str,
    config: Arc<ClientConfig>,
) -> Result<Box<dyn ServerStream>, LinkError> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| tls("the host of the URL is no name that a certificate could bear"))?;
    let shaken = timeout(HANDSHAKE_TIMEOUT, TlsConnector::from(config).connect(name, stream)).await;
    let unanswered = |_| tls("no answer to the handshake: does the server speak TLS on this port?");
    match shaken.map_err(unanswered)? {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => Err(match error.get_ref().and_then(|cause| cause.downcast_ref::<Error>()) {
            Some(error) => what_tls_says(error),
            None => tls("the server ended the handshake: does it speak TLS on this port?"),
        }),
    }
}

fn what_tls_says(error: &Error) -> LinkError {
    use CertificateError as Bad;
    match error {
        Error::InvalidCertificate(Bad::UnknownIssuer | Bad::BadSignature) => {
            tls("the server's certificate is signed by no authority that is trusted here: see `ca_file`")
        }
        Error::InvalidCertificate(
            Bad::Expired | Bad::ExpiredContext { .. } | Bad::NotValidYet | Bad::NotValidYetContext { .. },
        ) => tls(
            "the server's certificate has expired or is not valid yet: renew it, or set this host's clock",
        ),
        Error::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => {
            tls("the server's certificate is not for the host that the URL names")
        }
        Error::InvalidCertificate(_) => tls("the server's certificate is not acceptable"),
        Error::AlertReceived(_) => tls("the server refused the handshake: does it ask for a certificate?"),
        _ => tls("the handshake failed: does the server speak TLS on this port?"),
    }
}

/// The TLS configuration, which trusts the authorities of the file, else those of the system.
async fn read_authorities(options: &LinkOptions) -> Result<Arc<ClientConfig>, LinkError> {
    let file = options.ca_file.clone();
    let roots = read_apart("ca-file", move || match file {
        Some(path) => authorities_of_file(&path)
            .map_err(|cause| tls(format!("the ca_file {}: {cause}", path.display()))),
        None => authorities_of_system(),
    });
    let roots = roots.await?;
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|_| tls("no version of TLS"))?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

/// Reads the authorities of a PEM file.
///
/// # Errors
/// The reason, without the path.
pub(crate) fn authorities_of_file(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let read = read_at_most(path, CA_BYTES_MAX + 1);
    let text = read.map_err(|error| format!("it cannot be read: {error}"))?;
    if text.len() as u64 > CA_BYTES_MAX {
        return Err(format!("it is longer than {CA_BYTES_MAX} bytes"));
    }
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|_| "it is no PEM file")?;
        roots.add(certificate).map_err(|_| "it holds a certificate that cannot be an authority")?;
    }
    if roots.is_empty() { Err("it holds no certificate".to_owned()) } else { Ok(roots) }
}

fn authorities_of_system() -> Result<RootCertStore, LinkError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(tls("this system trusts no authority: install ca-certificates or name a `ca_file`"));
    }
    Ok(roots)
}

fn tls(why: impl Into<std::borrow::Cow<'static, str>>) -> LinkError {
    LinkError::new(FailureClass::Tls, why)
}

/// A server without TLS waits for the end of a line. Less than the timeout of the step.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(1_500);

const PASSWORD_BYTES_MAX: u64 = 4_096;

/// Some times the authorities of a whole system.
const CA_BYTES_MAX: u64 = 4 << 20;
