//! The options of a client.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::client::Client;
use crate::decision::Decision;
use crate::fallback::{Fallback, RateError};
use crate::wire::{Elements, Value};

/// The options of a client.
#[derive(Default)]
pub struct ClientBuilder {
    pub(crate) socket: Option<PathBuf>,
    timeout: Option<Duration>,
    pool: Option<String>,
    slots: u32,
    pub(crate) is_disabled: bool,
    /// `TIDEGATE_DISABLE`, if it is set.
    pub(crate) off: Option<String>,
    pub(crate) fallback: Option<Fallback>,
    pub(crate) logger: Option<Logger>,
    pub(crate) on_decision: Option<Observer>,
}

type Logger = Box<dyn Fn(&str) + Send + Sync>;
type Observer = Box<dyn Fn(&Decision, Duration) + Send + Sync>;

impl ClientBuilder {
    /// Sets the path of the socket; else `TIDEGATE_SOCKET`, else the default paths.
    #[must_use]
    pub fn socket(mut self, path: impl Into<PathBuf>) -> ClientBuilder {
        self.socket = Some(path.into());
        self
    }

    /// Sets the deadline of a whole call; else `TIDEGATE_TIMEOUT_MS`, else 20 ms.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the name of the application. One that is no name is logged, and refused by the daemon.
    #[must_use]
    pub fn pool(mut self, name: impl Into<String>) -> ClientBuilder {
        self.pool = Some(name.into());
        self
    }

    /// Sets the number of requests that this process works on at once.
    #[must_use]
    pub fn slots(mut self, slots: u32) -> ClientBuilder {
        self.slots = slots;
        self
    }

    /// `false` allows every request without any I/O, as `TIDEGATE_DISABLE=1` does.
    #[must_use]
    pub fn enabled(mut self, is_enabled: bool) -> ClientBuilder {
        self.is_disabled = !is_enabled;
        self
    }

    /// Limits in this process while the daemon is unreachable: each set of attributes at a rate such as `20/s`.
    ///
    /// # Errors
    /// It is not a rate.
    pub fn fallback(self, rate: &str) -> Result<ClientBuilder, RateError> {
        self.fallbacks([("*", rate)])
    }

    /// As [`fallback`](ClientBuilder::fallback), by the rule that bound such requests last; `*` is for the rest.
    ///
    /// # Errors
    /// One is not a rate.
    pub fn fallbacks<'r>(
        mut self,
        rates: impl IntoIterator<Item = (&'r str, &'r str)>,
    ) -> Result<ClientBuilder, RateError> {
        self.fallback = Some(Fallback::new(rates)?);
        Ok(self)
    }

    /// Replaces warnings of `tracing`.
    #[must_use]
    pub fn logger(mut self, logger: impl Fn(&str) + Send + Sync + 'static) -> ClientBuilder {
        self.logger = Some(Box::new(logger));
        self
    }

    /// Calls a function after each decision but a peek, with its time. It must not block; a panic is logged once.
    #[must_use]
    pub fn on_decision(
        mut self,
        observer: impl Fn(&Decision, Duration) + Send + Sync + 'static,
    ) -> ClientBuilder {
        self.on_decision = Some(Box::new(observer));
        self
    }

    /// Makes the client. Starts nothing and opens nothing.
    #[must_use]
    pub fn build(mut self) -> Client {
        let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let millis = variable("TIDEGATE_TIMEOUT_MS").filter(|_| self.timeout.is_none()).unwrap_or_default();
        let given = self.timeout.filter(|timeout| !timeout.is_zero()).or_else(|| read_millis(&millis));
        self.off = variable("TIDEGATE_DISABLE").filter(|value| !matches!(value.as_str(), "" | "0"));
        self.is_disabled |= self.off.is_some();
        let client = Client::from_options(self, given.unwrap_or(TIMEOUT).min(TIMEOUT_MAX));
        if given.is_none() && !millis.is_empty() {
            client.log(&format!(
                "TIDEGATE_TIMEOUT_MS is \"{millis:.40}\", not above 0 and up to {MILLIS_MAX}: the timeout is 20 ms"
            ));
        }
        client
    }

    /// Returns the path of the socket, which the environment may change between two connections.
    pub(crate) fn path(&self) -> PathBuf {
        let given = std::env::var_os("TIDEGATE_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from);
        if let Some(path) = self.socket.clone().or(given) {
            return path;
        }
        let own = std::env::var_os("XDG_RUNTIME_DIR").map(|of| Path::new(&of).join("tidegate/tidegate.sock"));
        let own = own.filter(|path| path.is_absolute() && path.exists());
        own.unwrap_or_else(|| PathBuf::from("/run/tidegate/tidegate.sock"))
    }

    pub(crate) fn pool_name(&self) -> &str {
        self.pool.as_deref().unwrap_or("default")
    }

    /// Returns the elements of HELLO.
    pub(crate) fn hello(&self, session: &[u8], connection: u64) -> Elements {
        let info = [
            ("client", Value::Text(format!("rust/{}", env!("CARGO_PKG_VERSION")))),
            ("session", Value::Binary(session.to_vec())),
            ("pid", Value::Unsigned(std::process::id().into())),
            ("pool", Value::Text(self.pool_name().to_owned())),
            ("slots", Value::Unsigned(self.slots.into())),
            ("connection", Value::Unsigned(connection)),
        ];
        let info = info.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Elements::new(&[Value::Unsigned(PROTOCOL_VERSION), Value::Map(info)])
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// Reads digits with at most one point.
fn read_millis(text: &str) -> Option<Duration> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let millis: f64 = text
        .parse()
        .ok()
        .filter(|millis: &f64| is_plain && *millis > 0.0 && *millis <= f64::from(MILLIS_MAX))?;
    Some(Duration::from_secs_f64(millis / 1e3)).filter(|timeout| !timeout.is_zero())
}

const PROTOCOL_VERSION: u64 = 1;

/// The default of every client.
const TIMEOUT: Duration = Duration::from_millis(20);

/// The most of `TIDEGATE_TIMEOUT_MS`, as in every client.
const MILLIS_MAX: u32 = 10_000;

/// A longer one would never pass.
const TIMEOUT_MAX: Duration = Duration::from_secs(3_600);
