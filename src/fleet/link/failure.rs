//! Failures of Redis by class, as counted in metrics, and the errors of commands. Errors never hold a key, a
//! password or a text of the server, which may contain either.

use std::borrow::Cow;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use strum::VariantArray;

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum FailureClass {
    /// There is no connection, or it broke.
    Down,
    Timeout,
    /// The server does not know the script, although it was just loaded.
    NoScript,
    ReadOnly,
    /// The server is reading its data.
    Loading,
    /// Another script has been running for too long.
    Busy,
    /// The server has reached maxmemory and may not evict.
    Oom,
    /// The server takes no writes: it has too few replicas, or cannot save its data.
    NoWrites,
    /// The cluster does not serve the slot, or is moving it.
    ClusterDown,
    MasterDown,
    NoPerm,
    /// The password is missing, cannot be read or is wrong.
    Auth,
    Tls,
    /// The reply is malformed or exceeds a bound.
    Protocol,
    /// Another error of the server, reported by its code.
    Other,
}

impl FailureClass {
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The class of an error code, the first word of an error reply.
    pub(super) fn of_code(code: &str) -> FailureClass {
        match code {
            "NOSCRIPT" => FailureClass::NoScript,
            "READONLY" => FailureClass::ReadOnly,
            "LOADING" => FailureClass::Loading,
            "BUSY" => FailureClass::Busy,
            "OOM" => FailureClass::Oom,
            "NOREPLICAS" | "MISCONF" => FailureClass::NoWrites,
            "CLUSTERDOWN" | "TRYAGAIN" | "MOVED" | "ASK" | "CROSSSLOT" => FailureClass::ClusterDown,
            "MASTERDOWN" => FailureClass::MasterDown,
            "NOPERM" => FailureClass::NoPerm,
            "NOAUTH" | "WRONGPASS" => FailureClass::Auth,
            _ => FailureClass::Other,
        }
    }

    /// Whether only an operator can fix the cause.
    pub(super) fn is_of_rights(self) -> bool {
        matches!(self, FailureClass::NoPerm | FailureClass::Auth)
    }

    /// Whether the server refuses every command of this host, whatever its keys.
    pub(in crate::fleet) fn is_of_all_commands(self) -> bool {
        use FailureClass::{Busy, Loading, MasterDown, NoWrites, Oom};
        self.ends_the_connection() || matches!(self, Busy | Loading | MasterDown | NoWrites | Oom)
    }

    /// Whether the connection must be closed, since another server or user is needed.
    pub(super) fn ends_the_connection(self) -> bool {
        self.is_of_rights() || self == FailureClass::ReadOnly
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {why}", class.name())]
pub struct LinkError {
    pub class: FailureClass,
    /// Whether the script may have run nevertheless; the caller then resends the same bytes.
    pub may_have_run: bool,
    pub(super) why: Cow<'static, str>,
}

impl LinkError {
    pub(super) fn new(class: FailureClass, why: impl Into<Cow<'static, str>>) -> LinkError {
        LinkError { class, may_have_run: false, why: why.into() }
    }

    /// The error for an error reply, with its code.
    pub(super) fn of_reply(error: &redis::ServerError) -> LinkError {
        let code = error.code();
        // A command denied inside a script has another code: Redis 7.0 sends the first text, later versions
        // the second.
        let says = |text| error.details().is_some_and(|detail| detail.contains(text));
        let lacks_rights = says("The user executing the script") || says("ACL failure in script");
        let class = if lacks_rights { FailureClass::NoPerm } else { FailureClass::of_code(code) };
        let hint = match class {
            FailureClass::NoPerm => ": the user's ACL lacks a command, or a pattern of keys",
            FailureClass::Auth => ": the server does not accept the user or the password",
            FailureClass::ReadOnly => ": it is a replica",
            FailureClass::Oom => ": raise maxmemory",
            FailureClass::NoWrites => ": it has too few replicas, or cannot save its data",
            _ => "",
        };
        // Codes are short words in capitals; other text may hold anything.
        let is_code = code.len() <= 24 && code.bytes().all(|byte| byte.is_ascii_uppercase());
        let code = if is_code { code } else { "an error" };
        let why = format!("the server says {code}{hint}");
        // All other errors are found before the first write.
        let may_have_run = matches!(class, FailureClass::Other | FailureClass::NoPerm);
        LinkError { class, may_have_run, why: why.into() }
    }

    pub(super) fn of_io(error: &io::Error) -> LinkError {
        // Only the kind, as the text may hold the looked-up name.
        let why = match error.kind() {
            io::ErrorKind::NotFound => "there is no socket at its path, or no host of its name".into(),
            // The standard library has no kind for it.
            _ if error.to_string().starts_with("failed to lookup address") => UNKNOWN_NAME.into(),
            kind => kind.to_string(),
        };
        LinkError::new(FailureClass::Down, why)
    }

    pub fn is_unknown_name(&self) -> bool {
        self.why == UNKNOWN_NAME
    }
}

const UNKNOWN_NAME: &str = "no address of this name is known";

/// Failures by class: commands, connection attempts and broken connections.
#[derive(Debug, Default)]
pub(in crate::fleet) struct FailureCounts([AtomicU64; FailureClass::VARIANTS.len()]);

impl FailureCounts {
    pub(super) fn count(&self, class: FailureClass) {
        if let Some(count) = self.0.get(class as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(in crate::fleet) fn read(&self) -> Vec<(&'static str, u64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        FailureClass::VARIANTS.iter().map(|class| class.name()).zip(counts).collect()
    }
}
