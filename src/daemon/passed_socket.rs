//! Selects the socket that a service manager passes; the listener validates it.

use rustix::fd::OwnedFd;

use crate::server::{Listener, PassedSocketError};
use crate::sys::{self, PassedDescriptor};

#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error(
        "the descriptors that were passed cannot be taken: {0}: LISTEN_FDS and LISTEN_FDNAMES must agree"
    )]
    Variables(#[from] std::io::Error),
    #[error("the socket `{name}` was passed and cannot be used: {source}")]
    NotTaken { name: String, source: PassedSocketError },
    #[error(
        "{count} sockets were passed ({names}) and one is needed: \
         write FileDescriptorName={NAME} in its unit, or pass no other"
    )]
    WhichOne { count: usize, names: String },
}

/// Returns the passed socket, ready to listen; `None`: none was passed, so the daemon makes its own.
pub(super) fn listener() -> Result<Option<Listener>, Unusable> {
    let Some((name, descriptor)) = choose(sys::take_passed_descriptors()?)? else { return Ok(None) };
    Listener::from_passed(descriptor).map(Some).map_err(|source| Unusable::NotTaken { name, source })
}

/// Selects the descriptor with our name, or the only one under any name.
fn choose(passed: Vec<PassedDescriptor>) -> Result<Option<(String, OwnedFd)>, Unusable> {
    let mut named: Vec<_> = passed.into_iter().map(|passed| (passed.name, passed.descriptor)).collect();
    let ours = named.iter().filter(|(name, _)| name == NAME).count();
    if ours == 1 {
        named.retain(|(name, _)| name == NAME);
    }
    if named.len() > 1 {
        let names = named.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(Unusable::WhichOne { count: named.len(), names });
    }
    Ok(named.pop())
}

/// The name in the packaged unit.
const NAME: &str = "clients";

#[cfg(test)]
mod tests {
    use super::choose;
    use crate::sys::PassedDescriptor;

    #[test]
    fn takes_named_socket_or_the_only_one() {
        type Row<'a> = (&'a [&'a str], Result<Option<&'a str>, ()>);
        let table: &[Row<'_>] = &[
            (&[], Ok(None)),
            (&["clients"], Ok(Some("clients"))),
            (&["unknown"], Ok(Some("unknown"))),
            (&["metrics", "clients", "other"], Ok(Some("clients"))),
            (&["a", "b"], Err(())),
            (&["clients", "clients"], Err(())),
        ];
        for (names, expected) in table {
            let passed = names.iter().map(|name| {
                let (descriptor, _) = std::os::unix::net::UnixStream::pair().unwrap();
                PassedDescriptor { descriptor: descriptor.into(), name: (*name).to_owned() }
            });
            let chosen = choose(passed.collect()).map(|chosen| chosen.map(|(name, _)| name)).map_err(drop);
            assert_eq!(chosen, expected.map(|name| name.map(str::to_owned)), "{names:?}");
        }
    }
}
